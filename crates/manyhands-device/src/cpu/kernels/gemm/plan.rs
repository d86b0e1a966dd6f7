//! How a part of a product is computed: which way round, in which blocks, from which copies. Shapes in, plan out.

use super::{Gemm, Part};
use crate::cpu::simd::WIDTH;

/// How an operand reaches the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// Read where it is.
    InPlace,
    /// Copied block by block: the vector operand into panels of tile width, the broadcast one with its rows padded.
    Copied,
    /// The broadcast operand, copied into one panel a tile with the rows of one k side by side.
    Panels,
    /// The vector operand, read in place by the first tile of a panel, which leaves a copy for the others.
    InPassing,
}

/// The most f32 of the broadcast operand that a block keeps in the second-level cache.
const BLOCK_ROWS_LEN: usize = 128 * 1024;
/// The most f32 of copied panels.
const BLOCK_COLUMNS_LEN: usize = 256 * 1024;
/// The longest block over K.
const BLOCK_K: usize = 1024;
/// The longest sum for which a tile's rows stay in the first-level cache while all panels pass by.
const ROWS_OUTSIDE_K: usize = 256;
/// The shortest sum for which panels are worth a copy only so that they lie together.
const COPY_K: usize = 64;
/// The f32 that a turned broadcast operand spans in one block before it is copied; less is found in the caches.
const SPREAD_LEN: usize = 128 * 1024;

/// What is done by one part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) first_row: usize,
    pub(super) first_column: usize,
    /// Rows and columns of C in this part.
    pub(super) m: usize,
    pub(super) n: usize,
    /// Whether tiles are of C turned.
    pub(super) turned: bool,
    /// Whether a tile's rows meet all panels of a block before the next rows do.
    pub(super) rows_outside: bool,
    pub(super) row_operand: Operand,
    pub(super) column_operand: Operand,
    /// Block sizes, in the tiles' rows and columns.
    pub(super) block_rows: usize,
    pub(super) block_columns: usize,
    pub(super) block_k: usize,
    tile_rows: usize,
    tile_width: usize,
}

impl Plan {
    #[inline(always)]
    pub(super) fn new(gemm: &Gemm, part: Part, tile_rows: usize, tile_vectors: usize) -> Plan {
        let tile_width = tile_vectors * WIDTH;
        let (rows, columns) = split(gemm.m, gemm.n, part);
        let (m, n, k) = (rows.len(), columns.len(), gemm.k);
        let turned = !gemm.resume && k <= BLOCK_K && turning_pays(gemm, m, n);
        let (row_operand, column_operand, n_rows, n_columns) = if turned {
            (gemm.b.transposed(), gemm.a.transposed(), n, m)
        } else {
            (gemm.a, gemm.b, m, n)
        };
        // An accumulating product must not lose what C held, so it sums over all of K at once.
        let one_block = k <= BLOCK_K || gemm.finish.accumulate;
        let block_k = if one_block { k } else { k.div_ceil(k.div_ceil(BLOCK_K)) };
        let tiles_in_block = (BLOCK_ROWS_LEN / block_k.max(1) / tile_rows).max(1);
        let n_tiles = n_rows.div_ceil(tile_rows);
        let block_rows = if n_tiles <= tiles_in_block {
            n_rows
        } else {
            n_rows.div_ceil(n_tiles.div_ceil(tiles_in_block))
        };
        let n_panels = n_columns.div_ceil(tile_width);
        let many_tiles = block_rows >= 4 * tile_rows;
        let rows_outside = k <= ROWS_OUTSIDE_K && many_tiles && n_panels > 2;
        let column_operand = if column_operand.col != 1 || (rows_outside && k >= COPY_K) {
            Operand::Copied
        } else if !rows_outside && many_tiles && column_operand.row > tile_width {
            Operand::InPassing
        } else {
            Operand::InPlace
        };
        let row_operand = if row_operand.row == 1 {
            let spread = row_operand.col * block_k > SPREAD_LEN;
            if n_panels > 2 && spread { Operand::Panels } else { Operand::InPlace }
        } else if row_operand.col != 1 || (n_panels > 2 && row_operand.row.is_multiple_of(1024)) {
            // Rows a multiple of a page apart fall on the same few lines of the first-level cache.
            Operand::Copied
        } else {
            Operand::InPlace
        };
        let block_columns = if column_operand == Operand::Copied {
            let panels_in_block = (BLOCK_COLUMNS_LEN / block_k.max(1) / tile_width).max(1);
            panels_in_block * tile_width
        } else {
            n_columns
        };
        Plan {
            first_row: rows.start,
            first_column: columns.start,
            m,
            n,
            turned,
            rows_outside,
            row_operand,
            column_operand,
            block_rows: block_rows.min(n_rows),
            block_columns: block_columns.min(n_columns),
            block_k,
            tile_rows,
            tile_width,
        }
    }

