//! Copies into memory that another core reads and that is used again: through the caches or past them, whichever is fast between these two cores.
//!
//! Who writes a line that another core has in its cache waits until it is taken from there. Two cores of one machine may be near or far: with 60 ns from one to the other, copies into a ring
//! ran at 11 to 17 GB/s, with 270 ns at 2.1 to 2.9, and machines change between the two by themselves. Stores that go past the caches do not wait: 20 GB/s with far cores, and
//! who reads is as fast as before. With near cores reading gets slower by a third, more than writing gains. So a sender measures its own copies.

use std::time::{Duration, Instant};

/// Copies of fewer bytes say little, and go through the caches.
const LARGE: usize = 16 << 10;
/// A copy through the caches is slow where a byte takes longer: between what near and far cores take.
const SLOW_NANOSECONDS_PER_BYTE: f64 = 0.2;
/// So many in a row are slow for that reason; one alone may have been interrupted.
const IN_A_ROW: u32 = 3;
/// How many copies go past the caches before there is a look whether the cores are still far.
const STREAMED: u32 = 1024;
/// While copies are fast, one of so many is measured.
const MEASURED_EVERY: u32 = 8;

/// How one sender copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    n_slow: u32,
    n_unmeasured: u32,
    n_to_stream: u32,
}

impl Copies {
    /// Copies so many bytes, by one of two ways, which is told whether to go past the caches.
    pub(super) fn copy(&mut self, n_bytes: usize, copy: impl FnOnce(bool)) {
        if n_bytes < LARGE || !CAN_STREAM {
            return copy(false);
        }
        if let Some(left) = self.n_to_stream.checked_sub(1) {
            self.n_to_stream = left;
            return copy(true);
        }
        if self.n_slow == 0 && self.n_unmeasured < MEASURED_EVERY - 1 {
            self.n_unmeasured += 1;
            return copy(false);
        }
        let start = Instant::now();
        copy(false);
        self.measured(n_bytes, start.elapsed());
    }

    /// Takes note of what a copy through the caches took.
    fn measured(&mut self, n_bytes: usize, took: Duration) {
        self.n_unmeasured = 0;
        let is_slow = took.as_nanos() as f64 > SLOW_NANOSECONDS_PER_BYTE * n_bytes as f64;
        self.n_slow = if is_slow { self.n_slow + 1 } else { 0 };
        if self.n_slow == IN_A_ROW {
            // The next look measures at once.
            (self.n_to_stream, self.n_slow) = (STREAMED, 1);
        }
    }
}

/// Whether there is a way past the caches.
const CAN_STREAM: bool = cfg!(target_arch = "x86_64");

/// Copies bytes past the caches. What was copied is there for whoever sees a store that comes after this.
///
/// # Safety
/// There are so many bytes to read and to write, and the two do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, n_bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(n_bytes);
    let n_lines = (n_bytes - head) / LINE;
    let tail = head + n_lines * LINE;
    // SAFETY: the caller vouches for all bytes; whole lines begin at a multiple of a line's size; every machine of this architecture has these instructions.
    unsafe {
        from.copy_to_nonoverlapping(to, head);
        for line in 0..n_lines {
            let (from, to) = (from.add(head + line * LINE), to.add(head + line * LINE));
            for part in 0..LINE / size_of::<__m128i>() {
                let value = _mm_loadu_si128(from.cast::<__m128i>().add(part));
                _mm_stream_si128(to.cast::<__m128i>().add(part), value);
            }
        }
        from.add(tail).copy_to_nonoverlapping(to.add(tail), n_bytes - tail);
        // Such stores are not ordered with others by themselves.
        _mm_sfence();
    }
}

/// The same on machines that have no such stores.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, n_bytes: usize) {
    // SAFETY: the caller vouches for all bytes.
    unsafe { from.copy_to_nonoverlapping(to, n_bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_past_the_caches_are_the_same_wherever_they_begin_and_end() {
        let from: Vec<u8> = (0..1000u32).map(|n| (n * 7 % 251) as u8).collect();
        for first in 0..70 {
            for n_bytes in [0, 1, 15, 63, 64, 65, 200, 700] {
                let mut to = vec![255; 1000];
                // SAFETY: both have as many bytes from there on, and lie apart.
                unsafe { stream(from[3..].as_ptr(), to[first..].as_mut_ptr(), n_bytes) };
                assert_eq!(to[first..first + n_bytes], from[3..3 + n_bytes]);
                let others = to[..first].iter().chain(&to[first + n_bytes..]);
                assert!(others.copied().all(|byte| byte == 255), "{n_bytes} at {first}");
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn copies_go_past_the_caches_after_slow_ones_in_a_row_and_are_tried_again() {
        let (slow, fast) = (Duration::from_millis(1), Duration::from_nanos(1));
        let mut copies = Copies::default();
        let streams = |copies: &mut Copies| {
            let mut said = None;
            copies.copy(LARGE, |streams| said = Some(streams));
            said.unwrap()
        };
        for took in [slow, slow, fast, slow, slow] {
            copies.measured(LARGE, took);
            assert_eq!(copies.n_to_stream, 0);
        }
        copies.measured(LARGE, slow);
        assert!((0..STREAMED).all(|_| streams(&mut copies)));
        assert!(!streams(&mut copies), "there is a look");
        let mut copies = Copies { n_to_stream: STREAMED, ..Copies::default() };
        copies.copy(LARGE - 1, |streams| assert!(!streams, "few bytes"));
    }
}
