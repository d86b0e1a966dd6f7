//! A once-a-step piece, cut to the shards of one replica.
//!
//! What is spread becomes a tensor of one axis. A norm of it needs the sums of all its blocks: a first piece gives those of the shard, they are gathered, and
//! what follows takes the whole list. So a piece becomes as many as its norms depend on each other, and one. Each computes anew what it needs from sums and parameters: nothing of
//! the size of a shard is kept between them, and nothing of the state has changed, since all but the last run before the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::{Action, Piece, WorkerProgram, shard_ranges};
use super::Level;
use crate::error::ProgramError;
use crate::op::{Op, Role};
use crate::passes::rewrite::Rewriter;
use crate::program::{Node, ValueId};
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// The pieces that a worker runs once a step, in order.
pub(super) fn once_pieces(worker: &WorkerProgram) -> Vec<usize> {
    let runs = worker.actions.iter().filter_map(|action| match action {
        Action::Run { piece, grain: None, .. } => Some(*piece),
        _ => None,
    });
    let (mut seen, mut pieces) = (BTreeSet::new(), Vec::new());
    pieces.extend(runs.filter(|piece| seen.insert(*piece)));
    pieces
}

/// Whether two workers do the same once a step.
pub(super) fn do_the_same(a: &WorkerProgram, b: &WorkerProgram) -> bool {
    let (own, other) = (once_pieces(a), once_pieces(b));
    own == other && own.iter().all(|&piece| a.pieces[piece].program == b.pieces[piece].program)
}

/// The value that has a replica's run of a weight.
pub(super) fn run_name(weight: &str) -> String {
    format!("shard/{weight}")
}

/// The value that has the next of a replica's run of a weight.
pub(super) fn next_name(weight: &str) -> String {
    format!("next/{weight}")
}

/// A part of a piece: what runs at once.
pub(super) struct Part {
    pub(super) piece: Piece,
    /// The weights of which it takes a run as a value.
    pub(super) reads: Vec<(String, Range<usize>)>,
    /// The sums of blocks that it gives, with the values that have them gathered.
    pub(super) norms: Vec<(String, String)>,
    /// The weights of which it gives the next run.
    pub(super) nexts: Vec<String>,
}

/// Where a piece is cut, and for whom.
pub(super) struct Cut<'a> {
    pub(super) piece_idx: usize,
    pub(super) piece: &'a Piece,
    /// By value: whether it is spread.
    pub(super) layout: &'a [bool],
    pub(super) level: Level,
    /// Which of how many replicas.
    pub(super) member: usize,
    pub(super) n_members: usize,
}

