//! Softmax and log-softmax along contiguous rows, with their gradients.
//!
//! A row is summed in sixteen striped lanes: lane i takes elements i, i + 16, and so on, and the
//! lanes are added at the end. An entry of minus infinity contributes an exact zero, so a row gives
//! the same bits as that row padded with minus infinity: attention relies on it for its masks. A
//! row of nothing but minus infinity gives NaN.
//!
//! The `_row` functions are for kernels that work on rows of their own.

mod narrow;

pub(super) use narrow::Columns;

use std::ops::Range;

use super::Part;
use crate::cpu::math::{exp, log};
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Calls `$full` for each whole vector of a row and `$rest` for what is left, with the offset.
macro_rules! along {
    ($n:expr, |$at:ident| $full:expr, |$last:ident, $left:ident| $rest:expr) => {{
        let n: usize = $n;
        let mut $at = 0;
        while $at + WIDTH <= n {
            $full;
            $at += WIDTH;
        }
        if $at < n {
            let ($last, $left) = ($at, n - $at);
            $rest;
        }
    }};
}
pub(super) use along;

/// Loads the first `n` lanes, minus infinity in the others.
///
/// # Safety
/// `p` has `n` elements.
#[inline(always)]
unsafe fn load_or_least<L: Lanes>(l: L, p: *const f32, n: usize) -> L::F {
    // SAFETY: as the caller says.
    unsafe {
        let inside = l.mask_from_bits(((1u32 << n) - 1) as u16);
        l.select(inside, l.load_first(p, n), l.splat(f32::NEG_INFINITY))
    }
}

