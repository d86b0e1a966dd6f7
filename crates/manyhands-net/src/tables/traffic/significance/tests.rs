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
        n in 1usize..200, clocks in proptest::collection::vec(-9i32..9, 1..12),
    ) {
        let mut held = HeldElements::new(n, SMALL).unwrap();
        let (mut offered, mut went) = (vec![0f32; n], vec![0f32; n]);
        let add = |to: &mut Vec<f32>, update: &[f32]| {
            to.iter_mut().zip(update).for_each(|(to, update)| *to += update);
        };
        for (clock, number) in clocks.into_iter().enumerate() {
            let element = |idx: usize| (number * (idx / 50) as i32) as f32 / 16.0;
            let mut update: Vec<f32> = (0..n).map(element).collect();
            add(&mut offered, &update);
            held.offer(clock as u64, &mut update).unwrap();
            add(&mut went, &update);
            let is_young = |since: &Option<u64>| {
                since.is_none_or(|since| clock as u64 - since < SMALL.most_clocks)
            };
            prop_assert!(held.since.iter().all(is_young));
        }
        held.flush().iter().for_each(|update| add(&mut went, update));
        prop_assert_eq!(offered, went);
        prop_assert!(held.flush().is_none());
    }
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
    let mut update = [0.0, f32::NAN];
    HeldElements::new(2, SMALL).unwrap().offer(0, &mut update).unwrap();
    assert!(update[1].is_nan());
}

#[test]
fn thresholds_and_lengths_that_make_no_sense_are_refused() {
    for threshold in [-1.0, f32::NAN, f32::INFINITY] {
        let bad = Significance { threshold, ..SMALL };
        assert!(HeldRows::new(1, bad).is_err() && HeldElements::new(1, bad).is_err());
    }
    assert!(HeldRows::new(2, SMALL).unwrap().offer(0, &[1], &[1.0]).is_err());
    assert!(HeldElements::new(2, SMALL).unwrap().offer(0, &mut [1.0]).is_err());
}
