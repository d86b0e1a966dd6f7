//! Memory for buffers, arenas and scratch: aligned, zeroed, and in huge pages where it is large.
//!
//! Kernels walk down columns that are a page or more apart, so with ordinary pages large products spend time on address
//! translation: huge pages make the steps of the benchmark models 1 to 6 % faster. Systems that hand them out only on
//! request are asked; where there are none, ordinary pages do.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;

use crate::device::{GroupMemory, ShownMemory};

/// Memory from this size on gets its own mapping: 1.5 MiB, so that what rounding up to a huge page wastes stays small.
const LARGE: usize = 3 << 19;

/// The size of a huge page on the machines that matter; a wrong guess costs nothing but speed.
const HUGE_PAGE: usize = 2 << 20;

/// What so many bytes take of a machine's memory where it has huge pages.
pub fn taken_bytes(n_bytes: usize) -> usize {
    if n_bytes < LARGE { n_bytes } else { n_bytes.next_multiple_of(HUGE_PAGE) }
}

/// Zeroed memory, aligned to a cache line at least.
#[derive(Debug)]
pub(super) struct AlignedBytes {
    memory: Memory,
    n_bytes: usize,
}

#[derive(Debug)]
enum Memory {
    Small(Vec<Line>),
    /// A mapping, and where in it the first huge page begins.
    Large(MmapMut, usize),
    /// Of somebody else, who must stay.
    Given(NonNull<u8>, #[allow(dead_code)] Arc<dyn GroupMemory>),
    /// The same, to be read only.
    Shown(NonNull<u8>, #[allow(dead_code)] Arc<dyn ShownMemory>),
}

// SAFETY: memory belongs to no thread, given memory to nobody else ([`GroupMemory`]), and shown memory is not written.
unsafe impl Send for Memory {}
// SAFETY: as above; it is written through `&mut` only.
unsafe impl Sync for Memory {}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

impl Default for AlignedBytes {
    fn default() -> AlignedBytes {
        AlignedBytes { memory: Memory::Small(Vec::new()), n_bytes: 0 }
    }
}

impl AlignedBytes {
    /// So many zeros, or nothing where there is not enough memory.
    pub(super) fn zeroed(n_bytes: usize) -> Option<AlignedBytes> {
        let memory = if n_bytes < LARGE {
            let n_lines = n_bytes.div_ceil(size_of::<Line>());
            let mut lines = Vec::new();
            lines.try_reserve_exact(n_lines).ok()?;
            lines.resize(n_lines, Line([0; 64]));
            Memory::Small(lines)
        } else {
            // What the alignment skips is never touched, so it takes no memory.
            let mut mapping = MmapMut::map_anon(n_bytes.checked_add(2 * HUGE_PAGE)?).ok()?;
            let offset = mapping.as_mut_ptr().align_offset(HUGE_PAGE);
            #[cfg(target_os = "linux")]
            // A system without huge pages refuses, and ordinary ones do.
            let _ = mapping.advise_range(
                memmap2::Advice::HugePage,
                offset,
                n_bytes.next_multiple_of(HUGE_PAGE),
            );
            Memory::Large(mapping, offset)
        };
        Some(AlignedBytes { memory, n_bytes })
    }

    /// So many zeros in memory that somebody else has made, where that has room.
    pub(super) fn in_memory(memory: &Arc<dyn GroupMemory>, n_bytes: usize) -> Option<AlignedBytes> {
        let start = memory.take(n_bytes)?;
        Some(AlignedBytes { memory: Memory::Given(start, Arc::clone(memory)), n_bytes })
    }

    /// So many bytes of memory that somebody else shows, where there are as many. They are never written here.
    pub(super) fn shown(memory: &Arc<dyn ShownMemory>, n_bytes: usize) -> Option<AlignedBytes> {
        let start = memory.start(n_bytes)?;
        Some(AlignedBytes { memory: Memory::Shown(start, Arc::clone(memory)), n_bytes })
    }

    /// Whether it is to be read only.
    pub(super) fn is_shown(&self) -> bool {
        matches!(self.memory, Memory::Shown(..))
    }

    /// A copy of these bytes.
    pub(super) fn from_slice(bytes: &[u8]) -> Option<AlignedBytes> {
        let mut own = AlignedBytes::zeroed(bytes.len())?;
        own.as_mut_slice().copy_from_slice(bytes);
        Some(own)
    }

    pub(super) fn len(&self) -> usize {
        self.n_bytes
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: the lines hold at least `n_bytes` initialised bytes.
            Memory::Small(lines) => unsafe {
                std::slice::from_raw_parts(lines.as_ptr().cast(), self.n_bytes)
            },
            Memory::Large(mapping, offset) => &mapping[*offset..*offset + self.n_bytes],
            // SAFETY: as many bytes were given, initialised, to nobody else; or are shown, by one whose word it is that nobody writes there while it counts.
            Memory::Given(start, _) | Memory::Shown(start, _) => unsafe {
                std::slice::from_raw_parts(start.as_ptr(), self.n_bytes)
            },
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        let (ptr, n_bytes) = (self.as_mut_ptr(), self.n_bytes);
        // SAFETY: the memory holds at least `n_bytes` initialised bytes, borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(ptr, n_bytes) }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Small(lines) => lines.as_mut_ptr().cast(),
            Memory::Large(mapping, offset) => mapping.as_mut_ptr().wrapping_add(*offset),
            Memory::Given(start, _) | Memory::Shown(start, _) => start.as_ptr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zeroed_aligned_and_writable() {
        for n_bytes in [0, 1, 63, 64, 65, LARGE - 1, LARGE, LARGE + 1, 3 * HUGE_PAGE + 17] {
            let mut memory = AlignedBytes::zeroed(n_bytes).unwrap();
            assert_eq!(memory.len(), n_bytes);
            assert!(memory.as_slice().iter().all(|&byte| byte == 0));
            assert!((memory.as_mut_ptr() as usize).is_multiple_of(64));
            memory.as_mut_slice().fill(7);
            assert!(memory.as_slice().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        assert!(AlignedBytes::zeroed(1 << 60).is_none());
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
    }
}
