//! Scaled-dot-product attention and its gradient, one head at a time.
//!
//! Scores are made for a block of queries at once and never leave the cache; the gradient makes them again. Bits are those
//! of the parts: products are chains as in [`super::gemm`], shares are rows of [`super::softmax`]. Keys that a causal query
//! cannot see are left out, which changes nothing for finite values, since their shares are exact zeros. The gradients of keys and values are
//! chains over all queries in order, resumed block by block. A query that sees no key gives zeros and gets none back.

use super::Part;
use super::gemm::{self, Finish, Gemm, Strided};
use super::softmax::{along, softmax_grad_row, softmax_row};
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Queries whose scores are held at once: few, so that causal blocks skip much, and enough for full tiles.
const BLOCK: usize = 32;

/// Rows of one element a token, all heads side by side; it may be a slice of wider rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// The first element of the first token.
    pub ptr: *const f32,
    /// From one token to the next.
    pub row: usize,
    /// From one sequence to the next.
    pub batch: usize,
}

/// [`Tokens`] that are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokensMut {
    /// The first element of the first token.
    pub ptr: *mut f32,
    /// From one token to the next.
    pub row: usize,
    /// From one sequence to the next.
    pub batch: usize,
}

/// What attends to what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// How many sequences there are.
    pub n_batches: usize,
    /// How many heads a token has.
    pub n_heads: usize,
    /// The elements of one head.
    pub depth: usize,
    /// Queries per sequence.
    pub n_queries: usize,
    /// Keys, and values, per sequence.
    pub n_keys: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Whether query i sees only keys up to i + keys - queries.
    pub causal: bool,
    /// One byte per query and key, zero where the key may not be seen; null for none.
    pub mask: *const u8,
    /// From one sequence's mask to the next; 0 where they share one.
    pub mask_batch: usize,
    /// The queries.
    pub q: Tokens,
    /// The keys.
    pub k: Tokens,
    /// The values.
    pub v: Tokens,
}

impl Attention {
    /// The f32 of scratch that a part of [`attention`] needs.
    pub(crate) fn scratch_len(&self) -> usize {
        (self.depth + BLOCK) * self.score_row() + WIDTH
    }

    /// The f32 of scratch that a part of [`attention_grad`] needs.
    pub(crate) fn grad_scratch_len(&self) -> usize {
        2 * (self.depth + BLOCK) * self.score_row() + WIDTH
    }

    /// From the scores of one query to those of the next.
    #[inline(always)]
    fn score_row(&self) -> usize {
        self.n_keys.next_multiple_of(WIDTH) + WIDTH
    }

    /// How many keys query `i` may see at most.
    #[inline(always)]
    fn n_seen(&self, i: usize) -> usize {
        if self.causal {
            (i + 1 + self.n_keys).saturating_sub(self.n_queries).min(self.n_keys)
        } else {
            self.n_keys
        }
    }
}

/// Computes one part of the heads of `out`: softmax(q kT scale) v.
///
/// # Safety
/// The machine has the instruction set. The tokens of `a` and `out` are valid for its shape, `out` overlapping none;
/// `scratch` has [`Attention::scratch_len`] elements and is this thread's own.
pub(crate) unsafe fn attention(
    isa: Isa,
    a: &Attention,
    out: TokensMut,
    scratch: &mut [f32],
    part: Part,
) {
    // SAFETY: as the caller's.
    unsafe { isa.run(Forward { a, out, scratch, part }) }
}

/// Computes one part of the heads of the gradients `dq`, `dk` and `dv` from that of the result, `dout`.
///
/// # Safety
/// As for [`attention`], with [`Attention::grad_scratch_len`]; the gradients overlap nothing.
pub(crate) unsafe fn attention_grad(
    isa: Isa,
    a: &Attention,
    dout: Tokens,
    [dq, dk, dv]: [TokensMut; 3],
    scratch: &mut [f32],
    part: Part,
) {
    // SAFETY: as the caller's.
    unsafe { isa.run(Backward { a, dout, dq, dk, dv, scratch, part }) }
}

/// One head of one sequence: rows of `depth` elements.
#[derive(Clone, Copy)]
struct Head<'a> {
    a: &'a Attention,
    batch: usize,
    first: usize,
}

impl<'a> Head<'a> {
    /// The heads of a part.
    #[inline(always)]
    fn of_part(a: &'a Attention, part: Part) -> impl Iterator<Item = Head<'a>> {
        let head =
            |idx: usize| Head { a, batch: idx / a.n_heads, first: idx % a.n_heads * a.depth };
        part.range(a.n_batches * a.n_heads, 1).map(head)
    }

    /// This head's rows from token `i` on.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn rows(self, tokens: Tokens, i: usize) -> Strided {
        let at = self.batch * tokens.batch + i * tokens.row + self.first;
        // SAFETY: the caller names a token that exists.
        Strided { ptr: unsafe { tokens.ptr.add(at) }, row: tokens.row, col: 1 }
    }

    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn rows_mut(self, tokens: TokensMut, i: usize) -> *mut f32 {
        // SAFETY: as for `rows`.
        unsafe { tokens.ptr.add(self.batch * tokens.batch + i * tokens.row + self.first) }
    }

