//! Operations that move elements without computing, and fused expressions.

use super::{
    Inferred, check_axes, check_axis, check_length, check_steps, index, one, same_dtype, take,
};
use crate::dtype::DType;
use crate::error::Problem;
use crate::expression::{Expression, Spread, Term};
use crate::op::Op;
use crate::shape::{Shape, TensorType};

pub(super) fn layout(op: &Op, operands: &[&TensorType]) -> Inferred {
    match op {
        Op::Broadcast { shape, axes } => {
            let [x] = take::<1>(operands, "one")?;
            check_axes(axes, shape.rank())?;
            let fits = axes.len() == x.shape.rank()
                && axes.iter().zip(x.shape.iter()).all(|(&a, &n)| n == 1 || n == shape[a]);
            if !fits {
                let (from, to) = (x.shape.clone(), shape.clone());
                return Err(Problem::NotBroadcastable { from, to, axes: axes.clone() });
            }
            one(x.dtype, shape.clone())
        }
        Op::Reshape { shape } => {
            let [x] = take::<1>(operands, "one")?;
            let (from, to) = (x.shape.n_elements(), shape.n_elements());
            if from != to {
                return Err(Problem::ElementCount { from, to, shape: shape.clone() });
            }
            one(x.dtype, shape.clone())
        }
        Op::Transpose { order } => {
            let [x] = take::<1>(operands, "one")?;
            let rank = x.shape.rank();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if sorted != (0..rank).collect::<Vec<_>>() {
                return Err(Problem::NotAPermutation { order: order.clone(), rank });
            }
            one(x.dtype, order.iter().map(|&axis| x.shape[axis]).collect())
        }
        Op::Concatenate { axis } => concatenate(*axis, operands),
        Op::Slice { start, limit, stride } => {
            let [x] = take::<1>(operands, "one")?;
            slice(x, start, limit, stride)
        }
        Op::Pad { low, high, interior } => {
            let [x, value] = take::<2>(operands, "two")?;
            same_dtype(x, value)?;
            super::expect_shape(1, value, &Shape::scalar())?;
            let rank = x.shape.rank();
            check_length("low", rank, low.len())?;
            check_length("high", rank, high.len())?;
            check_length("interior", rank, interior.len())?;
            check_steps("interior", interior)?;
            let size = |axis: usize| {
                let between = x.shape[axis].saturating_sub(1).saturating_mul(interior[axis]);
                [x.shape[axis], low[axis], high[axis], between]
                    .iter()
                    .fold(0usize, |a, &b| a.saturating_add(b))
            };
            one(x.dtype, (0..rank).map(size).collect())
        }
        Op::Gather { axis } => {
            let [x, indices] = take::<2>(operands, "two")?;
            index(1, indices)?;
            one(x.dtype, gathered(x, *axis, indices)?)
        }
        Op::ScatterAdd { axis } => {
            let [base, indices, updates] = take::<3>(operands, "three")?;
            index(1, indices)?;
            same_dtype(base, updates)?;
            super::reject_dtype(0, base.dtype, base.dtype == DType::Bool, "a number type")?;
            super::expect_shape(2, updates, &gathered(base, *axis, indices)?)?;
            Ok(vec![base.clone()])
        }
        _ => unreachable!("only layout operations come here"),
    }
}

fn gathered(x: &TensorType, axis: usize, indices: &TensorType) -> Result<Shape, Problem> {
    check_axis(axis, x.shape.rank())?;
    let (before, after) = (&x.shape[..axis], &x.shape[axis + 1..]);
    Ok(before.iter().chain(indices.shape.iter()).chain(after).copied().collect())
}

fn concatenate(axis: usize, operands: &[&TensorType]) -> Inferred {
    let Some((first, rest)) = operands.split_first() else {
        return Err(Problem::OperandCount { expected: "at least one", found: 0 });
    };
    check_axis(axis, first.shape.rank())?;
    let mut sizes = first.shape.to_vec();
    for operand in rest {
        same_dtype(first, operand)?;
        let alike = operand.shape.rank() == sizes.len()
            && (0..sizes.len()).all(|a| a == axis || operand.shape[a] == sizes[a]);
        if !alike {
            let (lhs, rhs) = (first.shape.clone(), operand.shape.clone());
            return Err(Problem::ShapesDiffer { lhs, rhs });
        }
        sizes[axis] = sizes[axis].saturating_add(operand.shape[axis]);
    }
    one(first.dtype, sizes.into())
}

