//! Pieces as lists of nodes: who computes what, who takes what from whom, and the programs that come of it.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Graph;
use crate::error::ProgramError;
use crate::mesh::chunk::{ChunkPiece, Phase};
use crate::mesh::worker::Piece;
use crate::op::Op;
use crate::passes::rewrite::Rewriter;
use crate::program::{Program, ValueId};

/// Where a piece stands among the others: pieces are sorted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// Pieces of an earlier group come first.
    pub group: usize,
    /// Within a group, what has to wait for others of it comes later.
    pub level: usize,
    pub chunk: usize,
    pub phase: Phase,
}

/// What a piece computes and gives.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Nodes that no other piece is asked for.
    pub nodes: BTreeSet<usize>,
    /// Nodes of other pieces that it computes again instead of taking their results.
    pub again: BTreeSet<usize>,
    /// What others take of it: the value, and whether it is one that was computed again.
    pub given: BTreeSet<(ValueId, bool)>,
    /// What it gives under a name of its own.
    pub outputs: Vec<(String, ValueId)>,
    /// The updates that it does, by their index in the program.
    pub updates: Vec<usize>,
}

/// One half of a program, in pieces.
pub(super) struct Pieces<'a> {
    pub graph: &'a Graph<'a>,
    /// Names of values that cross begin with it.
    pub prefix: String,
    pub contents: BTreeMap<Turn, Content>,
    /// By node: the piece that computes it.
    turns: Vec<Option<Turn>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(graph: &'a Graph<'a>, prefix: String) -> Pieces<'a> {
        let turns = vec![None; graph.free.len()];
        Pieces { graph, prefix, contents: BTreeMap::new(), turns }
    }

    /// Puts a node into a piece.
    pub(super) fn put(&mut self, node: usize, turn: Turn) {
        self.contents.entry(turn).or_default().nodes.insert(node);
        self.turns[node] = Some(turn);
    }

    /// The piece that a node is in.
    pub(super) fn turn(&self, node: usize) -> Option<Turn> {
        self.turns[node]
    }

    /// Names a result. A sum over tensor parts is there only after the piece that makes it, so a later one names it.
    pub(super) fn name(&mut self, name: String, value: ValueId, otherwise: Turn) {
        let node = self.graph.program.definer_idx(value);
        let turn = match self.turns[node] {
            Some(turn) if self.is_reduced(node) => Turn { level: turn.level + 1, ..turn },
            Some(turn) => turn,
            None => otherwise,
        };
        self.contents.entry(turn).or_default().outputs.push((name, value));
    }

    fn is_reduced(&self, node: usize) -> bool {
        self.graph.program.nodes()[node].op == Op::AllReduce
    }

    /// Has pieces compute again what `again` says of a node, the piece that makes it and the piece that needs it.
    pub(super) fn compute_again(&mut self, again: &dyn Fn(usize, Turn, Turn) -> bool) {
        let turns: Vec<Turn> = self.contents.keys().copied().collect();
        for turn in turns {
            let mut found = BTreeSet::new();
            let mut waiting: Vec<usize> = self.contents[&turn].nodes.iter().copied().collect();
            while let Some(node) = waiting.pop() {
                for &operand in &self.graph.operands[node] {
                    let Some(made) = self.turns[operand] else { continue };
                    let is_new = made != turn
                        && !self.is_reduced(operand)
                        && again(operand, made, turn)
                        && self.again_before(operand, turn).is_none();
                    if is_new && found.insert(operand) {
                        waiting.push(operand);
                    }
                }
            }
            self.contents.entry(turn).or_default().again = found;
        }
    }

    /// The earlier part of a backward that has computed a node again already.
    fn again_before(&self, node: usize, turn: Turn) -> Option<Turn> {
        if turn.phase != Phase::Backward {
            return None;
        }
        let first = Turn { level: 0, ..turn };
        let mut earlier = self.contents.range(first..turn);
        let has = |content: &Content| content.again.contains(&node);
        let found = earlier.find(|(other, content)| other.chunk == turn.chunk && has(content));
        found.map(|(&other, _)| other)
    }

    /// Finds out what each piece has to give to others.
    pub(super) fn bind(&mut self) {
        let mut given: Vec<(Turn, ValueId, bool)> = Vec::new();
        let program = self.graph.program;
        for (&turn, content) in &self.contents {
            let taken = content.nodes.iter().chain(&content.again);
            let taken = taken.flat_map(|&node| self.graph.taken(node));
            let named = content.outputs.iter().map(|(_, value)| *value);
            let updates = content.updates.iter().map(|&update| program.updates()[update].value);
            for value in taken.chain(named).chain(updates) {
                let node = program.definer_idx(value);
                if content.nodes.contains(&node) || content.again.contains(&node) {
                    continue;
                }
                if let Some(earlier) = self.again_before(node, turn) {
                    given.push((earlier, value, true));
                } else if let Some(made) = self.turns[node] {
                    given.push((made, value, false));
                }
            }
            let reduced = content.nodes.iter().filter(|&&node| self.is_reduced(node));
            given.extend(reduced.map(|&node| (turn, program.nodes()[node].results[0], false)));
        }
        for (turn, value, is_again) in given {
            self.contents.entry(turn).or_default().given.insert((value, is_again));
        }
    }

    /// The pieces, with those of a program of the same structure for the last grain.
    pub(super) fn emit(&self, last: Option<&Program>) -> Result<Vec<ChunkPiece>, ProgramError> {
        let mut pieces: Vec<ChunkPiece> = Vec::new();
        for (turn, content) in &self.contents {
            let (chunk, phase) = (turn.chunk, turn.phase);
            let n_before =
                pieces.iter().filter(|other| (other.chunk, other.phase) == (chunk, phase));
            let name = match n_before.count() {
                0 => format!("{} {chunk}", phase.name()),
                several => format!("{} {chunk}, part {}", phase.name(), several + 1),
            };
            let last = match last {
                Some(last) => Some(self.program(last, *turn, content)?),
                None => None,
            };
            let program = self.program(self.graph.program, *turn, content)?;
            let reduced = content.nodes.iter().filter(|&&node| self.is_reduced(node));
            let reduced = reduced.map(|&node| self.graph.program.nodes()[node].results[0]);
            let reduced = reduced.map(|value| self.value_name(value, false)).collect();
            pieces.push(ChunkPiece { chunk, phase, piece: Piece { name, program, last }, reduced });
        }
        Ok(pieces)
    }

    fn value_name(&self, value: ValueId, is_again: bool) -> String {
        format!("{}{}{}", self.prefix, value.idx(), if is_again { "_again" } else { "" })
    }

    fn program(
        &self,
        program: &Program,
        turn: Turn,
        content: &Content,
    ) -> Result<Program, ProgramError> {
        let mut writer = Writer { pieces: self, rewriter: Rewriter::new(program), program, turn };
        let mut nodes: Vec<usize> = content.nodes.union(&content.again).copied().collect();
        nodes.sort_unstable();
        for node in nodes {
            let node = &program.nodes()[node];
            node.operands.iter().try_for_each(|&operand| writer.have(operand))?;
            match node.op {
                // The sum over tensor parts is taken of what the piece gives.
                Op::AllReduce => {
                    let value = writer.rewriter.get(node.operands[0])?;
                    writer.rewriter.set(node.results[0], value);
                }
                _ => writer.rewriter.keep(node)?,
            }
        }
        let mut outputs = Vec::new();
        let given = content.given.iter();
        let given = given.map(|&(value, is_again)| (self.value_name(value, is_again), value));
        for (name, value) in given.chain(content.outputs.iter().cloned()) {
            writer.have(value)?;
            outputs.push((name, writer.rewriter.get(value)?));
        }
        let mut updates = Vec::new();
        for &update in &content.updates {
            let update = &program.updates()[update];
            writer.have(update.parameter)?;
            writer.have(update.value)?;
            let get = |value| writer.rewriter.get(value);
            updates.push((get(update.parameter)?, get(update.value)?));
        }
        let mut written = writer.rewriter.into_program();
        outputs.into_iter().try_for_each(|(name, value)| written.add_output(name, value))?;
        updates.into_iter().try_for_each(|(at, value)| written.add_update(at, value))?;
        Ok(written)
    }
}

/// A piece's program while it is written.
struct Writer<'a, 'p> {
    pieces: &'a Pieces<'p>,
    rewriter: Rewriter<'a>,
    program: &'a Program,
    turn: Turn,
}

impl Writer<'_, '_> {
    /// Sees to it that a value is there: made again if it is free, else taken by its name.
    fn have(&mut self, value: ValueId) -> Result<(), ProgramError> {
        if self.rewriter.get(value).is_ok() {
            return Ok(());
        }
        let idx = self.program.definer_idx(value);
        let node = &self.program.nodes()[idx];
        if self.pieces.graph.free[idx] {
            node.operands.iter().try_for_each(|&operand| self.have(operand))?;
            return self.rewriter.keep(node);
        }
        let ty = self.program.ty(value).clone();
        let is_again = self.pieces.again_before(idx, self.turn).is_some();
        let name = self.pieces.value_name(value, is_again);
        let input = Op::Input { name, dtype: ty.dtype, shape: ty.shape };
        let taken = self.rewriter.emit_one(input, &[], &node.scope)?;
        self.rewriter.set(value, taken);
        Ok(())
    }
}
