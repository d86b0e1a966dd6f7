//! Cutting: a training program in chunks, each a run of the way to the loss with the gradients that come back through it.
//!
//! The grain half is sorted into what leads to the loss and what follows from it (`grain.rs`), the first is cut (`places.rs`, `balance.rs`), the
//! second and the step half (`step.rs`) go to where what they take is. Nodes keep their order and their operations, so bits stay. Bodies of scans
//! and conds run as one operation and are never cut.

mod balance;
mod error;
mod grain;
mod graph;
mod pieces;
mod places;
mod probe;
mod step;
#[cfg(test)]
mod tests;

pub use balance::balance;
pub use error::CutError;
pub use probe::{MeasuredCosts, Probe, probe};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::chunk::{ChunkParameter, ChunkPiece, Chunked, Phase};
use crate::error::ProgramError;
use crate::grains::{GrainSplit, split_grains};
use crate::op::Op;
use crate::partials::is_sum;
use crate::passes::{dead_code, fuse_attention, simplify, subexpressions};
use crate::program::Program;
use grain::{Grain, Part};
use graph::{Freely, Graph};
use pieces::{Pieces, Turn};

/// What a byte that crosses a cut counts, in operations, unless said otherwise: links are slower than memory.
pub const CROSSING_WEIGHT: f64 = 8.0;

/// What an operation costs, by its index in a program.
pub type NodeCost<'a> = dyn Fn(&Program, usize) -> f64 + 'a;

/// How a program is cut.
pub struct Cutting<'a> {
    /// Into how many chunks.
    pub n_chunks: usize,
    /// Where.
    pub places: Places,
    /// What is kept of forward for backward.
    pub recompute: Activations,
    /// What an operation of the per-grain half costs, such as measured times; counted from shapes unless given.
    pub cost: Option<&'a NodeCost<'a>>,
    /// What a byte that crosses a cut costs, in the unit of `cost`.
    pub crossing_weight: f64,
    /// Whether the program is simplified before it is cut, where its last grain allows that: see [`are_alike`].
    pub simplifies: bool,
}

/// Where a program is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Places {
    /// Where chunks cost about the same.
    #[default]
    Balanced,
    /// Before these layers.
    Before(Vec<String>),
    /// Before these positions on the way to the loss, in order, as [`positions`] tells them.
    At(Vec<usize>),
}

/// What a chunk keeps of its forward for its backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// All that backward takes.
    #[default]
    Keep,
    /// Results of dear operations; what is cheap is computed again from them.
    Selected,
    /// Only what comes into the chunk; its forward is done again.
    Again,
}

impl Cutting<'_> {
    /// So many chunks, balanced by counted costs, with all activations kept.
    pub fn balanced(n_chunks: usize) -> Cutting<'static> {
        Cutting {
            n_chunks,
            places: Places::Balanced,
            recompute: Activations::Keep,
            cost: None,
            crossing_weight: CROSSING_WEIGHT,
            simplifies: true,
        }
    }
}

/// Cuts a training program; `last` is the same for a shorter last grain.
pub fn cut(
    program: &Program,
    last: Option<&Program>,
    cutting: &Cutting<'_>,
) -> Result<Chunked, CutError> {
    let (program, split, last) = split_alike(program, last, cutting.simplifies)?;
    let grain = Grain::of(&split)?;
    let of_spine = places::chunks_of_spine(&grain, cutting)?;
    let chunks = grain.place(&of_spine, cutting.n_chunks);
    let prefix = free_prefix(&program, "v");
    let per_grain = grain_pieces(&grain, &split, &chunks, cutting, prefix);
    let mut pieces = per_grain.emit(last.as_ref().map(|last| &last.grain))?;

    let sums = chunks_of_sums(&pieces);
    let step = Graph::of(&split.step, Freely::Step);
    let homes = step::find_homes(&program, &step, &sums, homes_in_grains(&pieces));
    let per_step = step::step_pieces(&step, &sums, &homes, free_prefix(&program, "s"));
    pieces.extend(per_step.emit(None)?);

    let mut costs = vec![0.0; cutting.n_chunks];
    for (node, cost) in places::node_costs(&grain, cutting).into_iter().enumerate() {
        if grain.parts[node] != Part::Free {
            costs[chunks[node]] += cost;
        }
    }
    let bytes = places::crossing_bytes(&grain);
    let crossing = (1..cutting.n_chunks)
        .map(|chunk| of_spine.iter().position(|&own| own == chunk).map_or(0, |at| bytes[at]))
        .collect();
    let parameters = parameters(&program, &pieces, &homes);
    Ok(Chunked { n_chunks: cutting.n_chunks, pieces, parameters, costs, crossing })
}

