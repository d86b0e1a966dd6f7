//! Word to the processor that some memory is read soon.

/// A line of the cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Has these bytes come near the processor, where it takes such words.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    // The last byte may lie in a line of its own.
    #[cfg(target_arch = "x86_64")]
    for byte in bytes.iter().step_by(LINE).chain(bytes.last()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has it, and it neither reads nor writes what the program sees.
        unsafe { _mm_prefetch(std::ptr::from_ref(byte).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
