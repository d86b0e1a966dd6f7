//! Zeroed memory at edges of cache lines; where there is much of it, at edges of huge pages, which it asks for.
//!
//! Rows are found by chance access, and with pages of 4 KiB half of the time would go into finding the page.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::tables::lendable::{self, Piece};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// A fixed number of numbers, all zero at first.
pub(in crate::tables) struct Block<T: Pod> {
    start: NonNull<T>,
    len: usize,
    is_lendable: bool,
    /// What it lies in, where other processes can read it.
    piece: Option<Piece>,
}

// SAFETY: a block owns its memory and gives it out as slices do.
unsafe impl<T: Pod + Send> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for Block<T> {}

impl<T: Pod> Block<T> {
    /// So many zeros.
    pub(super) fn zeroed(len: usize) -> Block<T> {
        let (is_lendable, piece) = (false, None);
        if len == 0 {
            return Block { start: NonNull::dangling(), len, is_lendable, piece };
        }
        let layout = layout::<T>(len);
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(memory.cast::<T>()) else { handle_alloc_error(layout) };
        if layout.align() == HUGE_PAGE {
            ask_for_huge_pages(memory, layout.size());
        }
        // SAFETY: the memory is ours and of this size. Zeros are a value of any `Pod`.
        unsafe { memory.write_bytes(0, layout.size()) };
        Block { start, len, is_lendable, piece }
    }

    /// So many zeros, where other processes of the machine can read them if links of this one can show them.
    pub(super) fn lendable(len: usize) -> Block<T> {
        let Some(mut piece) = lendable::piece(len.saturating_mul(size_of::<T>())) else {
            let mut block = Block::zeroed(len);
            block.is_lendable = true;
            return block;
        };
        piece.fill(0);
        Block { start: piece.start().cast(), len, is_lendable: true, piece: Some(piece) }
    }

    /// The same numbers, and zeros after them.
    pub(super) fn grown(&self, len: usize) -> Block<T> {
        let mut grown = if self.is_lendable { Block::lendable(len) } else { Block::zeroed(len) };
        grown[..self.len].copy_from_slice(self);
        grown
    }

    /// Bytes of memory.
    pub(super) fn n_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

/// A length that memory can hold, since the callers have bounded it: one beyond that is as much out of memory as any.
fn layout<T>(len: usize) -> Layout {
    let n_bytes = len.saturating_mul(size_of::<T>());
    let align = if n_bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE };
    Layout::from_size_align(n_bytes, align).unwrap_or_else(|_| {
        handle_alloc_error(Layout::new::<T>());
    })
}

/// A kernel that has none goes on with small ones.
fn ask_for_huge_pages(memory: *mut u8, n_bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole = n_bytes / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: these pages lie within the memory, and the advice changes nothing in them.
        let _ =
            unsafe { rustix::mm::madvise(memory.cast(), whole, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, n_bytes);
}

impl<T: Pod> Drop for Block<T> {
    fn drop(&mut self) {
        if self.len > 0 && self.piece.is_none() {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout::<T>(self.len)) };
        }
    }
}

impl<T: Pod> Deref for Block<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the memory is ours, initialised, and of this length.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Block<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Its bytes, as they are sent.
impl<T: Pod> AsRef<[u8]> for Block<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T: Pod> Clone for Block<T> {
    fn clone(&self) -> Block<T> {
        self.grown(self.len)
    }
}

/// Tells the processor that this item will be needed soon. One beyond the end is nobody's.
#[inline(always)]
pub(super) fn prefetch<T>(items: &[T], idx: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(idx) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint has no effect but on caches, and the item is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, idx);
}
