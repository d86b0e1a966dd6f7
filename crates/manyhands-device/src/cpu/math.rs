//! Elementary functions on sixteen lanes: the transcendentals of the CPU device.
//!
//! The C library is not asked, since its results differ between systems. Every function here is a
//! fixed sequence of IEEE operations on lanes (range reduction, then a minimax polynomial with
//! fused multiply-adds), so it gives the same bits on every instruction set and for an element
//! anywhere in an array. Errors are at most 2 ulp unless a function says otherwise; infinities,
//! NaN, denormals and overflow come out as IEEE 754 asks. Only the payload of a NaN is left open.
//!
//! All functions are called inside [`Kernel::run`](super::simd::Kernel::run), with its `Lanes`.

mod activation;
mod exponential;
mod normal;
mod power;
mod trigonometric;

pub(crate) use activation::{logistic, silu, softplus, tanh};
pub(crate) use exponential::{exp, expm1, log, log1p};
pub(crate) use normal::{erf, gelu, gelu_derivative};
pub(crate) use power::{pow, rsqrt};
pub(crate) use trigonometric::{cos, sin};

#[cfg(test)]
mod tests;
