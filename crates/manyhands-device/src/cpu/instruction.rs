//! Instructions: what a compiled program is made of, and what they see while they run.

use super::kernels::Part;
use super::kernels::fault::Fault;
use super::memory::Place;
use super::simd::Isa;
use super::team::Barrier;

/// Does one thread's part of an instruction.
pub(super) type Action = Box<dyn Fn(&Context<'_>, Part) -> Result<(), Fault> + Send + Sync>;

/// One step of a compiled program. All threads run it, each its part; then they meet.
pub(super) struct Instruction {
    pub(super) action: Action,
    /// Bytes of scratch that each thread needs.
    pub(super) scratch_bytes: usize,
    /// The program's node that it comes from.
    pub(super) node_idx: usize,
}

/// What a thread sees while it runs instructions.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) isa: Isa,
    /// The base pointers that places refer to.
    pub(super) bases: &'a [*mut u8],
    /// This thread's scratch.
    pub(super) scratch: *mut u8,
    pub(super) scratch_bytes: usize,
    /// Where the threads of this run meet.
    pub(super) barrier: &'a Barrier,
}

impl<'a> Context<'a> {
    /// The address of a place.
    #[inline(always)]
    pub(super) fn at<T>(&self, place: Place) -> *mut T {
        self.bases[place.base as usize].wrapping_add(place.offset).cast()
    }

    /// This thread's scratch as floats.
    ///
    /// # Safety
    /// Only one such slice is alive at a time.
    #[inline(always)]
    pub(super) unsafe fn scratch_f32(&self) -> &'a mut [f32] {
        // SAFETY: the scratch is this thread's own, aligned to a cache line, and no other slice of it is alive.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.cast(), self.scratch_bytes / 4) }
    }
}

/// Memory aligned to cache lines. Zeroed when made.
#[derive(Debug, Default)]
pub(super) struct AlignedBytes {
    lines: Vec<Line>,
    n_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

impl AlignedBytes {
    pub(super) fn zeroed(n_bytes: usize) -> Option<AlignedBytes> {
        let n_lines = n_bytes.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(n_lines).ok()?;
        lines.resize(n_lines, Line([0; 64]));
        Some(AlignedBytes { lines, n_bytes })
    }

    pub(super) fn from_slice(bytes: &[u8]) -> Option<AlignedBytes> {
        let mut own = AlignedBytes::zeroed(bytes.len())?;
        own.as_mut_slice().copy_from_slice(bytes);
        Some(own)
    }

    pub(super) fn len(&self) -> usize {
        self.n_bytes
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the lines hold at least `n_bytes` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.n_bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the lines hold at least `n_bytes` initialised bytes, borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.n_bytes) }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}
