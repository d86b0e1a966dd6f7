//! What each operation makes of values that are cut or summands: a rule per operation. Where there is none, operands are made whole, so
//! that every program is right, if not every one fast.

mod layout_moves;
mod lookups;
mod networks;
mod products;
mod vocabulary;

use super::layout::{Cut, Layout};
use super::parts::Parts;
use crate::error::ProgramError;
use crate::op::{Binary, Op, Unary};
use crate::program::{Node, ValueId};

/// What an operation does on the parts: how it takes its operands, the operation itself, and how its results lie.
pub(super) struct Rule {
    operands: Vec<Layout>,
    op: Op,
    results: Vec<Layout>,
}

impl Rule {
    /// A rule of an operation with one result.
    fn one(operands: Vec<Layout>, op: Op, result: Layout) -> Rule {
        Rule { operands, op, results: vec![result] }
    }
}

/// A node with how its operands lie.
pub(super) struct Site<'a, 'b> {
    pub(super) parts: &'a Parts<'b>,
    pub(super) node: &'b Node,
}

impl Site<'_, '_> {
    fn layout(&self, operand: usize) -> Layout {
        self.parts.layout(self.node.operands[operand])
    }

    fn cut(&self, operand: usize) -> Option<Cut> {
        self.layout(operand).cut().cloned()
    }

    fn shape(&self, operand: usize) -> &[usize] {
        &self.parts.old.ty(self.node.operands[operand]).shape
    }

    fn result_shape(&self) -> &crate::shape::Shape {
        &self.parts.old.ty(self.node.results[0]).shape
    }

    fn is_partial(&self, operand: usize) -> bool {
        self.parts.is_partial(self.node.operands[operand])
    }

    fn n_parts(&self) -> usize {
        self.parts.n_parts
    }
}

/// Writes an operation of the whole program for the parts.
pub(super) fn apply(parts: &mut Parts<'_>, node_idx: usize) -> Result<(), ProgramError> {
    parts.node_idx = node_idx;
    let node = &parts.old.nodes()[node_idx];
    let written = lookups::apply(parts, node)?
        || vocabulary::apply(parts, node)?
        || networks::dropout(parts, node)?;
    if written {
        return Ok(());
    }
    let rule = rule(&Site { parts, node }).unwrap_or_else(|| Rule {
        operands: vec![Layout::Whole; node.operands.len()],
        op: node.op.clone(),
        results: vec![Layout::Whole; node.results.len()],
    });
    let mut operands = Vec::with_capacity(node.operands.len());
    for (&operand, layout) in node.operands.iter().zip(&rule.operands) {
        operands.push(parts.get(operand, layout)?);
    }
    let results = parts.emit_each(|_| rule.op.clone(), &operands)?;
    for ((&old, layout), new) in node.results.iter().zip(rule.results).zip(results) {
        parts.bind(old, layout, new)?;
    }
    Ok(())
}

/// The rule of an operation, if an operand is not whole and there is one.
fn rule(site: &Site<'_, '_>) -> Option<Rule> {
    let cut_or_partial = |&operand: &ValueId| site.parts.layout(operand) != Layout::Whole;
    if !site.node.operands.iter().any(cut_or_partial) {
        return None;
    }
    match &site.node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast { .. } => {
            elementwise(site)
        }
        Op::GrainSum => {
            let layout = site.layout(0);
            Some(Rule::one(vec![layout.clone()], Op::GrainSum, layout))
        }
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::ScatterAdd { .. }
        | Op::Reduce { .. }
        | Op::Argmax { .. }
        | Op::BlockSquareSums => layout_moves::rule(site),
        Op::Matmul { .. } => products::matmul(site),
        Op::Convolution(_) | Op::ConvolutionInputGrad { .. } | Op::ConvolutionKernelGrad { .. } => {
            products::convolution(site)
        }
        _ => networks::rule(site),
    }
}

/// Elementwise operations are done on the shares of a part where an operand is cut. Sums of summands are summands.
fn elementwise(site: &Site<'_, '_>) -> Option<Rule> {
    let (op, n) = (site.node.op.clone(), site.node.operands.len());
    if let Some(cut) = (0..n).find_map(|operand| site.cut(operand)) {
        let layout = Layout::Split(cut);
        return Some(Rule::one(vec![layout.clone(); n], op, layout));
    }
    let linear = matches!(op, Op::Unary(Unary::Neg) | Op::Binary(Binary::Add | Binary::Sub));
    let all_partial = (0..n).all(|operand| site.is_partial(operand));
    // One scalar more costs less than another sum over parts.
    let is_scalar = site.result_shape().rank() == 0;
    let same_type = matches!(&op, Op::Cast { dtype }
        if *dtype == site.parts.old.ty(site.node.operands[0]).dtype);
    (same_type || linear && (all_partial || is_scalar))
        .then(|| Rule::one(vec![Layout::Partial; n], op, Layout::Partial))
}
