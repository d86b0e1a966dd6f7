//! Rules of operations that move elements, and of reductions: each is the other's transpose.

use super::{Contributions, Forward};
use crate::builder::{Builder, Value};
use crate::error::ProgramError;
use crate::op::{Op, Reduction, SQUARE_BLOCK};
use crate::shape::Shape;

type Built = Result<Value, ProgramError>;

pub(super) fn contributions(forward: &Forward<'_>) -> Contributions {
    let g = forward.cotangent()?;
    let operands = &forward.operands;
    match &forward.node.op {
        Op::Broadcast { shape, axes } => {
            forward.each(|_| summed_back(g, shape, axes, &operands[0].shape()))
        }
        Op::Reshape { .. } => forward.each(|_| g.reshape(operands[0].shape())),
        Op::Transpose { order } => {
            let mut inverse = vec![0; order.len()];
            order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            forward.each(|_| g.transpose(&inverse))
        }
        Op::Concatenate { axis } => {
            let size = |value: &Value| value.shape()[*axis];
            forward.each(|operand| {
                let start = operands[..operand].iter().map(size).sum();
                g.slice_axis(*axis, start, start + size(&operands[operand]))
            })
        }
        Op::Slice { start, stride, .. } => {
            forward.each(|_| put_back(g, start, stride, &operands[0].shape()))
        }
        Op::Pad { low, high, interior } => forward.each(|operand| match operand {
            0 => unpadded(g, low, interior, &operands[0].shape()),
            _ => {
                let (one, inside) = (
                    forward.builder.scalar(g.dtype(), 1.0)?,
                    forward.builder.full(&operands[0].ty(), 0.0)?,
                );
                (g * inside.pad(&one, low, high, interior)?)?.sum_all()
            }
        }),
        Op::Gather { axis } => forward.each(|_| {
            let zeros = forward.builder.full(&operands[0].ty(), 0.0)?;
            zeros.scatter_add(*axis, &operands[1], g)
        }),
        Op::ScatterAdd { axis } => forward.each(|operand| match operand {
            0 => Ok(g.clone()),
            _ => g.gather(*axis, &operands[1]),
        }),
        Op::Reduce { kind, axes } => forward.each(|_| reduce(forward, g, *kind, axes)),
        Op::BlockSquareSums => forward.each(|_| block_square_sums(&operands[0], g)),
        _ => unreachable!("only layout operations and reductions come here"),
    }
}

/// Sums over the axes that a broadcast to `shape` added or stretched.
fn summed_back(g: &Value, shape: &Shape, axes: &[usize], own: &Shape) -> Built {
    let kept = |axis: &usize| {
        axes.iter().zip(own.iter()).any(|(to, &size)| to == axis && size == shape[*axis])
    };
    let repeated: Vec<usize> = (0..shape.rank()).filter(|axis| !kept(axis)).collect();
    g.sum(&repeated)?.reshape(own.clone())
}

/// The transpose of a slice: the elements where they came from, zeros elsewhere.
fn put_back(g: &Value, start: &[usize], stride: &[usize], own: &Shape) -> Built {
    let zero = g.builder().scalar(g.dtype(), 0.0)?;
    let interior: Vec<usize> = stride.iter().map(|step| step - 1).collect();
    let high = |axis: usize| match g.shape()[axis] {
        0 => own[axis] - start[axis],
        n => own[axis] - (start[axis] + (n - 1) * stride[axis] + 1),
    };
    let high: Vec<usize> = (0..own.rank()).map(high).collect();
    g.pad(&zero, start, &high, &interior)
}

/// The elements that a padding surrounded.
fn unpadded(g: &Value, low: &[usize], interior: &[usize], own: &Shape) -> Built {
    let stride: Vec<usize> = interior.iter().map(|gap| gap + 1).collect();
    let limit = |axis: usize| match own[axis] {
        0 => low[axis],
        n => low[axis] + (n - 1) * stride[axis] + 1,
    };
    let limit: Vec<usize> = (0..own.rank()).map(limit).collect();
    g.slice(low, &limit, &stride)
}

fn reduce(forward: &Forward<'_>, g: &Value, kind: Reduction, axes: &[usize]) -> Built {
    let (x, y) = (&forward.operands[0], &forward.results[0]);
    let shape = x.shape();
    let kept: Vec<usize> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).collect();
    let spread = |value: &Value| value.broadcast(shape.clone(), &kept);
    match kind {
        Reduction::Sum => spread(g),
        Reduction::Product => {
            // The product of the others is the product of all that are not zero over the own one, unless another is zero.
            let zeros = forward.builder.full(&x.ty(), 0.0)?;
            let ones = forward.builder.full(&x.ty(), 1.0)?;
            let is_zero = x.equal(&zeros)?;
            let nonzero = is_zero.select(&ones, x)?;
            let counted = is_zero.select(&ones, &zeros)?;
            let others_are_zero = (spread(&counted.sum(axes)?)? - &counted)?.greater(&zeros)?;
            let others = (spread(&nonzero.reduce(Reduction::Product, axes)?)? / &nonzero)?;
            spread(g)? * others_are_zero.select(&zeros, &others)?
        }
        Reduction::Max | Reduction::Min => {
            let largest = x.equal(&spread(y)?)?.cast(g.dtype())?;
            let share = (g / largest.sum(axes)?)?;
            largest * spread(&share)?
        }
    }
}

fn block_square_sums(x: &Value, g: &Value) -> Built {
    let (n, n_blocks) = (x.shape().n_elements(), g.shape()[0]);
    let spread = g.broadcast([n_blocks, SQUARE_BLOCK], &[0])?.reshape([n_blocks * SQUARE_BLOCK])?;
    let own = spread.slice_axis(0, 0, n)?.reshape(x.shape())?;
    (x * own)? * 2.0
}

/// Where contributions are what slices of an axis, one beside the other and together all of it, gave back: the axis and
/// the parts in order. Joined they are the gradient, and no zeros need be added.
pub(super) fn side_by_side(
    builder: &Builder,
    contributions: &[Value],
) -> Option<(usize, Vec<Value>)> {
    if contributions.len() < 2 {
        return None;
    }
    builder.inspect(|program| {
        let mut parts = Vec::new();
        let mut cut = None;
        for contribution in contributions {
            let node = program.definer(contribution.id());
            let Op::Pad { low, high, interior } = &node.op else { return None };
            let Op::Constant(filling) = &program.definer(node.operands[1]).op else { return None };
            let padded: Vec<usize> = (0..low.len()).filter(|&a| low[a] + high[a] > 0).collect();
            let &[axis] = padded.as_slice() else { return None };
            let zeros = filling.splat_value().is_some_and(|zero| zero == 0.0);
            if !zeros || interior.iter().any(|&gap| gap > 0) || *cut.get_or_insert(axis) != axis {
                return None;
            }
            parts.push((low[axis], high[axis], node.operands[0]));
        }
        let axis = cut?;
        parts.sort_by_key(|part| part.0);
        let whole = contributions[0].shape()[axis];
        let mut end = 0;
        for &(low, high, part) in &parts {
            if low != end || low + program.ty(part).shape[axis] + high != whole {
                return None;
            }
            end = whole - high;
        }
        let parts = parts.into_iter().map(|(.., part)| builder.value(part)).collect();
        (end == whole).then_some((axis, parts))
    })
}
