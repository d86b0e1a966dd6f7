//! Batch norm: each column brought to mean 0 and variance 1 over the rows, then scaled and shifted.
//!
//! The columns are the channels, the rows everything else (images and pixels). Parts share out
//! columns, so that no part waits for another's sums.

use std::ops::Range;

use crate::cpu::kernels::Part;
use crate::cpu::kernels::reduce::{RowTerms, load_up_to, sum_columns};
use crate::cpu::math::rsqrt;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Columns whose factors are kept at hand at a time.
const STRIP: usize = 256;

/// Does `$body` for each vector of a range of columns, with its first column and how many lanes
/// count. A macro, since a closure would not always be inlined, and vectors may not cross a call.
macro_rules! each_vector {
    ($cols:expr, |$col:ident, $n:ident| $body:expr) => {{
        let cols: &Range<usize> = $cols;
        let mut start = cols.start;
        while start + WIDTH <= cols.end {
            let ($col, $n) = (start, WIDTH);
            $body;
            start += WIDTH;
        }
        if start < cols.end {
            let ($col, $n) = (start, cols.end - start);
            $body;
        }
    }};
}

/// Stores a whole vector or, at an edge, the first `n` lanes.
///
/// # Safety
/// `p` has `n` elements.
#[inline(always)]
unsafe fn store_up_to<L: Lanes>(l: L, p: *mut f32, x: L::F, n: usize) {
    // SAFETY: as the caller says.
    unsafe { if n == WIDTH { l.store(p, x) } else { l.store_first(p, x, n) } }
}

/// The columns cut in strips.
fn strips(cols: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = cols.end;
    cols.step_by(STRIP).map(move |start| start..end.min(start + STRIP))
}

/// The operands of [`batch_norm`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchNorm {
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
    /// One per column: its mean.
    pub mean: *mut f32,
    /// One per column: its variance, the sum of squares divided by the number of rows.
    pub variance: *mut f32,
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub cols: usize,
}

struct Elements(BatchNorm);

impl RowTerms<1> for Elements {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; 1] {
        // SAFETY: as the caller says.
        unsafe { [load_up_to(l, self.0.x.add(row * self.0.cols + col), n)] }
    }
}

/// Squares of the differences from means that are there already.
struct Squares(BatchNorm);

impl RowTerms<1> for Squares {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; 1] {
        // SAFETY: as the caller says.
        unsafe {
            let x = load_up_to(l, self.0.x.add(row * self.0.cols + col), n);
            let d = l.sub(x, load_up_to(l, self.0.mean.add(col), n));
            [l.mul(d, d)]
        }
    }
}

struct Forward(BatchNorm, Range<usize>);

impl Kernel for Forward {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Forward(op, cols) = self;
        // SAFETY: the columns are inside the matrices.
        unsafe {
            let count = l.splat(op.rows as f32);
            sum_columns(l, &Elements(op), op.rows, cols.clone(), [op.mean]);
            each_vector!(&cols, |col, n| {
                let mean = l.div(load_up_to(l, op.mean.add(col), n), count);
                store_up_to(l, op.mean.add(col), mean, n);
            });
            sum_columns(l, &Squares(op), op.rows, cols.clone(), [op.variance]);
            each_vector!(&cols, |col, n| {
                let variance = l.div(load_up_to(l, op.variance.add(col), n), count);
                store_up_to(l, op.variance.add(col), variance, n);
            });
            for strip in strips(cols) {
                op.write(l, strip);
            }
        }
    }
}

impl BatchNorm {
    /// Writes a strip of `y`, with means and variances done.
    ///
    /// # Safety
    /// Inside a kernel; the strip is inside the matrices.
    #[inline(always)]
    unsafe fn write<L: Lanes>(&self, l: L, strip: Range<usize>) {
        let mut factors = [0.0; STRIP];
        // SAFETY: columns are inside the strip, which is not wider than the factors.
        unsafe {
            each_vector!(&strip, |col, n| {
                let variance = load_up_to(l, self.variance.add(col), n);
                let rstd = rsqrt(l, l.add(variance, l.splat(self.epsilon)));
                let factor = l.mul(rstd, load_up_to(l, self.scale.add(col), n));
                l.store(factors.as_mut_ptr().add(col - strip.start), factor);
            });
            for row in 0..self.rows {
                each_vector!(&strip, |col, n| {
                    let at = row * self.cols + col;
                    let x = load_up_to(l, self.x.add(at), n);
                    let d = l.sub(x, load_up_to(l, self.mean.add(col), n));
                    let factor = l.load(factors.as_ptr().add(col - strip.start));
                    let y = l.mul_add(d, factor, load_up_to(l, self.bias.add(col), n));
                    store_up_to(l, self.y.add(at), y, n);
                });
            }
        }
    }
}

/// `y` = (x - mean) scale / sqrt(variance + epsilon) + bias, with each column's own mean and
/// variance.
///
/// # Safety
/// `isa` is available; the pointers hold what [`BatchNorm`] says.
pub(crate) unsafe fn batch_norm(isa: Isa, op: BatchNorm, part: Part) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Forward(op, part.range(op.cols, WIDTH))) }
}

