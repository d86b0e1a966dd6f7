//! Operations that only move elements, for every element type, and the row sums that undo gather.
//!
//! A [`LayoutPlan`] is made when a program is compiled. It drops axes of size one, merges
//! neighbouring axes that lie in memory as one, and so finds the longest runs that can be copied
//! at once; running it allocates nothing.

mod join;
mod rows;
mod strided;
mod tile;

use manyhands_program::{Op, TensorType};

use super::Part;
use super::fault::Fault;
use crate::cpu::simd::Isa;

pub(crate) use rows::ScatterAddPlan;

use join::{Concatenate, Pad};
use rows::Gather;
use strided::Strided;

/// The most axes that a plan can have once they are merged.
const MAX_AXES: usize = 8;

/// Evaluates `$body` with `$T` standing for an unsigned number of `$size` bytes.
macro_rules! with_bits {
    ($size:expr, $T:ident => $body:expr) => {
        match $size {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
pub(super) use with_bits;

/// How to carry out one operation that moves elements.
#[derive(Clone, Debug)]
pub(crate) struct LayoutPlan {
    /// Bytes of one element.
    element: usize,
    moves: Moves,
}

#[derive(Clone, Debug)]
enum Moves {
    /// Each element of the result comes from one place of the only operand.
    Strided(Strided),
    Concatenate(Concatenate),
    Pad(Pad),
    Gather(Gather),
}

impl LayoutPlan {
    /// The plan of a broadcast, reshape, transpose, concatenation, slice, pad or gather on operands
    /// of these types, which the program has checked. Nothing for other operations, and for those
    /// with more axes than a plan can have.
    pub(crate) fn new(op: &Op, operands: &[&TensorType]) -> Option<LayoutPlan> {
        let first = operands.first()?;
        let sizes = &first.shape[..];
        let moves = match op {
            Op::Reshape { .. } => Moves::Strided(Strided::copy(first.shape.n_elements())),
            Op::Broadcast { shape, axes } => {
                Moves::Strided(Strided::broadcast(sizes, shape, axes)?)
            }
            Op::Transpose { order } => Moves::Strided(Strided::transpose(sizes, order)?),
            Op::Slice { start, limit, stride } => {
                Moves::Strided(Strided::slice(sizes, start, limit, stride)?)
            }
            Op::Concatenate { axis } => Moves::Concatenate(Concatenate::new(*axis, operands)),
            Op::Pad { low, high, interior } => Moves::Pad(Pad::new(sizes, low, high, interior)?),
            Op::Gather { axis } => Moves::Gather(Gather::new(*axis, first, operands.get(1)?)),
            Op::TakeRows => Moves::Gather(Gather::new(0, first, operands.get(1)?).or_zeros()),
            _ => return None,
        };
        Some(LayoutPlan { element: first.dtype.size(), moves })
    }

    /// Does one part of the operation. `operand` gives the first element of each operand.
    ///
    /// # Safety
    /// `isa` is available. Operands and result are valid for all elements of the types that the
    /// plan was made for, aligned to them, and do not overlap. Each part writes elements of its
    /// own; all parts together write all of them, unless one faults.
    pub(crate) unsafe fn run(
        &self,
        isa: Isa,
        operand: impl Fn(usize) -> *const u8,
        result: *mut u8,
        part: Part,
    ) -> Result<(), Fault> {
        // SAFETY: as the caller says; the plan's geometry keeps all places inside.
        unsafe {
            with_bits!(self.element, T => {
                let result = result.cast::<T>();
                match &self.moves {
                    Moves::Strided(plan) => plan.run(isa, operand(0).cast::<T>(), result, part),
                    Moves::Concatenate(plan) => {
                        plan.run(|idx| operand(idx).cast::<T>(), result, part);
                    }
                    Moves::Pad(plan) => {
                        plan.run(operand(0).cast::<T>(), *operand(1).cast::<T>(), result, part);
                    }
                    Moves::Gather(plan) => {
                        return plan.run(operand(0).cast::<T>(), operand(1), result, part);
                    }
                }
            });
        }
        Ok(())
    }
}

/// Parts are cut where cache lines end, so that two threads rarely write the same one.
fn line<T>() -> usize {
    64 / size_of::<T>()
}

/// Writes `value` to `n` places.
///
/// # Safety
/// `dst` is valid for `n` elements.
#[inline(always)]
unsafe fn fill<T: Copy>(dst: *mut T, value: T, n: usize) {
    for i in 0..n {
        // SAFETY: as the caller says.
        unsafe { dst.add(i).write(value) };
    }
}

#[cfg(test)]
mod tests;