/// Where a training program would be cut: the positions on its way to the loss at which all chunks but the first begin. Programs of one structure can be cut
/// at the same ones, whatever the size of their grains.
pub fn positions(
    program: &Program,
    last: Option<&Program>,
    cutting: &Cutting<'_>,
) -> Result<Vec<usize>, CutError> {
    let (_, split, _) = split_alike(program, last, cutting.simplifies)?;
    let of_spine = places::chunks_of_spine(&Grain::of(&split)?, cutting)?;
    Ok((1..of_spine.len()).filter(|&at| of_spine[at] != of_spine[at - 1]).collect())
}

/// A program after passes, its halves, and the halves of the same for a shorter last grain.
type Alike = (Program, GrainSplit, Option<GrainSplit>);

/// Runs as many passes as leave both programs with the same structure: an axis of one sample lets more of a program be left out than an axis of two.
fn split_alike(
    program: &Program,
    last: Option<&Program>,
    simplifies: bool,
) -> Result<Alike, CutError> {
    let split = |passes: Passes| -> Result<Alike, CutError> {
        let program = passes(program)?;
        let split = split_grains(&program)?;
        let last = last.map(|last| split_grains(&passes(last)?)).transpose()?;
        if let Some(last) = &last {
            same_structure(&split, last)?;
        }
        Ok((program, split, last))
    };
    // The parts of a program that is split must have the same structure too, and each is cut by itself: what one can leave out, an offset of 0, others need.
    let is_part = program.nodes().iter().any(|node| node.op == Op::AllReduce);
    if is_part || !simplifies {
        return split(few_passes);
    }
    match split(all_passes) {
        Err(CutError::LastDiffers { .. }) => split(few_passes),
        outcome => outcome,
    }
}

/// Passes that keep bits and need no device.
type Passes = fn(&Program) -> Result<Program, ProgramError>;

fn all_passes(program: &Program) -> Result<Program, ProgramError> {
    let program = fuse_attention(&subexpressions(&dead_code(program)?)?)?;
    dead_code(&subexpressions(&simplify(&program)?)?)
}

/// Those that look at neither sizes nor the values of constants.
fn few_passes(program: &Program) -> Result<Program, ProgramError> {
    fuse_attention(&dead_code(program)?)
}

fn same_structure(split: &GrainSplit, last: &GrainSplit) -> Result<(), CutError> {
    let differs = |what: String| Err(CutError::LastDiffers { what });
    if split.step != last.step {
        return differs("what runs once a step depends on the size of a grain".to_string());
    }
    match unlike(&split.grain, &last.grain) {
        Some(what) => differs(what),
        None => Ok(()),
    }
}

/// How the structures of two programs differ, if they do.
fn unlike(one: &Program, other: &Program) -> Option<String> {
    let (nodes, others) = (one.nodes(), other.nodes());
    if nodes.len() != others.len() || one.outputs() != other.outputs() {
        return Some(format!("{} operations, not {}", others.len(), nodes.len()));
    }
    let mut pairs = nodes.iter().zip(others);
    let (one, other) = pairs
        .find(|(one, other)| one.op.name() != other.op.name() || one.operands != other.operands)?;
    Some(format!("`{}` is `{}`", one.op.name(), other.op.name()))
}

/// Whether the grains of programs for steps of several sizes still have one structure after they are simplified, so that they can be cut at the same positions.
pub fn are_alike<'a>(programs: impl IntoIterator<Item = &'a Program>) -> Result<bool, CutError> {
    let mut first: Option<Program> = None;
    for program in programs {
        let grain = split_grains(&all_passes(program)?)?.grain;
        match &first {
            Some(first) if unlike(first, &grain).is_some() => return Ok(false),
            Some(_) => {}
            None => first = Some(grain),
        }
    }
    Ok(true)
}

/// A prefix such that no name of the program looks like a value that crosses.
fn free_prefix(program: &Program, prefix: &str) -> String {
    let inputs = program.inputs().map(|(name, _)| name);
    let names: Vec<&str> =
        inputs.chain(program.outputs().iter().map(|output| output.name.as_str())).collect();
    let mut prefix = prefix.to_string();
    let looks_like = |name: &str, prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    while names.iter().any(|name| looks_like(name, &prefix)) {
        prefix.push('_');
    }
    prefix
}

