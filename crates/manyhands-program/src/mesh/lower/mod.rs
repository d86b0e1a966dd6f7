//! From a cut program to what every worker of a mesh does: pieces and schedule become actions.
//!
//! Who gives a name sends it to whoever takes it, right after it is there; who takes it receives it right before the first piece that needs it.
//! Replicas share the grains of a step and join their sums along the tree; everybody comes together at the commit, and updates follow.

mod actions;
mod asynchronous;
mod bonds;
mod forget;
mod sums;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::schedule::{Schedule, ScheduleError, Slot, schedule};
use super::{Along, ChunkPiece, Chunked, Holding, Mesh, Phase, WorkerProgram};
use crate::error::ProgramError;
use actions::Lowering;
use asynchronous::check_asynchronous;
use bonds::Bonds;

/// How replicas share the grains of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shares {
    /// Each has a block of neighbours, cut where the tree is cut as far as the counts allow: few partial sums.
    #[default]
    Blocks,
    /// In turn, replica `d` of `D` has grains `d`, `d + D`, ...: all are at neighbouring grains at any time.
    Rounds,
}

/// A program that cannot be laid out over a mesh as asked.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum LowerError {
    #[error("a mesh has at least one worker along each axis, not data {} x pipeline {} x tensor {}", .mesh.data, .mesh.pipeline, .mesh.tensor)]
    NoWorkers { mesh: Mesh },
    #[error(
        "{n_stages} stages with {chunks_per_stage} chunks each are {} chunks, but the program was cut into {n_chunks}", .n_stages * .chunks_per_stage
    )]
    Chunks { n_chunks: usize, n_stages: usize, chunks_per_stage: usize },
    #[error(
        "{expected} workers along the tensor axis need as many parts of the program, not {found}"
    )]
    Parts { expected: usize, found: usize },
    #[error(
        "part {part} of the program is cut in another way than part 0: all must have the same pieces"
    )]
    PartsDiffer { part: usize },
    #[error("the value `{name}` is given by two pieces; a name has one giver")]
    GivenTwice { name: String },
    #[error("the piece \"{taker}\" takes the value `{name}`, which a later piece gives")]
    NotInOrder { name: String, taker: String },
    #[error(
        "the piece \"{taker}\" runs once a step but takes `{name}`, of which there is one per grain"
    )]
    GrainValueInStep { name: String, taker: String },
    #[error(
        "the piece \"{taker}\" runs for every grain but takes `{name}`, which is known once all grains are done"
    )]
    StepValueInGrain { name: String, taker: String },
    #[error(
        "the piece \"{taker}\" takes `{name}` of another chunk's update; what chunks need of each other belongs before the commit"
    )]
    AfterCommit { name: String, taker: String },
    #[error(
        "values of the piece \"{piece}\" are to be summed over parts after the commit; they belong into a piece before it"
    )]
    ReducedAfterCommit { piece: String },
    #[error(
        "an asynchronous pipeline updates with every grain by itself, which replicas and parts cannot share: its mesh has the pipeline axis alone, not {mesh}"
    )]
    AsynchronousMesh { mesh: Mesh },
    #[error(
        "an asynchronous pipeline updates every stage by itself, but \"{piece}\" needs `{name}` of another stage for its update; clipping by a norm over all weights is such a thing: leave it out, or take another schedule"
    )]
    AsynchronousAcross { piece: String, name: String },
    #[error(
        "an asynchronous pipeline updates every stage by itself, but the weight `{name}` is used by several; take another schedule, or cut elsewhere"
    )]
    AsynchronousTied { name: String },
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// What every worker does in a step. The mesh has one worker along its tensor axis; see [`lower_parts`].
pub fn lower(
    chunked: &Chunked,
    mesh: Mesh,
    n_grains: usize,
    kind: Schedule,
    chunks_per_stage: usize,
) -> Result<Vec<WorkerProgram>, LowerError> {
    let parts = std::slice::from_ref(chunked);
    lower_parts(parts, mesh, n_grains, kind, chunks_per_stage, Shares::Blocks)
}

