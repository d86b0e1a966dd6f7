//! Layer norm: each row brought to mean 0 and variance 1, then scaled and shifted by column.

use std::ops::Range;

use crate::cpu::kernels::Part;
use crate::cpu::kernels::reduce::{RowTerms, load_up_to, sum_columns};
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Chains that run side by side along a row, in vectors.
const CHAINS: usize = 4;

/// Sums `$k` terms along a row of `$n`: an array of vectors for the elements from `$at` on, of
/// which the first `$left` lanes count. A macro, since a closure would not always be inlined, and
/// vectors may not cross a call.
macro_rules! row_sums {
    ($l:ident, $n:expr, $k:literal, |$at:ident, $left:ident| $terms:expr) => {{
        let n: usize = $n;
        let zero = $l.splat(0.0);
        let mut chains = [[zero; CHAINS]; $k];
        let mut start = 0;
        while start + CHAINS * WIDTH <= n {
            for i in 0..CHAINS {
                let ($at, $left) = (start + i * WIDTH, WIDTH);
                let terms = $terms;
                for k in 0..$k {
                    chains[k][i] = $l.add(chains[k][i], terms[k]);
                }
            }
            start += CHAINS * WIDTH;
        }
        for i in 0..CHAINS {
            if start < n {
                let ($at, $left) = (start, WIDTH.min(n - start));
                let inside = $l.mask_from_bits(((1u32 << $left) - 1) as u16);
                let terms = $terms;
                for k in 0..$k {
                    chains[k][i] = $l.add(chains[k][i], $l.select(inside, terms[k], zero));
                }
                start += WIDTH;
            }
        }
        let mut sums = [0.0; $k];
        for (sum, [a, b, c, d]) in sums.iter_mut().zip(chains) {
            *sum = $l.sum_lanes($l.add($l.add(a, b), $l.add(c, d)));
        }
        sums
    }};
}

/// Writes a vector for each piece of a row of `$n`.
macro_rules! write_row {
    ($l:ident, $dst:expr, $n:expr, |$at:ident, $left:ident| $value:expr) => {{
        let (dst, n): (*mut f32, usize) = ($dst, $n);
        let mut start = 0;
        while start + WIDTH <= n {
            let ($at, $left) = (start, WIDTH);
            $l.store(dst.add(start), $value);
            start += WIDTH;
        }
        if start < n {
            let ($at, $left) = (start, n - start);
            $l.store_first(dst.add(start), $value, $left);
        }
    }};
}

/// The operands of [`layer_norm`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNorm {
    /// `rows` x `cols`.
    pub x: *const f32,
    /// One per column.
    pub scale: *const f32,
    /// One per column.
    pub bias: *const f32,
    /// Added to the variance.
    pub epsilon: f32,
    /// `rows` x `cols`; may be `x`.
    pub y: *mut f32,
    /// One per row: its mean.
    pub mean: *mut f32,
    /// One per row: 1 / sqrt(variance + epsilon).
    pub rstd: *mut f32,
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub cols: usize,
}

struct Forward(LayerNorm, Range<usize>);

impl Kernel for Forward {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Forward(op, rows) = self;
        let n = op.cols;
        for row in rows {
            // SAFETY: the row is inside the matrices, and pieces are inside the row.
            unsafe {
                let x = op.x.add(row * n);
                let [sum] = row_sums!(l, n, 1, |at, left| [load_up_to(l, x.add(at), left)]);
                let mean = sum / n as f32;
                let shift = l.splat(mean);
                let [squares] = row_sums!(l, n, 1, |at, left| {
                    let d = l.sub(load_up_to(l, x.add(at), left), shift);
                    [l.mul(d, d)]
                });
                let rstd = 1.0 / (squares / n as f32 + op.epsilon).sqrt();
                *op.mean.add(row) = mean;
                *op.rstd.add(row) = rstd;
                let factor = l.splat(rstd);
                write_row!(l, op.y.add(row * n), n, |at, left| {
                    let d = l.sub(load_up_to(l, x.add(at), left), shift);
                    let scale = load_up_to(l, op.scale.add(at), left);
                    let bias = load_up_to(l, op.bias.add(at), left);
                    l.mul_add(l.mul(d, factor), scale, bias)
                });
            }
        }
    }
}

