//! Arithmetic on single elements, one definition for every element type.
//!
//! Every float computes in f64 and rounds once. For add, subtract, multiply, divide and square root
//! that *is* the IEEE operation of the narrower types: f64 has more than twice their digits and
//! two, so the first rounding never changes what the second decides.

use half::{bf16, f16};
use manyhands_program::DType;

/// Something that lies in a tensor.
pub(super) trait Cell: Copy + 'static {
    /// The element type that it is.
    const DTYPE: DType;
}

/// A truth value as it lies in memory. Any byte is valid, unlike `bool`, so stale memory is too.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Truth {
    pub(super) fn new(value: bool) -> Truth {
        Truth(u8::from(value))
    }

    pub(super) fn holds(self) -> bool {
        self.0 != 0
    }
}

impl Cell for Truth {
    const DTYPE: DType = DType::Bool;
}

/// An element without loss, on its way from one type to another.
#[derive(Clone, Copy)]
pub(super) enum Exact {
    Integer(i64),
    Real(f64),
}

/// An element that can be converted.
pub(super) trait Convert: Cell {
    fn exact(self) -> Exact;
    fn nearest(value: Exact) -> Self;
}

impl Convert for Truth {
    fn exact(self) -> Exact {
        Exact::Integer(i64::from(self.0))
    }

    fn nearest(value: Exact) -> Truth {
        match value {
            Exact::Integer(value) => Truth::new(value != 0),
            Exact::Real(value) => Truth::new(value != 0.0),
        }
    }
}

/// An element that counts and compares.
pub(super) trait Number: Convert + PartialOrd {
    /// What a sum is held in while it grows.
    type Sum: Copy;

    const ZERO: Self;
    /// No element is smaller, but for NaN.
    const LEAST: Self;
    /// No element is larger, but for NaN.
    const MOST: Self;