/// The operands of [`batch_norm_grad`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchNormGrad {
    /// `rows` x `cols`.
    pub x: *const f32,
    /// One per column.
    pub scale: *const f32,
    /// One per column, from [`batch_norm`].
    pub mean: *const f32,
    /// One per column, from [`batch_norm`].
    pub variance: *const f32,
    /// As in [`batch_norm`].
    pub epsilon: f32,
    /// `rows` x `cols`: the gradient of `y`.
    pub dy: *const f32,
    /// `rows` x `cols`: the gradient of `x`; may be `dy` or `x`.
    pub dx: *mut f32,
    /// One per column: the gradient of the scale.
    pub dscale: *mut f32,
    /// One per column: the gradient of the bias.
    pub dbias: *mut f32,
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub cols: usize,
}

/// What a strip of columns is divided by, and where it starts.
struct Strip<'a> {
    op: &'a BatchNormGrad,
    rstd: [f32; STRIP],
    start: usize,
}

impl Strip<'_> {
    /// The gradient and the normalised element.
    ///
    /// # Safety
    /// Inside a kernel; row and columns are inside the strip.
    #[inline(always)]
    unsafe fn pair<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> (L::F, L::F) {
        // SAFETY: as the caller says; the strip's array is a whole number of vectors.
        unsafe {
            let at = row * self.op.cols + col;
            let dy = load_up_to(l, self.op.dy.add(at), n);
            let mean = load_up_to(l, self.op.mean.add(col), n);
            let d = l.sub(load_up_to(l, self.op.x.add(at), n), mean);
            (dy, l.mul(d, l.load(self.rstd.as_ptr().add(col - self.start))))
        }
    }
}

impl RowTerms<2> for Strip<'_> {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; 2] {
        // SAFETY: as the caller says.
        unsafe {
            let (dy, normal) = self.pair(l, row, col, n);
            [l.mul(dy, normal), dy]
        }
    }
}

struct Backward(BatchNormGrad, Range<usize>);

impl Kernel for Backward {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Backward(op, cols) = self;
        for strip in strips(cols) {
            // SAFETY: the columns are inside the matrices.
            unsafe { op.strip(l, strip) };
        }
    }
}

impl BatchNormGrad {
    /// All gradients of a strip of columns.
    ///
    /// # Safety
    /// Inside a kernel; the strip is inside the matrices.
    #[inline(always)]
    unsafe fn strip<L: Lanes>(&self, l: L, cols: Range<usize>) {
        let mut strip = Strip { op: self, rstd: [0.0; STRIP], start: cols.start };
        let (mut factors, mut sums, mut dots) = ([0.0; STRIP], [0.0; STRIP], [0.0; STRIP]);
        // SAFETY: columns are inside the strip, whose arrays are whole numbers of vectors.
        unsafe {
            each_vector!(&cols, |col, n| {
                let variance = load_up_to(l, self.variance.add(col), n);
                let rstd = rsqrt(l, l.add(variance, l.splat(self.epsilon)));
                l.store(strip.rstd.as_mut_ptr().add(col - cols.start), rstd);
                let factor = l.mul(rstd, load_up_to(l, self.scale.add(col), n));
                l.store(factors.as_mut_ptr().add(col - cols.start), factor);
            });
            sum_columns(l, &strip, self.rows, cols.clone(), [self.dscale, self.dbias]);
            let count = l.splat(self.rows as f32);
            each_vector!(&cols, |col, n| {
                let dot = l.div(load_up_to(l, self.dscale.add(col), n), count);
                l.store(dots.as_mut_ptr().add(col - cols.start), l.neg(dot));
                let sum = l.div(load_up_to(l, self.dbias.add(col), n), count);
                l.store(sums.as_mut_ptr().add(col - cols.start), sum);
            });
            for row in 0..self.rows {
                each_vector!(&cols, |col, n| {
                    let at = col - cols.start;
                    let (dy, normal) = strip.pair(l, row, col, n);
                    let (sum, dot) = (l.load(sums.as_ptr().add(at)), l.load(dots.as_ptr().add(at)));
                    let d = l.mul_add(normal, dot, l.sub(dy, sum));
                    let dx = l.mul(d, l.load(factors.as_ptr().add(at)));
                    store_up_to(l, self.dx.add(row * self.cols + col), dx, n);
                });
            }
        }
    }
}

/// The gradients of [`batch_norm`]: with n the normalised column, dscale = sum of dy n, dbias = sum
/// of dy, and dx = scale rstd (dy - mean of dy - n mean of dy n).
///
/// # Safety
/// `isa` is available; the pointers hold what [`BatchNormGrad`] says.
pub(crate) unsafe fn batch_norm_grad(isa: Isa, op: BatchNormGrad, part: Part) {
    // SAFETY: as the caller says.
    unsafe { isa.run(Backward(op, part.range(op.cols, WIDTH))) }
}
