//! Word to the processor that some memory is read soon.

/// A line of the cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Has these bytes come near the processor, where it takes such words.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has it, and it neither reads nor writes what the program sees.
        unsafe { _mm_prefetch(line.as_ptr().cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
