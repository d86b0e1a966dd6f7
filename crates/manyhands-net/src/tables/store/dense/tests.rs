//! Ranges, lengths and slots of a run of elements.

use super::*;
use crate::tables::rules::{RuleSpec, Rules};

const AT: At = At { table: 1, shard: 0, first: 0, step: 0, rate: 1.0, share: 1.0, divisor: 1.0 };

fn rule(spec: RuleSpec) -> Box<dyn Rule> {
    Rules::with_built_in().make(&spec).unwrap()
}

#[test]
fn an_update_reaches_its_elements_and_their_slots_alone() {
    let mut adagrad = rule(RuleSpec::Adagrad { epsilon: 1e-10, initial: 0.0 });
    let mut shard = DenseShard::new(100, 40, 1);
    shard.apply(&mut *adagrad, AT, 110..113, &[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(shard.slots(0)[9..14], [0.0, 1.0, 4.0, 9.0, 0.0]);
    assert_eq!(shard.read(109..114).unwrap(), [0.0, -1.0, -1.0, -1.0, 0.0]);
    assert_eq!(shard.n_bytes(), 3 * 40 * 4);
}

#[test]
fn values_and_slots_begin_at_cache_lines() {
    let shard = DenseShard::new(0, 33, 2);
    for run in [shard.values(), shard.slots(0), shard.slots(1)] {
        assert_eq!(run.as_ptr() as usize % 64, 0);
    }
}

#[test]
fn elements_of_other_shards_are_refused() {
    let mut add = rule(RuleSpec::Add);
    let mut shard = DenseShard::new(100, 40, 0);
    let backwards = Range { start: 120, end: 119 };
    for elements in [99..101, 139..141, 0..0, backwards, 0..u64::MAX] {
        let n = elements.end.saturating_sub(elements.start).min(4) as usize;
        let error = shard.apply(&mut *add, AT, elements.clone(), &vec![1.0; n]).unwrap_err();
        assert!(matches!(error, StoreError::Outside { .. }), "{elements:?}");
        assert!(shard.read(elements).is_err());
    }
    let error = shard.read(90..120).unwrap_err().to_string();
    assert_eq!(error, "elements 90..120 are not all in this shard, which has 100..140");
    assert!(shard.values().iter().all(|value| *value == 0.0));
    assert!(shard.read(140..140).unwrap().is_empty());
}

#[test]
fn updates_of_another_length_and_rules_with_other_slots_are_refused() {
    let mut shard = DenseShard::new(0, 8, 0);
    let error = shard.apply(&mut *rule(RuleSpec::Add), AT, 0..8, &[1.0; 7]).unwrap_err();
    assert_eq!(error, StoreError::WrongLength { expected: 8, found: 7 });
    let mut ftrl = rule(RuleSpec::Ftrl { alpha: 1.0, beta: 1.0, l1: 0.0, l2: 0.0 });
    let error = shard.apply(&mut *ftrl, AT, 0..8, &[1.0; 8]).unwrap_err();
    assert_eq!(error, StoreError::WrongSlots { of_rule: 2, of_shard: 0 });
}

#[test]
fn what_somebody_reads_stays_as_it_is_and_is_counted() {
    let mut add = rule(RuleSpec::Add);
    let mut shard = DenseShard::new(0, 40, 0);
    let mut apply = |shard: &mut DenseShard| shard.apply(&mut *add, AT, 0..40, &[1.0; 40]).unwrap();
    let read = |shard: &DenseShard| shard.share(0..40).unwrap().0;
    let mut readers = Vec::new();
    for n_before in 0..3 {
        readers.push(read(&shard));
        apply(&mut shard);
        assert_eq!(shard.n_bytes(), (2 + n_before) * 40 * 4);
    }
    for (n_before, values) in readers.iter().enumerate() {
        assert!(values.iter().all(|value| *value == n_before as f32));
    }
    readers.clear();
    shard.tidy();
    assert_eq!(shard.n_bytes(), 2 * 40 * 4, "one is kept to be used again");
    let reader = read(&shard);
    apply(&mut shard);
    assert_eq!((shard.n_bytes(), reader[7], shard.values()[7]), (2 * 40 * 4, 3.0, 4.0));
}