/// The largest element of a row, NaN left aside; minus infinity for an empty row.
///
/// # Safety
/// `src` has `n` elements.
#[inline(always)]
pub(crate) unsafe fn max_row<L: Lanes>(l: L, src: *const f32, n: usize) -> f32 {
    // SAFETY: the row has `n` elements; the offsets stay inside.
    unsafe {
        // The largest is the same in any order, so four chains hide the latency.
        let mut most = [l.splat(f32::NEG_INFINITY); 4];
        let mut at = 0;
        while at + 4 * WIDTH <= n {
            for (i, most) in most.iter_mut().enumerate() {
                *most = l.max(l.load(src.add(at + i * WIDTH)), *most);
            }
            at += 4 * WIDTH;
        }
        while at < n {
            let left = WIDTH.min(n - at);
            most[0] = l.max(load_or_least(l, src.add(at), left), most[0]);
            at += WIDTH;
        }
        let most = l.max(l.max(most[0], most[1]), l.max(most[2], most[3]));
        let mut lanes = l.to_array(most);
        let mut half = WIDTH / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// `dst` = exp(src - largest): a softmax without its division. Gives (largest, sum of `dst`).
///
/// # Safety
/// `src` and `dst` have `n` elements; they may be the same.
#[inline(always)]
pub(crate) unsafe fn exp_row<L: Lanes>(
    l: L,
    src: *const f32,
    dst: *mut f32,
    n: usize,
) -> (f32, f32) {
    // SAFETY: the rows have `n` elements; the offsets stay inside.
    unsafe {
        let largest = max_row(l, src, n);
        let shift = l.splat(largest);
        let mut sum = l.splat(0.0);
        along!(
            n,
            |at| {
                let e = exp(l, l.sub(l.load(src.add(at)), shift));
                l.store(dst.add(at), e);
                sum = l.add(sum, e);
            },
            |at, left| {
                let e = exp(l, l.sub(load_or_least(l, src.add(at), left), shift));
                l.store_first(dst.add(at), e, left);
                sum = l.add(sum, e);
            }
        );
        (largest, l.sum_lanes(sum))
    }
}

/// `dst` = softmax of `src`. Gives (largest of `src`, sum of exp(src - largest)).
///
/// # Safety
/// `src` and `dst` have `n` elements; they may be the same.
#[inline(always)]
pub(crate) unsafe fn softmax_row<L: Lanes>(
    l: L,
    src: *const f32,
    dst: *mut f32,
    n: usize,
) -> (f32, f32) {
    // SAFETY: the rows have `n` elements; the offsets stay inside.
    unsafe {
        let (largest, sum) = exp_row(l, src, dst, n);
        let inverse = l.splat(1.0 / sum);
        along!(n, |at| l.store(dst.add(at), l.mul(l.load(dst.add(at)), inverse)), |at, left| {
            let e = l.load_first(dst.add(at), left);
            l.store_first(dst.add(at), l.mul(e, inverse), left);
        });
        (largest, sum)
    }
}

/// `dx` = y (dy - sum of dy y): the gradient of a softmax with result `y`.
///
/// # Safety
/// All rows have `n` elements; `dx` may be `y` or `dy`.
#[inline(always)]
pub(crate) unsafe fn softmax_grad_row<L: Lanes>(
    l: L,
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
    n: usize,
) {
    // SAFETY: the rows have `n` elements; the offsets stay inside.
    unsafe {
        let mut sum = l.splat(0.0);
        along!(n, |at| sum = l.mul_add(l.load(dy.add(at)), l.load(y.add(at)), sum), |at, left| {
            let (dy, y) = (l.load_first(dy.add(at), left), l.load_first(y.add(at), left));
            sum = l.mul_add(dy, y, sum);
        });
        let sum = l.splat(l.sum_lanes(sum));
        along!(
            n,
            |at| {
                let (dy, y) = (l.load(dy.add(at)), l.load(y.add(at)));
                l.store(dx.add(at), l.mul(y, l.sub(dy, sum)));
            },
            |at, left| {
                let (dy, y) = (l.load_first(dy.add(at), left), l.load_first(y.add(at), left));
                l.store_first(dx.add(at), l.mul(y, l.sub(dy, sum)), left);
            }
        );
    }
}

/// The largest element, and the logarithm of the sum of exp(src - largest).
///
/// # Safety
/// `src` has `n` elements.
#[inline(always)]
pub(crate) unsafe fn log_sum_row<L: Lanes>(l: L, src: *const f32, n: usize) -> (f32, f32) {
    // SAFETY: the row has `n` elements; the offsets stay inside.
    unsafe {
        let largest = max_row(l, src, n);
        let shift = l.splat(largest);
        let mut sum = l.splat(0.0);
        along!(n, |at| sum = l.add(sum, exp(l, l.sub(l.load(src.add(at)), shift))), |at, left| {
            let e = exp(l, l.sub(load_or_least(l, src.add(at), left), shift));
            sum = l.add(sum, e);
        });
        let log_sum = log(l, l.splat(l.sum_lanes(sum)));
        (largest, l.to_array(log_sum)[0])
    }
}

/// A kernel that does one row at a time, or up to sixteen where they are short.
pub(super) trait RowKernel {
    /// The length of a row.
    fn n_cols(&self) -> usize;

    /// # Safety
    /// The kernel's pointers are sound for `row`.
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize);

    /// `n_rows` rows (at most sixteen, of at most sixteen entries) from `row` on.
    ///
    /// # Safety
    /// The kernel's pointers are sound for these rows.
    #[inline(always)]
    unsafe fn short_rows<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) {
        for row in row..row + n_rows {
            // SAFETY: as the caller says.
            unsafe { self.row(l, row) };
        }
    }
}

/// The rows of a part.
pub(super) struct Rows<K>(pub(super) K, pub(super) Range<usize>);

impl<K: RowKernel> Kernel for Rows<K> {
    type Output = K;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) -> K {
        let Rows(mut kernel, rows) = self;
        // SAFETY: the rows of the part are inside what the caller vouched for.
        unsafe {
            if kernel.n_cols() <= WIDTH {
                for row in rows.clone().step_by(WIDTH) {
                    kernel.short_rows(l, row, WIDTH.min(rows.end - row));
                }
            } else {
                for row in rows {
                    kernel.row(l, row);
                }
            }
        }
        kernel
    }
}

struct Softmax {
    x: *const f32,
    y: *mut f32,
    cols: usize,
}

impl RowKernel for Softmax {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.cols
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let at = row * self.cols;
        // SAFETY: the row is inside both matrices.
        unsafe { softmax_row(l, self.x.add(at), self.y.add(at), self.cols) };
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn short_rows<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) {
        let at = row * self.cols;
        // SAFETY: the rows are inside both matrices.
        unsafe {
            Columns::load(l, self.x.add(at), n_rows, self.cols).softmax().store(self.y.add(at));
        }
    }
}

/// `y` = softmax of each row of `x`.
///
/// # Safety
/// `isa` is available; `x` and `y` have `rows` x `cols` elements and may be the same.
pub(crate) unsafe fn softmax(
    isa: Isa,
    x: *const f32,
    y: *mut f32,
    rows: usize,
    cols: usize,
    part: Part,
) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Rows(Softmax { x, y, cols }, part.range(rows, 1))) };
}

