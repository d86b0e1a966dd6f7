//! The fast layout kernels against the plain evaluator, on random shapes, for all element types.

use std::ops::RangeInclusive;

use manyhands_program::{DType, Op, Program, Shape, Tensor, TensorType, ValueId};
use proptest::prelude::*;

use super::*;
use crate::cpu::kernels::plain::tests::{evaluate, scrambled};

/// The result type of an operation, as the program's own rules have it.
fn result_type(op: &Op, operands: &[Tensor]) -> TensorType {
    let mut program = Program::new("test");
    let values: Vec<ValueId> = operands
        .iter()
        .map(|operand| program.push(Op::Constant(operand.clone()), &[], "").unwrap()[0])
        .collect();
    let results = program.push(op.clone(), &values, "").unwrap();
    program.ty(results[0]).clone()
}

/// Runs the plan of an operation in so many parts, over memory that holds rubbish.
fn run_in_parts(op: &Op, operands: &[Tensor], count: usize, isa: Isa) -> Result<Tensor, Fault> {
    let types: Vec<&TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let plan = LayoutPlan::new(op, &types).expect("the operation has a plan");
    let ty = result_type(op, operands);
    // Words of eight bytes, for alignment.
    let aligned: Vec<Vec<u64>> = operands.iter().map(|operand| words(operand.bytes())).collect();
    let mut result = vec![0xa5a5_a5a5_a5a5_a5a5_u64; ty.n_bytes().div_ceil(8) + 1];
    for idx in 0..count {
        let operand = |idx: usize| aligned[idx].as_ptr().cast::<u8>();
        // SAFETY: all memory has the size of its type, aligned; the instruction set is available.
        unsafe { plan.run(isa, operand, result.as_mut_ptr().cast(), Part { idx, count })? };
    }
    let bytes: Vec<u8> = result.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(bytes[ty.n_bytes()], 0xa5, "nothing is written past the end");
    Ok(Tensor::from_bytes(ty.clone(), bytes[..ty.n_bytes()].to_vec()).unwrap())
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let mut own = vec![0; bytes.len().div_ceil(8) + 1];
    for (i, &byte) in bytes.iter().enumerate() {
        own[i / 8] |= u64::from(byte) << (8 * (i % 8));
    }
    own
}

/// Every number of parts and every instruction set gives what the plain evaluator gives.
fn check(op: &Op, operands: &[Tensor]) {
    let ty = result_type(op, operands);
    let expected = evaluate(op, operands, &[ty]);
    for isa in Isa::available() {
        for count in 1..=4 {
            let found = run_in_parts(op, operands, count, isa);
            match (&expected, found) {
                (Ok(expected), Ok(found)) => assert_eq!(expected[0], found, "{op:?} {count}"),
                (Err(_), Err(_)) => {}
                (expected, found) => panic!("{op:?}: {expected:?} and {found:?}"),
            }
        }
    }
}

fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::ALL.to_vec())
}

/// Shapes with so many axes; sometimes one that is long, sometimes an empty one.
fn shape(rank: RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![12 => 1..6usize, 3 => 15..36usize, 1 => Just(0usize)];
    proptest::collection::vec(size, rank)
}

