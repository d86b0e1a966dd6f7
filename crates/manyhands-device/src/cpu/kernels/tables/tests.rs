//! Merged rows against sums along the tree, written as it is defined.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::merge::{MergeArguments, MergePlan};
use super::*;
use crate::cpu::simd::Isa;

/// What grains have of one row: along the tree over `[start, end)`, what is not there skipped.
fn tree_sum(of_grains: &[Option<f32>], start: usize, end: usize) -> Option<f32> {
    if end - start == 1 {
        return of_grains[start];
    }
    let half = (1..end - start).filter(|n| n.is_power_of_two()).max().unwrap();
    let left = tree_sum(of_grains, start, start + half);
    let right = tree_sum(of_grains, start + half, end);
    match (left, right) {
        (Some(left), Some(right)) => Some(left + right),
        (one, other) => one.or(other),
    }
}

/// One use: for each grain its codes and values of width 1.
type Use = Vec<Vec<(i32, f32)>>;

fn expected(uses: &[Use]) -> BTreeMap<i32, f32> {
    let mut sums: BTreeMap<i32, f32> = BTreeMap::new();
    for grains in uses {
        let rows: std::collections::BTreeSet<i32> =
            grains.iter().flatten().map(|pair| pair.0).filter(|&code| code > 0).collect();
        for code in rows {
            let of_grain = |pairs: &Vec<(i32, f32)>| {
                let own = pairs.iter().filter(|pair| pair.0 == code).map(|pair| pair.1);
                own.reduce(|sum, value| sum + value)
            };
            let of_grains: Vec<Option<f32>> = grains.iter().map(of_grain).collect();
            let sum = tree_sum(&of_grains, 0, grains.len()).unwrap();
            sums.entry(code - 1).and_modify(|before| *before += sum).or_insert(sum);
        }
    }
    sums
}

fn merged(
    uses: &[Use],
    width: usize,
    most: usize,
    n_parts: usize,
) -> Result<(Vec<i32>, Vec<f32>), Fault> {
    let sizes = uses.iter().map(|grains| [grains.len(), grains[0].len()]).collect();
    let plan = MergePlan::new(sizes, width, most);
    let codes: Vec<Vec<i32>> =
        uses.iter().map(|grains| grains.iter().flatten().map(|pair| pair.0).collect()).collect();
    let spread = |pair: &(i32, f32)| vec![pair.1; width];
    let values: Vec<Vec<f32>> =
        uses.iter().map(|grains| grains.iter().flatten().flat_map(spread).collect()).collect();
    let codes: Vec<*const i32> = codes.iter().map(|codes| codes.as_ptr()).collect::<Vec<_>>();
    let values: Vec<*const f32> = values.iter().map(|values| values.as_ptr()).collect::<Vec<_>>();
    let (mut rows, mut sums) = (vec![7; most], vec![7.0; most * width]);
    for idx in 0..n_parts {
        let mut scratch = vec![0u64; plan.scratch_bytes().div_ceil(8)];
        let arguments = MergeArguments {
            codes: &codes,
            values: &values,
            rows: rows.as_mut_ptr(),
            sums: sums.as_mut_ptr(),
            scratch: scratch.as_mut_ptr().cast(),
        };
        // SAFETY: all buffers have the sizes of the plan.
        unsafe { plan.run(Isa::detect(), arguments, Part { idx, count: n_parts })? };
    }
    Ok((rows, sums))
}

fn any_use() -> impl Strategy<Value = Use> {
    let value = prop_oneof![Just(-0.0f32), Just(0.0), -9.0f32..9.0, Just(1e30), Just(-1e30)];
    let pair = (-1i32..6, value);
    (1usize..12, 1usize..5).prop_flat_map(move |(n_grains, n)| {
        prop::collection::vec(prop::collection::vec(pair.clone(), n), n_grains)
    })
}

proptest! {
    #[test]
    fn rows_are_summed_along_the_tree_and_what_is_absent_is_skipped(
        uses in prop::collection::vec(any_use(), 1..4), width in 1usize..20, n_parts in 1usize..4,
    ) {
        let wanted = expected(&uses);
        let (rows, sums) = merged(&uses, width, 6, n_parts).unwrap();
        let filled = wanted.keys().copied().chain(std::iter::repeat(-1)).take(6);
        prop_assert_eq!(&rows, &filled.collect::<Vec<_>>());
        let bits = wanted.values().map(|sum| sum.to_bits()).chain(std::iter::repeat(0)).take(6);
        let bits: Vec<u32> = bits.flat_map(|bits| vec![bits; width]).collect();
        prop_assert_eq!(sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>(), bits);
    }
}

#[test]
fn more_rows_than_there_is_room_for_are_a_fault() {
    let grains = vec![vec![(1, 1.0), (2, 1.0), (5, 1.0)]];
    let fault = merged(&[grains], 1, 2, 1).unwrap_err();
    assert_eq!(fault, Fault::IndexOutOfRange { index: 4, size: 2, position: 0 });
}

#[test]
fn a_grain_is_put_beside_the_others_and_changes_nothing_of_them() {
    let plan =
        GrainPlan { n_grains: 3, n_bytes: 8, neutral: [0, 0, 0, 0x80, 0, 0, 0, 0], element: 4 };
    let value = [1.5f32, -0.0];
    let mut result = [7.0f32; 6];
    let run = |grain: i64, base: Option<*const u8>, result: &mut [f32; 6]| {
        let (value, result) = (value.as_ptr().cast(), result.as_mut_ptr().cast());
        // SAFETY: value and result have the sizes of the plan.
        (0..2).try_for_each(|idx| unsafe {
            plan.run(grain, value, base, result, Part { idx, count: 2 })
        })
    };
    run(1, None, &mut result).unwrap();
    let wanted = [-0.0f32, -0.0, 1.5, -0.0, -0.0, -0.0];
    assert_eq!(result.map(f32::to_bits), wanted.map(f32::to_bits));
    let base = result.as_ptr().cast();
    run(2, Some(base), &mut result).unwrap();
    let wanted = [-0.0f32, -0.0, 1.5, -0.0, 1.5, -0.0];
    assert_eq!(result.map(f32::to_bits), wanted.map(f32::to_bits));
    // What lies in the other places is what no addition sees.
    for x in [0.0f32, -0.0, 1.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY] {
        assert_eq!((x + -0.0).to_bits(), x.to_bits());
        assert_eq!((-0.0 + x).to_bits(), x.to_bits());
    }
    assert!(run(3, None, &mut result).is_err() && run(-1, None, &mut result).is_err());
}
