//! The kernels of the CPU device: plain functions over raw buffers, one file a family.
//!
//! Every kernel that several threads share is called once per thread with a [`Part`] and does that part of the output.
//! Invariant **K2**: the bits of an output element do not depend on the part that holds it.

pub(super) mod argmax;
pub(super) mod attention;
pub(super) mod bytes;
pub(super) mod conv;
pub(super) mod cross_entropy;
pub(super) mod fault;
pub(super) mod fused;
pub(super) mod gemm;
pub(super) mod layout;
pub(super) mod norm;
pub(super) mod plain;
pub(super) mod pool;
pub(super) mod random;
pub(super) mod reduce;
pub(super) mod softmax;
pub(super) mod tables;
pub(super) mod window;

/// One thread's share of a kernel: part `idx` of `count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Which part, from 0.
    pub idx: usize,
    /// How many parts there are.
    pub count: usize,
}

impl Part {
    /// The whole, for one thread.
    pub(super) const WHOLE: Part = Part { idx: 0, count: 1 };

    /// This part of `n` items, cut at multiples of `granule`.
    pub(super) fn range(self, n: usize, granule: usize) -> std::ops::Range<usize> {
        let n_granules = n.div_ceil(granule);
        let at = |idx: usize| (n_granules * idx / self.count * granule).min(n);
        at(self.idx)..at(self.idx + 1)
    }
}