/// The pieces of the grain half: forward from the first chunk to the last, backward from the last to the first.
fn grain_pieces<'a>(
    grain: &'a Grain<'a>,
    split: &GrainSplit,
    chunks: &[usize],
    cutting: &Cutting<'_>,
    prefix: String,
) -> Pieces<'a> {
    let n_chunks = cutting.n_chunks;
    let is_whole = n_chunks == 1 && cutting.recompute == Activations::Keep;
    let program = grain.graph.program;
    let mut pieces = Pieces::new(&grain.graph, prefix);
    let turn = |chunk: usize, is_forward: bool| match (is_whole, is_forward) {
        (true, _) => Turn { group: 0, level: 0, chunk, phase: Phase::Whole },
        (_, true) => Turn { group: chunk, level: 0, chunk, phase: Phase::Forward },
        (_, false) => {
            Turn { group: 2 * n_chunks - 1 - chunk, level: 0, chunk, phase: Phase::Backward }
        }
    };
    let mut levels = vec![0; chunks.len()];
    for node in (0..chunks.len()).filter(|&node| !grain.graph.free[node]) {
        let own = turn(chunks[node], grain.parts[node].is_forward());
        let waits = |operand: usize| {
            let made = pieces.turn(operand).filter(|made| made.group == own.group);
            let reduced = program.nodes()[operand].op == Op::AllReduce;
            made.map_or(0, |_| levels[operand] + usize::from(reduced))
        };
        let operands = grain.graph.operands[node].iter();
        levels[node] = operands.map(|&operand| waits(operand)).max().unwrap_or(0);
        pieces.put(node, Turn { level: levels[node], ..own });
    }
    // Sums of constants and of data as it came are given where the loss is.
    let at_the_loss = turn(n_chunks - 1, true);
    for output in split.grain.outputs() {
        pieces.name(output.name.clone(), output.value, at_the_loss);
    }
    let recompute = cutting.recompute;
    pieces.compute_again(&|node, made, turn| {
        let is_own = made.phase == Phase::Forward
            && turn.phase == Phase::Backward
            && made.chunk == turn.chunk;
        is_own
            && match recompute {
                Activations::Keep => false,
                Activations::Selected => is_cheap(&program.nodes()[node].op),
                Activations::Again => true,
            }
    });
    pieces.bind();
    pieces
}

/// Whether computing it again costs little more than reading it.
fn is_cheap(op: &Op) -> bool {
    op.is_elementwise()
        || matches!(
            op,
            Op::Broadcast { .. }
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Concatenate { .. }
                | Op::Slice { .. }
                | Op::Pad { .. }
                | Op::Iota { .. }
                | Op::Dropout { .. }
                | Op::Softmax
                | Op::LogSoftmax
                | Op::LayerNorm { .. }
                | Op::Fused(_)
        )
}

/// By name: the chunk that gives a sum over grains.
fn chunks_of_sums(pieces: &[ChunkPiece]) -> BTreeMap<String, usize> {
    let mut sums = BTreeMap::new();
    for piece in pieces {
        for output in piece.piece.program.outputs().iter().filter(|output| is_sum(&output.name)) {
            sums.insert(output.name.clone(), piece.chunk);
        }
    }
    sums
}

/// Parameters that grains read live in the first chunk whose forward reads them.
fn homes_in_grains(pieces: &[ChunkPiece]) -> step::Homes {
    let mut homes = step::Homes::new();
    let is_forward = |piece: &&ChunkPiece| piece.phase != Phase::Backward;
    let forward = pieces.iter().filter(is_forward);
    let backward = pieces.iter().filter(|piece| !is_forward(piece)).rev();
    for piece in forward.chain(backward) {
        for (name, ..) in piece.piece.program.parameters() {
            homes.entry(name.to_string()).or_insert(piece.chunk);
        }
    }
    homes
}

fn parameters(
    program: &Program,
    pieces: &[ChunkPiece],
    homes: &step::Homes,
) -> Vec<ChunkParameter> {
    let mut readers: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for piece in pieces {
        for (name, ..) in piece.piece.program.parameters() {
            readers.entry(name).or_default().insert(piece.chunk);
        }
    }
    let mut found = Vec::new();
    for node in program.nodes() {
        let Op::Parameter { name, role, init, .. } = &node.op else { continue };
        let home = homes.get(name).copied().unwrap_or(0);
        let readers = readers.get(name.as_str()).into_iter().flatten().copied();
        let others = readers.filter(|&chunk| chunk != home);
        found.push(ChunkParameter {
            name: name.clone(),
            role: *role,
            init: *init,
            ty: program.ty(node.results[0]).clone(),
            chunks: [home].into_iter().chain(others).collect(),
        });
    }
    found
}
