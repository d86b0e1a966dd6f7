//! The expression of a group: what each member reads, as terms.

use super::grouping::Edges;
use crate::dtype::DType;
use crate::expression::{Expression, Spread, Term};
use crate::op::{Op, Unary};
use crate::passes::rewrite::splat;
use crate::program::{Node, Program, ValueId};
use crate::shape::Shape;

/// A fused operation in terms of the values of the old program.
pub(super) struct Draft {
    pub(super) expression: Expression,
    pub(super) operands: Vec<ValueId>,
    pub(super) results: Vec<ValueId>,
}

/// What a fused operation sees of an operand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Read {
    Number(f32),
    Value(ValueId, Spread),
}

/// Whether an operation can be a member of a group.
pub(super) fn fits(program: &Program, node: &Node) -> bool {
    let is_f32 = |value: ValueId| program.ty(value).dtype == DType::F32;
    match &node.op {
        Op::Unary(unary) => *unary != Unary::Not && is_f32(node.results[0]),
        Op::Binary(_) => is_f32(node.results[0]),
        Op::Select => is_f32(node.results[0]) && compares_f32(program, node.operands[0]),
        Op::Cast { dtype } => *dtype == DType::F32 && compares_f32(program, node.operands[0]),
        _ => false,
    }
}

fn compares_f32(program: &Program, truth: ValueId) -> bool {
    let node = program.definer(truth);
    matches!(node.op, Op::Compare(_)) && program.ty(node.operands[0]).dtype == DType::F32
}

/// How a member over `shape` reads a value: broadcasts and numbers are looked through.
pub(super) fn read(program: &Program, value: ValueId, shape: &Shape) -> Read {
    if let Some(number) = splat(program, value).filter(|number| number.is_finite()) {
        return Read::Number(number as f32);
    }
    let node = program.definer(value);
    if let Op::Broadcast { axes, .. } = &node.op {
        let source = node.operands[0];
        let own = &program.ty(source).shape;
        let first = shape.rank() - own.rank().min(shape.rank());
        let spread = if own.n_elements() == 0 {
            None
        } else if own.n_elements() == 1 {
            Some(Spread::Scalar)
        } else if shape.ends_with(own) && axes.iter().copied().eq(first..shape.rank()) {
            Some(Spread::Trailing)
        } else if shape.starts_with(own) && axes.iter().copied().eq(0..own.rank()) {
            Some(Spread::Leading)
        } else {
            None
        };
        if let Some(spread) = spread {
            return Read::Value(source, spread);
        }
    }
    Read::Value(value, Spread::Full)
}

/// The values that a member reads from outside itself.
pub(super) fn reads(program: &Program, node: &Node) -> Vec<ValueId> {
    let shape = &program.ty(node.results[0]).shape;
    let mut values = Vec::new();
    let mut add = |value: ValueId| match read(program, value, shape) {
        Read::Value(value, _) if !values.contains(&value) => values.push(value),
        _ => {}
    };
    for &operand in &node.operands {
        match program.ty(operand).dtype {
            DType::Bool => program.definer(operand).operands.iter().for_each(|&value| add(value)),
            _ => add(operand),
        }
    }
    values
}

impl Draft {
    /// The expression of some members, in program order.
    pub(super) fn of(program: &Program, members: &[usize], edges: &Edges) -> Draft {
        let nodes = members.iter().map(|&member| &program.nodes()[member]);
        let shape = &program.ty(program.nodes()[members[0]].results[0]).shape;
        let mut terms =
            Terms { program, shape, reads: Vec::new(), terms: Vec::new(), own: Vec::new() };
        for node in nodes {
            let term = terms.of_node(node);
            terms.own.push((node.results[0], term));
        }
        let (results, idxs) = terms
            .own
            .iter()
            .filter(|(value, _)| edges.leaves(program, program.definer_idx(*value), members))
            .copied()
            .unzip();
        let spreads = terms.operands().map(|(_, spread)| spread).collect();
        let operands = terms.operands().map(|(value, _)| value).collect();
        let expression = Expression { operands: spreads, terms: terms.terms, results: idxs };
        Draft { expression, operands, results }
    }

    pub(super) fn is_small(&self) -> bool {
        self.expression.terms.len() <= super::MAX_TERMS
            && self.operands.len() <= super::MAX_OPERANDS
            && self.results.len() <= super::MAX_RESULTS
    }
}

/// Terms being collected.
struct Terms<'a> {
    program: &'a Program,
    shape: &'a Shape,
    /// What was read from outside, with the term that holds it.
    reads: Vec<(Read, u32)>,
    terms: Vec<Term>,
    /// The members so far, with their terms.
    own: Vec<(ValueId, u32)>,
}

impl Terms<'_> {
    fn operands(&self) -> impl Iterator<Item = (ValueId, Spread)> {
        self.reads.iter().filter_map(|(read, _)| match read {
            Read::Value(value, spread) => Some((*value, *spread)),
            Read::Number(_) => None,
        })
    }

    fn push(&mut self, term: Term) -> u32 {
        self.terms.push(term);
        self.terms.len() as u32 - 1
    }

    fn of_node(&mut self, node: &Node) -> u32 {
        let operand = |terms: &mut Self, idx: usize| terms.of_value(node.operands[idx]);
        let term = match node.op {
            Op::Unary(unary) => Term::Unary(unary, operand(self, 0)),
            Op::Binary(binary) => {
                let (a, b) = (operand(self, 0), operand(self, 1));
                Term::Binary(binary, a, b)
            }
            Op::Select => {
                let condition = self.of_comparison(node.operands[0]);
                let (yes, no) = (operand(self, 1), operand(self, 2));
                Term::Select(condition, yes, no)
            }
            // A truth value as a number is a choice between 1 and 0.
            _ => {
                let condition = self.of_comparison(node.operands[0]);
                let (one, zero) =
                    (self.of_read(Read::Number(1.0)), self.of_read(Read::Number(0.0)));
                Term::Select(condition, one, zero)
            }
        };
        self.push(term)
    }

    /// The term of a comparison; the same one is made once.
    fn of_comparison(&mut self, truth: ValueId) -> u32 {
        let node = self.program.definer(truth);
        let (a, b) = (self.of_value(node.operands[0]), self.of_value(node.operands[1]));
        let Op::Compare(comparison) = node.op else {
            unreachable!("members take only truth values that are comparisons")
        };
        let term = Term::Compare(comparison, a, b);
        match self.terms.iter().position(|known| *known == term) {
            Some(idx) => idx as u32,
            None => self.push(term),
        }
    }

    fn of_value(&mut self, value: ValueId) -> u32 {
        let member = |value: ValueId| self.own.iter().find(|(own, _)| *own == value);
        if let Some(&(_, term)) = member(value) {
            return term;
        }
        match read(self.program, value, self.shape) {
            // A member behind a broadcast that repeats nothing.
            Read::Value(value, _) if let Some(&(_, term)) = member(value) => term,
            read => self.of_read(read),
        }
    }

    fn of_read(&mut self, read: Read) -> u32 {
        let same = |known: &Read| match (*known, read) {
            (Read::Number(a), Read::Number(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        if let Some(&(_, term)) = self.reads.iter().find(|(known, _)| same(known)) {
            return term;
        }
        let term = match read {
            Read::Number(number) => Term::Number(number),
            Read::Value(..) => Term::Operand(self.operands().count() as u32),
        };
        let idx = self.push(term);
        self.reads.push((read, idx));
        idx
    }
}
