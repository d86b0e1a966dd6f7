//! Reductions of an array seen as [outer, axis, inner] over its middle axis.
//!
//! The order of a sum is fixed by the shape alone. With inner = 1 the axis is contiguous: blocks of
//! 4,096 elements, each in 64 striped chains that are added at its end, and the blocks in order.
//! Otherwise each column is a chain of its own: blocks of 64 rows summed from the top, and the
//! blocks in order. Parts share out result elements, so a reduction to one element is done by one
//! part alone.

use std::marker::PhantomData;
use std::ops::Range;

use manyhands_program::SQUARE_BLOCK;

use super::Part;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Elements of a contiguous axis that are summed before their total joins the others.
const BLOCK: usize = 4096;
/// Chains that run side by side along a contiguous axis, in vectors.
const CHAINS: usize = 4;
/// Rows whose column sums are formed before they join the others.
pub(super) const ROW_BLOCK: usize = 64;
/// Columns whose running sums are kept at hand at a time.
const COLUMNS: usize = 512;

/// How two values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// The sum; 0 of nothing.
    Sum,
    /// The product; 1 of nothing.
    Product,
    /// The largest, NaN if there is one; minus infinity of nothing.
    Max,
    /// The smallest, NaN if there is one; infinity of nothing.
    Min,
}

/// A [`Reduction`] as a type, so that each gets its own code.
trait Fold: Copy {
    const EMPTY: f32;

    /// # Safety
    /// As every method of [`Lanes`].
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F;

    /// The same for one lane.
    fn fold_one(so_far: f32, x: f32) -> f32;

    /// Takes in an element of the array.
    ///
    /// # Safety
    /// As every method of [`Lanes`].
    #[inline(always)]
    unsafe fn take<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: as the caller says.
        unsafe { Self::fold(l, so_far, x) }
    }
}

#[derive(Clone, Copy)]
struct Sum;
#[derive(Clone, Copy)]
struct SumOfSquares;
#[derive(Clone, Copy)]
struct Product;
#[derive(Clone, Copy)]
struct Max;
#[derive(Clone, Copy)]
struct Min;

impl Fold for Sum {
    const EMPTY: f32 = 0.0;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe { l.add(so_far, x) }
    }

    #[inline(always)]
    fn fold_one(so_far: f32, x: f32) -> f32 {
        so_far + x
    }
}

impl Fold for SumOfSquares {
    const EMPTY: f32 = 0.0;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe { l.add(so_far, x) }
    }

    #[inline(always)]
    fn fold_one(so_far: f32, x: f32) -> f32 {
        so_far + x
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn take<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe { l.mul_add(x, x, so_far) }
    }
}

impl Fold for Product {
    const EMPTY: f32 = 1.0;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's.
        unsafe { l.mul(so_far, x) }
    }

    #[inline(always)]
    fn fold_one(so_far: f32, x: f32) -> f32 {
        so_far * x
    }
}

impl Fold for Max {
    const EMPTY: f32 = f32::NEG_INFINITY;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's. `max` gives `x` where that is NaN.
        unsafe { l.select(l.eq(so_far, so_far), l.max(so_far, x), so_far) }
    }

    #[inline(always)]
    fn fold_one(so_far: f32, x: f32) -> f32 {
        if so_far > x || so_far.is_nan() { so_far } else { x }
    }
}

impl Fold for Min {
    const EMPTY: f32 = f32::INFINITY;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn fold<L: Lanes>(l: L, so_far: L::F, x: L::F) -> L::F {
        // SAFETY: lane arithmetic, as the caller's. `min` gives `x` where that is NaN.
        unsafe { l.select(l.eq(so_far, so_far), l.min(so_far, x), so_far) }
    }

    #[inline(always)]
    fn fold_one(so_far: f32, x: f32) -> f32 {
        if so_far < x || so_far.is_nan() { so_far } else { x }
    }
}

