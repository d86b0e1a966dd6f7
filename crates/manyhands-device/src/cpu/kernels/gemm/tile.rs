//! The register tile: a few rows by one or two vectors of the output, summed over all of K in registers.
//!
//! This is where the time goes. Everything around it only brings operands into a shape that the tile reads well.

use super::{Activation, Finish};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// The most rows that any instruction set's tile has.
pub(super) const MAX_ROWS: usize = 14;
/// The most vectors that any instruction set's tile has.
pub(super) const MAX_VECTORS: usize = 2;

/// One tile's work: `rows` by `columns` outputs.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) k: usize,
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_col: usize,
    /// Columns are contiguous.
    pub(super) b: *const f32,
    pub(super) b_row: usize,
    /// Whether the rows after this tile's (contiguous in k) are worth asking for while this one is summed.
    pub(super) fetch_next_rows: bool,
    /// Where to leave a packed copy of the columns of `b` in passing, or null. Only for tiles of full width.
    pub(super) pack: *mut f32,
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    /// Whether the chains go on from what `c` holds.
    pub(super) resume: bool,
    pub(super) finish: Finish,
}

impl Tile {
    /// Computes the tile.
    ///
    /// # Safety
    /// The pointers are valid for the shape; `rows` is 1 to the tile's rows, `columns` 1 to its width.
    #[inline(always)]
    pub(super) unsafe fn run<L: Lanes>(&self, l: L) {
        // SAFETY: as the caller's; the branches pick the instance for the shape.
        unsafe {
            let full = self.columns.is_multiple_of(WIDTH);
            if const { L::TILE_VECTORS == 2 } && self.columns > WIDTH {
                if !full {
                    by_rows::<L, 2, false, false>(l, self);
                } else if self.pack.is_null() {
                    by_rows::<L, 2, true, false>(l, self);
                } else {
                    by_rows::<L, 2, true, true>(l, self);
                }
            } else if full {
                if const { L::TILE_VECTORS == 1 } && !self.pack.is_null() {
                    by_rows::<L, 1, true, true>(l, self);
                } else {
                    by_rows::<L, 1, true, false>(l, self);
                }
            } else {
                by_rows::<L, 1, false, false>(l, self);
            }
        }
    }
}

/// Calls the instance for the tile's number of rows.
///
/// # Safety
/// The kernel that calls it vouches for pointers and sizes.
#[inline(always)]
unsafe fn by_rows<L: Lanes, const VECTORS: usize, const FULL: bool, const PACK: bool>(
    l: L,
    tile: &Tile,
) {
    macro_rules! instances {
        ($($rows:literal)*) => {
            match tile.rows {
                // SAFETY: as the caller's.
                $($rows if const { $rows <= L::TILE_ROWS } => unsafe {
                    l.outline(Fixed::<$rows, VECTORS, FULL, PACK>(tile))
                },)*
                _ => {}
            }
        };
    }
    instances!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// The tile with its shape fixed, so that the accumulators are registers.
struct Fixed<'a, const ROWS: usize, const VECTORS: usize, const FULL: bool, const PACK: bool>(
    &'a Tile,
);

impl<const ROWS: usize, const VECTORS: usize, const FULL: bool, const PACK: bool> Kernel
    for Fixed<'_, ROWS, VECTORS, FULL, PACK>
{
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let tile = self.0;
        let last = tile.columns - (VECTORS - 1) * WIDTH;
        // SAFETY: the tile's pointers are valid for its shape, and `last` lanes of the last vector exist.
        unsafe {
            let load = |p: *const f32, v: usize| {
                if FULL || v + 1 < VECTORS { l.load(p) } else { l.load_first(p, last) }
            };
            let mut acc = [[l.splat(0.0); VECTORS]; ROWS];
            if tile.resume {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, x) in row.iter_mut().enumerate() {
                        *x = load(tile.c.add(r * tile.c_row + v * WIDTH), v);
                    }
                }
            }
            let (mut a, mut b, mut pack) = (tile.a, tile.b, tile.pack);
            let (a_row, a_col, b_row) = (tile.a_row, tile.a_col, tile.b_row);
            // A long sum gives the lines of C time to arrive.
            if tile.k >= 64 {
                for r in 0..ROWS {
                    for v in 0..VECTORS {
                        l.prefetch(tile.c.wrapping_add(r * tile.c_row + v * WIDTH));
                    }
                }
            }
            // Sixteen steps of k ask for one cache line of each of the next rows; without them, for one that is there.
            let (next, next_row, line_mask) = if tile.fetch_next_rows {
                (a.wrapping_add(ROWS * a_row), a_row, !15)
            } else {
                (a, 0, 0)
            };
            for k in 0..tile.k {
                l.prefetch(next.wrapping_add((k & 15) * next_row + (k & line_mask)));
                let mut columns = [l.splat(0.0); VECTORS];
                for (v, x) in columns.iter_mut().enumerate() {
                    *x = load(b.add(v * WIDTH), v);
                    if PACK {
                        l.prefetch(b.wrapping_add(16 * b_row + v * WIDTH));
                        l.store(pack.add(v * WIDTH), *x);
                    }
                }
                // Rows in groups of four, so that one base and one stride address four of them.
                for (r, row) in acc.iter_mut().enumerate() {
                    let x = l.splat(*a.add(r / 4 * 4 * a_row).add(r % 4 * a_row));
                    for (acc, column) in row.iter_mut().zip(columns) {
                        *acc = l.mul_add(x, column, *acc);
                    }
                }
                a = a.wrapping_add(a_col);
                b = b.wrapping_add(b_row);
                if PACK {
                    pack = pack.wrapping_add(VECTORS * WIDTH);
                }
            }
            tile.end::<L, ROWS, VECTORS, FULL>(l, acc);
        }
    }
}

impl Tile {
    /// Applies what follows the chains and stores the tile.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn end<L: Lanes, const ROWS: usize, const VECTORS: usize, const FULL: bool>(
        &self,
        l: L,
        mut acc: [[L::F; VECTORS]; ROWS],
    ) {
        let (finish, last) = (&self.finish, self.columns - (VECTORS - 1) * WIDTH);
        // SAFETY: as for `run`: `last` lanes of the last vector exist.
        unsafe {
            let load = |p: *const f32, v: usize| {
                if FULL || v + 1 < VECTORS { l.load(p) } else { l.load_first(p, last) }
            };
            if finish.accumulate {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, x) in row.iter_mut().enumerate() {
                        *x = l.add(load(self.c.add(r * self.c_row + v * WIDTH), v), *x);
                    }
                }
            }
            if !finish.bias.is_null() {
                for v in 0..VECTORS {
                    let bias = load(finish.bias.add(v * WIDTH), v);
                    for row in acc.iter_mut() {
                        row[v] = l.add(row[v], bias);
                    }
                }
            }
            if finish.activation == Activation::Relu {
                // Two loops, since a flattened one keeps the accumulators in memory.
                for row in acc.iter_mut() {
                    for x in row.iter_mut() {
                        *x = l.max(l.splat(0.0), *x);
                    }
                }
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, x) in row.iter().enumerate() {
                    let p = self.c.add(r * self.c_row + v * WIDTH);
                    if FULL || v + 1 < VECTORS {
                        l.store(p, *x);
                    } else {
                        l.store_first(p, *x, last);
                    }
                }
            }
        }
    }
}
