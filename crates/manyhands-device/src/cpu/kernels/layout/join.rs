//! Results that are put together from pieces: concatenation, and padding.

use std::ops::Range;

use manyhands_program::TensorType;

use super::{MAX_AXES, fill, line};
use crate::cpu::kernels::Part;

/// Rows, each made of one piece per operand.
#[derive(Clone, Debug)]
pub(super) struct Concatenate {
    n_rows: usize,
    /// Elements of a row.
    width: usize,
    /// Where the piece of each operand lies in a row.
    pieces: Vec<Range<usize>>,
}

impl Concatenate {
    pub(super) fn new(axis: usize, operands: &[&TensorType]) -> Concatenate {
        let shape = &operands[0].shape;
        let inner: usize = shape[axis + 1..].iter().product();
        let mut width = 0;
        let pieces = operands.iter().map(|operand| {
            let start = width;
            width += operand.shape[axis] * inner;
            start..width
        });
        let pieces = pieces.collect();
        Concatenate { n_rows: shape[..axis].iter().product(), width, pieces }
    }

    /// # Safety
    /// As of [`super::LayoutPlan::run`].
    pub(super) unsafe fn run<T: Copy>(
        &self,
        operand: impl Fn(usize) -> *const T,
        dst: *mut T,
        part: Part,
    ) {
        let range = part.range(self.n_rows * self.width, line::<T>());
        for_rows(range, self.width, |row, columns| {
            for (idx, piece) in self.pieces.iter().enumerate() {
                let own = overlap(&columns, piece);
                if own.is_empty() {
                    continue;
                }
                let from = row * piece.len() + own.start - piece.start;
                // SAFETY: as the caller says; the columns lie inside the row and the piece.
                unsafe {
                    let dst = dst.add(row * self.width + own.start);
                    std::ptr::copy_nonoverlapping(operand(idx).add(from), dst, own.len());
                }
            }
        });
    }
}

/// One axis of a padded tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PadAxis {
    /// The operand's size.
    size: usize,
    /// Elements before the first.
    low: usize,
    /// Distance between neighbours.
    step: usize,
    /// The result's size.
    full: usize,
}

impl PadAxis {
    fn is_unpadded(&self) -> bool {
        self.size == self.full
    }

    /// Which of the operand's places lies at a place of the result.
    fn origin(&self, place: usize) -> Option<usize> {
        let past_low = place.checked_sub(self.low)?;
        let own = past_low / self.step;
        (past_low.is_multiple_of(self.step) && own < self.size).then_some(own)
    }
}

/// A tensor surrounded by a value. The last axis is the innermost.
#[derive(Clone, Debug)]
pub(super) struct Pad {
    outer: Vec<PadAxis>,
    inner: PadAxis,
}

impl Pad {
    pub(super) fn new(
        sizes: &[usize],
        low: &[usize],
        high: &[usize],
        interior: &[usize],
    ) -> Option<Pad> {
        let mut merged: Vec<PadAxis> = Vec::new();
        for (axis, &size) in sizes.iter().enumerate() {
            let between = size.saturating_sub(1) * interior[axis];
            let full = low[axis] + size + between + high[axis];
            let own = PadAxis { size, low: low[axis], step: interior[axis] + 1, full };
            match merged.last_mut() {
                // An axis that is whole lies in memory as one with a neighbour without gaps.
                Some(outer) if own.is_unpadded() && outer.step == 1 => {
                    outer.size *= size;
                    outer.low *= size;
                    outer.full *= size;
                }
                Some(outer) if outer.is_unpadded() && outer.size == 1 => *outer = own,
                _ => merged.push(own),
            }
        }
        if merged.len() > MAX_AXES {
            return None;
        }
        let inner = merged.pop().unwrap_or(PadAxis { size: 1, low: 0, step: 1, full: 1 });
        Some(Pad { outer: merged, inner })
    }

    /// Which row of the operand lies in a row of the result.
    fn row_origin(&self, mut row: usize) -> Option<usize> {
        let (mut origin, mut step) = (0, 1);
        for axis in self.outer.iter().rev() {
            origin += axis.origin(row % axis.full)? * step;
            step *= axis.size;
            row /= axis.full;
        }
        Some(origin)
    }

    /// # Safety
    /// As of [`super::LayoutPlan::run`].
    pub(super) unsafe fn run<T: Copy>(&self, src: *const T, value: T, dst: *mut T, part: Part) {
        let inner = self.inner;
        let n_rows: usize = self.outer.iter().map(|axis| axis.full).product();
        let range = part.range(n_rows * inner.full, line::<T>());
        for_rows(range, inner.full, |row, columns| {
            // SAFETY: as the caller says; the columns lie inside the row, and those with an origin
            // have it inside the operand's row.
            unsafe {
                let dst = dst.add(row * inner.full);
                let Some(origin) = self.row_origin(row) else {
                    return fill(dst.add(columns.start), value, columns.len());
                };
                let src = src.add(origin * inner.size);
                if inner.step == 1 {
                    let own = overlap(&columns, &(inner.low..inner.low + inner.size));
                    let (before, after) = (own.start - columns.start, columns.end - own.end);
                    fill(dst.add(columns.start), value, before);
                    let from = src.add(own.start - inner.low.min(own.start));
                    std::ptr::copy_nonoverlapping(from, dst.add(own.start), own.len());
                    fill(dst.add(own.end), value, after);
                } else {
                    for column in columns {
                        let own = inner.origin(column);
                        *dst.add(column) = own.map_or(value, |own| *src.add(own));
                    }
                }
            }
        });
    }
}

/// What two ranges share; where that is nothing, an empty range inside the first.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start).min(a.end);
    start..a.end.min(b.end).max(start)
}

/// Calls `each` for every row that the range of elements touches, with the columns it touches.
#[inline(always)]
fn for_rows(range: Range<usize>, width: usize, mut each: impl FnMut(usize, Range<usize>)) {
    if range.is_empty() {
        return;
    }
    let (mut row, mut at) = (range.start / width, range.start);
    while at < range.end {
        let start = row * width;
        let end = (start + width).min(range.end);
        each(row, at - start..end - start);
        at = end;
        row += 1;
    }
}
