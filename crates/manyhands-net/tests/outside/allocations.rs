//! The largest piece of memory that the thread of a test asked for; other tests run beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The largest since the last time this was asked, in bytes.
pub(crate) fn take_largest() -> usize {
    LARGEST.replace(0)
}

fn note(len: usize) {
    LARGEST.set(LARGEST.get().max(len));
}

struct Noting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Noting {
    // SAFETY: as the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: the caller's pointer, layout and size.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;
