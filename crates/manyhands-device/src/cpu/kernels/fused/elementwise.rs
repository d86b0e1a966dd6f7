//! What each elementwise operation does to an f32, on sixteen lanes at once.
//!
//! Where IEEE 754 leaves a choice, this is the one made here, the same on every instruction set:
//! `max` and `min` are NaN if either operand is, and give the second of two zeros; `relu` keeps a
//! NaN and a negative zero; `sign` of a zero is plus zero, of a NaN the NaN; `rem` is C's `fmod`,
//! which is exact. Only the payload and the sign of a NaN are left open.

use manyhands_program::{Binary, Comparison, Unary};

use crate::cpu::math;
use crate::cpu::simd::Lanes;

/// A unary operation on numbers.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn unary<L: Lanes>(l: L, op: Unary, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        match op {
            Unary::Neg => l.neg(x),
            Unary::Abs => l.abs(x),
            Unary::Sign => sign(l, x),
            Unary::Exp => math::exp(l, x),
            Unary::Expm1 => math::expm1(l, x),
            Unary::Log => math::log(l, x),
            Unary::Log1p => math::log1p(l, x),
            Unary::Sqrt => l.sqrt(x),
            Unary::Rsqrt => math::rsqrt(l, x),
            Unary::Tanh => math::tanh(l, x),
            Unary::Logistic => math::logistic(l, x),
            Unary::Erf => math::erf(l, x),
            Unary::Sin => math::sin(l, x),
            Unary::Cos => math::cos(l, x),
            Unary::Floor => l.floor(x),
            Unary::Ceil => l.ceil(x),
            Unary::Round => l.round(x),
            // The second operand is given where either is NaN.
            Unary::Relu => l.max(l.splat(0.0), x),
            Unary::Gelu => math::gelu(l, x),
            Unary::GeluSlope => math::gelu_derivative(l, x),
            Unary::Silu => math::silu(l, x),
            Unary::Softplus => math::softplus(l, x),
            Unary::Not => unreachable!("inference refuses truth values as numbers"),
        }
    }
}

/// A binary operation on numbers.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn binary<L: Lanes>(l: L, op: Binary, a: L::F, b: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        match op {
            Binary::Add => l.add(a, b),
            Binary::Sub => l.sub(a, b),
            Binary::Mul => l.mul(a, b),
            Binary::Div => l.div(a, b),
            Binary::Rem => rem(l, a, b),
            Binary::Pow => math::pow(l, a, b),
            // `Lanes` gives `b` where either is NaN, so only a NaN in `a` needs care.
            Binary::Max => l.select(l.eq(a, a), l.max(a, b), a),
            Binary::Min => l.select(l.eq(a, a), l.min(a, b), a),
            Binary::And | Binary::Or | Binary::Xor => {
                unreachable!("inference refuses truth values as numbers")
            }
        }
    }
}

/// `yes` where the comparison of `a` and `b` holds, `no` elsewhere.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn select<L: Lanes>(
    l: L,
    comparison: Comparison,
    [a, b, yes, no]: [L::F; 4],
) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        match comparison {
            Comparison::Eq => l.select(l.eq(a, b), yes, no),
            Comparison::Ne => l.select(l.eq(a, b), no, yes),
            Comparison::Lt => l.select(l.lt(a, b), yes, no),
            Comparison::Le => l.select(l.le(a, b), yes, no),
            Comparison::Gt => l.select(l.lt(b, a), yes, no),
            Comparison::Ge => l.select(l.le(b, a), yes, no),
        }
    }
}

/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn sign<L: Lanes>(l: L, x: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let zero = l.splat(0.0);
        let not_positive = l.select(l.lt(x, zero), l.splat(-1.0), l.select(l.eq(x, zero), zero, x));
        l.select(l.lt(zero, x), l.splat(1.0), not_positive)
    }
}

/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn rem<L: Lanes>(l: L, a: L::F, b: L::F) -> L::F {
    // SAFETY: lane arithmetic, as the caller's.
    unsafe {
        let mut lanes = l.to_array(a);
        for (x, y) in lanes.iter_mut().zip(l.to_array(b)) {
            *x = remainder(*x, y);
        }
        l.load(lanes.as_ptr())
    }
}

/// The remainder of `a / b` with the sign of `a`, exact.
///
/// The f64 quotient of two f32 truncates to the true whole number while that is below 2^28, and its
/// product with the divisor is then exact too. Larger quotients are taken off piece by piece, with
/// the divisor scaled by a power of two.
fn remainder(a: f32, b: f32) -> f32 {
    if b == 0.0 || !a.is_finite() || b.is_nan() {
        return f32::NAN;
    }
    let (mut left, divisor) = (f64::from(a.abs()), f64::from(b.abs()));
    while left >= divisor {
        let exponent = |x: f64| (x.to_bits() >> 52) as i64;
        let shift = (exponent(left) - exponent(divisor) - 26).max(0) as u64;
        let scaled = divisor * f64::from_bits((1023 + shift) << 52);
        left -= (left / scaled).floor() * scaled;
    }
    (left as f32).copysign(a)
}

#[cfg(test)]
mod tests {
    use super::remainder;

    #[test]
    fn the_remainder_is_that_of_the_language() {
        let edges = [0.0f32, 1.0, 1.5, 3.0, 0.1, 1e-45, 1e-38, 1e30, f32::MAX, f32::INFINITY];
        let mut numbers: Vec<f32> = edges.iter().flat_map(|x| [*x, -*x]).collect();
        numbers.push(f32::NAN);
        numbers.extend((0..400u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))));
        for &a in &numbers {
            for &b in &numbers {
                let (got, want) = (remainder(a, b), a % b);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{a:e} % {b:e} gave {got:e}, not {want:e}");
            }
        }
    }
}
