//! Cross-entropy of logits that are cut along the classes: what parts need of each other is the largest logit, the sum of powers and the
//! logit of the label, one number per sample each.

use super::lookups::lookup;
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::mesh::tensor::layout::Layout;
use crate::mesh::tensor::parts::{Classes, Parts};
use crate::op::{Binary, Comparison, Op, Reduction, Unary};
use crate::program::{Node, ValueId};
use crate::shape::Shape;

/// Writes a cross-entropy over cut classes, or the gradient of one; says whether it was one.
pub(super) fn apply(parts: &mut Parts<'_>, node: &Node) -> Result<bool, ProgramError> {
    if !matches!(node.op, Op::CrossEntropy | Op::CrossEntropyGrad) {
        return Ok(false);
    }
    let layout = parts.layout(node.operands[0]);
    let last = parts.old.ty(node.operands[0]).shape.rank() - 1;
    let Some(cut) = layout.cut_at(last).filter(|cut| cut.blocks.len() == 1).cloned() else {
        return Ok(false);
    };
    let key = (node.operands[0], node.operands[1]);
    let classes = match parts.classes.get(&key) {
        Some(known) => *known,
        None => {
            let logits = parts.get(node.operands[0], &layout)?;
            let labels = lookup(parts, node.operands[1], &cut)?;
            let found = of_classes(parts, logits, [labels.own, labels.inside])?;
            parts.classes.insert(key, found);
            found
        }
    };
    if node.op == Op::CrossEntropy {
        let log = parts.emit(Op::Unary(Unary::Log), &[classes.sum])?;
        let loss = parts.emit(Op::Binary(Binary::Sub), &[log, classes.of_label])?;
        parts.bind(node.results[0], Layout::Whole, loss)?;
        return Ok(true);
    }
    let slope = parts.get(node.operands[2], &Layout::Whole)?;
    let ty = parts.ty(classes.powers).clone();
    let sum = spread(parts, classes.sum, &ty.shape)?;
    let chance = parts.emit(Op::Binary(Binary::Div), &[classes.powers, sum])?;
    let is_label = parts.emit(Op::Cast { dtype: ty.dtype }, &[classes.is_label])?;
    let off = parts.emit(Op::Binary(Binary::Sub), &[chance, is_label])?;
    let slope = spread(parts, slope, &ty.shape)?;
    let gradient = parts.emit(Op::Binary(Binary::Mul), &[off, slope])?;
    parts.bind(node.results[0], layout, gradient)?;
    Ok(true)
}

fn of_classes(
    parts: &mut Parts<'_>,
    logits: ValueId,
    [own_label, inside]: [ValueId; 2],
) -> Result<Classes, ProgramError> {
    let ty = parts.ty(logits).clone();
    let last = ty.shape.rank() - 1;
    let largest = largest(parts, logits)?;
    let largest = spread(parts, largest, &ty.shape)?;
    let below = parts.emit(Op::Binary(Binary::Sub), &[logits, largest])?;
    let powers = parts.emit(Op::Unary(Unary::Exp), &[below])?;
    let labels_dtype = parts.ty(own_label).dtype;
    let iota = Op::Iota { dtype: labels_dtype, shape: ty.shape.clone(), axis: last };
    let numbers = parts.emit(iota, &[])?;
    let label = spread(parts, own_label, &ty.shape)?;
    let same = parts.emit(Op::Compare(Comparison::Eq), &[numbers, label])?;
    let inside = spread(parts, inside, &ty.shape)?;
    let is_label = parts.emit(Op::Binary(Binary::And), &[same, inside])?;
    debug_assert_eq!(parts.ty(is_label).dtype, DType::Bool);
    let zeros = parts.full(&ty, 0.0)?;
    let of_label = parts.emit(Op::Select, &[is_label, below, zeros])?;
    // Both sums travel together.
    let total = Op::Reduce { kind: Reduction::Sum, axes: vec![last] };
    let single: Shape = ty.shape[..last].iter().copied().chain([1]).collect();
    let mut columns = Vec::new();
    for value in [powers, of_label] {
        let sum = parts.emit(total.clone(), &[value])?;
        columns.push(parts.emit(Op::Reshape { shape: single.clone() }, &[sum])?);
    }
    let both = parts.emit(Op::Concatenate { axis: last }, &columns)?;
    let both = parts.emit(Op::AllReduce, &[both])?;
    let mut column = |at: usize| {
        let (mut start, mut limit) = (vec![0; last + 1], single.to_vec());
        (start[last], limit[last]) = (at, at + 1);
        let column = parts.emit(Op::Slice { start, limit, stride: vec![1; last + 1] }, &[both])?;
        parts.emit(Op::Reshape { shape: Shape::from(&ty.shape[..last]) }, &[column])
    };
    Ok(Classes { sum: column(0)?, of_label: column(1)?, powers, is_label })
}

/// The largest logit of all parts: each puts its own beside those of the others.
fn largest(parts: &mut Parts<'_>, logits: ValueId) -> Result<ValueId, ProgramError> {
    let ty = parts.ty(logits).clone();
    let (last, n_parts) = (ty.shape.rank() - 1, parts.n_parts);
    let over_last = Op::Reduce { kind: Reduction::Max, axes: vec![last] };
    let own = parts.emit(over_last.clone(), &[logits])?;
    let single: Shape = ty.shape[..last].iter().copied().chain([1]).collect();
    let own = parts.emit(Op::Reshape { shape: single }, &[own])?;
    let zero = parts.scalar_each(ty.dtype, |_| 0.0)?;
    let beside = |part: usize| {
        let (mut low, mut high) = (vec![0; last + 1], vec![0; last + 1]);
        (low[last], high[last]) = (part, n_parts - 1 - part);
        Op::Pad { low, high, interior: vec![0; last + 1] }
    };
    let all = parts.emit_each(beside, &[own, zero])?[0];
    let all = parts.emit(Op::AllReduce, &[all])?;
    parts.emit(over_last, &[all])
}

/// One value per sample, for all classes.
fn spread(parts: &mut Parts<'_>, value: ValueId, shape: &Shape) -> Result<ValueId, ProgramError> {
    let axes = (0..shape.rank() - 1).collect();
    parts.emit(Op::Broadcast { shape: shape.clone(), axes }, &[value])
}
