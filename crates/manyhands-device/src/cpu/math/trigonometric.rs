//! Sine and cosine.
//!
//! The argument is reduced with pi/2 to 72 bits (Cody and Waite), which holds the 2 ulp for |x| up
//! to 100,000. Beyond that accuracy fades, and from about 6,000,000 on the results are meaningless,
//! though still between -1 and 1.

use super::exponential::{ROUND, polynomial};
use crate::cpu::simd::Lanes;

/// pi/2 in three parts of the same sign, so the first is rounded down.
const HALF_PI: [f32; 3] = [f32::from_bits(0x3fc9_0fda), 7.549_789_4e-8, 5.390_303e-15];

/// (sin(r) / r - 1) / r^2 in r^2, for |r| <= pi/4; relative error of the sine 4e-9.
const SIN: [f32; 3] = [-0.166_666_55, 0.008_332_187, -0.000_195_179_03];

/// (cos(r) - 1 + r^2 / 2) / r^4 in r^2, for |r| <= pi/4; error of the cosine 1.2e-10.
const COS: [f32; 3] = [0.041_666_646, -0.001_388_731, 0.000_024_432_327];

/// sin(x + `quarters` pi/2).
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn shifted_sin<L: Lanes>(l: L, x: L::F, quarters: i32) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let rounded = l.mul_add(x, l.splat(std::f32::consts::FRAC_2_PI), l.splat(ROUND));
        let n = l.sub(rounded, l.splat(ROUND));
        let quadrant = l.add_i(l.bits(rounded), l.splat_i(quarters));
        let r = l.mul_add(n, l.splat(-HALF_PI[0]), x);
        let r = l.mul_add(n, l.splat(-HALF_PI[1]), r);
        let r = l.mul_add(n, l.splat(-HALF_PI[2]), r);
        let r = l.min(l.splat(0.8), l.max(l.splat(-0.8), r));
        let square = l.mul(r, r);
        let sin = l.mul_add(r, l.mul(square, polynomial(l, square, SIN)), r);
        let cos = l.mul_add(square, l.splat(-0.5), l.splat(1.0));
        let cos = l.mul_add(l.mul(square, square), polynomial(l, square, COS), cos);
        // An odd quadrant becomes 2.0, an even one 0.0; the next bit is added onto the sign.
        let odd = l.from_bits(l.shl_i::<30>(l.and_i(quadrant, l.splat_i(1))));
        let y = l.select(l.lt(l.splat(1.0), odd), cos, sin);
        let sign = l.shl_i::<30>(l.and_i(quadrant, l.splat_i(2)));
        l.from_bits(l.add_i(l.bits(y), sign))
    }
}

/// The sine; the module says for which arguments.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn sin<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        // The reduction loses the sign of a zero.
        l.select(l.eq(x, l.splat(0.0)), x, shifted_sin(l, x, 0))
    }
}

/// The cosine; the module says for which arguments.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn cos<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe { shifted_sin(l, x, 1) }
}
