//! What each operation takes and gives: the one place where shapes and types are decided.

mod layout;
mod network;
mod region;
mod rows;

use crate::dtype::DType;
use crate::error::Problem;
use crate::op::{Binary, Init, Op, Unary};
use crate::shape::{MAX_ELEMENTS, Shape, TensorType};

pub(crate) use region::MAX_NESTING;

pub(crate) type Inferred = Result<Vec<TensorType>, Problem>;

/// The most axes a tensor may have.
const MAX_AXES: usize = 32;

/// The types of an operation's results. Never panics, whatever the attributes: they may come from
/// outside.
pub(crate) fn infer(op: &Op, operands: &[&TensorType]) -> Inferred {
    let types = result_types(op, operands)?;
    types.iter().try_for_each(check_size)?;
    Ok(types)
}

/// Keeps sizes small enough that strides and byte counts never overflow, also where one axis is
/// empty and another huge.
fn check_size(ty: &TensorType) -> Result<(), Problem> {
    let rank = ty.shape.rank();
    if rank > MAX_AXES {
        return Err(Problem::TooManyAxes { rank, limit: MAX_AXES });
    }
    let extent = ty.shape.iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1)));
    if extent > MAX_ELEMENTS {
        return Err(Problem::TooLarge { ty: ty.clone() });
    }
    Ok(())
}

fn result_types(op: &Op, operands: &[&TensorType]) -> Inferred {
    match op {
        Op::Input { dtype, shape, .. } | Op::Iota { dtype, shape, .. } => {
            let [] = take::<0>(operands, "no")?;
            if let Op::Iota { axis, .. } = op {
                check_axis(*axis, shape.rank())?;
                reject_dtype(0, *dtype, *dtype == DType::Bool, "a number type")?;
            }
            one(*dtype, shape.clone())
        }
        Op::Parameter { dtype, shape, init, .. } => {
            let [] = take::<0>(operands, "no")?;
            let (Init::Constant(v) | Init::Uniform(v) | Init::Normal(v)) = *init;
            check_finite("init", v)?;
            one(*dtype, shape.clone())
        }
        Op::Constant(tensor) => {
            let [] = take::<0>(operands, "no")?;
            Ok(vec![tensor.ty().clone()])
        }
        Op::Random { shape, .. } => {
            random_context(operands, 0)?;
            one(DType::F32, shape.clone())
        }
        Op::Dropout { rate, .. } => {
            if !(0.0..1.0).contains(rate) {
                let found = rate.to_string();
                return Err(Problem::Attribute {
                    attribute: "rate",
                    expected: "at least 0 and below 1",
                    found,
                });
            }
            random_context(operands, 1)?;
            float(0, operands[0])?;
            Ok(vec![operands[0].clone()])
        }
        Op::Unary(unary) => unary_type(*unary, operands),
        Op::Binary(binary) => binary_type(*binary, operands),
        Op::Compare(_) => {
            let [lhs, rhs] = take::<2>(operands, "two")?;
            same(lhs, rhs)?;
            one(DType::Bool, lhs.shape.clone())
        }
        Op::Select => {
            let [condition, yes, no] = take::<3>(operands, "three")?;
            reject_dtype(0, condition.dtype, condition.dtype != DType::Bool, "bool")?;
            same(yes, no)?;
            same_shape(&condition.shape, &yes.shape)?;
            Ok(vec![yes.clone()])
        }
        Op::Cast { dtype } => {
            let [x] = take::<1>(operands, "one")?;
            one(*dtype, x.shape.clone())
        }
        Op::GrainSum => {
            let [x] = take::<1>(operands, "one")?;
            reject_dtype(
                0,
                x.dtype,
                x.dtype == DType::Bool || x.dtype == DType::U8,
                "a float or i32 or i64",
            )?;
            Ok(vec![x.clone()])
        }
        Op::AllReduce => {
            let [x] = take::<1>(operands, "one")?;
            float(0, x)?;
            Ok(vec![x.clone()])
        }
        Op::Fused(expression) => layout::fused(expression, operands),
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::ScatterAdd { .. } => layout::layout(op, operands),
        Op::TakeRows | Op::PutGrain { .. } | Op::MergeRows { .. } | Op::PutRows => {
            rows::rows(op, operands)
        }
        Op::Scan(scan) => region::scan(scan, operands),
        Op::Cond(cond) => region::cond(cond, operands),
        _ => network::network(op, operands),
    }
}

fn unary_type(unary: Unary, operands: &[&TensorType]) -> Inferred {
    let [x] = take::<1>(operands, "one")?;
    match unary {
        Unary::Not => reject_dtype(0, x.dtype, x.dtype != DType::Bool, "bool")?,
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu => {
            let refused = matches!(x.dtype, DType::Bool | DType::U8);
            reject_dtype(0, x.dtype, refused, "a signed number type")?;
        }
        _ => float(0, x)?,
    }
    Ok(vec![x.clone()])
}

