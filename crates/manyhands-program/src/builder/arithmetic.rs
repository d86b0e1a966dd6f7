//! Operators: `+ - * /` on values and numbers, and negation. Each gives a `Result`.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Built, Value};
use crate::op::{Binary, Op, Unary};

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => {$(
        impl $trait<&Value> for &Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, other: &Value) -> Built {
                self.pairwise(Op::Binary(Binary::$op), other)
            }
        }

        impl $trait<&Value> for Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, other: &Value) -> Built {
                (&self).$method(other)
            }
        }

        impl $trait<Value> for Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, other: Value) -> Built {
                (&self).$method(&other)
            }
        }

        impl $trait<Value> for &Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, other: Value) -> Built {
                self.$method(&other)
            }
        }

        impl $trait<f64> for &Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, number: f64) -> Built {
                let number = self.builder().branch().scalar(self.dtype(), number)?;
                self.$method(&number)
            }
        }

        impl $trait<f64> for Value {
            type Output = Built;
            #[track_caller]
            fn $method(self, number: f64) -> Built {
                (&self).$method(number)
            }
        }

        impl $trait<&Value> for f64 {
            type Output = Built;
            #[track_caller]
            fn $method(self, value: &Value) -> Built {
                let number = value.builder().branch().scalar(value.dtype(), self)?;
                (&number).$method(value)
            }
        }

        impl $trait<Value> for f64 {
            type Output = Built;
            #[track_caller]
            fn $method(self, value: Value) -> Built {
                self.$method(&value)
            }
        }
    )*};
}

operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl Neg for &Value {
    type Output = Built;
    #[track_caller]
    fn neg(self) -> Built {
        self.unary(Unary::Neg)
    }
}

impl Neg for Value {
    type Output = Built;
    #[track_caller]
    fn neg(self) -> Built {
        -&self
    }
}
