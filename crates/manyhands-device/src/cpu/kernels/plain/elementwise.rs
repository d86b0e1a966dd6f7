//! Operations that give each element on its own.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use manyhands_program::{Binary, Comparison, DType, Op, Unary};

use super::element::{Convert, Float, Number, Truth};
use super::memory::Call;
use super::{with_any, with_bits, with_float, with_number};

pub(super) fn run(op: &Op, call: &Call<'_>) {
    match op {
        Op::Unary(Unary::Not) => {
            let x = call.operand::<Truth>(0);
            call.result::<Truth>(0).fill(|i| Truth::new(!x[i].holds()));
        }
        Op::Unary(unary) => match call.operand_type(0).dtype {
            DType::I32 => map(call, |x: i32| unary_number(*unary, x)),
            DType::I64 => map(call, |x: i64| unary_number(*unary, x)),
            float => with_float!(float, T => map(call, |x: T| unary_float(*unary, x))),
        },
        Op::Binary(binary) => run_binary(*binary, call),
        Op::Compare(comparison) => {
            with_any!(call.operand_type(0).dtype, T => {
                let (a, b) = (call.operand::<T>(0), call.operand::<T>(1));
                call.result::<Truth>(0).fill(|i| Truth::new(compare(*comparison, &a[i], &b[i])));
            });
        }
        Op::Select => {
            let condition = call.operand::<Truth>(0);
            with_bits!(call.operand_type(1).dtype.size(), T => {
                let (yes, no) = (call.raw_operand::<T>(1), call.raw_operand::<T>(2));
                let pick = |i: usize| if condition[i].holds() { yes[i] } else { no[i] };
                call.raw_result::<T>(0).fill(pick);
            });
        }
        Op::Cast { dtype } => {
            with_any!(call.operand_type(0).dtype, From => with_any!(*dtype, To => {
                let x = call.operand::<From>(0);
                call.result::<To>(0).fill(|i| <To as Convert>::nearest(x[i].exact()));
            }));
        }
        Op::Iota { dtype, shape, axis } => {
            let inner: usize = shape[axis + 1..].iter().product();
            let (size, inner) = (shape[*axis].max(1), inner.max(1));
            with_number!(*dtype, T => {
                call.result::<T>(0).fill(|i| <T as Number>::count(i / inner % size));
            });
        }
        _ => unreachable!("`run` sends no other operation here"),
    }
}

fn map<T: Convert>(call: &Call<'_>, f: impl Fn(T) -> T) {
    let x = call.operand::<T>(0);
    call.result::<T>(0).fill(|i| f(x[i]));
}

fn run_binary(binary: Binary, call: &Call<'_>) {
    match call.operand_type(0).dtype {
        DType::Bool => {
            let (a, b) = (call.operand::<Truth>(0), call.operand::<Truth>(1));
            call.result::<Truth>(0).fill(|i| {
                let (a, b) = (a[i].holds(), b[i].holds());
                Truth::new(match binary {
                    Binary::And => a && b,
                    Binary::Or => a || b,
                    _ => a != b,
                })
            });
        }
        float if binary == Binary::Pow => with_float!(float, T => {
            let (a, b) = (call.operand::<T>(0), call.operand::<T>(1));
            call.result::<T>(0).fill(|i| binary_float(binary, a[i], b[i]));
        }),
        number => with_number!(number, T => {
            let (a, b) = (call.operand::<T>(0), call.operand::<T>(1));
            call.result::<T>(0).fill(|i| binary_number(binary, a[i], b[i]));
        }),
    }
}

/// The operations that every signed number has.
fn unary_number<T: Number>(unary: Unary, x: T) -> T {
    match unary {
        Unary::Neg => x.neg(),
        Unary::Abs => x.abs(),
        Unary::Sign => x.sign(),
        Unary::Relu if x < T::ZERO => T::ZERO,
        Unary::Relu => x,
        other => unreachable!("{} is for floats", other.name()),
    }
}

/// Any operation on a float.
pub(super) fn unary_float<T: Float>(unary: Unary, x: T) -> T {
    match unary {
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu => unary_number(unary, x),
        _ => T::narrow(function(unary, x.wide())),
    }
}

fn function(unary: Unary, x: f64) -> f64 {
    match unary {
        Unary::Exp => libm::exp(x),
        Unary::Expm1 => libm::expm1(x),
        Unary::Log => libm::log(x),
        Unary::Log1p => libm::log1p(x),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Tanh => libm::tanh(x),
        Unary::Logistic => logistic(x),
        Unary::Erf => libm::erf(x),
        Unary::Sin => libm::sin(x),
        Unary::Cos => libm::cos(x),
        Unary::Floor => libm::floor(x),
        Unary::Ceil => libm::ceil(x),
        Unary::Round => libm::rint(x),
        Unary::Gelu => times(x, normal_share(x)),
        Unary::GeluSlope => {
            let density = libm::exp(-0.5 * x * x) / (2.0 * PI).sqrt();
            normal_share(x) + times(x, density)
        }
        Unary::Silu => times(x, logistic(x)),
        // The larger part first, so that neither a large x overflows nor a small one is lost.
        Unary::Softplus => {
            let large = if x > 0.0 { x } else { 0.0 };
            let rest = libm::log1p(libm::exp(-x.abs()));
            if x.is_nan() { x } else { large + rest }
        }
        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu | Unary::Not => {
            unreachable!("{} is not a function of reals", unary.name())
        }
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// The normal distribution function; by `erfc`, which keeps its digits where it is small.
fn normal_share(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// The product where a factor of zero wins over an infinity, which is the limit of `x Phi(x)` and
/// its kin far out on the left.
fn times(x: f64, share: f64) -> f64 {
    if share == 0.0 { share.copysign(x) } else { x * share }
}

fn binary_number<T: Number>(binary: Binary, a: T, b: T) -> T {
    match binary {
        Binary::Add => a.add(b),
        Binary::Sub => a.sub(b),
        Binary::Mul => a.mul(b),
        Binary::Div => a.div(b),
        Binary::Rem => a.rem(b),
        Binary::Max => a.larger(b),
        Binary::Min => a.smaller(b),
        Binary::Pow | Binary::And | Binary::Or | Binary::Xor => {
            unreachable!("{} is not for every number", binary.name())
        }
    }
}

/// Any operation on two floats.
pub(super) fn binary_float<T: Float>(binary: Binary, a: T, b: T) -> T {
    match binary {
        Binary::Pow => T::narrow(libm::pow(a.wide(), b.wide())),
        _ => binary_number(binary, a, b),
    }
}

/// Compares two elements; with NaN only `ne` holds.
pub(super) fn compare<T: PartialOrd>(comparison: Comparison, a: &T, b: &T) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
    }
}