fn binary_type(binary: Binary, operands: &[&TensorType]) -> Inferred {
    let [lhs, rhs] = take::<2>(operands, "two")?;
    same(lhs, rhs)?;
    match binary {
        Binary::And | Binary::Or | Binary::Xor => {
            reject_dtype(0, lhs.dtype, lhs.dtype != DType::Bool, "bool")?;
        }
        Binary::Pow => float(0, lhs)?,
        _ => reject_dtype(0, lhs.dtype, lhs.dtype == DType::Bool, "a number type")?,
    }
    Ok(vec![lhs.clone()])
}

/// The random context and scan iterations that follow the first `n_before` operands.
fn random_context(operands: &[&TensorType], n_before: usize) -> Result<(), Problem> {
    let found = operands.len();
    let Some((context, iterations)) = operands.get(n_before..).and_then(|rest| rest.split_first())
    else {
        return Err(Problem::OperandCount { expected: "a random context and its own", found });
    };
    if iterations.len() > MAX_NESTING {
        return Err(Problem::OperandCount {
            expected: "one per scan around it, at most 32,",
            found,
        });
    }
    let place = Shape::from([3]);
    reject_dtype(n_before, context.dtype, context.dtype != DType::I64, "i64")?;
    expect_shape(n_before, context, &place)?;
    for (idx, iteration) in iterations.iter().enumerate() {
        let operand = n_before + 1 + idx;
        reject_dtype(operand, iteration.dtype, iteration.dtype != DType::I32, "i32")?;
        expect_shape(operand, iteration, &Shape::scalar())?;
    }
    Ok(())
}

pub(crate) fn one(dtype: DType, shape: Shape) -> Inferred {
    Ok(vec![TensorType { dtype, shape }])
}

pub(crate) fn take<'a, const N: usize>(
    operands: &[&'a TensorType],
    expected: &'static str,
) -> Result<[&'a TensorType; N], Problem> {
    operands.try_into().map_err(|_| Problem::OperandCount { expected, found: operands.len() })
}

pub(crate) fn reject_dtype(
    operand: usize,
    found: DType,
    refused: bool,
    expected: &'static str,
) -> Result<(), Problem> {
    if refused { Err(Problem::ElementType { operand, expected, found }) } else { Ok(()) }
}

pub(crate) fn float(operand: usize, ty: &TensorType) -> Result<(), Problem> {
    reject_dtype(operand, ty.dtype, !ty.dtype.is_float(), "a float type")
}

pub(crate) fn index(operand: usize, ty: &TensorType) -> Result<(), Problem> {
    reject_dtype(operand, ty.dtype, !ty.dtype.is_index(), "i32 or i64")
}

pub(crate) fn same_shape(lhs: &Shape, rhs: &Shape) -> Result<(), Problem> {
    if lhs == rhs {
        return Ok(());
    }
    Err(Problem::ShapesDiffer { lhs: lhs.clone(), rhs: rhs.clone() })
}

pub(crate) fn same_dtype(lhs: &TensorType, rhs: &TensorType) -> Result<(), Problem> {
    if lhs.dtype == rhs.dtype {
        return Ok(());
    }
    Err(Problem::ElementTypesDiffer { lhs: lhs.dtype, rhs: rhs.dtype })
}

pub(crate) fn same(lhs: &TensorType, rhs: &TensorType) -> Result<(), Problem> {
    same_dtype(lhs, rhs)?;
    same_shape(&lhs.shape, &rhs.shape)
}

pub(crate) fn expect_shape(
    operand: usize,
    ty: &TensorType,
    expected: &Shape,
) -> Result<(), Problem> {
    if ty.shape == *expected {
        return Ok(());
    }
    Err(Problem::OperandShape { operand, expected: expected.clone(), found: ty.shape.clone() })
}

pub(crate) fn check_axis(axis: usize, rank: usize) -> Result<(), Problem> {
    if axis < rank { Ok(()) } else { Err(Problem::NoSuchAxis { axis, rank }) }
}

/// Axes that are different, among `rank`, in rising order.
pub(crate) fn check_axes(axes: &[usize], rank: usize) -> Result<(), Problem> {
    let rising = axes.windows(2).all(|pair| pair[0] < pair[1]);
    if rising && axes.iter().all(|&axis| axis < rank) {
        return Ok(());
    }
    Err(Problem::Axes { axes: axes.to_vec(), rank })
}

pub(crate) fn check_finite(attribute: &'static str, value: f64) -> Result<(), Problem> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Problem::Attribute { attribute, expected: "finite", found: value.to_string() })
}

/// The longest step between elements, windows or taps; keeps the kernels' address computations far from overflow.
const LONGEST_STEP: usize = 1 << 20;

pub(crate) fn check_steps(attribute: &'static str, steps: &[usize]) -> Result<(), Problem> {
    match steps.iter().find(|&&step| step > LONGEST_STEP) {
        Some(step) => {
            let found = step.to_string();
            Err(Problem::Attribute { attribute, expected: "at most 1048576", found })
        }
        None => Ok(()),
    }
}

pub(crate) fn check_length(
    attribute: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), Problem> {
    if expected == found {
        return Ok(());
    }
    Err(Problem::AttributeLength { attribute, expected, found })
}

#[cfg(test)]
mod tests;