/// As [`lower`], of a program that was split over parts: each has the same pieces, with shapes of its own.
pub fn lower_parts(
    parts: &[Chunked],
    mesh: Mesh,
    n_grains: usize,
    kind: Schedule,
    chunks_per_stage: usize,
    shares: Shares,
) -> Result<Vec<WorkerProgram>, LowerError> {
    check_shapes(parts, mesh, chunks_per_stage)?;
    let bonds = Bonds::new(&parts[0], mesh.pipeline)?;
    let shares = grains_of_replicas(shares, n_grains, mesh.data);
    let is_asynchronous = kind == Schedule::Asynchronous;
    if is_asynchronous {
        check_asynchronous(&parts[0], mesh)?;
    }
    let slots = shares.iter().map(|own| schedule(kind, mesh.pipeline, chunks_per_stage, own.len()));
    let slots = slots.collect::<Result<Vec<_>, _>>()?;
    let lowering =
        Lowering { mesh, n_grains, bonds: &bonds, shares: &shares, slots, is_asynchronous };
    (0..mesh.n_workers())
        .map(|worker| lowering.worker(&parts[mesh.position(worker).tensor], worker))
        .collect()
}

/// The grains of each replica, in rising order.
pub fn grains_of_replicas(shares: Shares, n_grains: usize, n_replicas: usize) -> Vec<Vec<usize>> {
    let n_sharing = n_replicas.min(n_grains).max(1);
    let replica_of = |grain: usize| match shares {
        Shares::Blocks => grain * n_sharing / n_grains.max(1),
        Shares::Rounds => grain % n_replicas.max(1),
    };
    let own = |replica: usize| (0..n_grains).filter(move |&grain| replica_of(grain) == replica);
    (0..n_replicas).map(|replica| own(replica).collect()).collect()
}

fn check_shapes(parts: &[Chunked], mesh: Mesh, chunks_per_stage: usize) -> Result<(), LowerError> {
    if mesh.n_workers() == 0 {
        return Err(LowerError::NoWorkers { mesh });
    }
    if parts.len() != mesh.tensor {
        return Err(LowerError::Parts { expected: mesh.tensor, found: parts.len() });
    }
    let (n_chunks, n_stages) = (parts[0].n_chunks, mesh.pipeline);
    if n_chunks != n_stages * chunks_per_stage {
        return Err(LowerError::Chunks { n_chunks, n_stages, chunks_per_stage });
    }
    let is_like_first = |part: &Chunked| {
        let mut pairs = part.pieces.iter().zip(&parts[0].pieces);
        part.n_chunks == n_chunks
            && part.pieces.len() == parts[0].pieces.len()
            && pairs.all(|(one, other)| have_same_names(one, other))
    };
    match parts.iter().position(|part| !is_like_first(part)) {
        Some(part) => Err(LowerError::PartsDiffer { part }),
        None => check_reduced(&parts[0]),
    }
}

/// Whether two pieces take and give the same, whatever its shapes.
fn have_same_names(one: &ChunkPiece, other: &ChunkPiece) -> bool {
    let (left, right) = (&one.piece.program, &other.piece.program);
    let inputs = left.inputs().map(|(name, _)| name).eq(right.inputs().map(|(name, _)| name));
    let outputs = left.outputs().iter().map(|output| &output.name);
    let is_same =
        (one.chunk, one.phase, &one.reduced) == (other.chunk, other.phase, &other.reduced);
    inputs && outputs.eq(right.outputs().iter().map(|output| &output.name)) && is_same
}

fn check_reduced(chunked: &Chunked) -> Result<(), LowerError> {
    let mut updates = chunked.pieces.iter().filter(|piece| piece.phase == Phase::Update);
    match updates.find(|piece| !piece.reduced.is_empty()) {
        Some(piece) => Err(LowerError::ReducedAfterCommit { piece: piece.piece.name.clone() }),
        None => Ok(()),
    }
}

/// What a stage holds of the parameters.
fn holdings(chunked: &Chunked, stage: usize, n_stages: usize) -> Vec<Holding> {
    let is_here = |chunk: &usize| chunk % n_stages == stage;
    let own = chunked.parameters.iter().filter(|parameter| parameter.chunks.iter().any(is_here));
    own.map(|parameter| Holding {
        name: parameter.name.clone(),
        role: parameter.role,
        init: parameter.init,
        ty: parameter.ty.clone(),
        along: Along::Whole,
        is_copy: !parameter.chunks.first().is_some_and(is_here),
    })
    .collect()
}

#[cfg(test)]
pub(in crate::mesh) mod tests;
