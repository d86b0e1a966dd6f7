//! The loops around the tiles: blocks that fit caches, and the copies that tiles read from.

use super::plan::{self, Operand, Plan};
use super::tile::{MAX_ROWS, MAX_VECTORS, Tile};
use super::{Activation, Copy, Finish, Gemm, Strided, pack};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// A part of a product, as the tiles see it: rows and columns are those of C, or of C turned.
pub(super) struct Blocks<'a> {
    plan: &'a Plan,
    gemm: &'a Gemm,
    /// The operand whose elements are broadcast, rows by k, and the one read in vectors, k by columns.
    rows: Strided,
    columns: Strided,
    n_rows: usize,
    n_columns: usize,
    rows_scratch: *mut f32,
    columns_scratch: *mut f32,
}

/// Some rows, columns and steps of k.
#[derive(Clone, Copy)]
struct Block {
    row: usize,
    n_rows: usize,
    column: usize,
    n_columns: usize,
    k: usize,
    n_k: usize,
}

/// How the rows of a block are dealt to tiles: evenly, the first ones taking one more.
#[derive(Clone, Copy)]
struct Deal {
    n_tiles: usize,
    n_rows: usize,
    n_longer: usize,
}

impl Deal {
    #[inline(always)]
    fn new(n_rows: usize, tile_rows: usize) -> Deal {
        let n_tiles = n_rows.div_ceil(tile_rows);
        Deal { n_tiles, n_rows: n_rows / n_tiles, n_longer: n_rows % n_tiles }
    }

    /// The first row of tile `t`, and how many it has.
    #[inline(always)]
    fn tile(&self, t: usize) -> (usize, usize) {
        (t * self.n_rows + t.min(self.n_longer), self.n_rows + usize::from(t < self.n_longer))
    }
}

impl<'a> Blocks<'a> {
    #[inline(always)]
    pub(super) fn new(plan: &'a Plan, gemm: &'a Gemm, scratch: &mut [f32]) -> Self {
        let (rows, columns, n_rows, n_columns) = if plan.turned {
            (gemm.b.transposed(), gemm.a.transposed(), gemm.n, gemm.m)
        } else {
            (gemm.a, gemm.b, gemm.m, gemm.n)
        };
        // Vectors that straddle no cache line.
        let start = scratch.as_mut_ptr();
        let columns_scratch = start.wrapping_add(start.align_offset(64).min(WIDTH));
        let rows_scratch = columns_scratch.wrapping_add(plan.columns_scratch_len());
        Blocks { plan, gemm, rows, columns, n_rows, n_columns, rows_scratch, columns_scratch }
    }

    /// # Safety
    /// The pointers of the product are valid, and scratch has the length that the plan asks for.
    #[inline(always)]
    pub(super) unsafe fn run<L: Lanes>(&self, l: L) {
        let plan = self.plan;
        let mut column = 0;
        while column < self.n_columns {
            let n_columns = plan.block_columns.min(self.n_columns - column);
            let mut k = 0;
            // Once at least, since a sum of nothing is a result too.
            loop {
                let n_k = plan.block_k.min(self.gemm.k - k);
                // SAFETY: every block lies in the part.
                unsafe {
                    if plan.column_operand == Operand::Copied {
                        let (source, to) = (self.columns.at(k, column), self.columns_scratch);
                        l.outline(CopyPanels { source, rows: n_k, columns: n_columns, to });
                    }
                    let mut row = 0;
                    while row < self.n_rows {
                        let n_rows = plan.block_rows.min(self.n_rows - row);
                        self.block(l, Block { row, n_rows, column, n_columns, k, n_k });
                        row += n_rows;
                    }
                }
                k += n_k;
                if k >= self.gemm.k {
                    break;
                }
            }
            column += n_columns;
        }
    }