/// The lanes folded by halves, as [`Lanes::sum_lanes`] does.
///
/// # Safety
/// As every method of [`Lanes`].
#[inline(always)]
unsafe fn fold_lanes<L: Lanes, R: Fold>(l: L, x: L::F) -> f32 {
    // SAFETY: lane arithmetic, as the caller's.
    let mut lanes = unsafe { l.to_array(x) };
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = R::fold_one(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// One block of a contiguous axis, in striped chains.
///
/// # Safety
/// `src` has `n` elements.
#[inline(always)]
unsafe fn striped<L: Lanes, R: Fold>(l: L, src: *const f32, n: usize) -> f32 {
    // SAFETY: the offsets stay inside the `n` elements.
    unsafe {
        let mut chains = [l.splat(R::EMPTY); CHAINS];
        let mut at = 0;
        while at + CHAINS * WIDTH <= n {
            for (i, chain) in chains.iter_mut().enumerate() {
                *chain = R::take(l, *chain, l.load(src.add(at + i * WIDTH)));
            }
            at += CHAINS * WIDTH;
        }
        for chain in &mut chains {
            if at < n {
                let left = WIDTH.min(n - at);
                let inside = l.mask_from_bits(((1u32 << left) - 1) as u16);
                let next = R::take(l, *chain, l.load_first(src.add(at), left));
                *chain = l.select(inside, next, *chain);
                at += WIDTH;
            }
        }
        let [a, b, c, d] = chains;
        fold_lanes::<L, R>(l, R::fold(l, R::fold(l, a, b), R::fold(l, c, d)))
    }
}

/// A contiguous axis: its blocks in order.
///
/// # Safety
/// `src` has `n` elements.
#[inline(always)]
unsafe fn contiguous<L: Lanes, R: Fold>(l: L, src: *const f32, n: usize) -> f32 {
    // SAFETY: the offsets stay inside the `n` elements.
    unsafe {
        let mut total = striped::<L, R>(l, src, BLOCK.min(n));
        let mut at = BLOCK;
        while at < n {
            let block = striped::<L, R>(l, src.add(at), BLOCK.min(n - at));
            total = R::fold_one(total, block);
            at += BLOCK;
        }
        total
    }
}

/// Gives the `K` vectors that a row adds to each column's chains.
pub(super) trait RowTerms<const K: usize> {
    /// The terms of `row` in the columns from `col` on, of which the first `n` lanes count.
    ///
    /// # Safety
    /// The row and columns are inside what the terms were made for.
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; K];
}

/// Loads a whole vector or, at an edge, the first `n` lanes.
///
/// # Safety
/// `p` has `n` elements.
#[inline(always)]
pub(super) unsafe fn load_up_to<L: Lanes>(l: L, p: *const f32, n: usize) -> L::F {
    // SAFETY: as the caller says.
    unsafe { if n == WIDTH { l.load(p) } else { l.load_first(p, n) } }
}

/// Adds the terms of `R` consecutive rows to the block sums of a strip of columns.
///
/// # Safety
/// As [`RowTerms::at`]; `cols` is at most `COLUMNS` wide.
#[inline(always)]
unsafe fn add_rows<L: Lanes, F: Fold, T: RowTerms<K>, const K: usize, const R: usize>(
    l: L,
    terms: &T,
    row: usize,
    cols: &Range<usize>,
    sums: &mut [[f32; COLUMNS]; K],
) {
    let mut col = cols.start;
    while col < cols.end {
        let n = WIDTH.min(cols.end - col);
        let at = col - cols.start;
        // SAFETY: `at` is a multiple of the width inside the strip; rows as the caller says.
        unsafe {
            let mut running: [L::F; K] = std::array::from_fn(|k| l.load(sums[k].as_ptr().add(at)));
            for r in 0..R {
                let next = terms.at(l, row + r, col, n);
                for k in 0..K {
                    running[k] = F::fold(l, running[k], next[k]);
                }
            }
            for k in 0..K {
                l.store(sums[k].as_mut_ptr().add(at), running[k]);
            }
        }
        col += WIDTH;
    }
}

/// Folds the terms of rows `0..rows` for each of `cols`, in the order that the module describes,
/// and writes column c to `out[k][c]`. Rows are read along, several at once, so that memory
/// streams.
///
/// # Safety
/// As [`RowTerms::at`]; the outputs have a place for each column.
#[inline(always)]
unsafe fn fold_columns<L: Lanes, F: Fold, T: RowTerms<K>, const K: usize>(
    l: L,
    terms: &T,
    rows: usize,
    cols: Range<usize>,
    out: [*mut f32; K],
) {
    let mut start = cols.start;
    while start < cols.end {
        let strip = start..cols.end.min(start + COLUMNS);
        let width = strip.len();
        let mut totals = [[F::EMPTY; COLUMNS]; K];
        let mut row = 0;
        while row < rows {
            let end = rows.min(row + ROW_BLOCK);
            let mut sums = [[F::EMPTY; COLUMNS]; K];
            // SAFETY: rows and columns are inside what the caller vouched for.
            unsafe {
                while row + 8 <= end {
                    add_rows::<L, F, T, K, 8>(l, terms, row, &strip, &mut sums);
                    row += 8;
                }
                while row < end {
                    add_rows::<L, F, T, K, 1>(l, terms, row, &strip, &mut sums);
                    row += 1;
                }
                for (totals, sums) in totals.iter_mut().zip(&sums) {
                    for at in (0..width).step_by(WIDTH) {
                        let total = totals.as_mut_ptr().add(at);
                        l.store(total, F::fold(l, l.load(total), l.load(sums.as_ptr().add(at))));
                    }
                }
            }
        }
        for (totals, out) in totals.iter().zip(out) {
            // SAFETY: the strip is inside the output's columns and not wider than the array.
            unsafe { std::ptr::copy_nonoverlapping(totals.as_ptr(), out.add(start), width) };
        }
        start = strip.end;
    }
}

/// [`fold_columns`] for sums, which the norms use as well.
///
/// # Safety
/// As [`RowTerms::at`]; the outputs have a place for each column.
#[inline(always)]
pub(super) unsafe fn sum_columns<L: Lanes, T: RowTerms<K>, const K: usize>(
    l: L,
    terms: &T,
    rows: usize,
    cols: Range<usize>,
    out: [*mut f32; K],
) {
    // SAFETY: as the caller says.
    unsafe { fold_columns::<L, Sum, T, K>(l, terms, rows, cols, out) }
}

/// The elements of a matrix themselves.
struct Elements {
    src: *const f32,
    cols: usize,
}

impl RowTerms<1> for Elements {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&self, l: L, row: usize, col: usize, n: usize) -> [L::F; 1] {
        // SAFETY: as the caller says.
        unsafe { [load_up_to(l, self.src.add(row * self.cols + col), n)] }
    }
}

