//! Rows against a map of the standard library.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::tables::rules::{RuleSpec, Rules};

const AT: At = At { table: 5, shard: 0, first: 0, step: 0, rate: 0.1, share: 1.0, divisor: 1.0 };
const INIT: RowInit = RowInit::Uniform { low: -1.0, high: 1.0, seed: 3 };

fn rule(spec: RuleSpec) -> Box<dyn Rule> {
    Rules::with_built_in().make(&spec).unwrap()
}

fn specs() -> Vec<RuleSpec> {
    vec![
        RuleSpec::Add,
        RuleSpec::Adagrad { epsilon: 1e-8, initial: 0.0 },
        RuleSpec::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.5, l2: 0.1 },
    ]
}

/// The same as a shard, of vectors in a map.
struct Oracle {
    rule: Box<dyn Rule>,
    width: usize,
    rows: HashMap<u64, Vec<Vec<f32>>>,
    keys: Vec<u64>,
}

impl Oracle {
    fn new(spec: RuleSpec, width: usize) -> Oracle {
        Oracle { rule: rule(spec), width, rows: HashMap::new(), keys: Vec::new() }
    }

    fn first(&self, key: u64) -> Vec<f32> {
        let mut row = vec![0.0; self.width];
        INIT.fill(AT.table, key, &mut row);
        row
    }

    fn update(&mut self, keys: &[u64], values: &[f32]) {
        for (key, update) in keys.iter().zip(values.chunks(self.width)) {
            if !self.rows.contains_key(key) {
                let mut row = vec![vec![0.0; self.width]; 1 + self.rule.n_slots()];
                row[0] = self.first(*key);
                self.rows.insert(*key, row);
                self.keys.push(*key);
            }
            let row = self.rows.get_mut(key).unwrap();
            let (values, slots) = row.split_first_mut().unwrap();
            let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            self.rule.apply(At { first: *key, ..AT }, values, &mut slots, update).unwrap();
        }
    }

