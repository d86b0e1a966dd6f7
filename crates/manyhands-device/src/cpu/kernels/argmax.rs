//! Where the largest element is.

use std::ops::Range;

use super::Part;
use super::reduce::load_up_to;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// The largest value met by each lane, and where (as the bits of an i32).
#[derive(Clone, Copy)]
struct Leader<L: Lanes> {
    value: L::F,
    idx: L::F,
}

impl<L: Lanes> Leader<L> {
    /// # Safety
    /// As every method of [`Lanes`].
    #[inline(always)]
    unsafe fn new(l: L) -> Self {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe { Leader { value: l.splat(f32::NEG_INFINITY), idx: l.splat(0.0) } }
    }

    /// Takes over lanes where `x` is larger, or the first NaN; equals stay with the earlier one.
    ///
    /// # Safety
    /// As every method of [`Lanes`].
    #[inline(always)]
    unsafe fn meet(&mut self, l: L, x: L::F, idx: L::I) {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe {
            let number = l.eq(self.value, self.value);
            let wins = l.mask_and(number, l.mask_not(l.le(x, self.value)));
            self.value = l.select(wins, x, self.value);
            self.idx = l.select(wins, l.from_bits(idx), self.idx);
        }
    }
}

/// The position of the largest element of a contiguous row.
///
/// # Safety
/// `src` has `n` elements.
#[inline(always)]
unsafe fn of_row<L: Lanes>(l: L, src: *const f32, n: usize) -> i32 {
    let lane_numbers: [i32; WIDTH] = std::array::from_fn(|i| i as i32);
    // SAFETY: the offsets stay inside the `n` elements.
    let (values, positions) = unsafe {
        let mut leader = Leader::new(l);
        let lane = l.load_i(lane_numbers.as_ptr());
        let mut at = 0;
        while at < n {
            let left = WIDTH.min(n - at);
            // Lanes past the end hold what never wins.
            let inside = l.mask_from_bits(((1u32 << left) - 1) as u16);
            let x = load_up_to(l, src.add(at), left);
            let x = l.select(inside, x, l.splat(f32::NEG_INFINITY));
            leader.meet(l, x, l.add_i(lane, l.splat_i(at as i32)));
            at += WIDTH;
        }
        (l.to_array(leader.value), l.to_array(leader.idx).map(|idx| idx.to_bits() as i32))
    };
    let mut best = 0;
    for i in 1..WIDTH {
        let (x, most) = (values[i], values[best]);
        let larger = x > most || x.is_nan() && !most.is_nan();
        let equal = x == most || x.is_nan() && most.is_nan();
        if larger || equal && positions[i] < positions[best] {
            best = i;
        }
    }
    positions[best]
}

struct Argmax {
    src: *const f32,
    dst: *mut i32,
    axis: usize,
    inner: usize,
    results: Range<usize>,
}

impl Kernel for Argmax {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Argmax { src, dst, axis, inner, results } = self;
        let mut at = results.start;
        while at < results.end {
            let (outer, col) = (at / inner, at % inner);
            let n = WIDTH.min(inner - col).min(results.end - at);
            // SAFETY: `outer` and the columns are inside the array and the results.
            unsafe {
                let src = src.add(outer * axis * inner + col);
                if inner == 1 {
                    *dst.add(at) = of_row(l, src, axis);
                } else {
                    let mut leader = Leader::new(l);
                    for row in 0..axis {
                        let x = load_up_to(l, src.add(row * inner), n);
                        leader.meet(l, x, l.splat_i(row as i32));
                    }
                    l.store_first(dst.add(at).cast(), leader.idx, n);
                }
            }
            at += n;
        }
    }
}

/// The index along the axis of the first largest element of `src`, seen as [outer, axis, inner]; a
/// NaN counts as largest. `axis` is at least 1 and fits an i32.
///
/// # Safety
/// `isa` is available; `src` has `outer * axis * inner` elements, `dst` `outer * inner`.
pub(crate) unsafe fn argmax(
    isa: Isa,
    src: *const f32,
    dst: *mut i32,
    outer: usize,
    axis: usize,
    inner: usize,
    part: Part,
) {
    let results = part.range(outer * inner, if inner == 1 { 1 } else { WIDTH });
    // SAFETY: as the caller says.
    unsafe { isa.run(Argmax { src, dst, axis, inner, results }) }
}

#[cfg(test)]
mod tests;
