//! Nothing is lost, nothing is held too long, and no more is held than may be.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const SMALL: Significance = Significance { threshold: 1.0, most_clocks: 3, most_rows: 6 };

proptest! {
    #[test]
    fn rows_that_went_and_rows_that_are_held_are_what_was_offered(
        clocks in proptest::collection::vec(
            proptest::collection::btree_map(0u64..20, -15i32..15, 0..12), 1..12),
    ) {
        let mut held = HeldRows::new(2, SMALL).unwrap();
        // Of each key: what was offered, what went, and the clock of the oldest update that is held.
        let mut sums: HashMap<u64, (f32, f32)> = HashMap::new();
        let mut oldest: HashMap<u64, u64> = HashMap::new();
        let took = |going: Going, sums: &mut HashMap<u64, (f32, f32)>| -> Vec<u64> {
            assert!(going.keys.is_sorted());
            assert_eq!(going.values.len(), 2 * going.keys.len());
            for (key, row) in going.keys.iter().zip(going.values.chunks(2)) {
                assert_eq!(row[0], -row[1]);
                sums.entry(*key).or_default().1 += row[0];
            }
            going.keys
        };
        for (clock, updates) in clocks.into_iter().enumerate() {
            let clock = clock as u64;
            let gone = took(held.clock(clock), &mut sums);
            oldest.retain(|key, _| !gone.contains(key));
            let keys: Vec<u64> = updates.keys().copied().collect();
            // Eighths, so that sums are exact.
            let values: Vec<f32> =
                updates.values().flat_map(|value| [*value as f32 / 8.0, *value as f32 / -8.0]).collect();
            for (key, value) in keys.iter().zip(values.chunks(2)) {
                sums.entry(*key).or_default().0 += value[0];
                oldest.entry(*key).or_insert(clock);
            }
            let gone = took(held.offer(clock, &keys, &values).unwrap(), &mut sums);
            oldest.retain(|key, _| !gone.contains(key));
            prop_assert!(held.len() <= SMALL.most_rows);
            prop_assert_eq!(held.len(), oldest.len());
            prop_assert!(oldest.values().all(|since| clock - since < SMALL.most_clocks));
        }
        took(held.flush(), &mut sums);
        prop_assert!(held.is_empty() && held.flush().keys.is_empty());
        prop_assert!(sums.values().all(|(offered, went)| offered == went));
    }

    #[test]
    fn elements_that_went_and_elements_that_are_held_are_what_was_offered(
        n in 1usize..5_000,
        pushes in proptest::collection::vec((0.0..1.0f64, 0.0..1.0f64, -9i32..9), 1..12),
    ) {
        let mut held = HeldElements::new(n, SMALL).unwrap();
        let (mut offered, mut went) = (vec![0f32; n], vec![0f32; n]);
        let mut touched = vec![false; n];
        let mut take = |runs: Vec<GoingRun>, touched: &[bool]| {
            for GoingRun { first, values } in runs {
                for (idx, value) in values.iter().enumerate() {
                    assert!(touched[first + idx] || *value == 0.0);
                    went[first + idx] += value;
                }
            }
        };
        for (clock, (from, to, number)) in pushes.into_iter().enumerate() {
            let [from, to] = [from, to].map(|at| (at * n as f64) as usize);
            let (first, end) = (from.min(to), from.max(to) + 1);
            let element = |idx: usize| (number * (idx / 500) as i32) as f32 / 16.0;
            let update: Vec<f32> = (first..end).map(element).collect();
            for (idx, update) in (first..end).zip(&update) {
                (offered[idx], touched[idx]) = (offered[idx] + update, true);
            }
            take(held.clock(clock as u64), &touched);
            take(held.offer(clock as u64, first, &update).unwrap(), &touched);
            let is_young = |held: &HeldBlock| clock as u64 - held.since < SMALL.most_clocks;
            prop_assert!(held.blocks.iter().flatten().all(is_young));
        }
        take(held.flush(), &touched);
        prop_assert_eq!(offered, went);
        prop_assert!(held.flush().is_empty());
    }
}

#[test]
fn what_goes_of_elements_goes_in_runs_of_few_lengths() {
    let mut held = HeldElements::new(9 * BLOCK + 5, SMALL).unwrap();
    let mut update = vec![0.25; 9 * BLOCK + 5];
    // One element is enough for its block.
    [0, 1, 2, 3, 5, 6, 7, 9].iter().for_each(|block| update[block * BLOCK] = 2.0);
    let runs = held.offer(0, 0, &update).unwrap();
    let runs: Vec<(usize, usize)> =
        runs.iter().map(|run| (run.first / BLOCK, run.values.len())).collect();
    assert_eq!(runs, [(0, 4 * BLOCK), (5, BLOCK), (6, 2 * BLOCK), (9, 5)]);
    let rest = held.clock(SMALL.most_clocks);
    assert_eq!(
        rest,
        [4, 8].map(|block| GoingRun { first: block * BLOCK, values: vec![0.25; BLOCK] })
    );
    let n_bytes = 4 * (9 * BLOCK as u64 + 5);
    assert_eq!(held.saved(), Saved { before: n_bytes, after: n_bytes });
}

#[test]
fn small_updates_add_up_until_they_matter() {
    let mut held = HeldRows::new(1, SMALL).unwrap();
    assert_eq!(held.offer(0, &[7], &[0.5]).unwrap(), Going::default());
    assert_eq!(held.offer(1, &[7], &[0.75]).unwrap(), Going { keys: vec![7], values: vec![1.25] });
    assert_eq!(held.saved(), Saved { before: 24, after: 12 });
}

#[test]
fn what_was_held_for_long_goes_with_the_clock() {
    let mut held = HeldRows::new(1, SMALL).unwrap();
    held.offer(4, &[7, 8], &[0.5, 0.25]).unwrap();
    assert_eq!(held.clock(6), Going::default());
    assert_eq!(held.clock(7), Going { keys: vec![7, 8], values: vec![0.5, 0.25] });
}

#[test]
fn what_is_no_number_is_not_hidden() {
    let mut held = HeldRows::new(1, SMALL).unwrap();
    assert_eq!(held.offer(0, &[7], &[f32::NAN]).unwrap().keys, [7]);
    let runs = HeldElements::new(2, SMALL).unwrap().offer(0, 0, &[0.0, f32::NAN]).unwrap();
    assert!(runs[0].values[1].is_nan());
}

#[test]
fn thresholds_and_lengths_that_make_no_sense_are_refused() {
    for threshold in [-1.0, f32::NAN, f32::INFINITY] {
        let bad = Significance { threshold, ..SMALL };
        assert!(HeldRows::new(1, bad).is_err() && HeldElements::new(1, bad).is_err());
    }
    assert!(HeldRows::new(2, SMALL).unwrap().offer(0, &[1], &[1.0]).is_err());
    assert!(HeldElements::new(2, SMALL).unwrap().offer(0, 1, &[1.0; 2]).is_err());
}