    /// Copies the rows of a block where the plan says so, and tells where tiles find them.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn block_rows<L: Lanes>(&self, l: L, block: &Block, deal: &Deal) -> Strided {
        let to = self.rows_scratch;
        // SAFETY: the rows lie in the operand, and scratch has room for them.
        unsafe {
            let source = self.rows.at(block.row, block.k);
            match self.plan.row_operand {
                Operand::InPlace | Operand::InPassing => source,
                Operand::Copied => {
                    let to_row = plan::padded(block.n_k);
                    let (rows, columns) = (block.n_rows, block.n_k);
                    l.outline(Copy { source, rows, columns, to, to_row });
                    Strided { ptr: to, row: to_row, col: 1 }
                }
                Operand::Panels => {
                    for t in 0..deal.n_tiles {
                        let (first, columns) = deal.tile(t);
                        let source = source.at(first, 0).transposed();
                        let to = to.add(t * WIDTH * block.n_k);
                        l.outline(Copy { source, rows: block.n_k, columns, to, to_row: WIDTH });
                    }
                    Strided { ptr: to, row: 1, col: WIDTH }
                }
            }
        }
    }

    /// One block: rows that stay in cache, times all panels of the block's columns.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, l: L, block: Block) {
        let (plan, width) = (self.plan, L::TILE_VECTORS * WIDTH);
        let deal = Deal::new(block.n_rows, L::TILE_ROWS);
        let last_k = block.k + block.n_k == self.gemm.k;
        // SAFETY: tiles and panels lie in the block, and scratch has room for the copies.
        unsafe {
            let rows = self.block_rows(l, &block, &deal);
            let mut tile = Tile {
                rows: 0,
                columns: 0,
                k: block.n_k,
                a: rows.ptr,
                a_row: rows.row,
                a_col: rows.col,
                b: self.columns_scratch,
                b_row: width,
                fetch_next_rows: false,
                pack: std::ptr::null_mut(),
                c: self.gemm.c,
                c_row: self.gemm.c_row,
                resume: self.gemm.resume || block.k > 0,
                finish: if last_k { self.gemm.finish } else { Finish::NONE },
            };
            let n_panels = block.n_columns.div_ceil(width);
            let (n_outer, n_inner) =
                if plan.rows_outside { (deal.n_tiles, n_panels) } else { (n_panels, deal.n_tiles) };
            for outer in 0..n_outer {
                for inner in 0..n_inner {
                    let (t, panel) =
                        if plan.rows_outside { (outer, inner) } else { (inner, outer) };
                    let (i, n_rows) = deal.tile(t);
                    let j = panel * width;
                    tile.rows = n_rows;
                    tile.columns = width.min(block.n_columns - j);
                    tile.a = match plan.row_operand {
                        Operand::Panels => rows.ptr.wrapping_add(t * WIDTH * block.n_k),
                        _ => rows.ptr.wrapping_add(i * rows.row),
                    };
                    tile.fetch_next_rows =
                        panel == 0 && rows.col == 1 && plan.row_operand == Operand::InPlace;
                    self.tile_columns(&mut tile, &block, j, t, width);
                    let (i, j) = (block.row + i, block.column + j);
                    if plan.turned {
                        self.turned_tile(l, tile, i, j);
                    } else {
                        tile.c = self.gemm.c.add(i * self.gemm.c_row + j);
                        if !tile.finish.bias.is_null() {
                            tile.finish.bias = self.gemm.finish.bias.add(j);
                        }
                        tile.run(l);
                    }
                }
            }
        }
    }

    /// Points tile number `t` of a panel to its columns, from `j` on in the block.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn tile_columns(
        &self,
        tile: &mut Tile,
        block: &Block,
        j: usize,
        t: usize,
        width: usize,
    ) {
        let in_passing = self.plan.column_operand == Operand::InPassing && tile.columns == width;
        tile.pack = if in_passing && t == 0 { self.columns_scratch } else { std::ptr::null_mut() };
        // SAFETY: the panel lies in the operand or in its copy.
        unsafe {
            if self.plan.column_operand == Operand::Copied {
                tile.b = self.columns_scratch.add(j * block.n_k);
            } else if in_passing && t > 0 {
                (tile.b, tile.b_row) = (self.columns_scratch, width);
            } else {
                let source = self.columns.at(block.k, block.column + j);
                (tile.b, tile.b_row) = (source.ptr, source.row);
            }
        }
    }

    /// A tile of C turned: computed aside, then turned, finished and stored. Column `first_n` on of C, row `first_m` on.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn turned_tile<L: Lanes>(&self, l: L, mut tile: Tile, first_n: usize, first_m: usize) {
        let mut aside = [0.0f32; MAX_ROWS * MAX_VECTORS * WIDTH];
        tile.finish = Finish::NONE;
        (tile.c, tile.c_row) = (aside.as_mut_ptr(), MAX_VECTORS * WIDTH);
        // SAFETY: the tile is within the largest; the rows and columns of C are the tile's.
        unsafe {
            tile.run(l);
            let c = self.gemm.c.add(first_m * self.gemm.c_row + first_n);
            l.outline(StoreTurned {
                aside: tile.c,
                n_rows: tile.columns,
                n_columns: tile.rows,
                c,
                c_row: self.gemm.c_row,
                finish: self.gemm.finish.at_column(first_n),
            });
        }
    }
}

/// [`pack::copy_panels`] as a function of its own.
struct CopyPanels {
    source: Strided,
    rows: usize,
    columns: usize,
    to: *mut f32,
}

impl Kernel for CopyPanels {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let width = L::TILE_VECTORS * WIDTH;
        // SAFETY: the caller's word on the block.
        unsafe { pack::copy_panels(l, self.source, self.rows, self.columns, self.to, width) }
    }
}

/// Turns a tile, applies what follows the chains and stores it.
struct StoreTurned {
    aside: *const f32,
    n_rows: usize,
    n_columns: usize,
    c: *mut f32,
    c_row: usize,
    finish: Finish,
}

impl Kernel for StoreTurned {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let StoreTurned { finish, n_columns: n, .. } = self;
        let mut first = 0;
        while first < self.n_rows {
            // SAFETY: `aside` has `n` rows of all vectors; C has `n_rows` rows of `n` columns.
            unsafe {
                let mut block = [l.splat(0.0); WIDTH];
                for (j, x) in block.iter_mut().enumerate().take(n) {
                    *x = l.load(self.aside.add(j * MAX_VECTORS * WIDTH + first));
                }
                let n_rows = (self.n_rows - first).min(WIDTH);
                for (i, mut x) in l.transpose(block).into_iter().enumerate().take(n_rows) {
                    let c = self.c.add((first + i) * self.c_row);
                    if finish.accumulate {
                        x = l.add(l.load_first(c, n), x);
                    }
                    if !finish.bias.is_null() {
                        x = l.add(x, l.load_first(finish.bias, n));
                    }
                    if finish.activation == Activation::Relu {
                        x = l.max(l.splat(0.0), x);
                    }
                    l.store_first(c, x, n);
                }
            }
            first += WIDTH;
        }
    }
}
