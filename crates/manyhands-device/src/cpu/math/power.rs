//! Powers.
//!
//! x^y = 2^(y log2 x) loses as many bits as y log2 x has before the point, up to seven. The
//! logarithm is therefore carried as the sum of two f32, good to about 31 bits.

use super::exponential::{ROUND, normalise, polynomial, split};
use crate::cpu::simd::Lanes;

/// 2 / ln 2 in two parts.
const SCALE_HIGH: f32 = 2.885_39;
const SCALE_LOW: f32 = 3.851_926e-8;

/// (atanh(s) / s - 1) / s^2 in s^2, for |s| <= 0.1716; error of atanh(s) / s 2.5e-11.
const ATANH: [f32; 4] = [0.333_333_3, 0.200_004_86, 0.142_493_95, 0.121_395_46];

/// (2^r - 1) / r on |r| <= 1/2; relative error of 2^r 3e-9.
const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_48,
    0.055_503_596,
    0.009_618_506,
    0.001_339_102_5,
    0.000_153_267_81,
];

/// log2 of a positive finite number as a sum (large, small).
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn log2_pair<L: Lanes>(l: L, x: L::F) -> (L::F, L::F) {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let one = l.splat(1.0);
        let (normal, shift) = normalise(l, x);
        let (m, e) = split(l, normal);
        let e = l.add(l.to_f(e), shift);
        // log m = 2 atanh(s) with s = (m - 1) / (m + 1), the quotient in two parts.
        let (over, under) = (l.sub(m, one), l.add(m, one));
        let under_lost = l.sub(m, l.sub(under, one));
        let s = l.div(over, under);
        let left = l.mul_add(l.neg(s), under, over);
        let left = l.mul_add(l.neg(s), under_lost, left);
        let s_low = l.div(left, under);
        let square = l.mul(s, s);
        let tail = l.mul_add(l.mul(s, square), polynomial(l, square, ATANH), s_low);
        let scale = l.splat(SCALE_HIGH);
        let high = l.mul(s, scale);
        let low = l.mul_add(s, scale, l.neg(high));
        let low = l.mul_add(s, l.splat(SCALE_LOW), low);
        let low = l.mul_add(tail, scale, low);
        let sum = l.add(e, high);
        let low = l.add(l.sub(high, l.sub(sum, e)), low);
        let large = l.add(sum, low);
        (large, l.sub(low, l.sub(large, sum)))
    }
}

/// 2^(p + p_low); a clamped `p` needs no `p_low`.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn exp2_pair<L: Lanes>(l: L, p: L::F, p_low: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let inside = l.lt(l.abs(p), l.splat(160.0));
        let p_low = l.select(inside, p_low, l.splat(0.0));
        let p = l.min(l.splat(129.0), l.max(l.splat(-151.0), p));
        let rounded = l.add(p, l.splat(ROUND + 254.0));
        let r = l.add(l.sub(p, l.sub(rounded, l.splat(ROUND + 254.0))), p_low);
        let q = l.mul(r, polynomial(l, r, EXP2));
        let biased = l.bits(rounded);
        let half = l.shl_i::<23>(l.shr_i::<1>(biased));
        let rest = l.from_bits(l.sub_i(l.shl_i::<23>(biased), half));
        let half = l.from_bits(half);
        l.mul(l.mul_add(q, half, half), rest)
    }
}

/// x^y, to 2.5 ulp, with IEEE 754's `pow` for zeros, infinities, NaN and negative bases.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn pow<L: Lanes>(l: L, x: L::F, y: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (zero, one) = (l.splat(0.0), l.splat(1.0));
        let infinity = l.splat(f32::INFINITY);
        let a = l.abs(x);
        let (large, small) = log2_pair(l, a);
        let p = l.mul(y, large);
        let p_low = l.mul_add(y, small, l.mul_add(y, large, l.neg(p)));
        let mut result = exp2_pair(l, p, p_low);

        // Bases 0, 1 and infinity; the logarithm above means nothing for the first and the last.
        let falls = l.lt(y, zero);
        result = l.select(l.eq(a, zero), l.select(falls, infinity, zero), result);
        result = l.select(l.eq(a, infinity), l.select(falls, zero, infinity), result);
        result = l.select(l.eq(a, one), one, result);

        // A negative base: the sign of an odd power, NaN for a fraction.
        let half = l.mul(y, l.splat(0.5));
        let whole = l.eq(l.floor(y), y);
        let odd = l.mask_and(whole, l.mask_not(l.eq(l.floor(half), half)));
        let sign = l.and_i(l.bits(x), l.splat_i(i32::MIN));
        let signed = l.from_bits(l.or_i(l.bits(result), sign));
        let undefined =
            l.mask_and(l.mask_and(l.lt(x, zero), l.lt(l.neg(infinity), x)), l.mask_not(whole));
        result = l.select(odd, signed, result);
        result = l.select(undefined, l.splat(f32::NAN), result);

        // NaN in, NaN out, except where the answer is 1 whatever the other operand is.
        let known = l.mask_and(l.eq(x, x), l.eq(y, y));
        result = l.select(known, result, l.add(x, y));
        l.select(l.mask_or(l.eq(y, zero), l.eq(x, one)), one, result)
    }
}

/// 1 / sqrt(x), by division and square root, both correctly rounded.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn rsqrt<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe { l.div(l.splat(1.0), l.sqrt(x)) }
}
