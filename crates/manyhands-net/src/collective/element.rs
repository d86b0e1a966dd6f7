//! What collectives work on: element types, and how two of them become one.

use half::{bf16, f16};

/// The type of the elements of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ElementType {
    /// 32-bit float.
    F32 = 1,
    /// 64-bit float.
    F64,
    /// 16-bit float.
    F16,
    /// 16-bit float with the exponents of f32.
    Bf16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// Byte.
    U8,
}

impl ElementType {
    const ALL: [ElementType; 7] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I32, Self::I64, Self::U8];

    pub(super) fn name_of(code: u8) -> &'static str {
        Self::ALL.iter().find(|ty| **ty as u8 == code).map_or("elements", |ty| ty.name())
    }

    /// The name as it is written in jobs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }
}

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reduction {
    /// Their sum; integers wrap around.
    Sum = 1,
    /// Their sum, divided once by how many ranks brought something. Floats only.
    Mean,
    /// The smallest; NaN where one is NaN.
    Min,
    /// The largest; NaN where one is NaN.
    Max,
    /// Their product; integers wrap around.
    Product,
}

impl Reduction {
    const ALL: [Reduction; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    pub(super) fn name_of(code: u8) -> &'static str {
        Self::ALL.iter().find(|one| **one as u8 == code).map_or("", |one| one.name())
    }

    /// The name as it is written in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }
}

/// A number that collectives can reduce: `f32`, `f64`, `f16`, `bf16`, `i32`, `i64`, `u8`.
pub trait Element:
    bytemuck::Pod + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed
{
    /// Which it is.
    const TYPE: ElementType;

    /// One of two, other than by [`Reduction::Mean`], which is a sum until the end.
    fn reduce(reduction: Reduction, a: Self, b: Self) -> Self;

    /// This divided by a number of ranks; `None` for integers.
    fn divided(self, n: usize) -> Option<Self>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! float {
    ($ty:ty, $code:ident, $wide:ty, $to:expr, $from:expr) => {
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const TYPE: ElementType = ElementType::$code;

            #[inline(always)]
            fn reduce(reduction: Reduction, a: Self, b: Self) -> Self {
                let (a, b): ($wide, $wide) = ($to(a), $to(b));
                $from(match reduction {
                    Reduction::Sum | Reduction::Mean => a + b,
                    Reduction::Product => a * b,
                    // A NaN on either side wins: `a + b` is one.
                    Reduction::Min if a.is_nan() || b.is_nan() => a + b,
                    Reduction::Max if a.is_nan() || b.is_nan() => a + b,
                    Reduction::Min => {
                        if b < a {
                            b
                        } else {
                            a
                        }
                    }
                    Reduction::Max => {
                        if b > a {
                            b
                        } else {
                            a
                        }
                    }
                })
            }

            #[inline(always)]
            fn divided(self, n: usize) -> Option<Self> {
                Some($from($to(self) / n as $wide))
            }
        }
    };
}

macro_rules! integer {
    ($ty:ty, $code:ident) => {
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const TYPE: ElementType = ElementType::$code;

            #[inline(always)]
            fn reduce(reduction: Reduction, a: Self, b: Self) -> Self {
                match reduction {
                    Reduction::Sum | Reduction::Mean => a.wrapping_add(b),
                    Reduction::Product => a.wrapping_mul(b),
                    Reduction::Min => a.min(b),
                    Reduction::Max => a.max(b),
                }
            }

            fn divided(self, _: usize) -> Option<Self> {
                None
            }
        }
    };
}

float!(f32, F32, f32, |x: f32| x, |x: f32| x);
float!(f64, F64, f64, |x: f64| x, |x: f64| x);
float!(f16, F16, f32, |x: f16| x.to_f32(), f16::from_f32);
float!(bf16, Bf16, f32, |x: bf16| x.to_f32(), bf16::from_f32);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);

/// Defines a loop over elements for each reduction, so that each is vector code, compiled for the processors that this may run on.
/// Additions are plain ones whatever the width, so the bits are the same.
macro_rules! fold {
    ($(#[$doc:meta])* $name:ident, $wide:ident, $body:ident, ($($arg:ident: $ty:ty),*), |$reduction:ident| $each:expr) => {
        #[inline(always)]
        fn $body<T: Element>(reduction: Reduction, $($arg: $ty),*) {
            match reduction {
                Reduction::Sum => { const $reduction: Reduction = Reduction::Sum; $each }
                Reduction::Mean => { const $reduction: Reduction = Reduction::Mean; $each }
                Reduction::Min => { const $reduction: Reduction = Reduction::Min; $each }
                Reduction::Max => { const $reduction: Reduction = Reduction::Max; $each }
                Reduction::Product => { const $reduction: Reduction = Reduction::Product; $each }
            }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide<T: Element>(reduction: Reduction, $($arg: $ty),*) {
            $body(reduction, $($arg),*);
        }

        $(#[$doc])*
        pub(super) fn $name<T: Element>(reduction: Reduction, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has what the function is compiled for.
                return unsafe { $wide(reduction, $($arg),*) };
            }
            $body(reduction, $($arg),*);
        }
    };
}

fold!(
    /// `into = into (op) from`, element by element.
    fold, fold_wide, fold_body, (into: &mut [T], from: &[T]), |WAY| {
        for (a, &b) in into.iter_mut().zip(from) {
            *a = T::reduce(WAY, *a, b);
        }
    }
);
fold!(
    /// `into = from (op) into`, element by element.
    fold_left, fold_left_wide, fold_left_body, (into: &mut [T], from: &[T]), |WAY| {
        for (a, &b) in into.iter_mut().zip(from) {
            *a = T::reduce(WAY, b, *a);
        }
    }
);
fold!(
    /// `to = a (op) b`, element by element.
    fold_into, fold_into_wide, fold_into_body, (to: &mut [T], a: &[T], b: &[T]), |WAY| {
        for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
            *to = T::reduce(WAY, a, b);
        }
    }
);
