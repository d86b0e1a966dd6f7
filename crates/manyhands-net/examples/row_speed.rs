//! How fast rows are updated and read, by the number of rows that there are.
//!
//! `cargo run --release -p manyhands-net --example row_speed -- [ROWS]...`

#![allow(clippy::print_stdout)] // it is there to print

use std::time::Instant;

use manyhands_net::tables::rules::{At, RuleSpec, Rules};
use manyhands_net::tables::store::{RowInit, RowShard, StoreError};

const WIDTH: usize = 16;
const BATCH: usize = 10_000;
const N_BATCHES: usize = 200;

fn main() -> Result<(), StoreError> {
    let sizes: Vec<u64> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10_000, 1_000_000, 8_000_000] } else { sizes };
    println!(
        "{:>10} {:>6} {:>9} {:>9} {:>9} {:>7}",
        "rows", "rule", "make", "update", "read", "memory"
    );
    for n_rows in sizes {
        measure(n_rows, "add", &RuleSpec::Add)?;
        measure(n_rows, "ftrl", &RuleSpec::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.1, l2: 0.1 })?;
    }
    Ok(())
}

/// Nanoseconds a key.
fn measure(n_rows: u64, name: &str, spec: &RuleSpec) -> Result<(), StoreError> {
    let at = At { table: 1, shard: 0, first: 0, step: 0, rate: 0.1, share: 1.0, divisor: 1.0 };
    let mut rule = Rules::with_built_in().make(spec)?;
    let mut shard = RowShard::new(1, WIDTH, rule.n_slots(), RowInit::Zeros);
    let mut numbers = vec![0.5; BATCH * WIDTH];
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3;
    let start = Instant::now();
    for first in (0..n_rows).step_by(BATCH) {
        let keys: Vec<u64> = (first..first + BATCH as u64).map(key).collect();
        shard.update(&mut *rule, at, &keys, &numbers)?;
    }
    let make = start.elapsed().as_secs_f64() * 1e9 / shard.len() as f64;
    // Keys by chance of those that are there, as a batch of samples has them.
    let mut state = 1u64;
    let mut batch = || -> Vec<u64> {
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            key((state >> 20) % n_rows)
        };
        (0..BATCH).map(|_| next()).collect()
    };
    let batches: Vec<Vec<u64>> = (0..N_BATCHES).map(|_| batch()).collect();
    let per_key = |start: Instant| start.elapsed().as_secs_f64() * 1e9 / (N_BATCHES * BATCH) as f64;
    let start = Instant::now();
    for keys in &batches {
        shard.update(&mut *rule, at, keys, &numbers)?;
    }
    let update = per_key(start);
    let start = Instant::now();
    for keys in &batches {
        shard.read(keys, &mut numbers)?;
    }
    let read = per_key(start);
    let raw = shard.len() * WIDTH * (1 + shard.n_slots()) * size_of::<f32>();
    let memory = shard.n_bytes() as f64 / raw as f64;
    println!(
        "{n_rows:>10} {name:>6} {make:>6.1} ns {update:>6.1} ns {read:>6.1} ns {memory:>6.2}x"
    );
    Ok(())
}
