//! Sharding along the data axis: what every replica would hold alike is spread over the replicas. A rewrite of worker programs.
//!
//! A parameter is cut into runs of elements that begin on the edges of the blocks in which norms are summed ([`shard_ranges`](super::shard_ranges)), so that
//! an update of a run gives the bits of that run of the whole update, norms included: the sums of the blocks are gathered, and added as one list.
//! What cannot be cut stays whole on every replica, and [`Sharded`] says why.
//!
//! Level 1 spreads the optimizer's parameters: sums over grains stay of full size until one reduce-scatter a step, and new weights are gathered after the
//! update. Level 2 scatters the sums of every grain at once, so that no full-size sum is kept. Level 3 spreads the weights too: they are gathered before a
//! piece that takes them, one piece ahead, and forgotten after it unless the next piece takes them as well.

mod actions;
mod decide;
mod once;
mod rounds;
mod traffic;

pub use decide::{KeptWhole, Sharded, Verdict};
pub use traffic::{Traffic, traffic};

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Mesh, WorkerProgram};
use crate::error::ProgramError;
use decide::Decision;

/// What is spread over the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Level {
    /// 1: the optimizer's parameters.
    Slots,
    /// 2: the gradients too.
    Gradients,
    /// 3: the weights too.
    Weights,
}

impl From<Level> for u8 {
    fn from(level: Level) -> u8 {
        match level {
            Level::Slots => 1,
            Level::Gradients => 2,
            Level::Weights => 3,
        }
    }
}

impl TryFrom<u8> for Level {
    type Error = ShardError;

    fn try_from(level: u8) -> Result<Level, ShardError> {
        match level {
            1 => Ok(Level::Slots),
            2 => Ok(Level::Gradients),
            3 => Ok(Level::Weights),
            level => Err(ShardError::NoLevel { level }),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {}", u8::from(*self))
    }
}

/// Why worker programs cannot be sharded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShardError {
    /// There is no such level.
    #[error(
        "there is no sharding level {level}: 1 spreads the optimizer's state, 2 gradients too, 3 weights too"
    )]
    NoLevel {
        /// What was asked for.
        level: u8,
    },
    /// There is nobody to share with.
    #[error(
        "sharding spreads over replicas, and a mesh of {mesh} has one: it takes at least 2 along the data axis"
    )]
    OneReplica {
        /// The mesh.
        mesh: Mesh,
    },
    /// The programs are not those of the mesh.
    #[error("a mesh of {mesh} has {} workers, and there are programs for {found}", mesh.n_workers())]
    Workers {
        /// The mesh.
        mesh: Mesh,
        /// How many programs there are.
        found: usize,
    },
    /// Replicas must do the same.
    #[error(
        "worker {worker} does not do once a step what worker {other} does, its replica: both must have been lowered from the same pieces"
    )]
    ReplicasDiffer {
        /// One of them.
        worker: usize,
        /// The other.
        other: usize,
    },
    /// Replicas with fewer grains must do a part of what the others do, in the same order.
    #[error(
        "worker {worker} runs its grains in another order than worker {other}, its replica, so they cannot scatter together: a number of grains that is a multiple of the replicas can"
    )]
    OrderDiffers {
        /// One of them.
        worker: usize,
        /// The other.
        other: usize,
    },
    /// Grains must be dealt in rounds.
    #[error(
        "the replicas come to grains {found:?} together, and sums can be scattered for grains one after the other only: {level} needs grains dealt to replicas in turn"
    )]
    NotInRounds {
        /// The level.
        level: Level,
        /// The grains of one round.
        found: Vec<usize>,
    },
    /// A piece of a program cannot be written.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// The worker programs in which what replicas hold alike is spread over them. `workers` are those of the mesh in order, with everything on every replica.
pub fn shard(
    workers: Vec<WorkerProgram>,
    mesh: Mesh,
    level: Level,
) -> Result<Vec<WorkerProgram>, ShardError> {
    let decision = decided(&workers, mesh)?;
    (0..workers.len()).map(|worker| actions::rewrite(&workers, worker, &decision, level)).collect()
}

/// Which parameters [`shard`] spreads and which stay whole, with the reason.
pub fn sharded_parameters(
    workers: &[WorkerProgram],
    mesh: Mesh,
) -> Result<Vec<Sharded>, ShardError> {
    Ok(decided(workers, mesh)?.parameters)
}

fn decided(workers: &[WorkerProgram], mesh: Mesh) -> Result<Decision, ShardError> {
    if mesh.data < 2 {
        return Err(ShardError::OneReplica { mesh });
    }
    if workers.len() != mesh.n_workers() {
        return Err(ShardError::Workers { mesh, found: workers.len() });
    }
    for worker in 0..workers.len() {
        let other = mesh.along(super::Axis::Data, worker)[0];
        if !once::do_the_same(&workers[worker], &workers[other]) {
            return Err(ShardError::ReplicasDiffer { worker, other });
        }
    }
    Ok(Decision::of(workers, mesh))
}

#[cfg(test)]
mod tests;
