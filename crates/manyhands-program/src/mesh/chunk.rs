//! A training program in chunks: what cutting gives and scheduling takes.

use serde::{Deserialize, Serialize};

use super::worker::Piece;
use crate::op::{Init, Role};
use crate::shape::TensorType;

/// A training program, cut into chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunked {
    /// How many chunks there are.
    pub n_chunks: usize,
    /// All pieces, in an order in which every value is given before it is taken.
    pub pieces: Vec<ChunkPiece>,
    /// The parameters, each with the chunks that hold it: the first is its home, where it is updated; the others have copies.
    pub parameters: Vec<ChunkParameter>,
    /// What each chunk costs per grain, forward and backward, in the unit in which it was balanced.
    pub costs: Vec<f64>,
    /// The bytes of the activations that cross each cut on their way to the loss, per grain.
    pub crossing: Vec<u64>,
}

impl Chunked {
    /// The same with so many neighbouring chunks in one, whose pieces stay apart: a chunk then runs several pieces in each phase.
    pub fn grouped(mut self, n: usize) -> Chunked {
        let n = n.max(1);
        self.pieces.iter_mut().for_each(|piece| piece.chunk /= n);
        for parameter in &mut self.parameters {
            parameter.chunks.iter_mut().for_each(|chunk| *chunk /= n);
            let mut seen = std::collections::BTreeSet::new();
            parameter.chunks.retain(|chunk| seen.insert(*chunk));
        }
        self.n_chunks = self.n_chunks.div_ceil(n);
        self.costs = self.costs.chunks(n).map(|costs| costs.iter().sum()).collect();
        let at_edges = self.crossing.iter().skip(n - 1).step_by(n);
        self.crossing = at_edges.copied().collect();
        self
    }
}

/// One piece of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkPiece {
    /// Whose it is.
    pub chunk: usize,
    /// When it runs.
    pub phase: Phase,
    /// What it computes. Values are bound by name: an input takes the value that an output of another piece has the name of.
    pub piece: Piece,
    /// Outputs that become the sums over all tensor parts right after it ran.
    pub reduced: Vec<String>,
}

/// When a piece runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// For every grain, towards the loss.
    Forward,
    /// For every grain, from the loss.
    Backward,
    /// For every grain: forward and backward in one, where there is one chunk.
    Whole,
    /// Once a step, before anything of the state changes: what chunks need of each other, such as norms.
    Prepare,
    /// Once a step, after the commit: new values of the parameters. Takes no values of other chunks but those that are there already.
    Update,
}

impl Phase {
    /// How pieces of it are called.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Whole => "whole",
            Phase::Prepare => "prepare",
            Phase::Update => "update",
        }
    }

    /// Whether it runs for every grain, not once a step.
    pub fn is_per_grain(self) -> bool {
        matches!(self, Phase::Forward | Phase::Backward | Phase::Whole)
    }
}

/// A parameter of a cut program.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkParameter {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// How its first value is made.
    pub init: Init,
    /// Its type.
    pub ty: TensorType,
    /// The chunks that hold it, its home first.
    pub chunks: Vec<usize>,
}
