//! Operations with bodies: scan and cond.

use super::{Inferred, check_length, expect_shape, reject_dtype};
use crate::dtype::DType;
use crate::error::Problem;
use crate::op::{CondSpec, Op, ScanSpec};
use crate::program::Program;
use crate::shape::{Shape, TensorType};

/// How deep bodies may lie in bodies: what walks a program may recurse so far, and no further.
pub(crate) const MAX_NESTING: usize = 32;

pub(super) fn scan(scan: &ScanSpec, operands: &[&TensorType]) -> Inferred {
    check_pure(&scan.body)?;
    // The iteration is an i32.
    if i32::try_from(scan.length).is_err() {
        let (expected, found) = ("below 2147483648", scan.length.to_string());
        return Err(Problem::Attribute { attribute: "length", expected, found });
    }
    let n_fed = scan.n_carried.saturating_add(scan.n_scanned);
    if operands.len() < n_fed {
        let expected = "the carried and scanned values, then what the body captures,";
        return Err(Problem::OperandCount { expected, found: operands.len() });
    }
    let mut inputs = vec![TensorType::new(DType::I32, Shape::scalar())];
    for (idx, &operand) in operands.iter().enumerate() {
        if (scan.n_carried..n_fed).contains(&idx) {
            inputs.push(element(operand, idx, scan.length)?);
        } else {
            inputs.push(operand.clone());
        }
    }
    check_inputs(&scan.body, &inputs)?;
    let outputs = output_types(&scan.body);
    if outputs.len() < scan.n_carried {
        let (expected, found) = (scan.n_carried, outputs.len());
        return Err(Problem::BodyCount { role: "outputs", expected, found });
    }
    let (carried, stacked) = outputs.split_at(scan.n_carried);
    for (idx, (found, &expected)) in carried.iter().zip(operands).enumerate() {
        check_body("carried value", idx, expected, found)?;
    }
    let stack = |ty: &TensorType| {
        let sizes = [scan.length].into_iter().chain(ty.shape.iter().copied());
        TensorType::new(ty.dtype, sizes.collect::<Shape>())
    };
    Ok(carried.iter().cloned().chain(stacked.iter().map(stack)).collect())
}

/// What one iteration sees of a scanned operand.
fn element(ty: &TensorType, operand: usize, length: usize) -> Result<TensorType, Problem> {
    match ty.shape.split_first() {
        Some((&first, rest)) if first == length => Ok(TensorType::new(ty.dtype, rest)),
        _ => {
            let found = ty.shape.clone();
            Err(Problem::OperandShape { operand, expected: Shape::from([length]), found })
        }
    }
}

pub(super) fn cond(cond: &CondSpec, operands: &[&TensorType]) -> Inferred {
    check_pure(&cond.then)?;
    check_pure(&cond.otherwise)?;
    let Some((condition, captured)) = operands.split_first() else {
        return Err(Problem::OperandCount { expected: "at least one", found: 0 });
    };
    reject_dtype(0, condition.dtype, condition.dtype != DType::Bool, "bool")?;
    expect_shape(0, condition, &Shape::scalar())?;
    let n_then = cond.then.inputs().count();
    let n_otherwise = cond.otherwise.inputs().count();
    check_length("operands", n_then + n_otherwise, captured.len())?;
    let types: Vec<TensorType> = captured.iter().map(|&ty| ty.clone()).collect();
    check_inputs(&cond.then, &types[..n_then])?;
    check_inputs(&cond.otherwise, &types[n_then..])?;
    let (then, otherwise) = (output_types(&cond.then), output_types(&cond.otherwise));
    if then.len() != otherwise.len() {
        let (expected, found) = (then.len(), otherwise.len());
        return Err(Problem::BodyCount { role: "outputs", expected, found });
    }
    for (idx, (expected, found)) in then.iter().zip(&otherwise).enumerate() {
        check_body("output", idx, expected, found)?;
    }
    Ok(then)
}

/// How many bodies lie in each other, counting this one.
fn depth(body: &Program) -> usize {
    let inner = body.nodes().iter().map(|node| match &node.op {
        Op::Scan(scan) => depth(&scan.body),
        Op::Cond(cond) => depth(&cond.then).max(depth(&cond.otherwise)),
        _ => 0,
    });
    1 + inner.max().unwrap_or(0)
}

fn check_pure(body: &Program) -> Result<(), Problem> {
    if depth(body) > MAX_NESTING {
        return Err(Problem::TooDeep { limit: MAX_NESTING });
    }
    if !body.updates().is_empty() {
        return Err(Problem::BodyNotPure { found: "updates" });
    }
    let mut found = None;
    body.any_op(&mut |op| {
        found = found.or(match op {
            Op::Parameter { .. } => Some("parameters"),
            Op::GrainSum => Some("sums over grains"),
            Op::AllReduce => Some("sums over parts"),
            _ => None,
        });
        found.is_some()
    });
    found.map_or(Ok(()), |found| Err(Problem::BodyNotPure { found }))
}

fn check_inputs(body: &Program, expected: &[TensorType]) -> Result<(), Problem> {
    let found: Vec<&TensorType> = body.inputs().map(|(_, value)| body.ty(value)).collect();
    if found.len() != expected.len() {
        let (expected, found) = (expected.len(), found.len());
        return Err(Problem::BodyCount { role: "inputs", expected, found });
    }
    for (idx, (&found, expected)) in found.iter().zip(expected).enumerate() {
        check_body("input", idx, expected, found)?;
    }
    Ok(())
}

fn check_body(
    role: &'static str,
    idx: usize,
    expected: &TensorType,
    found: &TensorType,
) -> Result<(), Problem> {
    if expected == found {
        return Ok(());
    }
    Err(Problem::Body { role, idx, expected: expected.clone(), found: found.clone() })
}

fn output_types(body: &Program) -> Vec<TensorType> {
    body.outputs().iter().map(|output| body.ty(output.value).clone()).collect()
}
