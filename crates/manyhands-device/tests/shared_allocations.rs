//! After the first time, running an assignment of grains, the exchange's view and the update allocate nothing.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there
#![allow(clippy::single_range_in_vec_init)] // a list with one range in it is meant as such

mod training;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use manyhands_device::FollowSums;
use manyhands_program::{Adam, Optimizer};
use training::Worker;

/// Counts what every thread of the process allocates.
struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the sums that it is told.
struct Counted(usize);

impl FollowSums for Counted {
    fn take(&mut self, _: usize, _: usize, _: &[&[u8]]) {
        self.0 += 1;
    }
}

/// One step, the last grains of which are followed; the totals are whatever the first set of sums holds.
fn step(worker: &mut Worker, calls: &[&[Range<usize>]]) {
    let plan = worker.plan;
    worker.step.begin_step(plan).unwrap();
    let (last, calls) = calls.split_last().unwrap();
    calls.iter().for_each(|grains| worker.step.run_grains(plan, grains).unwrap());
    let mut counted = Counted(0);
    worker.step.run_grains_announcing(plan, last, &mut counted, || true).unwrap();
    assert!(counted.0 > 0);
    worker.step.exchange(plan, |sums, totals| totals.copy_from_slice(sums.bytes(0))).unwrap();
    worker.step.run_update(plan).unwrap();
}

/// One test, so that no other runs in the process while it counts.
#[test]
fn assignments_that_come_again_allocate_nothing() {
    for n_lanes in 1..=2 {
        let mut worker = Worker::new(Optimizer::Adam(Adam::default()), 8, None, n_lanes);
        let assignments: [&[&[Range<usize>]]; 3] =
            [&[&[0..4]], &[&[1..4, 6..8]], &[&[0..3], &[5..6, 3..4]]];
        assignments.iter().for_each(|calls| step(&mut worker, calls));
        for calls in assignments {
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            step(&mut worker, calls);
            let allocated = N_ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(allocated, 0, "{calls:?} on {n_lanes} lanes");
        }
    }
}