struct SoftmaxGrad {
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
    cols: usize,
}

impl RowKernel for SoftmaxGrad {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.cols
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let at = row * self.cols;
        // SAFETY: the row is inside the matrices.
        unsafe {
            softmax_grad_row(l, self.y.add(at), self.dy.add(at), self.dx.add(at), self.cols);
        }
    }
}

/// `dx` = y (dy - sum of dy y) for each row, with `y` the result of [`softmax`].
///
/// # Safety
/// `isa` is available; all have `rows` x `cols` elements; `dx` may be `y` or `dy`.
pub(crate) unsafe fn softmax_grad(
    isa: Isa,
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
    rows: usize,
    cols: usize,
    part: Part,
) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Rows(SoftmaxGrad { y, dy, dx, cols }, part.range(rows, 1))) };
}

struct LogSoftmax {
    x: *const f32,
    y: *mut f32,
    cols: usize,
}

impl RowKernel for LogSoftmax {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.cols
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let at = row * self.cols;
        // SAFETY: the row is inside both matrices.
        unsafe {
            let (x, y) = (self.x.add(at), self.y.add(at));
            let (largest, log_sum) = log_sum_row(l, x, self.cols);
            let (largest, log_sum) = (l.splat(largest), l.splat(log_sum));
            along!(
                self.cols,
                |at| l.store(y.add(at), l.sub(l.sub(l.load(x.add(at)), largest), log_sum)),
                |at, left| {
                    let x = l.load_first(x.add(at), left);
                    l.store_first(y.add(at), l.sub(l.sub(x, largest), log_sum), left);
                }
            );
        }
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn short_rows<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) {
        let at = row * self.cols;
        // SAFETY: the rows are inside both matrices.
        unsafe {
            let mut x = Columns::load(l, self.x.add(at), n_rows, self.cols);
            let largest = x.largest();
            let log_sum = log(l, x.clone().exp(largest).1);
            for (_, x) in x.each() {
                *x = l.sub(l.sub(*x, largest), log_sum);
            }
            x.store(self.y.add(at));
        }
    }
}

/// `y` = log of the softmax of each row of `x`.
///
/// # Safety
/// `isa` is available; `x` and `y` have `rows` x `cols` elements and may be the same.
pub(crate) unsafe fn log_softmax(
    isa: Isa,
    x: *const f32,
    y: *mut f32,
    rows: usize,
    cols: usize,
    part: Part,
) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Rows(LogSoftmax { x, y, cols }, part.range(rows, 1))) };
}

struct LogSoftmaxGrad(SoftmaxGrad);

impl RowKernel for LogSoftmaxGrad {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.0.cols
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let SoftmaxGrad { y, dy, dx, cols } = self.0;
        let at = row * cols;
        // SAFETY: the row is inside the matrices.
        unsafe {
            let (y, dy, dx) = (y.add(at), dy.add(at), dx.add(at));
            let mut sum = l.splat(0.0);
            along!(cols, |at| sum = l.add(sum, l.load(dy.add(at))), |at, left| sum =
                l.add(sum, l.load_first(dy.add(at), left)));
            let less = l.splat(-l.sum_lanes(sum));
            along!(
                cols,
                |at| {
                    let (y, dy) = (l.load(y.add(at)), l.load(dy.add(at)));
                    l.store(dx.add(at), l.mul_add(exp(l, y), less, dy));
                },
                |at, left| {
                    let (y, dy) = (l.load_first(y.add(at), left), l.load_first(dy.add(at), left));
                    l.store_first(dx.add(at), l.mul_add(exp(l, y), less, dy), left);
                }
            );
        }
    }
}

/// `dx` = dy - exp(y) sum of dy for each row, with `y` the result of [`log_softmax`].
///
/// # Safety
/// `isa` is available; all have `rows` x `cols` elements; `dx` may be `y` or `dy`.
pub(crate) unsafe fn log_softmax_grad(
    isa: Isa,
    y: *const f32,
    dy: *const f32,
    dx: *mut f32,
    rows: usize,
    cols: usize,
    part: Part,
) {
    let kernel = LogSoftmaxGrad(SoftmaxGrad { y, dy, dx, cols });
    // SAFETY: as the caller says.
    unsafe { isa.run(Rows(kernel, part.range(rows, 1))) };
}

#[cfg(test)]
mod tests;