    /// The whole, with operands read where they are: for factors that are small or lie well already.
    #[inline(always)]
    pub(super) fn in_place(gemm: &Gemm, tile_rows: usize, tile_vectors: usize) -> Plan {
        Plan {
            first_row: 0,
            first_column: 0,
            m: gemm.m,
            n: gemm.n,
            turned: false,
            rows_outside: false,
            row_operand: Operand::InPlace,
            column_operand: Operand::InPlace,
            block_rows: gemm.m,
            block_columns: gemm.n,
            block_k: gemm.k,
            tile_rows,
            tile_width: tile_vectors * WIDTH,
        }
    }

    /// The f32 of scratch for copies of the vector operand.
    #[inline(always)]
    pub(super) fn columns_scratch_len(&self) -> usize {
        match self.column_operand {
            Operand::InPlace | Operand::Panels => 0,
            Operand::Copied => self.block_columns.next_multiple_of(self.tile_width) * self.block_k,
            Operand::InPassing => self.tile_width * self.block_k,
        }
    }

    /// The f32 of scratch for all, with room to align it.
    #[inline(always)]
    pub(super) fn scratch_len(&self) -> usize {
        let rows = match self.row_operand {
            Operand::InPlace | Operand::InPassing => 0,
            Operand::Copied => self.block_rows * padded(self.block_k),
            Operand::Panels => self.block_rows.div_ceil(self.tile_rows) * WIDTH * self.block_k,
        };
        let len = rows + self.columns_scratch_len();
        if len == 0 { 0 } else { len + WIDTH }
    }
}

/// The row length of a copy: whole vectors, and rows that do not all fall on the same lines of the first-level cache.
#[inline(always)]
pub(super) fn padded(k: usize) -> usize {
    k.next_multiple_of(WIDTH) + WIDTH
}

/// Whether computing C turned costs less: in vector operations, and in elements to turn at about 3/8 of one each.
#[inline(always)]
fn turning_pays(gemm: &Gemm, m: usize, n: usize) -> bool {
    let k = gemm.k;
    let straight = m * n.div_ceil(WIDTH) * k * 8 + if gemm.b.col == 1 { 0 } else { 3 * k * n };
    let copied = if gemm.a.row == 1 { 0 } else { 3 * k * m };
    let turned = n * m.div_ceil(WIDTH) * k * 8 + copied + 4 * m * n;
    turned < straight
}

/// Cuts C in a grid of parts: the one whose largest part does the least work, reads of the operands counted in.
#[inline(always)]
fn split(m: usize, n: usize, part: Part) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    if part.count <= 1 {
        return (0..m, 0..n);
    }
    let vectors = n.div_ceil(WIDTH);
    let cost = |down: usize| {
        let (rows, vectors) = (m.div_ceil(down), vectors.div_ceil(part.count / down));
        2 * rows * vectors + rows + vectors * WIDTH
    };
    let downs = (1..=part.count).filter(|down| part.count.is_multiple_of(*down));
    let down = downs.min_by_key(|down| cost(*down)).unwrap_or(1);
    let across = part.count / down;
    let row_granule = if m >= 4 * WIDTH * down { WIDTH } else { 1 };
    let column_granule = if n >= 4 * WIDTH * across { 2 * WIDTH } else { WIDTH };
    let rows = Part { idx: part.idx / across, count: down }.range(m, row_granule);
    let columns = Part { idx: part.idx % across, count: across }.range(n, column_granule);
    (rows, columns)
}
