//! The matrix product of f32: C = A B, with whatever follows it fused.
//!
//! Invariant **G1**: an output element is one chain of fused multiply-adds over k in order, from +0.0. Blocking over K goes
//! on with the chain where it stopped. So the bits depend on nothing: no tile, block, thread, cache or instruction set.
//!
//! Tiles of the output are summed in registers ([`tile`]); operands are read in place where that is fast and are otherwise
//! copied block by block ([`pack`]). Where A is the cheaper of the two to turn, or fills vectors better, the product is
//! computed as its transpose and each tile is turned when it is stored. [`plan`] decides, from shapes alone.

mod blocks;
mod pack;
mod plan;
mod tile;

use super::Part;
use crate::cpu::simd::{Isa, Kernel, Lanes};
use blocks::Blocks;
pub(crate) use pack::Strided;
use plan::Plan;

/// What is applied to an output element last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// Nothing.
    None,
    /// The element where it is greater than zero or NaN, else zero; -0.0 stays.
    Relu,
}

/// What follows the chain of an output element, in this order: accumulate, bias, activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    /// Adds the chain's value to what C held.
    pub accumulate: bool,
    /// One value per column to add, or null.
    pub bias: *const f32,
    /// What comes last.
    pub activation: Activation,
}

impl Finish {
    /// The bare product.
    pub(crate) const NONE: Finish =
        Finish { accumulate: false, bias: std::ptr::null(), activation: Activation::None };
}

/// A product of an m by k and a k by n matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// The left operand.
    pub a: Strided,
    /// The right operand.
    pub b: Strided,
    /// The output; its columns are contiguous.
    pub c: *mut f32,
    /// From one row of C to the next.
    pub c_row: usize,
    /// Goes on with the chains whose values C holds, in place of starting at zero.
    pub resume: bool,
    /// What follows the chains.
    pub finish: Finish,
}

/// How many f32 of scratch every part of this product needs when it is cut in `n_parts`. Looks at no pointer.
pub(crate) fn scratch_len(isa: Isa, gemm: &Gemm, n_parts: usize) -> usize {
    let part_len = |idx| {
        // SAFETY: planning touches no memory; the caller runs on this instruction set anyway.
        let plan = unsafe { isa.run(Planner(gemm, Part { idx, count: n_parts })) };
        plan.scratch_len()
    };
    (0..n_parts).map(part_len).max().unwrap_or(0)
}

/// Computes one part of the product.
///
/// # Safety
/// The machine has the instruction set. The pointers are valid for the shape, and C overlaps no input. `scratch` has
/// [`scratch_len`] elements and is this thread's own.
#[inline]
pub(crate) unsafe fn gemm(isa: Isa, gemm: &Gemm, scratch: &mut [f32], part: Part) {
    // SAFETY: as the caller's.
    unsafe { isa.run(Product { gemm, scratch, part }) }
}

struct Planner<'a>(&'a Gemm, Part);

impl Kernel for Planner<'_> {
    type Output = Plan;

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, _: L) -> Plan {
        Plan::new(self.0, self.1, L::TILE_ROWS, L::TILE_VECTORS)
    }
}

struct Product<'a> {
    gemm: &'a Gemm,
    scratch: &'a mut [f32],
    part: Part,
}

impl Kernel for Product<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        // SAFETY: as the caller's of `gemm`.
        unsafe { run(l, self.gemm, self.scratch, self.part) }
    }
}

/// # Safety
/// As for [`gemm`].
#[inline(always)]
unsafe fn run<L: Lanes>(l: L, gemm: &Gemm, scratch: &mut [f32], part: Part) {
    let plan = Plan::new(gemm, part, L::TILE_ROWS, L::TILE_VECTORS);
    if plan.m == 0 || plan.n == 0 {
        return;
    }
    debug_assert!(scratch.len() >= plan.scratch_len(), "scratch is too short");
    // SAFETY: the plan's part lies in the matrices, and scratch has the length that it asks for.
    unsafe {
        let part = Gemm {
            m: plan.m,
            n: plan.n,
            a: gemm.a.at(plan.first_row, 0),
            b: gemm.b.at(0, plan.first_column),
            c: gemm.c.add(plan.first_row * gemm.c_row + plan.first_column),
            finish: gemm.finish.at_column(plan.first_column),
            ..*gemm
        };
        Blocks::new(&plan, &part, scratch).run(l);
    }
}

/// A whole product inside another kernel, its operands read where they are. The columns of B are contiguous.
pub(super) struct InPlace<'a>(pub(super) &'a Gemm);

impl Kernel for InPlace<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let plan = Plan::in_place(self.0, L::TILE_ROWS, L::TILE_VECTORS);
        if plan.m > 0 && plan.n > 0 {
            // SAFETY: the caller's word on the pointers; such a plan uses no scratch.
            unsafe { Blocks::new(&plan, self.0, &mut []).run(l) };
        }
    }
}

/// A copy of a strided matrix with contiguous columns: see [`pack::copy`], whose arguments these are.
pub(super) struct Copy {
    pub(super) source: Strided,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) to: *mut f32,
    pub(super) to_row: usize,
}

impl Kernel for Copy {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        // SAFETY: the caller's word on the block.
        unsafe { pack::copy(l, self.source, self.rows, self.columns, self.to, self.to_row) }
    }
}

impl Finish {
    #[inline(always)]
    fn at_column(self, j: usize) -> Finish {
        Finish {
            bias: if self.bias.is_null() { self.bias } else { self.bias.wrapping_add(j) },
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
