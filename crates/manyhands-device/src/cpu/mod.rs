//! The native CPU device.
pub mod kernels;
pub mod simd;
