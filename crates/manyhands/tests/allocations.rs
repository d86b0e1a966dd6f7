//! After the first step, training allocates nothing.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, Isa, StepExecutor};

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

/// One test, so that no other runs in the process while it counts.
#[test]
fn steps_after_the_first_allocate_nothing() {
    let setups = [(1, 1), (1, 2), (2, 1)];
    for case in Case::ALL {
        for (n_lanes, threads_each) in setups {
            let program = case.training_program(case.batch() / 4).unwrap();
            let device = CpuDevice::with_lanes(n_lanes, threads_each, Isa::detect()).unwrap();
            let mut step = StepExecutor::new(Box::new(device), n_lanes);
            let plan = step.add_plan(&program, 3, None).unwrap();
            step.run(plan).unwrap();
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            step.run(plan).unwrap();
            let allocated = N_ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(allocated, 0, "{} with {n_lanes} x {threads_each} threads", case.name());
        }
    }
}
