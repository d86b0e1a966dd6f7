//! Sixteen rows at a time, for rows of at most sixteen entries.
//!
//! A short row is all latency: one exponential, then sums over lanes. Turned on its side, a group
//! of sixteen rows holds one column in each vector, and every step serves all of them. The lanes
//! of a row were added by halves, and here its columns are, so the bits are the same.

use super::load_or_least;
use crate::cpu::math::exp;
use crate::cpu::simd::{Lanes, WIDTH};

/// A group of rows, one column in each vector, one row in each lane.
#[derive(Clone)]
pub(in super::super) struct Columns<L: Lanes> {
    l: L,
    /// The columns; those past the last hold zeros or minus infinity.
    values: [L::F; WIDTH],
    n_cols: usize,
    n_rows: usize,
}

impl<L: Lanes> Columns<L> {
    /// Loads `n_rows` rows of `n_cols` entries.
    ///
    /// # Safety
    /// Inside a kernel; both counts are at most sixteen, and `src` has the rows.
    #[inline(always)]
    pub(in super::super) unsafe fn load(
        l: L,
        src: *const f32,
        n_rows: usize,
        n_cols: usize,
    ) -> Self {
        // SAFETY: only the rows that are there are read.
        unsafe {
            let mut rows = [l.splat(0.0); WIDTH];
            for (i, row) in rows.iter_mut().enumerate().take(n_rows) {
                *row = load_or_least(l, src.add(i * n_cols), n_cols);
            }
            Columns { l, values: l.transpose(rows), n_cols, n_rows }
        }
    }

    /// Stores the rows.
    ///
    /// # Safety
    /// `dst` has the rows that were loaded.
    #[inline(always)]
    pub(in super::super) unsafe fn store(self, dst: *mut f32) {
        let l = self.l;
        // SAFETY: only the rows that are there are written.
        unsafe {
            for (i, row) in l.transpose(self.values).into_iter().enumerate().take(self.n_rows) {
                l.store_first(dst.add(i * self.n_cols), row, self.n_cols);
            }
        }
    }

    /// The columns that there are. Loops over them stand in the callers: a closure would not always
    /// be inlined, and vectors may not cross a call.
    #[inline(always)]
    pub(in super::super) fn each(&mut self) -> impl Iterator<Item = (usize, &mut L::F)> {
        self.values.iter_mut().enumerate().take(self.n_cols)
    }

    /// Each row's largest entry, NaN left aside.
    ///
    /// # Safety
    /// Inside a kernel.
    #[inline(always)]
    pub(in super::super) unsafe fn largest(&self) -> L::F {
        let l = self.l;
        // SAFETY: lane arithmetic.
        unsafe {
            let mut most = l.splat(f32::NEG_INFINITY);
            for value in &self.values[..self.n_cols] {
                most = l.max(*value, most);
            }
            most
        }
    }

    /// exp(entry - largest), and the sum of each row.
    ///
    /// # Safety
    /// Inside a kernel.
    #[inline(always)]
    pub(in super::super) unsafe fn exp(mut self, largest: L::F) -> (Self, L::F) {
        let l = self.l;
        // SAFETY: lane arithmetic.
        unsafe {
            for (col, value) in self.values.iter_mut().enumerate() {
                let inside = col < self.n_cols;
                *value = if inside { exp(l, l.sub(*value, largest)) } else { l.splat(0.0) };
            }
            let mut sums = self.values;
            let mut half = WIDTH / 2;
            while half > 0 {
                for i in 0..half {
                    sums[i] = l.add(sums[i], sums[i + half]);
                }
                half /= 2;
            }
            (self, sums[0])
        }
    }

    /// The softmax of each row.
    ///
    /// # Safety
    /// Inside a kernel.
    #[inline(always)]
    pub(in super::super) unsafe fn softmax(self) -> Self {
        let l = self.l;
        // SAFETY: lane arithmetic.
        unsafe {
            let largest = self.largest();
            let (mut exps, sum) = self.exp(largest);
            let inverse = l.div(l.splat(1.0), sum);
            for (_, e) in exps.each() {
                *e = l.mul(*e, inverse);
            }
            exps
        }
    }
}
