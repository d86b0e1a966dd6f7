//! Transposing matrices, tile by tile: a tile is small enough that the lines it reads and the lines
//! it writes stay in the nearest cache.

use std::ops::Range;

use super::strided::Axis;
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// Bands that are walked together, so that each visit to a row of the operand reads several
/// neighbouring lines.
const GROUP: usize = 4;
/// Columns that are walked before the next bands begin: each is a row of the operand, maybe on a
/// page of its own, and the processor remembers only so many pages.
const BLOCK: usize = 16 * WIDTH;

/// The two axes of matrices that change places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    rows: usize,
    columns: usize,
    /// How far apart neighbours along the result's columns lie in the operand; along its rows they
    /// are next to each other.
    from: usize,
    /// How far apart the result's rows lie.
    to: usize,
}

impl Tiles {
    pub(super) fn new(rows: Axis, columns: Axis) -> Tiles {
        Tiles { rows: rows.size, columns: columns.size, from: columns.from, to: rows.to }
    }

    /// Rows of the result are done in bands as wide as a vector.
    pub(super) fn n_bands(&self) -> usize {
        self.rows.div_ceil(WIDTH)
    }
}

/// Transposes some bands of one matrix.
pub(super) struct TileKernel<'a, T> {
    pub(super) tiles: &'a Tiles,
    pub(super) src: *const T,
    pub(super) dst: *mut T,
    pub(super) bands: Range<usize>,
}

impl<T: Copy> Kernel for TileKernel<'_, T> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Tiles { rows, columns, from, to } = *self.tiles;
        for block in (0..columns).step_by(BLOCK) {
            for group in self.bands.clone().step_by(GROUP) {
                let bands = group..self.bands.end.min(group + GROUP);
                for column in (block..columns.min(block + BLOCK)).step_by(WIDTH) {
                    let n_columns = WIDTH.min(columns - column);
                    for row in bands.clone().map(|band| band * WIDTH) {
                        let n_rows = WIDTH.min(rows - row);
                        // SAFETY: the tile lies inside the matrix.
                        unsafe {
                            let src = self.src.add(column * from + row);
                            let dst = self.dst.add(row * to + column);
                            if size_of::<T>() == size_of::<f32>() {
                                let (src, dst) = (src.cast::<f32>(), dst.cast::<f32>());
                                vectors(l, src, from, dst, to, n_rows, n_columns);
                            } else {
                                elements(src, from, dst, to, n_rows, n_columns);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// One tile of four-byte elements, in registers.
///
/// # Safety
/// The tile lies inside operand and result.
#[inline(always)]
unsafe fn vectors<L: Lanes>(
    l: L,
    src: *const f32,
    from: usize,
    dst: *mut f32,
    to: usize,
    n_rows: usize,
    n_columns: usize,
) {
    // SAFETY: as the caller says; partial vectors touch only what is inside.
    unsafe {
        let mut tile = [l.splat(0.0); WIDTH];
        if n_rows == WIDTH && n_columns == WIDTH {
            for (i, row) in tile.iter_mut().enumerate() {
                *row = l.load(src.add(i * from));
            }
            for (i, row) in l.transpose(tile).into_iter().enumerate() {
                l.store(dst.add(i * to), row);
            }
            return;
        }
        if n_rows.min(n_columns) < 4 {
            return elements(src, from, dst, to, n_rows, n_columns);
        }
        for (i, row) in tile.iter_mut().enumerate().take(n_columns) {
            *row = l.load_first(src.add(i * from), n_rows);
        }
        for (i, row) in l.transpose(tile).into_iter().enumerate().take(n_rows) {
            l.store_first(dst.add(i * to), row, n_columns);
        }
    }
}

/// One tile, element by element.
///
/// # Safety
/// The tile lies inside operand and result.
#[inline(always)]
unsafe fn elements<T: Copy>(
    src: *const T,
    from: usize,
    dst: *mut T,
    to: usize,
    n_rows: usize,
    n_columns: usize,
) {
    for row in 0..n_rows {
        for column in 0..n_columns {
            // SAFETY: as the caller says.
            unsafe { *dst.add(row * to + column) = *src.add(column * from + row) };
        }
    }
}
