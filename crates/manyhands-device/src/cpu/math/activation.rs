//! Activations made of exponentials: tanh, the logistic function, silu, softplus.

use super::exponential::{exp, exp_small, log1p_inside, polynomial};
use crate::cpu::simd::Lanes;

/// (tanh(x) / x - 1) / x^2 in x^2, for |x| < 0.6; relative error of tanh 2.9e-9.
const TANH: [f32; 5] = [-0.333_333, 0.133_319_3, -0.053_783_86, 0.020_794_818, -0.005_892_639];

/// The hyperbolic tangent.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn tanh<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (one, two) = (l.splat(1.0), l.splat(2.0));
        // From 10 on the result is 1; a NaN passes, being the second operand.
        let a = l.min(l.splat(10.0), l.abs(x));
        let square = l.mul(a, a);
        let near = l.mul_add(a, l.mul(square, polynomial(l, square, TANH)), a);
        let e = exp_small(l, l.add(a, a));
        let far = l.sub(one, l.div(two, l.add(e, one)));
        let y = l.select(l.lt(a, l.splat(0.6)), near, far);
        let sign = l.and_i(l.bits(x), l.splat_i(i32::MIN));
        l.from_bits(l.or_i(l.bits(y), sign))
    }
}

/// 1 / (1 + e^-x), to 2.3 ulp.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn logistic<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let one = l.splat(1.0);
        let e = exp(l, l.neg(l.abs(x)));
        let over = l.select(l.lt(x, l.splat(0.0)), e, one);
        l.div(over, l.add(one, e))
    }
}

/// x logistic(x), to 3 ulp.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        // The bound keeps minus infinity times zero from being NaN.
        l.mul(l.max(l.splat(-200.0), x), logistic(l, x))
    }
}

/// log(1 + e^x); its derivative is [`logistic`].
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn softplus<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let e = exp(l, l.neg(l.abs(x)));
        // A tiny e is its own logarithm (and may be denormal).
        let tail = l.select(l.lt(e, l.splat(3e-8)), e, log1p_inside(l, e));
        l.add(l.max(l.splat(0.0), x), tail)
    }
}
