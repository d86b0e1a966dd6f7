//! Cross-entropy of rows of logits against class labels, with its gradient.
//!
//! Labels come from data, so each is checked before it is used as an index: a bad one is reported
//! with its row and never read through.

use super::Part;
use super::softmax::{Columns, RowKernel, Rows, along, log_sum_row, softmax_row};
use crate::cpu::math::log;
use crate::cpu::simd::{Isa, Lanes, WIDTH};

/// A class index that lies outside the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label {label} in row {row} is not one of the {n_classes} classes")]
pub struct BadLabel {
    /// The row that holds it.
    pub row: usize,
    /// What it says.
    pub label: i64,
    /// How many classes there are.
    pub n_classes: usize,
}

/// An integer type that class labels come in.
pub(crate) trait Label: Copy {
    /// The label as a number.
    fn number(self) -> i64;
}

impl Label for i32 {
    fn number(self) -> i64 {
        i64::from(self)
    }
}

impl Label for i64 {
    fn number(self) -> i64 {
        self
    }
}

/// The labels of a batch, and the first bad one that was met.
struct Labels<T> {
    labels: *const T,
    n_classes: usize,
    bad: Option<BadLabel>,
}

impl<T: Label> Labels<T> {
    /// The class of `row`, or nothing (remembered) where it is not one.
    ///
    /// # Safety
    /// There is a label for `row`.
    #[inline(always)]
    unsafe fn class(&mut self, row: usize) -> Option<usize> {
        // SAFETY: as the caller says.
        let label = unsafe { *self.labels.add(row) }.number();
        let class = usize::try_from(label).ok().filter(|class| *class < self.n_classes);
        if class.is_none() && self.bad.is_none() {
            self.bad = Some(BadLabel { row, label, n_classes: self.n_classes });
        }
        class
    }

    /// The classes of `n_rows` rows from `row` on as lanes, -1 where a row has none.
    ///
    /// # Safety
    /// There are labels for these rows, which are at most sixteen.
    #[inline(always)]
    unsafe fn classes<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) -> L::F {
        let mut classes = [-1.0; WIDTH];
        for (i, lane) in classes.iter_mut().enumerate().take(n_rows) {
            // SAFETY: as the caller says.
            if let Some(class) = unsafe { self.class(row + i) } {
                *lane = class as f32;
            }
        }
        // SAFETY: the array has sixteen lanes.
        unsafe { l.load(classes.as_ptr()) }
    }
}

struct CrossEntropy<T> {
    logits: *const f32,
    labels: Labels<T>,
    losses: *mut f32,
}

impl<T: Label> RowKernel for CrossEntropy<T> {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.labels.n_classes
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let cols = self.labels.n_classes;
        // SAFETY: the row is inside the batch, and the class inside the row.
        unsafe {
            let logits = self.logits.add(row * cols);
            let loss = match self.labels.class(row) {
                Some(class) => {
                    let (largest, log_sum) = log_sum_row(l, logits, cols);
                    log_sum - (*logits.add(class) - largest)
                }
                None => f32::NAN,
            };
            *self.losses.add(row) = loss;
        }
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn short_rows<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) {
        let cols = self.labels.n_classes;
        // SAFETY: the rows are inside the batch.
        unsafe {
            let mut x = Columns::load(l, self.logits.add(row * cols), n_rows, cols);
            let classes = self.labels.classes(l, row, n_rows);
            // A row without a class keeps the NaN.
            let mut at_label = l.splat(f32::NAN);
            for (col, x) in x.each() {
                at_label = l.select(l.eq(classes, l.splat(col as f32)), *x, at_label);
            }
            let largest = x.largest();
            let log_sum = log(l, x.exp(largest).1);
            let loss = l.sub(log_sum, l.sub(at_label, largest));
            l.store_first(self.losses.add(row), loss, n_rows);
        }
    }
}

/// The loss of each row: minus the log of the softmax at its label. A row whose label is not a
/// class gets NaN, and the first such row of the part is the error.
///
/// # Safety
/// `isa` is available; `logits` has `rows` x `n_classes` elements, `labels` and `losses` `rows`.
pub(crate) unsafe fn cross_entropy<T: Label>(
    isa: Isa,
    logits: *const f32,
    labels: *const T,
    losses: *mut f32,
    rows: usize,
    n_classes: usize,
    part: Part,
) -> Result<(), BadLabel> {
    let labels = Labels { labels, n_classes, bad: None };
    // SAFETY: as the caller says.
    let done =
        unsafe { isa.run(Rows(CrossEntropy { logits, labels, losses }, part.range(rows, 1))) };
    done.labels.bad.map_or(Ok(()), Err)
}

struct CrossEntropyGrad<T> {
    logits: *const f32,
    labels: Labels<T>,
    dlosses: *const f32,
    dlogits: *mut f32,
}

impl<T: Label> RowKernel for CrossEntropyGrad<T> {
    #[inline(always)]
    fn n_cols(&self) -> usize {
        self.labels.n_classes
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn row<L: Lanes>(&mut self, l: L, row: usize) {
        let cols = self.labels.n_classes;
        // SAFETY: the row is inside the batch, and the class inside the row.
        unsafe {
            let (logits, out) = (self.logits.add(row * cols), self.dlogits.add(row * cols));
            let class = self.labels.class(row);
            let dloss = if class.is_some() { *self.dlosses.add(row) } else { f32::NAN };
            softmax_row(l, logits, out, cols);
            if let Some(class) = class {
                *out.add(class) -= 1.0;
            }
            let scale = l.splat(dloss);
            along!(
                cols,
                |at| l.store(out.add(at), l.mul(l.load(out.add(at)), scale)),
                |at, left| {
                    let y = l.load_first(out.add(at), left);
                    l.store_first(out.add(at), l.mul(y, scale), left);
                }
            );
        }
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn short_rows<L: Lanes>(&mut self, l: L, row: usize, n_rows: usize) {
        let cols = self.labels.n_classes;
        // SAFETY: the rows are inside the batch.
        unsafe {
            let x = Columns::load(l, self.logits.add(row * cols), n_rows, cols);
            let classes = self.labels.classes(l, row, n_rows);
            let known = l.le(l.splat(0.0), classes);
            let dloss = l.load_first(self.dlosses.add(row), n_rows);
            let dloss = l.select(known, dloss, l.splat(f32::NAN));
            let one = l.splat(1.0);
            let mut dx = x.softmax();
            for (col, y) in dx.each() {
                let here = l.eq(classes, l.splat(col as f32));
                *y = l.mul(l.select(here, l.sub(*y, one), *y), dloss);
            }
            dx.store(self.dlogits.add(row * cols));
        }
    }
}

#[allow(clippy::too_many_arguments)] // the operands of one operation
/// `dlogits` = (softmax - one at the label) dloss for each row. Bad labels as in [`cross_entropy`].
///
/// # Safety
/// `isa` is available; `logits` and `dlogits` have `rows` x `n_classes` elements and may be the
/// same; `labels` and `dlosses` have `rows`.
pub(crate) unsafe fn cross_entropy_grad<T: Label>(
    isa: Isa,
    logits: *const f32,
    labels: *const T,
    dlosses: *const f32,
    dlogits: *mut f32,
    rows: usize,
    n_classes: usize,
    part: Part,
) -> Result<(), BadLabel> {
    let labels = Labels { labels, n_classes, bad: None };
    let kernel = CrossEntropyGrad { logits, labels, dlosses, dlogits };
    // SAFETY: as the caller says.
    let done = unsafe { isa.run(Rows(kernel, part.range(rows, 1))) };
    done.labels.bad.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests;