fn slice(x: &TensorType, start: &[usize], limit: &[usize], stride: &[usize]) -> Inferred {
    let rank = x.shape.rank();
    check_length("start", rank, start.len())?;
    check_length("limit", rank, limit.len())?;
    check_length("stride", rank, stride.len())?;
    check_steps("stride", stride)?;
    let inside = |a: usize| start[a] <= limit[a] && limit[a] <= x.shape[a] && stride[a] > 0;
    if !(0..rank).all(inside) {
        return Err(Problem::SliceOutside {
            start: start.to_vec(),
            limit: limit.to_vec(),
            stride: stride.to_vec(),
            shape: x.shape.clone(),
        });
    }
    one(x.dtype, (0..rank).map(|a| (limit[a] - start[a]).div_ceil(stride[a])).collect())
}

/// The most operands and results of a fused expression; it may have sixteen times as many terms.
const LARGEST_EXPRESSION: usize = 32;

/// A fused expression: the first full operand gives the shape; every term refers to earlier ones.
pub(super) fn fused(expression: &Expression, operands: &[&TensorType]) -> Inferred {
    check_length("operands", operands.len(), expression.operands.len())?;
    let counts = [operands.len(), expression.results.len(), expression.terms.len() / 16];
    if counts.iter().any(|&n| n > LARGEST_EXPRESSION) {
        return Err(Problem::Attribute {
            attribute: "terms",
            expected: "at most 512 terms, 32 operands and 32 results",
            found: format!("{} terms", expression.terms.len()),
        });
    }
    let spreads = || expression.operands.iter().zip(operands);
    let Some((_, full)) = spreads().find(|(spread, _)| **spread == Spread::Full) else {
        return Err(Problem::OperandCount { expected: "at least one full", found: 0 });
    };
    for (idx, (spread, ty)) in spreads().enumerate() {
        super::reject_dtype(idx, ty.dtype, ty.dtype != DType::F32, "f32")?;
        let (all, own) = (&full.shape, &ty.shape);
        let fits = match spread {
            Spread::Full => own == all,
            Spread::Scalar => own.n_elements() == 1,
            Spread::Trailing => all.ends_with(own) && own.n_elements() > 0,
            Spread::Leading => all.starts_with(own) && own.n_elements() > 0,
        };
        if !fits {
            return Err(Problem::OperandShape {
                operand: idx,
                expected: all.clone(),
                found: own.clone(),
            });
        }
    }
    check_terms(expression)?;
    Ok(expression.results.iter().map(|_| (*full).clone()).collect())
}

fn check_terms(expression: &Expression) -> Result<(), Problem> {
    let bad = |found: String| Problem::Attribute {
        attribute: "terms",
        expected: "terms that use earlier ones, truth values only to select",
        found,
    };
    let mut truths: Vec<bool> = Vec::new();
    for (idx, term) in expression.terms.iter().enumerate() {
        let number = |t: u32| (t as usize) < idx && !truths[t as usize];
        let truth = |t: u32| (t as usize) < idx && truths[t as usize];
        let (fits, is_truth) = match *term {
            Term::Operand(operand) => ((operand as usize) < expression.operands.len(), false),
            Term::Number(number) => (number.is_finite(), false),
            Term::Unary(unary, a) => (unary.name() != "not" && number(a), false),
            Term::Binary(binary, a, b) => {
                (!matches!(binary.name(), "and" | "or" | "xor") && number(a) && number(b), false)
            }
            Term::Compare(_, a, b) => (number(a) && number(b), true),
            Term::Select(c, a, b) => (truth(c) && number(a) && number(b), false),
        };
        if !fits {
            return Err(bad(format!("term {idx}: {term:?}")));
        }
        truths.push(is_truth);
    }
    match expression.results.iter().find(|&&r| truths.get(r as usize) != Some(&false)) {
        Some(result) => Err(bad(format!("result {result}"))),
        None if expression.results.is_empty() => Err(bad("no results".to_string())),
        None => Ok(()),
    }
}
