//! Rows take little more memory than their values, also in the moment in which their shard grows.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use manyhands_net::tables::rules::{At, RuleSpec, Rules};
use manyhands_net::tables::store::{RowInit, RowShard};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts the bytes that are taken, and the most that ever were.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 16;
const BATCH: usize = 10_000;
const N_ROWS: usize = 2_000_000;

/// Not one after the other, so that the index is met as hashed features meet it.
fn keys(batch: usize) -> Vec<u64> {
    let numbers = batch * BATCH..(batch + 1) * BATCH;
    numbers.map(|number| (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

#[test]
fn two_million_rows_never_take_more_than_1_6_times_their_values() {
    let at = At { table: 1, shard: 0, first: 0, step: 0, rate: 1.0, share: 1.0, divisor: 1.0 };
    let mut rule = Rules::with_built_in().make(&RuleSpec::Add).unwrap();
    let update = vec![1.0; BATCH * WIDTH];
    let mut shard = RowShard::new(1, WIDTH, 0, RowInit::Zeros);
    let lists: Vec<Vec<u64>> = (0..N_ROWS / BATCH).map(keys).collect();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    for (batch, keys) in lists.iter().enumerate() {
        let foreseen = shard.n_bytes_with(BATCH);
        shard.update(&mut *rule, at, keys, &update).unwrap();
        assert!(shard.n_bytes() <= foreseen);
        let n_raw = (batch + 1) * BATCH * WIDTH * size_of::<f32>();
        let peak = PEAK.load(Ordering::Relaxed) - before;
        // A chunk of 2 MiB is begun before it is full, so the first few do not count.
        if n_raw > 16 << 20 {
            assert!(10 * peak <= 16 * n_raw, "{peak} bytes for {n_raw} of values");
        }
    }
    assert_eq!(shard.len(), N_ROWS);
    let taken = NOW.load(Ordering::Relaxed) - before;
    assert!(taken.abs_diff(shard.n_bytes()) < 64 << 10, "{taken} {}", shard.n_bytes());
}
