//! Exponentials and logarithms.

use crate::cpu::simd::Lanes;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 = `LN_2_HIGH` + `LN_2_LOW`, to 48 bits.
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
const LN_2_LOW: f32 = -1.904_654_3e-9;

/// Adding this to a value below 2^22 rounds it to an integer, which then lies in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2; e^r - 1 then has a relative error of 1.4e-8.
const EXP: [f32; 5] = [0.499_999_97, 0.166_665_46, 0.041_667_435, 0.008_366_262, 0.001_387_065_7];

/// (log(1 + f) - f + f^2 / 2) / f^3 from sqrt(1/2) - 1 to sqrt(2) - 1; the logarithm then has a
/// relative error of 5.8e-9.
const LOG: [f32; 8] = [
    0.333_333_3,
    -0.250_008_2,
    0.200_012_42,
    -0.166_234_1,
    0.142_015_81,
    -0.131_596_13,
    0.127_622,
    -0.076_364,
];

/// `c[0] + c[1] x + c[2] x^2 + ...` by Horner's rule.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn polynomial<L: Lanes, const N: usize>(l: L, x: L::F, c: [f32; N]) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let mut sum = l.splat(c[N - 1]);
        for i in (0..N - 1).rev() {
            sum = l.mul_add(sum, x, l.splat(c[i]));
        }
        sum
    }
}

/// `x` = n ln 2 + r: gives e^r - 1, and the bits of n with `bias` added.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn reduce<L: Lanes>(l: L, x: L::F, bias: f32) -> (L::F, L::I) {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let rounded = l.mul_add(x, l.splat(LOG2_E), l.splat(ROUND + bias));
        let n = l.sub(rounded, l.splat(ROUND + bias));
        let r = l.mul_add(n, l.splat(-LN_2_HIGH), x);
        let r = l.mul_add(n, l.splat(-LN_2_LOW), r);
        let p = l.mul_add(l.mul(r, r), polynomial(l, r, EXP), r);
        (p, l.bits(rounded))
    }
}

/// e^x.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        // Beyond these the result is zero or infinite; a NaN passes, being the second operand.
        let x = l.min(l.splat(89.0), l.max(l.splat(-104.0), x));
        // 2^n in two factors (the bias is both exponent biases), so that a denormal result is
        // rounded once and 2^128 does not overflow too early.
        let (p, biased) = reduce(l, x, 254.0);
        let half = l.shl_i::<23>(l.shr_i::<1>(biased));
        let rest = l.sub_i(l.shl_i::<23>(biased), half);
        let (half, rest) = (l.from_bits(half), l.from_bits(rest));
        l.mul(l.mul_add(p, half, half), rest)
    }
}

/// e^x where |x| is known to be at most 87.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn exp_small<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (p, biased) = reduce(l, x, 127.0);
        let scale = l.from_bits(l.shl_i::<23>(biased));
        l.mul_add(p, scale, scale)
    }
}

/// e^x - 1, exact to the last places near zero too.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn expm1<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let tiny = l.lt(l.abs(x), l.splat(3e-8));
        let clamped = l.min(l.splat(89.0), l.max(l.splat(-20.0), x));
        // Half of the result, since 2^128 itself does not fit.
        let (p, biased) = reduce(l, clamped, 126.0);
        let scale = l.from_bits(l.shl_i::<23>(biased));
        let half = l.mul_add(p, scale, l.sub(scale, l.splat(0.5)));
        l.select(tiny, x, l.add(half, half))
    }
}

/// `x` = m 2^e with m from sqrt(1/2) to sqrt(2), for normal positive `x`: gives (m, e).
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn split<L: Lanes>(l: L, x: L::F) -> (L::F, L::I) {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let bits = l.bits(x);
        let start = l.splat_i(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32);
        let e = l.shr_i::<23>(l.sub_i(bits, start));
        (l.from_bits(l.sub_i(bits, l.shl_i::<23>(e))), e)
    }
}

/// Moves denormals into the normal range: gives `x` 2^k and -k.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn normalise<L: Lanes>(l: L, x: L::F) -> (L::F, L::F) {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let small = l.lt(x, l.splat(f32::MIN_POSITIVE));
        let scaled = l.mul(x, l.splat(8_388_608.0));
        (l.select(small, scaled, x), l.select(small, l.splat(-23.0), l.splat(0.0)))
    }
}

/// log(1 + f) + e ln 2, with 1 + f from sqrt(1/2) to sqrt(2).
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn log_of<L: Lanes>(l: L, f: L::F, e: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let square = l.mul(f, f);
        let tail = l.mul(l.mul(f, square), polynomial(l, f, LOG));
        let tail = l.mul_add(e, l.splat(LN_2_LOW), tail);
        let tail = l.mul_add(square, l.splat(-0.5), tail);
        l.mul_add(e, l.splat(LN_2_HIGH), l.add(f, tail))
    }
}

/// The natural logarithm.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn log<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let (normal, shift) = normalise(l, x);
        let (m, e) = split(l, normal);
        let y = log_of(l, l.sub(m, l.splat(1.0)), l.add(l.to_f(e), shift));
        let zero = l.splat(0.0);
        let outside = l.select(l.eq(x, zero), l.splat(f32::NEG_INFINITY), l.splat(f32::NAN));
        let y = l.select(l.lt(x, l.splat(f32::INFINITY)), y, x);
        l.select(l.lt(zero, x), y, outside)
    }
}

/// log(1 + x), exact to the last places near zero too.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn log1p<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let y = log1p_inside(l, x);
        let minus_one = l.splat(-1.0);
        let outside = l.select(l.eq(x, minus_one), l.splat(f32::NEG_INFINITY), l.splat(f32::NAN));
        let y = l.select(l.lt(x, l.splat(f32::INFINITY)), y, x);
        // A tiny argument is its own logarithm, minus zero and denormals included.
        let y = l.select(l.lt(l.abs(x), l.splat(3e-8)), x, y);
        l.select(l.lt(minus_one, x), y, outside)
    }
}

/// log(1 + x) for finite `x` above -1.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn log1p_inside<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let one = l.splat(1.0);
        // What rounding 1 + x has lost is added back after the reduction.
        let u = l.add(one, x);
        let without = l.sub(u, one);
        let lost = l.add(l.sub(one, l.sub(u, without)), l.sub(x, without));
        let (m, e) = split(l, u);
        let scale = l.from_bits(l.shl_i::<23>(l.sub_i(l.splat_i(127), e)));
        // Nothing of a large argument is lost, and 2^-128 would not fit.
        let scale = l.select(l.lt(x, l.splat(1e9)), scale, l.splat(0.0));
        let f = l.mul_add(lost, scale, l.sub(m, one));
        log_of(l, f, l.to_f(e))
    }
}
