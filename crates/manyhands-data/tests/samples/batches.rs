//! Epochs: every sample once, in the same order in memory and on disk.

use manyhands_data::{Batch, Data, Order, Part, Target};
use proptest::prelude::*;
use serde_json::json;

use crate::{Folder, spec};

fn table(n: usize) -> Folder {
    let towns = ["Ulm", "Bonn", "Trier"];
    let row = |i: usize| format!("{i},{},{:.3},{}\n", towns[i % 3], (i * 37 % 101) as f64, i % 5);
    let rows: String = (0..n).map(row).collect();
    Folder::new().with("a.csv", format!("x,town,z,y\n{rows}"))
}

fn open(folder: &Folder, memory: usize, window: Option<usize>) -> Data {
    let mut job = spec(json!({"train": "a.csv", "label": "y", "memory": memory}));
    job.shuffle_window = window;
    folder.open(&job, Target::Classes)
}

fn batches(part: &Part, order: Order, batch: usize, first: usize) -> Vec<Batch> {
    part.batches(order, batch, first).map(|batch| batch.unwrap()).collect()
}

/// The bytes and places of all samples, one after the other.
fn flat(batches: &[Batch]) -> (Vec<u8>, Vec<u8>, Vec<u64>) {
    let (mut inputs, mut targets, mut samples) = (Vec::new(), Vec::new(), Vec::new());
    for batch in batches {
        let n = batch.n_samples();
        // In two pieces, as grains take them.
        inputs.extend_from_slice(batch.input(0, 0..n / 2));
        inputs.extend_from_slice(batch.input(0, n / 2..n));
        targets.extend_from_slice(batch.target(0..n).unwrap());
        samples.extend_from_slice(batch.samples());
    }
    (inputs, targets, samples)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn every_sample_comes_exactly_once_spilled_or_not(
        n in 1usize..3000, batch in 1usize..200, seed in any::<u64>(), epoch in 0u64..5,
        window in proptest::option::of(1usize..4000), skip in 0usize..20,
    ) {
        let folder = table(n);
        let (memory, disk) = (open(&folder, 100, window), open(&folder, 0, window));
        prop_assert!(memory.train.is_in_memory() && !disk.train.is_in_memory());
        prop_assert_eq!(disk.summary.spilled_bytes, disk.summary.bytes);
        for order in [Order::Shuffled { seed, epoch }, Order::Stored] {
            let all = batches(&memory.train, order, batch, 0);
            prop_assert_eq!(all.len(), n.div_ceil(batch));
            prop_assert!(all[..all.len() - 1].iter().all(|b| b.n_samples() == batch));
            let whole = flat(&all);
            prop_assert_eq!(&whole, &flat(&batches(&disk.train, order, batch, 0)));
            let mut visited = whole.2.clone();
            visited.sort_unstable();
            prop_assert_eq!(visited, (0..n as u64).collect::<Vec<_>>());
            // Going on later gives what would have followed.
            for data in [&memory, &disk] {
                let later = flat(&batches(&data.train, order, batch, skip));
                let at = (skip * batch).min(n);
                prop_assert_eq!(&later.2, &whole.2[at..]);
                prop_assert_eq!(&later.1, &whole.1[at * 4..]);
            }
        }
    }
}

#[test]
fn the_size_of_batches_leaves_the_order_alone() {
    let folder = table(1000);
    let data = open(&folder, 100, None);
    let order = Order::Shuffled { seed: 3, epoch: 1 };
    let one = flat(&batches(&data.train, order, 1, 0));
    assert_eq!(one, flat(&batches(&data.train, order, 64, 0)));
    assert_eq!(one, flat(&batches(&data.train, order, 5000, 0)));
}

#[test]
fn windows_over_time_are_the_same_on_disk() {
    let rows: String = (0..5000).map(|i| format!("{i},{}\n", i * i % 7)).collect();
    let folder = Folder::new().with("a.csv", format!("x,y\n{rows}"));
    let open = |memory: usize| {
        let job = spec(json!({
            "train": "a.csv", "label": "y", "memory": memory, "test": 0.2, "shuffle_window": 300,
            "window": {"length": 7, "horizon": 3, "stride": 2},
        }));
        folder.open(&job, Target::Numbers)
    };
    let (memory, disk) = (open(100), open(0));
    let order = Order::Shuffled { seed: 1, epoch: 0 };
    for part in [|data: &Data| data.train.clone(), |data: &Data| data.test.clone().unwrap()] {
        let [memory, disk] = [part(&memory), part(&disk)];
        assert_eq!(flat(&batches(&memory, order, 32, 0)), flat(&batches(&disk, order, 32, 0)));
    }
}

#[test]
fn batches_can_be_kept_and_the_rest_left() {
    let folder = table(3000);
    let data = open(&folder, 100, None);
    let order = Order::Shuffled { seed: 1, epoch: 0 };
    let mut running = data.train.batches(order, 8, 0);
    let first = running.next().unwrap().unwrap();
    let before = first.input(0, 0..8).to_vec();
    let kept: Vec<Batch> = running.by_ref().take(100).map(|batch| batch.unwrap()).collect();
    drop(running);
    assert_eq!(first.input(0, 0..8), before);
    assert_eq!(kept[99].samples().len(), 8);
    let mut beyond = data.train.batches(order, 8, 1_000_000);
    assert!(beyond.next().is_none() && beyond.next().is_none());
}

#[test]
#[should_panic(expected = "the batch has 3 samples, not 4")]
fn samples_beyond_the_batch_are_refused() {
    let data = open(&table(3), 100, None);
    let batch = data.train.batches(Order::Stored, 8, 0).next().unwrap().unwrap();
    let _ = batch.input(0, 0..4);
}
