//! Copies of operands in the order in which tiles read them.

use crate::cpu::simd::{Lanes, WIDTH};

/// A strided matrix that is only read: element (i, j) is at `ptr + i * row + j * col`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub col: usize,
}

impl Strided {
    /// The matrix turned.
    pub(crate) fn transposed(self) -> Strided {
        Strided { ptr: self.ptr, row: self.col, col: self.row }
    }

    /// The matrix from element (i, j) on.
    ///
    /// # Safety
    /// The element lies in the matrix.
    #[inline(always)]
    pub(super) unsafe fn at(self, i: usize, j: usize) -> Strided {
        // SAFETY: as the caller's.
        Strided { ptr: unsafe { self.ptr.add(i * self.row + j * self.col) }, ..self }
    }
}

/// Copies `rows` by `columns` of `source` into `to`, rows `to_row` apart and columns contiguous. Lanes of a row up to the
/// next multiple of sixteen are written too, as zeros.
///
/// # Safety
/// `source` has the elements; `to` has `rows` rows of `columns` rounded up to sixteen, not overlapping `source`.
#[inline(always)]
pub(super) unsafe fn copy<L: Lanes>(
    l: L,
    source: Strided,
    rows: usize,
    columns: usize,
    to: *mut f32,
    to_row: usize,
) {
    // SAFETY: as the caller's; each loop stays below `rows` and `columns`.
    unsafe {
        if source.col == 1 {
            for i in 0..rows {
                let (from, to) = (source.ptr.add(i * source.row), to.add(i * to_row));
                let mut j = 0;
                while j + WIDTH <= columns {
                    l.store(to.add(j), l.load(from.add(j)));
                    j += WIDTH;
                }
                if j < columns {
                    l.store(to.add(j), l.load_first(from.add(j), columns - j));
                }
            }
        } else if source.row == 1 {
            copy_turned(l, source, rows, columns, to, to_row);
        } else {
            for i in 0..rows {
                for j in 0..columns.next_multiple_of(WIDTH) {
                    let x = if j < columns { *source.at(i, j).ptr } else { 0.0 };
                    *to.add(i * to_row + j) = x;
                }
            }
        }
    }
}

/// Copies `rows` by `columns` of `source` into panels of `width` columns (a multiple of sixteen), each with its rows one
/// after the other and the panels one after the other.
///
/// # Safety
/// As for [`copy`], with room for whole panels.
#[inline(always)]
pub(super) unsafe fn copy_panels<L: Lanes>(
    l: L,
    source: Strided,
    rows: usize,
    columns: usize,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: panel `j / width` begins `j * rows` elements in.
    unsafe {
        if source.col == 1 && columns.is_multiple_of(WIDTH) {
            // Whole rows, since a page is then walked once and not once a panel.
            for i in 0..rows {
                let (from, to) = (source.ptr.add(i * source.row), to.add(i * width));
                let mut j = 0;
                while j < columns {
                    l.store(to.add(j / width * width * rows + j % width), l.load(from.add(j)));
                    j += WIDTH;
                }
            }
        } else {
            let mut j = 0;
            while j < columns {
                let source = source.at(0, j);
                copy(l, source, rows, width.min(columns - j), to.add(j * rows), width);
                j += width;
            }
        }
    }
}

/// [`copy`] of a source whose columns are contiguous, sixteen by sixteen turned in registers.
///
/// # Safety
/// The kernel that calls it vouches for pointers and sizes.
#[inline(always)]
unsafe fn copy_turned<L: Lanes>(
    l: L,
    source: Strided,
    rows: usize,
    columns: usize,
    to: *mut f32,
    to_row: usize,
) {
    // SAFETY: as for `copy`.
    unsafe {
        let mut j = 0;
        while j < columns {
            let n_columns = (columns - j).min(WIDTH);
            let mut i = 0;
            while i < rows {
                let n_rows = (rows - i).min(WIDTH);
                let from = source.at(i, j);
                let mut block = [l.splat(0.0); WIDTH];
                if n_rows == WIDTH && n_columns == WIDTH {
                    for (c, x) in block.iter_mut().enumerate() {
                        *x = l.load(from.ptr.add(c * from.col));
                    }
                } else {
                    for (c, x) in block.iter_mut().enumerate().take(n_columns) {
                        *x = l.load_first(from.ptr.add(c * from.col), n_rows);
                    }
                }
                let to = to.add(i * to_row + j);
                for (r, x) in l.transpose(block).into_iter().enumerate().take(n_rows) {
                    l.store(to.add(r * to_row), x);
                }
                i += WIDTH;
            }
            j += WIDTH;
        }
    }
}