/// `y` = (x - mean) rstd scale + bias for each row, with its mean and rstd.
///
/// # Safety
/// `isa` is available; the pointers hold what [`LayerNorm`] says.
pub(crate) unsafe fn layer_norm(isa: Isa, op: LayerNorm, part: Part) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Forward(op, part.range(op.rows, 1))) }
}

/// The operands of [`layer_norm_grad`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNormGrad {
    /// `rows` x `cols`.
    pub x: *const f32,
    /// One per column.
    pub scale: *const f32,
    /// One per row.
    pub mean: *const f32,
    /// One per row.
    pub rstd: *const f32,
    /// `rows` x `cols`: the gradient of `y`.
    pub dy: *const f32,
    /// `rows` x `cols`: the gradient of `x`; may be `dy` or `x`.
    pub dx: *mut f32,
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub cols: usize,
}

impl LayerNormGrad {
    /// The gradient before scaling, and the normalised element.
    ///
    /// # Safety
    /// Inside a kernel; the row and its piece are inside the matrices.
    #[inline(always)]
    unsafe fn pair<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> (L::F, L::F) {
        // SAFETY: as the caller says.
        unsafe {
            let at = row * self.cols + col;
            let scale = load_up_to(l, self.scale.add(col), n);
            let g = l.mul(load_up_to(l, self.dy.add(at), n), scale);
            let d = l.sub(load_up_to(l, self.x.add(at), n), l.splat(*self.mean.add(row)));
            (g, l.mul(d, l.splat(*self.rstd.add(row))))
        }
    }
}

struct Backward(LayerNormGrad, Range<usize>);

impl Kernel for Backward {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Backward(op, rows) = self;
        let n = op.cols;
        for row in rows {
            // SAFETY: the row is inside the matrices, and pieces are inside the row.
            unsafe {
                let [sum, dot] = row_sums!(l, n, 2, |at, left| {
                    let (g, normal) = op.pair(l, row, at, left);
                    [g, l.mul(g, normal)]
                });
                let (sum, dot) = (l.splat(sum / n as f32), l.splat(-(dot / n as f32)));
                let rstd = l.splat(*op.rstd.add(row));
                write_row!(l, op.dx.add(row * n), n, |at, left| {
                    let (g, normal) = op.pair(l, row, at, left);
                    l.mul(rstd, l.mul_add(normal, dot, l.sub(g, sum)))
                });
            }
        }
    }
}

/// The gradient of [`layer_norm`]'s input: with g = dy scale and n the normalised row, it is
/// rstd (g - mean of g - n mean of g n).
///
/// # Safety
/// `isa` is available; the pointers hold what [`LayerNormGrad`] says.
pub(crate) unsafe fn layer_norm_grad(isa: Isa, op: LayerNormGrad, part: Part) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Backward(op, part.range(op.rows, 1))) }
}

/// The operands of [`layer_norm_grad_scale`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNormGradScale {
    /// `rows` x `cols`.
    pub x: *const f32,
    /// One per row.
    pub mean: *const f32,
    /// One per row.
    pub rstd: *const f32,
    /// `rows` x `cols`: the gradient of `y`.
    pub dy: *const f32,
    /// One per column: the gradient of the scale.
    pub dscale: *mut f32,
    /// One per column: the gradient of the bias.
    pub dbias: *mut f32,
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub cols: usize,
}

impl RowTerms<2> for LayerNormGradScale {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; 2] {
        // SAFETY: as the caller says.
        unsafe {
            let at = row * self.cols + col;
            let (x, dy) = (load_up_to(l, self.x.add(at), n), load_up_to(l, self.dy.add(at), n));
            let d = l.sub(x, l.splat(*self.mean.add(row)));
            [l.mul(dy, l.mul(d, l.splat(*self.rstd.add(row)))), dy]
        }
    }
}

struct Columns(LayerNormGradScale, Range<usize>);

impl Kernel for Columns {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Columns(op, cols) = self;
        // SAFETY: the columns are inside the matrices.
        unsafe { sum_columns(l, &op, op.rows, cols, [op.dscale, op.dbias]) }
    }
}

/// The gradients of [`layer_norm`]'s scale and bias: sums over rows, shared out by columns.
///
/// # Safety
/// `isa` is available; the pointers hold what [`LayerNormGradScale`] says.
pub(crate) unsafe fn layer_norm_grad_scale(isa: Isa, op: LayerNormGradScale, part: Part) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Columns(op, part.range(op.cols, WIDTH))) }
}