    /// Copies keys or values turned: `depth` rows of all keys.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn turn<L: Lanes>(self, l: L, tokens: Tokens, to: *mut f32) {
        // SAFETY: the rows are this head's; scratch has the length.
        unsafe {
            let source = self.rows(tokens, 0).transposed();
            let (rows, columns) = (self.a.depth, self.a.n_keys);
            l.outline(gemm::Copy { source, rows, columns, to, to_row: self.a.score_row() });
        }
    }

    /// `rows` (from token `i` on) times the turned keys or values, for the first `n_seen` of them.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn against<L: Lanes>(
        self,
        l: L,
        tokens: Tokens,
        block: &Block,
        turned: *const f32,
        c: *mut f32,
    ) {
        let c_row = self.a.score_row();
        // SAFETY: the block's tokens exist; scratch has the lengths.
        unsafe {
            let a = self.rows(tokens, block.first);
            let b = Strided { ptr: turned, row: c_row, col: 1 };
            product(l, [block.n, block.n_seen, self.a.depth], a, b, (c, c_row), false);
        }
    }

    /// The shares of a block of queries: softmax of the scaled scores, zero up to the block's `n_seen`.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn shares<L: Lanes>(
        self,
        l: L,
        block: &Block,
        turned_keys: *const f32,
        shares: *mut f32,
    ) {
        let a = self.a;
        // SAFETY: the block's tokens and scratch rows exist.
        unsafe {
            self.against(l, a.q, block, turned_keys, shares);
            let scale = l.splat(a.scale);
            for i in 0..block.n {
                let row = shares.add(i * a.score_row());
                let n = a.n_seen(block.first + i);
                // Lanes past the row are scratch too, and are written again below or never read.
                for at in (0..n).step_by(WIDTH) {
                    l.store(row.add(at), l.mul(l.load(row.add(at)), scale));
                }
                let sees = a.mask.is_null() || self.mask_row(block.first + i, row, n);
                if sees && n > 0 {
                    softmax_row(l, row, row, n);
                }
                let zeros = if sees { n } else { 0 };
                std::slice::from_raw_parts_mut(row.add(zeros), block.n_seen - zeros).fill(0.0);
            }
        }
    }

    /// Sets the scores that the mask forbids to minus infinity; whether any is left.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn mask_row(self, query: usize, row: *mut f32, n: usize) -> bool {
        let mut sees = false;
        // SAFETY: the mask has a byte for every query and key.
        unsafe {
            let mask = self.a.mask.add(self.batch * self.a.mask_batch + query * self.a.n_keys);
            for j in 0..n {
                if *mask.add(j) == 0 {
                    *row.add(j) = f32::NEG_INFINITY;
                } else {
                    sees = true;
                }
            }
        }
        sees
    }
}

/// A block of queries: which, and how many keys the last of them may see.
struct Block {
    first: usize,
    n: usize,
    n_seen: usize,
}

#[inline(always)]
fn blocks(a: &Attention) -> impl Iterator<Item = Block> {
    (0..a.n_queries).step_by(BLOCK).map(|first| {
        let n = BLOCK.min(a.n_queries - first);
        Block { first, n, n_seen: a.n_seen(first + n - 1) }
    })
}

/// C = A B, or C going on with its chains.
///
/// # Safety
/// The kernel that calls it vouches for pointers and sizes.
#[inline(always)]
unsafe fn product<L: Lanes>(
    l: L,
    [m, n, k]: [usize; 3],
    a: Strided,
    b: Strided,
    (c, c_row): (*mut f32, usize),
    resume: bool,
) {
    let gemm = Gemm { m, n, k, a, b, c, c_row, resume, finish: Finish::NONE };
    // SAFETY: the caller's word on the pointers.
    unsafe { l.outline(gemm::InPlace(&gemm)) }
}

/// The first element of scratch on a cache line.
#[inline(always)]
fn aligned(scratch: &mut [f32]) -> *mut f32 {
    let start = scratch.as_mut_ptr();
    start.wrapping_add(start.align_offset(64).min(WIDTH))
}

struct Forward<'a> {
    a: &'a Attention,
    out: TokensMut,
    scratch: &'a mut [f32],
    part: Part,
}