    fn read(&self, keys: &[u64]) -> Vec<f32> {
        let row =
            |key: &u64| self.rows.get(key).map_or_else(|| self.first(*key), |row| row[0].clone());
        keys.iter().flat_map(row).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn value_of(number: usize) -> f32 {
    (number * 37 % 101) as f32 / 10.0 - 5.0
}

/// Few keys, so that they come again; some of them far away.
fn keys() -> impl Strategy<Value = Vec<u64>> {
    let key = prop_oneof![0u64..200, (0u64..100).prop_map(|key| key << 32), Just(u64::MAX)];
    proptest::collection::vec(key, 0..120)
}

proptest! {
    #[test]
    fn a_shard_does_what_a_map_does(
        batches in proptest::collection::vec((keys(), keys()), 1..8),
        width in 1usize..20,
        spec_idx in 0usize..3,
    ) {
        let spec = specs().swap_remove(spec_idx);
        let mut rule = rule(spec.clone());
        let mut shard = RowShard::new(AT.table, width, rule.n_slots(), INIT);
        let mut oracle = Oracle::new(spec, width);
        for (pushed, pulled) in batches {
            let values: Vec<f32> = (0..pushed.len() * width).map(value_of).collect();
            let n_missing = shard.n_missing(&pushed);
            let (n_before, most) = (shard.len(), shard.n_bytes_with(n_missing));
            shard.update(&mut *rule, AT, &pushed, &values).unwrap();
            oracle.update(&pushed, &values);
            prop_assert!(shard.len() <= n_before + n_missing);
            prop_assert!(shard.n_bytes() <= most);
            let mut out = vec![0.0; pulled.len() * width];
            let n_rows = shard.len();
            shard.read(&pulled, &mut out).unwrap();
            prop_assert_eq!(bits(&out), bits(&oracle.read(&pulled)));
            prop_assert_eq!(shard.len(), n_rows, "a read makes no rows");
        }
        prop_assert_eq!(shard.keys().collect::<Vec<_>>(), oracle.keys.clone());
        for (row, (key, values, slots)) in shard.iter().enumerate() {
            prop_assert_eq!(shard.find(key), Some(row));
            let wanted = &oracle.rows[&key];
            prop_assert_eq!(bits(values), bits(&wanted[0]));
            prop_assert_eq!(bits(slots), bits(&wanted[1..].concat()));
        }
    }
}

#[test]
fn many_rows_are_found_again_over_all_chunks() {
    let mut shard = RowShard::new(1, 100, 0, RowInit::Zeros);
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13;
    let n = 30_000;
    for number in 0..n {
        let row = shard.get_or_make(key(number)).unwrap();
        assert_eq!(row as u64, number);
        shard.row_mut(row).fill(number as f32);
    }
    assert!(shard.chunks.len() > 3);
    assert_eq!(shard.len() as u64, n);
    for number in 0..n {
        let row = shard.get_or_make(key(number)).unwrap();
        assert_eq!(shard.row(row), [number as f32; 100]);
    }
    assert_eq!(shard.n_missing(&[key(1), key(n), key(n + 1)]), 2);
}

#[test]
fn keys_that_differ_in_few_bits_only_are_spread() {
    // Consecutive, and multiples of large powers of two: what hashed features and row numbers look like.
    for shift in [0, 8, 20, 32, 44] {
        let mut shard = RowShard::new(1, 1, 0, RowInit::Zeros);
        (0..50_000u64).for_each(|key| assert!(shard.get_or_make(key << shift).is_ok()));
        let longest = (0..50_000u64).map(|key| shard.index.n_looks(hash(key << shift))).max();
        assert!(longest.unwrap() < 100, "{longest:?} looks, shift {shift}");
    }
}

#[test]
fn a_key_that_comes_twice_in_a_push_is_updated_twice() {
    let mut add = rule(RuleSpec::Add);
    let mut shard = RowShard::new(1, 2, 0, RowInit::Constant(1.0));
    shard.update(&mut *add, AT, &[4, 4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let mut out = [0.0; 2];
    shard.read(&[4], &mut out).unwrap();
    assert_eq!((out, shard.len()), ([5.0, 7.0], 1));
}

#[test]
fn wrong_lengths_and_slots_change_nothing() {
    let mut shard = RowShard::new(1, 3, 0, RowInit::Zeros);
    let error = shard.update(&mut *rule(RuleSpec::Add), AT, &[1, 2], &[0.0; 5]).unwrap_err();
    assert_eq!(error, StoreError::WrongLength { expected: 6, found: 5 });
    assert!(shard.read(&[1], &mut [0.0; 4]).is_err());
    let mut adagrad = rule(RuleSpec::Adagrad { epsilon: 1.0, initial: 0.0 });
    let error = shard.update(&mut *adagrad, AT, &[1], &[0.0; 3]).unwrap_err();
    assert_eq!(error, StoreError::WrongSlots { of_rule: 1, of_shard: 0 });
    assert!(shard.is_empty());
}

#[test]
fn a_small_shard_takes_little_memory() {
    let mut shard = RowShard::new(1, 16, 0, RowInit::Zeros);
    assert!(shard.n_bytes() < 1 << 10);
    (0..100).for_each(|key| assert!(shard.get_or_make(key).is_ok()));
    assert!(shard.n_bytes() < 16 << 10, "{}", shard.n_bytes());
}

/// A rule that takes rows together.
struct Together(Box<dyn Rule>);

impl Rule for Together {
    fn n_slots(&self) -> usize {
        self.0.n_slots()
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        self.0.apply(at, values, slots, update)
    }

    fn rows_at_once(&self) -> usize {
        5
    }
}

#[test]
fn rows_taken_together_come_to_what_they_come_to_one_by_one() {
    for spec in specs() {
        let n_slots = rule(spec.clone()).n_slots();
        let (mut one, mut many) = (rule(spec.clone()), Together(rule(spec)));
        let mut shards = [0, 1].map(|_| RowShard::new(AT.table, 3, n_slots, INIT));
        for round in 0..4u64 {
            // Rising, falling and the same again.
            let keys: Vec<u64> = (0..17).map(|n| (n * n * 7 + round) % 23).collect();
            let values: Vec<f32> = (0..51).map(|n| (n as f32 - 20.0) / 7.0).collect();
            shards[0].update(&mut *one, AT, &keys, &values).unwrap();
            shards[1].update(&mut many, AT, &keys, &values).unwrap();
        }
        let [one, many] = shards.each_ref().map(|shard| shard.iter().collect::<Vec<_>>());
        assert_eq!(one, many);
    }
}