impl Cut<'_> {
    fn is_spread(&self, value: ValueId) -> bool {
        self.layout.get(value.idx()).copied().unwrap_or(false)
    }

    fn run(&self, value: ValueId) -> Range<usize> {
        let n_elements = self.piece.program.ty(value).shape.n_elements();
        shard_ranges(n_elements, self.n_members)[self.member].clone()
    }

    /// The sums of blocks that are gathered, by node, with how many gathers come before.
    fn norms(&self) -> BTreeMap<usize, usize> {
        let program = &self.piece.program;
        let mut depths = vec![0; program.n_values()];
        let mut norms = BTreeMap::new();
        for (idx, node) in program.nodes().iter().enumerate() {
            let mut depth =
                node.operands.iter().map(|value| depths[value.idx()]).max().unwrap_or(0);
            if node.op == Op::BlockSquareSums && self.is_spread(node.operands[0]) {
                norms.insert(idx, depth);
                depth += 1;
            }
            node.results.iter().for_each(|value| depths[value.idx()] = depth);
        }
        norms
    }

    /// The parts, in the order in which they run: those that give norms, and the one that does what the piece did.
    pub(super) fn parts(&self) -> Result<Vec<Part>, ProgramError> {
        let norms = self.norms();
        let n_gathers = norms.values().max().map_or(0, |depth| depth + 1);
        (0..=n_gathers).map(|depth| self.part(&norms, depth, n_gathers)).collect()
    }

    fn part(
        &self,
        norms: &BTreeMap<usize, usize>,
        depth: usize,
        n_gathers: usize,
    ) -> Result<Part, ProgramError> {
        let program = &self.piece.program;
        let is_last = depth == n_gathers;
        let roots: Vec<usize> = if is_last {
            let outputs = program.outputs().iter().map(|output| output.value);
            let updates =
                program.updates().iter().flat_map(|update| [update.parameter, update.value]);
            outputs.chain(updates).map(|value| program.definer_idx(value)).collect()
        } else {
            norms.iter().filter(|(_, own)| **own == depth).map(|(idx, _)| *idx).collect()
        };
        let is_given = |idx: usize| norms.get(&idx).is_some_and(|own| *own < depth);
        let needed = self.needed(&roots, &is_given);
        let mut rewriter = Rewriter::new(program);
        let mut reads = Vec::new();
        for (idx, node) in program.nodes().iter().enumerate().filter(|(idx, _)| needed[*idx]) {
            if is_given(idx) {
                let TensorType { dtype, shape } = program.ty(node.results[0]).clone();
                let name = self.gathered_name(idx);
                rewriter.replace(node, Op::Input { name, dtype, shape }, &[])?;
            } else {
                self.take(node, &mut rewriter, &mut reads)?;
            }
        }
        let (mut given, mut nexts, mut outputs, mut updates) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if is_last {
            for output in program.outputs() {
                outputs.push((output.name.clone(), rewriter.get(output.value)?));
            }
            for update in program.updates() {
                let value = rewriter.get(update.value)?;
                match self.weight_as_value(program.definer(update.parameter)) {
                    Some(weight) => {
                        outputs.push((next_name(weight), value));
                        nexts.push(weight.to_string());
                    }
                    None => updates.push((rewriter.get(update.parameter)?, value)),
                }
            }
        } else {
            for &idx in &roots {
                let (blocks, gathered) = (self.blocks_name(idx), self.gathered_name(idx));
                outputs.push((blocks.clone(), rewriter.get(program.nodes()[idx].results[0])?));
                given.push((blocks, gathered));
            }
        }
        let mut part = rewriter.into_program();
        outputs.into_iter().try_for_each(|(name, value)| part.add_output(name, value))?;
        updates.into_iter().try_for_each(|(old, value)| part.add_update(old, value))?;
        let name = match is_last {
            true => self.piece.name.clone(),
            false => format!("{} norms {depth}", self.piece.name),
        };
        let piece = Piece { name, program: part, last: None };
        Ok(Part { piece, reads, norms: given, nexts })
    }

    fn needed(&self, roots: &[usize], is_given: &dyn Fn(usize) -> bool) -> Vec<bool> {
        let program = &self.piece.program;
        let mut needed = vec![false; program.nodes().len()];
        roots.iter().for_each(|&idx| needed[idx] = true);
        for (idx, node) in program.nodes().iter().enumerate().rev() {
            if needed[idx] && !is_given(idx) {
                node.operands.iter().for_each(|&one| needed[program.definer_idx(one)] = true);
            }
        }
        needed
    }

    fn blocks_name(&self, node: usize) -> String {
        format!("blocks/{}.{node}", self.piece_idx)
    }

    fn gathered_name(&self, node: usize) -> String {
        format!("norms/{}.{node}", self.piece_idx)
    }

    /// The name of a weight that every replica holds whole and updates a run of.
    fn weight_as_value<'n>(&self, node: &'n Node) -> Option<&'n str> {
        match &node.op {
            Op::Parameter { name, role: Role::Weight, .. }
                if self.level < Level::Weights && self.is_spread(node.results[0]) =>
            {
                Some(name)
            }
            _ => None,
        }
    }

    /// Takes over a node, cut if its results are spread.
    fn take(
        &self,
        node: &Node,
        rewriter: &mut Rewriter<'_>,
        reads: &mut Vec<(String, Range<usize>)>,
    ) -> Result<(), ProgramError> {
        let Some(&result) = node.results.first().filter(|result| self.is_spread(**result)) else {
            return rewriter.keep(node);
        };
        let (run, dtype) = (self.run(result), self.piece.program.ty(result).dtype);
        let shape = Shape::from([run.len()]);
        let op = match &node.op {
            Op::Input { name, .. } => Op::Input { name: name.clone(), dtype, shape },
            Op::Parameter { name, role, init, .. } => match self.weight_as_value(node) {
                Some(weight) => {
                    reads.push((weight.to_string(), run));
                    Op::Input { name: run_name(weight), dtype, shape }
                }
                None => {
                    Op::Parameter { name: name.clone(), dtype, shape, role: *role, init: *init }
                }
            },
            Op::Constant(tensor) => {
                // One that is not the same everywhere would have kept the parameter whole.
                let value = tensor.splat_value().unwrap_or_default();
                Op::Constant(Tensor::filled(TensorType { dtype, shape }, value)?)
            }
            Op::Broadcast { .. } => Op::Broadcast { shape, axes: Vec::new() },
            Op::Reshape { .. } => {
                let operand = rewriter.get(node.operands[0])?;
                rewriter.set(result, operand);
                return Ok(());
            }
            other => other.clone(),
        };
        let operands = rewriter.operands(node)?;
        rewriter.replace(node, op, &operands)
    }
}