struct Reduce<R> {
    src: *const f32,
    dst: *mut f32,
    axis: usize,
    inner: usize,
    results: Range<usize>,
    fold: PhantomData<R>,
}

impl<R: Fold> Kernel for Reduce<R> {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Reduce { src, dst, axis, inner, results, fold: _ } = self;
        let mut at = results.start;
        while at < results.end {
            let (outer, col) = (at / inner, at % inner);
            let n = (inner - col).min(results.end - at);
            // SAFETY: `outer` and the columns are inside the array and the results.
            unsafe {
                let src = src.add(outer * axis * inner);
                if inner == 1 {
                    *dst.add(at) = contiguous::<L, R>(l, src, axis);
                } else {
                    let elements = Elements { src, cols: inner };
                    let out = [dst.add(outer * inner)];
                    fold_columns::<L, R, _, 1>(l, &elements, axis, col..col + n, out);
                }
            }
            at += n;
        }
    }
}

#[allow(clippy::too_many_arguments)] // the operands of one operation
/// Reduces `src`, seen as [outer, axis, inner], to `dst`, [outer, inner].
///
/// # Safety
/// `isa` is available; `src` has `outer * axis * inner` elements, `dst` `outer * inner`, and they
/// do not overlap.
pub(crate) unsafe fn reduce(
    isa: Isa,
    reduction: Reduction,
    src: *const f32,
    dst: *mut f32,
    outer: usize,
    axis: usize,
    inner: usize,
    part: Part,
) {
    let results = part.range(outer * inner, if inner == 1 { 1 } else { WIDTH });
    macro_rules! with {
        ($fold:ty) => {
            // SAFETY: as the caller says.
            unsafe {
                isa.run(Reduce { src, dst, axis, inner, results, fold: PhantomData::<$fold> })
            }
        };
    }
    match reduction {
        Reduction::Sum => with!(Sum),
        Reduction::Product => with!(Product),
        Reduction::Max => with!(Max),
        Reduction::Min => with!(Min),
    }
}

struct SquareSums {
    src: *const f32,
    dst: *mut f32,
    n: usize,
    blocks: Range<usize>,
}

impl Kernel for SquareSums {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        for block in self.blocks {
            let at = block * SQUARE_BLOCK;
            let n = SQUARE_BLOCK.min(self.n - at);
            // SAFETY: the block is inside the source, and the partial sums have a place for it.
            unsafe { *self.dst.add(block) = striped::<L, SumOfSquares>(l, self.src.add(at), n) };
        }
    }
}

/// The sum of squares of each block of [`SQUARE_BLOCK`] elements.
///
/// # Safety
/// `isa` is available; `src` has `n` elements, `dst` one per block begun.
pub(crate) unsafe fn block_square_sums(
    isa: Isa,
    src: *const f32,
    dst: *mut f32,
    n: usize,
    part: Part,
) {
    let blocks = part.range(n.div_ceil(SQUARE_BLOCK), 1);
    // SAFETY: as the caller says.
    unsafe { isa.run(SquareSums { src, dst, n, blocks }) }
}

#[cfg(test)]
mod tests;
