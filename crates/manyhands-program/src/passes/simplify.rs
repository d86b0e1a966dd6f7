//! Simplification: operations that do nothing, or that two others do as one. Only where every bit stays: `x * 1` and
//! `x - 0` are `x`, but `x + 0` is not, because -0 + 0 is 0.

use super::rewrite::{Rewriter, Rewritten, in_bodies, splat};
use crate::error::ProgramError;
use crate::infer::infer;
use crate::op::{Binary, Op, Reduction, Unary};
use crate::program::{Node, Program, ValueId};
use crate::shape::Shape;

/// Replaces operations by simpler ones.
pub fn simplify(program: &Program) -> Rewritten {
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        let op = in_bodies(&node.op, &mut simplify)?;
        let operands = rewriter.operands(node)?;
        match simpler(&mut rewriter, &op, &operands, node)? {
            Some(value) => rewriter.set(node.results[0], value),
            None => rewriter.replace(node, op, &operands)?,
        }
    }
    super::dead_code(&rewriter.finish()?)
}

type Found = Result<Option<ValueId>, ProgramError>;

/// The value that may stand for an operation's result, if a rule knows one.
fn simpler(rewriter: &mut Rewriter<'_>, op: &Op, operands: &[ValueId], node: &Node) -> Found {
    if let Some(same) = unchanged(rewriter.program(), op, operands) {
        return Ok(Some(same));
    }
    if let Some((op, operands)) = composed(rewriter.program(), op, operands) {
        // The shorter operation may itself be one that another rule knows.
        let again = simpler(rewriter, &op, &operands, node)?;
        return match again {
            Some(value) => Ok(Some(value)),
            None => rewriter.emit_one(op, &operands, &node.scope).map(Some),
        };
    }
    of_scalars(rewriter, op, operands, node)
}

/// The operand that the operation gives back as it is.
fn unchanged(program: &Program, op: &Op, operands: &[ValueId]) -> Option<ValueId> {
    let &first = operands.first()?;
    let shape = &program.ty(first).shape;
    let same = match op {
        Op::Reshape { shape: to } => shape == to,
        Op::Broadcast { shape: to, axes } => shape == to && in_order(axes),
        Op::Transpose { order } => in_order(order),
        Op::Cast { dtype } => program.ty(first).dtype == *dtype,
        Op::Slice { start, limit, stride } => {
            start.iter().all(|&s| s == 0)
                && limit[..] == shape[..]
                && stride.iter().all(|&s| s == 1)
        }
        Op::Pad { low, high, interior } => {
            low.iter().chain(high).chain(interior).all(|&size| size == 0)
        }
        Op::Concatenate { .. } => operands.len() == 1,
        // A sum starts from +0, which makes +0 of -0.
        Op::Reduce { kind, axes } => axes.is_empty() && *kind != Reduction::Sum,
        Op::Dropout { rate, .. } => *rate == 0.0,
        Op::Unary(Unary::Neg) => {
            let inner = program.definer(first);
            return (inner.op == Op::Unary(Unary::Neg)).then(|| inner.operands[0]);
        }
        Op::Binary(binary) => return neutral(program, *binary, first, operands[1]),
        _ => false,
    };
    same.then_some(first)
}

/// The operand of a binary operation whose other operand changes nothing.
fn neutral(program: &Program, binary: Binary, lhs: ValueId, rhs: ValueId) -> Option<ValueId> {
    let is = |value: ValueId, number: f64| {
        splat(program, value).is_some_and(|found| found.to_bits() == number.to_bits())
    };
    // The zero that changes nothing when it is added to a float is -0.
    let zero = if program.ty(lhs).dtype.is_float() { -0.0 } else { 0.0 };
    match binary {
        Binary::Mul if is(rhs, 1.0) => Some(lhs),
        Binary::Mul if is(lhs, 1.0) => Some(rhs),
        Binary::Div if is(rhs, 1.0) => Some(lhs),
        Binary::Sub if is(rhs, 0.0) => Some(lhs),
        Binary::Add if is(rhs, zero) => Some(lhs),
        Binary::Add if is(lhs, zero) => Some(rhs),
        _ => None,
    }
}

fn in_order(axes: &[usize]) -> bool {
    axes.iter().copied().eq(0..axes.len())
}