/// A number per axis, from a seed.
fn per_axis(seed: u64, axis: usize, below: usize) -> usize {
    let mixed = (seed ^ (axis as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(31);
    (mixed >> 7) as usize % below.max(1)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 120,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn broadcasts_equal_the_plain_ones(dtype in dtype(), to in shape(0..=4), seed: u64) {
        let kept: Vec<usize> = (0..to.len()).filter(|&axis| per_axis(seed, axis, 3) > 0).collect();
        let stretched = |axis: usize| per_axis(seed >> 9, axis, 3) == 0;
        let sizes = kept.iter().map(|&axis| if stretched(axis) { 1 } else { to[axis] });
        let x = scrambled(dtype, sizes.collect::<Shape>(), seed);
        check(&Op::Broadcast { shape: to.into(), axes: kept }, &[x]);
    }

    #[test]
    fn transposes_equal_the_plain_ones(dtype in dtype(), from in shape(0..=4), seed: u64) {
        let mut order: Vec<usize> = (0..from.len()).collect();
        order.sort_by_key(|&axis| per_axis(seed, axis, 1000));
        check(&Op::Transpose { order }, &[scrambled(dtype, from, seed)]);
    }

    #[test]
    fn matrices_transpose_as_the_plain_ones(
        dtype in dtype(), n in 1..4usize, rows in 1..70usize, columns in 1..70usize, seed: u64,
    ) {
        let x = scrambled(dtype, [n, rows, columns], seed);
        check(&Op::Transpose { order: vec![0, 2, 1] }, &[x]);
    }

    #[test]
    fn slices_equal_the_plain_ones(dtype in dtype(), from in shape(0..=4), seed: u64) {
        let start = |axis: usize| per_axis(seed, axis, from[axis] + 1);
        let limit = |axis: usize| {
            start(axis) + per_axis(seed >> 5, axis, from[axis] - start(axis) + 1)
        };
        let axes = 0..from.len();
        let op = Op::Slice {
            start: axes.clone().map(start).collect(),
            limit: axes.clone().map(limit).collect(),
            stride: axes.map(|axis| 1 + per_axis(seed >> 11, axis, 4) / 2).collect(),
        };
        check(&op, &[scrambled(dtype, from, seed)]);
    }

    #[test]
    fn paddings_equal_the_plain_ones(dtype in dtype(), from in shape(0..=3), seed: u64) {
        let list = |seed: u64| (0..from.len()).map(|axis| per_axis(seed, axis, 5) / 2).collect();
        let op = Op::Pad { low: list(seed), high: list(seed >> 3), interior: list(seed >> 9) };
        let value = scrambled(dtype, Shape::scalar(), seed + 1);
        check(&op, &[scrambled(dtype, from, seed), value]);
    }

    #[test]
    fn concatenations_equal_the_plain_ones(
        dtype in dtype(),
        from in shape(1..=3),
        n in 1..4usize,
        axis in 0..3usize,
        seed in 0..u64::MAX / 2,
    ) {
        let axis = axis % from.len();
        let operands: Vec<Tensor> = (0..n).map(|idx| {
            let mut sizes = from.clone();
            sizes[axis] = per_axis(seed, idx, 7);
            scrambled(dtype, sizes, seed + idx as u64)
        }).collect();
        check(&Op::Concatenate { axis }, &operands);
    }

    #[test]
    fn gathers_equal_the_plain_ones(
        dtype in dtype(),
        from in shape(1..=3),
        n in 0..9usize,
        axis in 0..3usize,
        wide: bool,
        seed: u64,
    ) {
        let axis = axis % from.len();
        let indices = indices(wide, n, from[axis], seed);
        check(&Op::Gather { axis }, &[scrambled(dtype, from, seed), indices]);
    }

    #[test]
    fn scattered_sums_equal_the_plain_ones(
        from in shape(1..=3), n in 0..30usize, axis in 0..3usize, wide: bool, seed: u64,
    ) {
        let axis = axis % from.len();
        let indices = indices(wide, n, from[axis], seed);
        let base = scrambled(DType::F32, from.clone(), seed);
        let mut sizes = from;
        sizes[axis] = n;
        check_scatter(axis, base, indices, scrambled(DType::F32, sizes, seed ^ 1));
    }
}

/// Indices that lie inside an axis, but for a few.
fn indices(wide: bool, n: usize, size: usize, seed: u64) -> Tensor {
    let slip = usize::from(per_axis(seed, 99, 8) == 0);
    let own = |i: usize| per_axis(seed >> 2, i, size + slip) as i64;
    let all: Vec<i64> = (0..n).map(own).collect();
    if wide {
        return Tensor::new([n], &all).unwrap();
    }
    Tensor::new([n], &all.iter().map(|&index| index as i32).collect::<Vec<_>>()).unwrap()
}

fn check_scatter(axis: usize, base: Tensor, indices: Tensor, updates: Tensor) {
    let plan = ScatterAddPlan::new(axis, base.ty(), indices.ty());
    let operands = [base, indices, updates];
    let expected = evaluate(&Op::ScatterAdd { axis }, &operands, &[operands[0].ty().clone()]);
    let [base, _, updates] = operands.each_ref().map(|operand| operand.elements::<f32>());
    let (base, updates) = (base.unwrap_or_default(), updates.unwrap_or_default());
    let indices = words(operands[1].bytes());
    let run = |base: Option<*const f32>, result: &mut [f32], count: usize, isa: Isa| {
        (0..count).try_for_each(|idx| {
            let (indices, updates) = (indices.as_ptr().cast(), updates.as_ptr());
            // SAFETY: all memory has the size of its type; the instruction set is available.
            unsafe {
                plan.run(isa, base, indices, updates, result.as_mut_ptr(), Part { idx, count })
            }
        })
    };
    let n = base.len();
    for isa in Isa::available() {
        for count in 1..=4 {
            let mut result = vec![f32::NAN; n];
            let done = run(Some(base.as_ptr()), &mut result, count, isa);
            let done = done.map(|()| vec![Tensor::new(operands[0].shape(), &result).unwrap()]);
            assert_eq!(done, expected, "{count} parts");
            let mut result = base.clone();
            let own = result.as_ptr();
            let done = run(Some(own), &mut result, count, isa);
            let done = done.map(|()| vec![Tensor::new(operands[0].shape(), &result).unwrap()]);
            assert_eq!(done, expected, "in place, {count} parts");
            let (mut fresh, mut zeros) = (vec![f32::NAN; n], vec![0.0; n]);
            let done = run(None, &mut fresh, count, isa);
            let own = zeros.as_ptr();
            assert_eq!(done, run(Some(own), &mut zeros, 1, isa));
            if done.is_ok() {
                assert_eq!(fresh, zeros, "zeros, {count} parts");
            }
        }
    }
}

#[test]
fn neighbouring_axes_merge_into_long_runs() {
    let plan = |op: &Op, from: &[usize]| {
        let plan = LayoutPlan::new(op, &[&TensorType::new(DType::F32, from)]).unwrap();
        format!("{plan:?}")
    };
    let bias = Op::Broadcast { shape: [8, 4, 6].into(), axes: vec![1, 2] };
    assert!(plan(&bias, &[4, 6]).contains("Copy { n: 24 }"));
    let scalar = Op::Broadcast { shape: [8, 4, 6].into(), axes: vec![] };
    assert!(plan(&scalar, &[]).contains("Repeat { n: 192 }"));
    let heads = Op::Transpose { order: vec![0, 2, 1, 3] };
    assert!(plan(&heads, &[8, 128, 4, 64]).contains("Copy { n: 64 }"));
    let matrix = Op::Transpose { order: vec![2, 0, 1] };
    assert!(plan(&matrix, &[5, 7, 9]).contains("rows: 9, columns: 35"));
}

#[test]
fn a_bad_index_is_named_with_its_position() {
    let x = Tensor::new([3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let operands = [x, Tensor::new([3], &[2i32, -1, 3]).unwrap()];
    let fault = Fault::IndexOutOfRange { index: -1, size: 3, position: 1 };
    let op = Op::Gather { axis: 0 };
    assert_eq!(run_in_parts(&op, &operands, 1, Isa::Portable), Err(fault));
    assert_eq!(fault.to_string(), "index -1 at position 1 is outside an axis of size 3");
}
