//! What operations on the rows of tables take and give.

use super::{Inferred, expect_shape, index, one, reject_dtype, same_dtype, take};
use crate::dtype::DType;
use crate::error::Problem;
use crate::op::Op;
use crate::shape::{Shape, TensorType};

/// The most elements of codes that are merged: their places are counted in 32 bits.
const MOST_CODES: usize = u32::MAX as usize;

/// The most pairs of codes and values, the uses of one table.
const MOST_PAIRS: usize = 16;

pub(super) fn rows(op: &Op, operands: &[&TensorType]) -> Inferred {
    match op {
        Op::TakeRows => {
            let [table, indices] = take::<2>(operands, "two")?;
            rank(0, table, 2)?;
            index(1, indices)?;
            one(table.dtype, indices.shape.iter().chain(&table.shape[1..]).copied().collect())
        }
        Op::PutGrain { n_grains } => put_grain(*n_grains, operands),
        Op::MergeRows { most } => merge_rows(*most, operands),
        Op::PutRows => {
            let [table, rows, values] = take::<3>(operands, "three")?;
            rank(0, table, 2)?;
            row_numbers(1, rows)?;
            same_dtype(table, values)?;
            expect_shape(2, values, &Shape::from([rows.shape[0], table.shape[1]]))?;
            Ok(vec![table.clone()])
        }
        _ => unreachable!("only operations on rows come here"),
    }
}

fn put_grain(n_grains: usize, operands: &[&TensorType]) -> Inferred {
    let [context, value, base @ ..] = operands else {
        return Err(Problem::OperandCount { expected: "two or three", found: operands.len() });
    };
    reject_dtype(0, context.dtype, context.dtype != DType::I64, "i64")?;
    expect_shape(0, context, &Shape::from([3]))?;
    let refused = matches!(value.dtype, DType::Bool | DType::U8);
    reject_dtype(1, value.dtype, refused, "a float or i32 or i64")?;
    let shape: Shape = [n_grains].iter().chain(value.shape.iter()).copied().collect();
    match base {
        [] => {}
        [base] => {
            same_dtype(value, base)?;
            expect_shape(2, base, &shape)?;
        }
        _ => return Err(Problem::OperandCount { expected: "two or three", found: operands.len() }),
    }
    one(value.dtype, shape)
}

fn merge_rows(most: usize, operands: &[&TensorType]) -> Inferred {
    let found = operands.len();
    let (pairs, rest) = operands.as_chunks::<2>();
    let are_pairs = rest.is_empty() && pairs.len() <= MOST_PAIRS;
    let Some([_, first]) = pairs.first().filter(|_| are_pairs) else {
        return Err(Problem::OperandCount {
            expected: "up to 16 pairs of codes and values",
            found,
        });
    };
    rank(1, first, 3)?;
    let width = first.shape[2];
    let mut n_codes = 0usize;
    for (idx, [codes, values]) in pairs.iter().enumerate() {
        reject_dtype(2 * idx, codes.dtype, codes.dtype != DType::I32, "i32")?;
        reject_dtype(2 * idx + 1, values.dtype, values.dtype != DType::F32, "f32")?;
        rank(2 * idx, codes, 2)?;
        let expected = Shape::from([codes.shape[0], codes.shape[1], width]);
        expect_shape(2 * idx + 1, values, &expected)?;
        n_codes = n_codes.saturating_add(codes.shape.n_elements());
    }
    if n_codes > MOST_CODES {
        let (attribute, expected) = ("codes", "at most 4294967295 in all");
        return Err(Problem::Attribute { attribute, expected, found: n_codes.to_string() });
    }
    Ok(vec![
        TensorType::new(DType::I32, Shape::from([most])),
        TensorType::new(DType::F32, Shape::from([most, width])),
    ])
}

fn rank(operand: usize, ty: &TensorType, rank: usize) -> Result<(), Problem> {
    let (expected, found) = (["0", "1", "2", "3"][rank.min(3)], ty.shape.rank());
    if found == rank { Ok(()) } else { Err(Problem::Rank { operand, expected, found }) }
}

fn row_numbers(operand: usize, rows: &TensorType) -> Result<(), Problem> {
    reject_dtype(operand, rows.dtype, rows.dtype != DType::I32, "i32")?;
    rank(operand, rows, 1)
}
