//! Sums that are told while the last grains of a share still run are those that are held afterwards.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there
#![allow(clippy::single_range_in_vec_init)] // a list with one range in it is meant as such

mod training;

use std::collections::BTreeMap;
use std::ops::Range;

use manyhands_device::FollowSums;
use manyhands_program::{DType, Optimizer, Sgd};
use proptest::prelude::*;
use training::Worker;

/// What was told, by set and sum.
#[derive(Default)]
struct Told {
    sums: BTreeMap<(usize, usize), Vec<Vec<u8>>>,
    /// How many of them were told before the grains were done.
    n_early: usize,
}

impl FollowSums for Told {
    fn take(&mut self, set: usize, sum: usize, parts: &[&[u8]]) {
        let parts = parts.iter().map(|part| part.to_vec()).collect();
        assert!(self.sums.insert((set, sum), parts).is_none(), "told twice");
    }
}

/// The sum of parts, from the right.
fn added(dtype: DType, parts: &[Vec<u8>]) -> Vec<u8> {
    let four = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).unwrap();
    let (last, rest) = parts.split_last().unwrap();
    rest.iter().rev().fold(last.clone(), |right, left| {
        assert_eq!(left.len(), right.len());
        let pairs = left.chunks_exact(4).zip(right.chunks_exact(4));
        let sums = pairs.map(|(left, right)| match dtype {
            DType::F32 => {
                (f32::from_le_bytes(four(left)) + f32::from_le_bytes(four(right))).to_le_bytes()
            }
            _ => (i32::from_le_bytes(four(left)) + i32::from_le_bytes(four(right))).to_le_bytes(),
        });
        sums.flatten().collect()
    })
}

fn worker(n_grains: usize, last: Option<usize>, n_lanes: usize) -> Worker {
    let optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    let mut worker = Worker::new(optimizer, n_grains, last, n_lanes);
    worker.write_step(1);
    (0..n_grains).for_each(|grain| worker.write_grain(1, grain));
    worker.step.begin_step(worker.plan).unwrap();
    worker
}

/// Runs the last grains of a share and compares what was told with what is held.
fn check(worker: &mut Worker, grains: &[Range<usize>]) -> Told {
    let plan = worker.plan;
    let held = |worker: &Worker| -> Vec<Vec<u8>> {
        let n = worker.step.held().len();
        (0..n).map(|idx| worker.step.held_bytes(idx).unwrap().to_vec()).collect()
    };
    let before = held(worker);
    let mut dropped = Told::default();
    let kept = worker.step.run_grains_announcing(plan, grains, &mut dropped, || false);
    assert!(!kept.unwrap() && held(worker) == before, "what was not kept changed what is held");
    let mut told = Told::default();
    assert!(worker.step.run_grains_announcing(plan, grains, &mut told, || true).unwrap());
    let (sums, held) = (&worker.step.sum_layout(plan).unwrap().sums, held(worker));
    assert_eq!(told.sums.len(), sums.len() * held.len());
    for (&(set, idx), parts) in &told.sums {
        let sum = &sums[idx];
        let bytes = &held[set][sum.offset..sum.offset + 4 * sum.n_elements];
        assert!(added(sum.dtype, parts) == bytes, "sum {idx} of set {set}");
    }
    // What was told before the answer was no, if anything, was right too.
    assert!(dropped.sums.is_empty() || dropped.sums == told.sums);
    told.n_early = dropped.sums.len();
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_told_is_what_is_held(
        // In which of the calls a grain is run; one that nobody asks for is another worker's.
        calls in proptest::collection::vec(0..4usize, 1..=13),
        last in proptest::option::of(1..training::GRAIN),
        n_lanes in 1..=2usize,
    ) {
        let mut worker = worker(calls.len(), last, n_lanes);
        let of = |call| -> Vec<Range<usize>> {
            (0..calls.len()).filter(|&grain| calls[grain] == call).map(|g| g..g + 1).collect()
        };
        worker.step.run_grains(worker.plan, &of(0)).unwrap();
        worker.step.run_grains(worker.plan, &of(1)).unwrap();
        check(&mut worker, &of(2));
        // The step ends as if nobody had listened.
        let mut plain = self::worker(calls.len(), last, n_lanes);
        (0..3).for_each(|call| plain.step.run_grains(plain.plan, &of(call)).unwrap());
        prop_assert_eq!(plain.step.held(), worker.step.held());
        for idx in 0..plain.step.held().len() {
            prop_assert!(plain.step.held_bytes(idx).unwrap() == worker.step.held_bytes(idx).unwrap());
        }
    }
}

#[test]
fn shares_of_whole_subtrees_are_told_while_the_last_grain_runs() {
    // Grains that were run before, the last ones, and of how many parts the sums of each set are.
    let cases: [(Range<usize>, Range<usize>, &[usize]); 8] = [
        (0..0, 0..1, &[1]),
        (0..0, 0..2, &[1]),
        (0..0, 0..4, &[2]),
        (0..0, 0..8, &[3]),
        (4..6, 6..8, &[2]),
        (0..4, 4..8, &[3]),
        (0..2, 2..3, &[1, 1]),
        (0..4, 4..7, &[1, 1, 1]),
    ];
    for (before, last, n_parts) in cases {
        let mut worker = worker(16, None, 1);
        worker.step.run_grains(worker.plan, &[before]).unwrap();
        let told = check(&mut worker, std::slice::from_ref(&last));
        for (&(set, _), parts) in &told.sums {
            assert_eq!(parts.len(), n_parts[set], "{last:?}");
        }
        assert_eq!(told.n_early, told.sums.len(), "{last:?}: only when all was done");
    }
}