/// One operation that does what this one and the one before it do.
fn composed(program: &Program, op: &Op, operands: &[ValueId]) -> Option<(Op, Vec<ValueId>)> {
    let &first = operands.first()?;
    let before = program.definer(first);
    match (op, &before.op) {
        (Op::Reshape { shape }, Op::Reshape { .. }) => {
            Some((Op::Reshape { shape: shape.clone() }, before.operands.clone()))
        }
        (Op::Transpose { order }, Op::Transpose { order: inner }) => {
            let order = order.iter().map(|&axis| inner[axis]).collect();
            Some((Op::Transpose { order }, before.operands.clone()))
        }
        (Op::Broadcast { shape, axes }, Op::Broadcast { axes: inner, .. }) => {
            let axes = inner.iter().map(|&axis| axes[axis]).collect();
            Some((Op::Broadcast { shape: shape.clone(), axes }, before.operands.clone()))
        }
        // Whatever the order of equal elements, they stay equal.
        (
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. },
            Op::Broadcast { axes, .. },
        ) if axes.is_empty() => {
            let types = infer(op, &[program.ty(first)]).ok()?;
            let shape = types[0].shape.clone();
            Some((Op::Broadcast { shape, axes: Vec::new() }, before.operands.clone()))
        }
        (Op::Transpose { order }, _) => {
            let shape = &program.ty(first).shape;
            let long = order.iter().filter(|&&axis| shape[axis] != 1);
            let shape: Shape = order.iter().map(|&axis| shape[axis]).collect();
            long.is_sorted().then(|| (Op::Reshape { shape }, vec![first]))
        }
        (Op::Broadcast { shape, axes }, _) => broadcast(program, first, shape, axes),
        (Op::Matmul { transpose_lhs, transpose_rhs }, _) => {
            product(program, operands, *transpose_lhs, *transpose_rhs)
        }
        _ => None,
    }
}

/// A broadcast that repeats nothing is a reshape; one whose operand has axes of size 1 may be of a plainer operand.
fn broadcast(
    program: &Program,
    value: ValueId,
    shape: &Shape,
    axes: &[usize],
) -> Option<(Op, Vec<ValueId>)> {
    let own = &program.ty(value).shape;
    if own.n_elements() == shape.n_elements() && own.n_elements() > 0 {
        return Some((Op::Reshape { shape: shape.clone() }, vec![value]));
    }
    // A reshape that only adds axes of size 1 is undone, so that fusion sees what is spread.
    let before = program.definer(value);
    let Op::Reshape { .. } = before.op else { return None };
    let plain = &program.ty(before.operands[0]).shape;
    let long: Vec<usize> = (0..own.rank()).filter(|&axis| own[axis] != 1).collect();
    let plain_long = plain.iter().all(|&size| size != 1);
    let alike = plain_long && long.iter().map(|&axis| own[axis]).eq(plain.iter().copied());
    let axes = long.iter().map(|&axis| axes[axis]).collect();
    alike.then(|| (Op::Broadcast { shape: shape.clone(), axes }, before.operands.clone()))
}

/// A product of transposed matrices, as flags. Each element is the same chain of multiply-adds, so the bits stay.
fn product(
    program: &Program,
    operands: &[ValueId],
    transpose_lhs: bool,
    transpose_rhs: bool,
) -> Option<(Op, Vec<ValueId>)> {
    let source = |value: ValueId| {
        let node = program.definer(value);
        let Op::Transpose { order } = &node.op else { return None };
        let (leading, last) = order.split_at(order.len().checked_sub(2)?);
        let swaps = in_order(leading) && *last == [leading.len() + 1, leading.len()];
        swaps.then(|| node.operands[0])
    };
    let candidates = [
        source(operands[0]).map(|lhs| (!transpose_lhs, transpose_rhs, [lhs, operands[1]])),
        source(operands[1]).map(|rhs| (transpose_lhs, !transpose_rhs, [operands[0], rhs])),
    ];
    candidates.into_iter().flatten().find_map(|(transpose_lhs, transpose_rhs, [lhs, rhs])| {
        let op = Op::Matmul { transpose_lhs, transpose_rhs };
        // Not every product takes flags: one matrix for many on the left needs them upright.
        infer(&op, &[program.ty(lhs), program.ty(rhs)]).ok()?;
        Some((op, vec![lhs, rhs]))
    })
}

/// An elementwise operation on scalars that were spread is done once and spread after.
fn of_scalars(rewriter: &mut Rewriter<'_>, op: &Op, operands: &[ValueId], node: &Node) -> Found {
    if !op.is_elementwise() || rewriter.program().ty(operands[0]).shape.rank() == 0 {
        return Ok(None);
    }
    let scalar = |value: &ValueId| {
        let node = rewriter.program().definer(*value);
        match &node.op {
            Op::Broadcast { axes, .. } if axes.is_empty() => Some(node.operands[0]),
            _ => None,
        }
    };
    let Some(scalars) = operands.iter().map(scalar).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let shape = rewriter.program().ty(operands[0]).shape.clone();
    let one = rewriter.emit_one(op.clone(), &scalars, &node.scope)?;
    rewriter.emit_one(Op::Broadcast { shape, axes: Vec::new() }, &[one], &node.scope).map(Some)
}