    fn count(n: usize) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Integers towards zero; an integer by zero gives zero.
    fn div(self, other: Self) -> Self;
    /// With the sign of `self`; an integer by zero gives zero.
    fn rem(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;

    fn to_sum(self) -> Self::Sum;
    fn sum(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn product(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn from_sum(sum: Self::Sum) -> Self;

    /// The larger; NaN if either is.
    fn larger(self, other: Self) -> Self {
        if self.is_nan() || self > other { self } else { other }
    }

    /// The smaller; NaN if either is.
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() || self < other { self } else { other }
    }

    /// -1, 0 or 1; NaN stays what it is.
    fn sign(self) -> Self {
        if self.is_nan() {
            self
        } else if self > Self::ZERO {
            Self::count(1)
        } else if self < Self::ZERO {
            Self::count(1).neg()
        } else {
            Self::ZERO
        }
    }
}

/// A floating-point element.
pub(super) trait Float: Number<Sum = f64> {
    /// As a double, exactly.
    fn wide(self) -> f64;
    /// The nearest element, ties to even.
    fn narrow(value: f64) -> Self;
}

macro_rules! integer {
    ($ty:ty, $dtype:ident) => {
        impl Cell for $ty {
            const DTYPE: DType = DType::$dtype;
        }

        impl Convert for $ty {
            fn exact(self) -> Exact {
                Exact::Integer(i64::from(self))
            }

            fn nearest(value: Exact) -> $ty {
                match value {
                    Exact::Integer(value) => value as $ty,
                    Exact::Real(value) => value as $ty,
                }
            }
        }

        impl Number for $ty {
            type Sum = $ty;
            const ZERO: $ty = 0;
            const LEAST: $ty = <$ty>::MIN;
            const MOST: $ty = <$ty>::MAX;

            fn count(n: usize) -> $ty {
                n as $ty
            }
            fn add(self, other: $ty) -> $ty {
                self.wrapping_add(other)
            }
            fn sub(self, other: $ty) -> $ty {
                self.wrapping_sub(other)
            }
            fn mul(self, other: $ty) -> $ty {
                self.wrapping_mul(other)
            }
            fn div(self, other: $ty) -> $ty {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            fn rem(self, other: $ty) -> $ty {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }
            fn neg(self) -> $ty {
                self.wrapping_neg()
            }
            fn abs(self) -> $ty {
                if self < Self::ZERO { self.wrapping_neg() } else { self }
            }
            fn is_nan(self) -> bool {
                false
            }
            fn to_sum(self) -> $ty {
                self
            }
            fn sum(a: $ty, b: $ty) -> $ty {
                a.wrapping_add(b)
            }
            fn product(a: $ty, b: $ty) -> $ty {
                a.wrapping_mul(b)
            }
            fn from_sum(sum: $ty) -> $ty {
                sum
            }
        }
    };
}

integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);

macro_rules! float {
    ($ty:ty, $dtype:ident, $narrow:expr) => {
        impl Cell for $ty {
            const DTYPE: DType = DType::$dtype;
        }

        impl Float for $ty {
            fn wide(self) -> f64 {
                f64::from(self)
            }

            fn narrow(value: f64) -> $ty {
                $narrow(value)
            }
        }

        impl Convert for $ty {
            fn exact(self) -> Exact {
                Exact::Real(self.wide())
            }

            fn nearest(value: Exact) -> $ty {
                match value {
                    Exact::Integer(value) if size_of::<$ty>() == 8 => Self::narrow(value as f64),
                    Exact::Integer(value) => Self::narrow(integer_to_odd(value)),
                    Exact::Real(value) => Self::narrow(value),
                }
            }
        }

        impl Number for $ty {
            type Sum = f64;
            const ZERO: $ty = <$ty>::from_bits(0);
            const LEAST: $ty = <$ty>::NEG_INFINITY;
            const MOST: $ty = <$ty>::INFINITY;

            fn count(n: usize) -> $ty {
                Self::narrow(n as f64)
            }
            fn add(self, other: $ty) -> $ty {
                Self::narrow(self.wide() + other.wide())
            }
            fn sub(self, other: $ty) -> $ty {
                Self::narrow(self.wide() - other.wide())
            }
            fn mul(self, other: $ty) -> $ty {
                Self::narrow(self.wide() * other.wide())
            }
            fn div(self, other: $ty) -> $ty {
                Self::narrow(self.wide() / other.wide())
            }
            fn rem(self, other: $ty) -> $ty {
                Self::narrow(libm::fmod(self.wide(), other.wide()))
            }
            fn neg(self) -> $ty {
                -self
            }
            fn abs(self) -> $ty {
                Self::narrow(self.wide().abs())
            }
            fn is_nan(self) -> bool {
                self != self
            }
            fn to_sum(self) -> f64 {
                self.wide()
            }
            fn sum(a: f64, b: f64) -> f64 {
                a + b
            }
            fn product(a: f64, b: f64) -> f64 {
                a * b
            }
            fn from_sum(sum: f64) -> $ty {
                Self::narrow(sum)
            }
        }
    };
}

float!(f64, F64, |value| value);
float!(f32, F32, |value| value as f32);
float!(f16, F16, <f16 as manyhands_program::Element>::from_f64);
float!(bf16, Bf16, <bf16 as manyhands_program::Element>::from_f64);

/// To f64, where an inexact value goes to its neighbour with an odd last bit, so that rounding it again is the same as
/// rounding once: for what i64 holds beyond 53 bits.
fn integer_to_odd(value: i64) -> f64 {
    const DROPPED: i64 = (1 << 11) - 1;
    if value.unsigned_abs() <= 1 << 53 || value & DROPPED == 0 {
        return value as f64;
    }
    ((value & !DROPPED) | (DROPPED + 1)) as f64
}

/// The sum in order. (`Iterator::sum` of nothing is minus zero.)
pub(super) fn total(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(0.0, |sum, term| sum + term)
}
