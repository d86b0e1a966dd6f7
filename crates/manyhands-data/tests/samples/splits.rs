//! Parts: drawn by the seed, or files of their own.

use std::collections::BTreeSet;

use manyhands_data::{Data, Part, Target};
use proptest::prelude::*;
use serde_json::json;

use crate::{Folder, floats, input, spec};

fn numbers(n: usize) -> Folder {
    let rows: String = (0..n).map(|i| format!("{i},{}\n", i % 2)).collect();
    Folder::new().with("a.csv", format!("x,y\n{rows}"))
}

fn rows(part: &Part) -> Vec<i64> {
    floats(&input(part, 0)).into_iter().map(|x| x as i64).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn drawn_parts_are_disjoint_and_complete(n in 300usize..2000, seed in any::<u64>()) {
        let folder = numbers(n);
        let job = spec(json!({
            "train": "a.csv", "label": "y", "validation": 0.2, "test": 0.3, "normalise": "none",
        }));
        let data = Data::open(&job, Target::Classes, seed, folder.path(), folder.path()).unwrap();
        let parts = [Some(&data.train), data.validation.as_ref(), data.test.as_ref()];
        let parts: Vec<Vec<i64>> = parts.into_iter().flatten().map(rows).collect();
        let all: BTreeSet<i64> = parts.iter().flatten().copied().collect();
        prop_assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), n);
        prop_assert_eq!(all.len(), n);
        prop_assert!(parts.iter().all(|part| part.is_sorted()));
    }
}

#[test]
fn the_seed_decides_and_more_rows_move_none() {
    let job = spec(json!({"train": "a.csv", "label": "y", "test": 0.3, "normalise": "none"}));
    let test = |n, seed| {
        let folder = numbers(n);
        let data = Data::open(&job, Target::Classes, seed, folder.path(), folder.path()).unwrap();
        rows(data.test.as_ref().unwrap())
    };
    let first = test(500, 1);
    assert_eq!(first, test(500, 1));
    assert_ne!(first, test(500, 2));
    assert_eq!(first, test(900, 1)[..first.len()]);
}

#[test]
fn only_the_training_part_is_learned_from() {
    let folder = numbers(1000);
    let job = spec(json!({"train": "a.csv", "label": "y", "test": 0.5}));
    let data = folder.open(&job, Target::Classes);
    let train = floats(&input(&data.train, 0));
    let mean: f64 = train.iter().map(|&x| f64::from(x)).sum::<f64>() / train.len() as f64;
    let square: f64 = train.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / train.len() as f64;
    assert!(mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-6);
    let test = floats(&input(data.test.as_ref().unwrap(), 0));
    let mean: f64 = test.iter().map(|&x| f64::from(x)).sum::<f64>() / test.len() as f64;
    assert!(mean.abs() > 1e-6);
}

#[test]
fn files_of_their_own_are_read_with_what_was_learned() {
    let folder = numbers(100).with("b.csv", "y,x\n1,49.5\n").with("c.csv", "x,y\n0,0\n99,1\n");
    let job = spec(json!({
        "train": "a.csv", "label": "y", "validation": "b.csv", "test": ["c.csv"],
    }));
    let data = folder.open(&job, Target::Classes);
    assert_eq!(floats(&input(data.validation.as_ref().unwrap(), 0)), [0.0]);
    let train = floats(&input(&data.train, 0));
    assert_eq!(floats(&input(data.test.as_ref().unwrap(), 0)), [train[0], train[99]]);
    assert_eq!(data.summary.n_rows, 103);
    assert_eq!(data.summary.files.len(), 3);
}
