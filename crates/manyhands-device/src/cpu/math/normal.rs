//! The normal distribution: erf, and gelu with its derivative.
//!
//! gelu(x) = x Phi(x). Both it and its derivative Phi(x) + x phi(x) need e^(-x^2/2), so the upper
//! tail is written as e^(-z^2/2) times a ratio of polynomials in z = |x|: one exponential and one
//! division serve both.

use super::exponential::{ROUND, exp_small, polynomial};
use crate::cpu::simd::Lanes;

/// erf(x) / x - 1 in x^2, for |x| < 0.9; relative error of erf 1.4e-8.
const ERF_NEAR: [f32; 6] =
    [0.128_379_15, -0.376_125_07, 0.112_819_76, -0.026_773_285, 0.005_004_16, -0.000_605_246_17];

/// log(1 - erf(x)) from 0.9 to 3.95; relative error of erf 1.9e-9.
const ERF_FAR: [f32; 7] = [
    -0.000_139_835_17,
    -1.127_909_5,
    -0.636_783_1,
    -0.104_286_335,
    0.022_399_995,
    -0.003_087_138_5,
    0.000_200_463_9,
];

/// The error function.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn erf<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        // From 3.95 on the result is 1; a NaN passes, being the second operand.
        let a = l.min(l.splat(3.95), l.abs(x));
        let near = l.mul_add(a, polynomial(l, l.mul(a, a), ERF_NEAR), a);
        let far = l.sub(l.splat(1.0), exp_small(l, polynomial(l, a, ERF_FAR)));
        let y = l.select(l.lt(a, l.splat(0.9)), near, far);
        let sign = l.and_i(l.bits(x), l.splat_i(i32::MIN));
        l.from_bits(l.or_i(l.bits(y), sign))
    }
}

/// (2^r - 1) / r on |r| <= 1/2; relative error of 2^r 3e-9.
const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_48,
    0.055_503_596,
    0.009_618_506,
    0.001_339_102_5,
    0.000_153_267_81,
];

/// Phi(-z) e^(z^2/2) = `TAIL_OVER` / `TAIL_UNDER`, with a relative error of 4.1e-8 (1 + z^2) or
/// less: the tail is small where the error is not.
const TAIL_OVER: [f32; 4] = [0.5, 0.337_908_4, 0.105_923_31, 0.013_883_2];
const TAIL_UNDER: [f32; 5] = [1.0, 1.473_699_7, 0.887_710_9, 0.265_069_16, 0.034_813_832];

/// The density at 0: 1 / sqrt(2 pi).
const DENSITY: f32 = 0.398_942_3;

/// z = |x| (bounded where everything is zero), e^(-z^2/2), and Phi(-z).
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn tail<L: Lanes>(l: L, x: L::F) -> (L::F, L::F, L::F) {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        // At this bound the exponent below is -127, whose bits are those of zero.
        let z = l.min(l.splat(13.26), l.abs(x));
        let power = l.mul(l.mul(z, z), l.splat(-0.5 * std::f32::consts::LOG2_E));
        let rounded = l.add(power, l.splat(ROUND + 127.0));
        let r = l.sub(power, l.sub(rounded, l.splat(ROUND + 127.0)));
        let scale = l.from_bits(l.shl_i::<23>(l.bits(rounded)));
        let e = l.mul_add(l.mul(r, polynomial(l, r, EXP2)), scale, scale);
        let over = l.mul(e, polynomial(l, z, TAIL_OVER));
        (z, e, l.div(over, polynomial(l, z, TAIL_UNDER)))
    }
}

/// x Phi(x), to 1e-7 absolute or 4 ulp.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gelu<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (z, _, above) = tail(l, x);
        let relu = l.max(l.splat(0.0), x);
        l.mul_add(l.neg(z), above, relu)
    }
}

/// The derivative of [`gelu`], to 1.5e-7 absolute or 4 ulp.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gelu_derivative<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (z, e, above) = tail(l, x);
        let below = l.mul_add(l.mul(z, e), l.splat(-DENSITY), above);
        l.select(l.lt(x, l.splat(0.0)), below, l.sub(l.splat(1.0), below))
    }
}