impl Kernel for Forward<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let a = self.a;
        debug_assert!(self.scratch.len() >= a.scratch_len(), "scratch is too short");
        let turned_keys = aligned(self.scratch);
        let shares = turned_keys.wrapping_add(a.depth * a.score_row());
        for head in Head::of_part(a, self.part) {
            // SAFETY: heads and blocks lie in the tokens; scratch has the length.
            unsafe {
                head.turn(l, a.k, turned_keys);
                for block in blocks(a) {
                    head.shares(l, &block, turned_keys, shares);
                    let rows = Strided { ptr: shares, row: a.score_row(), col: 1 };
                    let values = head.rows(a.v, 0);
                    let out = (head.rows_mut(self.out, block.first), self.out.row);
                    product(l, [block.n, a.depth, block.n_seen], rows, values, out, false);
                }
            }
        }
    }
}

struct Backward<'a> {
    a: &'a Attention,
    dout: Tokens,
    dq: TokensMut,
    dk: TokensMut,
    dv: TokensMut,
    scratch: &'a mut [f32],
    part: Part,
}

impl Kernel for Backward<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let a = self.a;
        debug_assert!(self.scratch.len() >= a.grad_scratch_len(), "scratch is too short");
        let turned_keys = aligned(self.scratch);
        let turned_values = turned_keys.wrapping_add(a.depth * a.score_row());
        let shares = turned_values.wrapping_add(a.depth * a.score_row());
        let dscores = shares.wrapping_add(BLOCK * a.score_row());
        let (rows, keys) = ((a.score_row(), 1), a.depth);
        for head in Head::of_part(a, self.part) {
            // SAFETY: heads and blocks lie in the tokens; scratch has the length.
            unsafe {
                head.turn(l, a.k, turned_keys);
                head.turn(l, a.v, turned_values);
                let mut n_begun = 0;
                for block in blocks(a) {
                    head.shares(l, &block, turned_keys, shares);
                    head.against(l, self.dout, &block, turned_values, dscores);
                    for i in 0..block.n {
                        let at = i * a.score_row();
                        dscore_row(l, a, &block, i, shares.add(at), dscores.add(at));
                    }
                    let scores = Strided { ptr: dscores, row: rows.0, col: rows.1 };
                    let dq = (head.rows_mut(self.dq, block.first), self.dq.row);
                    product(l, [block.n, keys, block.n_seen], scores, head.rows(a.k, 0), dq, false);
                    let queries = head.rows(a.q, block.first);
                    head.over_queries(l, dscores, queries, self.dk, &block, n_begun);
                    let douts = head.rows(self.dout, block.first);
                    head.over_queries(l, shares, douts, self.dv, &block, n_begun);
                    n_begun = block.n_seen;
                }
                // Keys that no query may see, as where there are no queries.
                for i in n_begun..a.n_keys {
                    for tokens in [self.dk, self.dv] {
                        let row = head.rows_mut(tokens, i);
                        std::slice::from_raw_parts_mut(row, a.depth).fill(0.0);
                    }
                }
            }
        }
    }
}

impl Head<'_> {
    /// Goes on with the chains over queries of `to`, a gradient of keys or values: of the first `n_begun` rows, the others
    /// up to the block's `n_seen` beginning here.
    ///
    /// # Safety
    /// The kernel that calls it vouches for pointers and sizes.
    #[inline(always)]
    unsafe fn over_queries<L: Lanes>(
        self,
        l: L,
        scores: *const f32,
        rows: Strided,
        to: TokensMut,
        block: &Block,
        n_begun: usize,
    ) {
        let score_row = self.a.score_row();
        for (from, end, resume) in [(0, n_begun, true), (n_begun, block.n_seen, false)] {
            // SAFETY: the block's scores and the rows of keys exist.
            unsafe {
                let turned = Strided { ptr: scores.add(from), row: 1, col: score_row };
                let shape = [end - from, self.a.depth, block.n];
                product(l, shape, turned, rows, (self.rows_mut(to, from), to.row), resume);
            }
        }
    }
}

/// Turns the gradient of query `i`'s shares into that of its scores, zero up to the block's `n_seen`.
///
/// # Safety
/// The kernel that calls it vouches for pointers and sizes.
#[inline(always)]
unsafe fn dscore_row<L: Lanes>(
    l: L,
    a: &Attention,
    block: &Block,
    i: usize,
    shares: *const f32,
    dscores: *mut f32,
) {
    let n = a.n_seen(block.first + i);
    // SAFETY: both rows have the block's `n_seen` elements.
    unsafe {
        softmax_grad_row(l, shares, dscores, dscores, n);
        let scale = l.splat(a.scale);
        along!(
            n,
            |at| l.store(dscores.add(at), l.mul(l.load(dscores.add(at)), scale)),
            |at, left| {
                let x = l.load_first(dscores.add(at), left);
                l.store_first(dscores.add(at), l.mul(x, scale), left);
            }
        );
        std::slice::from_raw_parts_mut(dscores.add(n), block.n_seen - n).fill(0.0);
    }
}

#[cfg(test)]
mod tests;
