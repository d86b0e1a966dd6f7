//! From bytes to f32: what the pixels of a picture go through first.

use super::Part;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Converts `n` bytes to f32.
///
/// # Safety
/// The machine has the instruction set; there are `n` bytes at `from` and room for `n` f32 at `to`.
pub(crate) unsafe fn widen(isa: Isa, from: *const u8, to: *mut f32, n: usize, part: Part) {
    let range = part.range(n, WIDTH);
    // SAFETY: the caller vouches for the memory, and the range lies within it.
    unsafe {
        let from = std::slice::from_raw_parts(from.add(range.start), range.len());
        let to = std::slice::from_raw_parts_mut(to.add(range.start), range.len());
        isa.run(Widen { from, to });
    }
}

struct Widen<'a> {
    from: &'a [u8],
    to: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self, _: L) {
        for (to, &byte) in self.to.iter_mut().zip(self.from) {
            *to = f32::from(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_becomes_its_number_however_the_work_is_shared() {
        let bytes: Vec<u8> = (0..1000).map(|idx| (idx % 256) as u8).collect();
        for isa in Isa::available() {
            for count in 1..4 {
                let mut floats = vec![-1.0; bytes.len()];
                for idx in 0..count {
                    let (from, to) = (bytes.as_ptr(), floats.as_mut_ptr());
                    // SAFETY: both have that many elements.
                    unsafe { widen(isa, from, to, bytes.len(), Part { idx, count }) };
                }
                assert!(floats.iter().zip(&bytes).all(|(f, b)| *f == f32::from(*b)));
            }
        }
    }
}
