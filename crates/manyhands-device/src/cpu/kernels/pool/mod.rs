//! Max and average pooling in two dimensions, channels last, with their gradients.
//!
//! Padding positions never count, except in the divisor of an average that asks for it. The bits,
//! whatever the threads and the instruction set:
//! - **max** takes the first largest value in the order `(kh, kw)`; a NaN beats everything, the
//!   last NaN of several wins. A window that sees only padding gives minus infinity.
//! - **average** adds in that order, starting at `+0.0`, then divides. A window that sees only
//!   padding gives `+0.0`.
//! - **gradients** start at `+0.0` and add what the windows give in the order `(oh, ow)`: the max's
//!   whole gradient to the place of the value taken (found again from `x`), an average's gradient
//!   divided by its divisor to every place.
//!
//! Threads share rows where windows do not meet, otherwise images and channels.

#![allow(clippy::needless_range_loop)] // plain counted loops unroll into registers

mod backward;
mod forward;

use super::Part;
use super::window::Axis;
use crate::cpu::simd::{Isa, Lanes, WIDTH};
use backward::Backward;
use forward::Forward;

/// The shape of a pooling operation: `x [N, H, W, C]` to `y [N, OH, OW, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolShape {
    /// Images.
    pub batch: usize,
    /// The vertical axis.
    pub rows: Axis,
    /// The horizontal axis.
    pub cols: Axis,
    /// Channels.
    pub channels: usize,
}

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Its largest value.
    Max,
    /// Its mean.
    Average {
        /// Divide by the size of the window and not by the positions that it sees.
        count_padding: bool,
    },
}

impl PoolShape {
    /// Floats of `x`.
    #[cfg(test)]
    pub(crate) fn x_len(&self) -> usize {
        self.batch * self.rows.input * self.cols.input * self.channels
    }

    /// Floats of `y`.
    #[cfg(test)]
    pub(crate) fn y_len(&self) -> usize {
        self.batch * self.rows.output() * self.cols.output() * self.channels
    }

    /// Whether every input position lies in exactly one window.
    fn tiles_exactly(&self) -> bool {
        let exact = |axis: &Axis| {
            axis.stride == axis.extent()
                && axis.dilation == 1
                && !axis.is_padded()
                && axis.input == axis.output() * axis.stride
        };
        exact(&self.rows) && exact(&self.cols)
    }

    /// The taps of window `(oh, ow)` that lie inside the input, and where the first of them reads
    /// in image `n`.
    #[inline(always)]
    fn window(&self, n: usize, oh: usize, ow: usize) -> Window {
        let (rows, cols) = (self.rows.taps_inside(oh), self.cols.taps_inside(ow));
        if rows.is_empty() || cols.is_empty() {
            return Window { rows: 0, cols: 0, at: 0, row_step: 0, col_step: 0 };
        }
        let h = self.rows.position(oh, rows.start);
        let w = self.cols.position(ow, cols.start);
        Window {
            rows: rows.len(),
            cols: cols.len(),
            at: ((n * self.rows.input + h) * self.cols.input + w) * self.channels,
            row_step: self.rows.dilation * self.cols.input * self.channels,
            col_step: self.cols.dilation * self.channels,
        }
    }
}

/// The positions that a window sees.
#[derive(Clone, Copy)]
struct Window {
    rows: usize,
    cols: usize,
    at: usize,
    row_step: usize,
    col_step: usize,
}

impl Window {
    /// What an average divides by.
    fn divisor(&self, shape: &PoolShape, count_padding: bool) -> f32 {
        match count_padding {
            true => (shape.rows.kernel * shape.cols.kernel) as f32,
            false => (self.rows * self.cols) as f32,
        }
    }
}

/// A part of `y` from `x`.
///
/// # Safety
/// `x` and `y` have the shape's lengths and do not overlap; the machine has `isa`. Other parts may
/// run at the same time.
pub(crate) unsafe fn forward(
    isa: Isa,
    shape: &PoolShape,
    pooling: Pooling,
    x: *const f32,
    y: *mut f32,
    part: Part,
) {
    // SAFETY: the caller's word.
    unsafe { isa.run(Forward { shape: *shape, pooling, x, y, part }) }
}

/// A part of `dx` from `dy` and, for the max, `x` (unused for the average; may be null).
///
/// # Safety
/// As for [`forward()`].
pub(crate) unsafe fn input_grad(
    isa: Isa,
    shape: &PoolShape,
    pooling: Pooling,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
    part: Part,
) {
    // SAFETY: the caller's word.
    unsafe { isa.run(Backward { shape: *shape, pooling, relu: false, x, dy, dx, part }) }
}

/// As [`input_grad`] of the max where `x` came out of a relu: a part of the gradient by what went
/// into that relu, with the bits of zeroing `dx` wherever `x` is not above zero.
///
/// # Safety
/// As for [`forward()`].
pub(crate) unsafe fn max_input_grad_through_relu(
    isa: Isa,
    shape: &PoolShape,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
    part: Part,
) {
    let pooling = Pooling::Max;
    // SAFETY: the caller's word.
    unsafe { isa.run(Backward { shape: *shape, pooling, relu: true, x, dy, dx, part }) }
}

/// Vectors of channels that are done together where there are so many.
const VECTORS: usize = 4;

/// `V` vectors of neighbouring channels; the last has `lanes` where `V` is one.
///
/// # Safety
/// As [`Lanes::load`] and [`Lanes::load_first`].
#[inline(always)]
unsafe fn load<L: Lanes, const V: usize>(l: L, from: *const f32, lanes: usize) -> [L::F; V] {
    // SAFETY: the caller's word.
    unsafe {
        let mut vectors = [l.splat(0.0); V];
        for v in 0..V {
            vectors[v] = match V {
                1 => l.load_first(from, lanes),
                _ => l.load(from.add(v * WIDTH)),
            };
        }
        vectors
    }
}

/// The counterpart of [`load`].
///
/// # Safety
/// As [`Lanes::store`] and [`Lanes::store_first`].
#[inline(always)]
unsafe fn store<L: Lanes, const V: usize>(l: L, to: *mut f32, vectors: [L::F; V], lanes: usize) {
    // SAFETY: the caller's word.
    unsafe {
        for (v, vector) in vectors.into_iter().enumerate() {
            match V {
                1 => l.store_first(to, vector, lanes),
                _ => l.store(to.add(v * WIDTH), vector),
            }
        }
    }
}

/// Whether a later value of a window takes the place of the largest so far.
///
/// # Safety
/// Only inside a kernel.
#[inline(always)]
unsafe fn takes_over<L: Lanes>(l: L, value: L::F, largest: L::F) -> L::M {
    // SAFETY: the caller's word.
    unsafe { l.mask_or(l.lt(largest, value), l.mask_not(l.eq(value, value))) }
}

#[cfg(test)]
mod tests;
