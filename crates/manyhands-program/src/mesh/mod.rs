//! Programs for several workers: a strategy is a function from a training program and a mesh to one program per worker.
//!
//! A [`Mesh`] says how workers stand to each other. A [`WorkerProgram`] says all that one of them does in a step: which pieces of the
//! program it runs for which grains, and what it sends, receives, sums and gathers in between. Executor, printer, timeline, checker and
//! planner read that and nothing else.

mod along;
mod check;
mod chunk;
mod cut;
mod lower;
mod mirror;
mod schedule;
mod shard;
mod tensor;
mod worker;

pub use along::{AlongError, part_of, part_type, put_together};
pub use check::{Checked, Costs, Fault, Simulated, Span, Waiting, check, simulate};
pub use chunk::{ChunkParameter, ChunkPiece, Chunked, Phase};
pub use cut::{
    Activations, CROSSING_WEIGHT, CutError, Cutting, MeasuredCosts, NodeCost, Places, Probe,
    are_alike, balance, cut, positions, probe,
};
pub use lower::{LowerError, Shares, grains_of_replicas, lower, lower_parts};
pub use mirror::{MIRROR, mirror};
pub use schedule::{
    Schedule, ScheduleChecked, ScheduleError, ScheduleFault, Slot, bubble, check_schedule, schedule,
};
pub use shard::{
    KeptWhole, Level, ShardError, Sharded, Traffic, Verdict, shard, sharded_parameters, traffic,
};
pub use tensor::{Annotations, SplitError, SplitParameter, StaysWhole, TensorParts, Wish, split};
pub use worker::{
    Action, Along, Holding, Into, Piece, Place, SCATTERED, SumInto, WorkerProgram, shard_ranges,
};

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many workers there are along each axis. Workers are numbered with the tensor axis innermost and the data axis outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mesh {
    /// Replicas, which share the grains of a step.
    pub data: usize,
    /// Stages, each of which has some of the layers.
    pub pipeline: usize,
    /// Parts, each of which has a part of every split layer.
    pub tensor: usize,
}

/// Where a worker stands in a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Which replica it belongs to.
    pub data: usize,
    /// Which stage.
    pub pipeline: usize,
    /// Which part.
    pub tensor: usize,
}

/// One axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Replicas.
    Data,
    /// Stages.
    Pipeline,
    /// Parts.
    Tensor,
}

impl Default for Mesh {
    fn default() -> Mesh {
        Mesh { data: 1, pipeline: 1, tensor: 1 }
    }
}

impl Mesh {
    /// The number of workers.
    pub fn n_workers(&self) -> usize {
        self.data.saturating_mul(self.pipeline).saturating_mul(self.tensor)
    }

    /// Where a worker stands.
    pub fn position(&self, worker: usize) -> Position {
        let (rest, tensor) = (worker / self.tensor.max(1), worker % self.tensor.max(1));
        Position {
            data: rest / self.pipeline.max(1),
            pipeline: rest % self.pipeline.max(1),
            tensor,
        }
    }

    /// The worker that stands somewhere.
    pub fn worker(&self, at: Position) -> usize {
        (at.data * self.pipeline + at.pipeline) * self.tensor + at.tensor
    }

    /// The workers that differ from one along an axis only, that one included, in order.
    pub fn along(&self, axis: Axis, worker: usize) -> Vec<usize> {
        let at = self.position(worker);
        match axis {
            Axis::Data => (0..self.data).map(|data| self.worker(Position { data, ..at })).collect(),
            Axis::Pipeline => (0..self.pipeline)
                .map(|pipeline| self.worker(Position { pipeline, ..at }))
                .collect(),
            Axis::Tensor => {
                (0..self.tensor).map(|tensor| self.worker(Position { tensor, ..at })).collect()
            }
        }
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = [("data", self.data), ("pipeline", self.pipeline), ("tensor", self.tensor)];
        let mut several = axes.iter().filter(|(_, n)| *n > 1).peekable();
        if several.peek().is_none() {
            return f.write_str("one worker");
        }
        for (idx, (name, n)) in several.enumerate() {
            write!(f, "{}{name} {n}", if idx > 0 { " x " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_positions_are_the_same_thing() {
        let mesh = Mesh { data: 2, pipeline: 3, tensor: 4 };
        for worker in 0..mesh.n_workers() {
            assert_eq!(mesh.worker(mesh.position(worker)), worker);
            for axis in [Axis::Data, Axis::Pipeline, Axis::Tensor] {
                assert!(mesh.along(axis, worker).contains(&worker));
            }
        }
        assert_eq!(mesh.along(Axis::Tensor, 5), [4, 5, 6, 7]);
        assert_eq!(mesh.along(Axis::Pipeline, 5), [1, 5, 9]);
        assert_eq!(mesh.along(Axis::Data, 5), [5, 17]);
        assert_eq!(mesh.to_string(), "data 2 x pipeline 3 x tensor 4");
        assert_eq!(Mesh::default().to_string(), "one worker");
    }
}
