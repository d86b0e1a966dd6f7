//! Convolution in two dimensions, channels last, in all three directions.
//!
//! Shapes: `x [N, H, W, Cin]`, weights `[KH, KW, Cin / groups, Cout]`, `y [N, OH, OW, Cout]`. One
//! dimension is two with `H = 1` ([`Axis::ONE`]).
//!
//! The bits, whatever the threads and the instruction set (all chains are of fused multiply-adds
//! and start at `+0.0`):
//! - **forward**: an element of `y` is one chain over `(kh, kw, ci)`, padding positions skipped;
//!   then `+ bias`; then relu, which is `max(0, v)` as [`Lanes::max`](crate::cpu::simd::Lanes::max)
//!   defines it: a NaN and `-0.0` stay.
//! - **input gradient**: an element of `dx` is one chain over `(oh, ow, co)` ascending, of the
//!   windows that hold it; then the gate of a relu before the convolution, if asked for.
//! - **weight gradient**: images are taken in fixed blocks of [`ConvShape::images_per_chain`]; an
//!   element of a block's gradient is one chain over `(n, oh, ow)`, padding positions counted as
//!   zeros; blocks are added in order.

#![allow(clippy::too_many_arguments)] // the operands of an operation, each once

mod correlate;
mod packing;
mod span;
mod tile;
mod weight_grad;

use super::Part;
use super::window::Axis;
use crate::cpu::simd::Isa;
use correlate::Correlate;
use span::Reading;
use tile::Epilogue;
use weight_grad::WeightGrad;

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvShape {
    /// Images.
    pub batch: usize,
    /// The vertical axis: `H`, `KH`, and so on.
    pub rows: Axis,
    /// The horizontal axis: `W`, `KW`, and so on.
    pub cols: Axis,
    /// Channels of `x`, a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of `y`, a multiple of `groups`.
    pub out_channels: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

/// A direction that gathers through packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From `x` to `y`.
    Forward,
    /// From `dy` to `dx`.
    InputGrad,
}

impl ConvShape {
    /// Floats of `x`.
    #[cfg(test)]
    pub(crate) fn x_len(&self) -> usize {
        self.batch * self.rows.input * self.cols.input * self.in_channels
    }

    /// Floats of `y`.
    #[cfg(test)]
    pub(crate) fn y_len(&self) -> usize {
        self.batch * self.rows.output() * self.cols.output() * self.out_channels
    }

    /// Floats of the weights.
    pub(crate) fn weights_len(&self) -> usize {
        self.n_taps() * self.in_channels / self.groups * self.out_channels
    }

    /// Floats of the weights as [`pack_weights`] lays them out.
    pub(crate) fn packed_len(&self, direction: Direction) -> usize {
        packing::packed_len(self, direction)
    }

    /// Floats of scratch that [`weight_grad()`] needs for each part.
    pub(crate) fn weight_grad_scratch_len(&self) -> usize {
        weight_grad::scratch_len(self)
    }

    /// Taps of a window.
    pub(crate) fn n_taps(&self) -> usize {
        self.rows.kernel * self.cols.kernel
    }

    /// Whether every channel is convolved by itself.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels && self.groups == self.out_channels
    }

    /// Images whose positions form one chain of the weight gradient: enough for 512 positions, at
    /// least one.
    pub(crate) fn images_per_chain(&self) -> usize {
        (512 / (self.rows.output() * self.cols.output()).max(1)).max(1)
    }
}

/// Lays out a part of the weights for [`forward`] or [`input_grad`]; once per update of the weights
/// is enough. All parts must be done before the first of those begins.
///
/// # Safety
/// `weights` holds [`ConvShape::weights_len`] floats, `packed` has room for
/// [`ConvShape::packed_len`]; other parts may run at the same time.
pub(crate) unsafe fn pack_weights(
    shape: &ConvShape,
    direction: Direction,
    weights: *const f32,
    packed: *mut f32,
    part: Part,
) {
    // SAFETY: the caller's word.
    unsafe { packing::pack(shape, direction, weights, packed, part) }
}

/// A part of `y = relu(conv(x, weights) + bias)`; `bias` may be null and `relu` false.
///
/// # Safety
/// `x`, `packed` (of [`Direction::Forward`]), `bias` (`Cout` floats) and `y` are valid and do not
/// overlap where written; the machine has `isa`. Other parts may run at the same time.
pub(crate) unsafe fn forward(
    isa: Isa,
    shape: &ConvShape,
    x: *const f32,
    packed: *const f32,
    bias: *const f32,
    relu: bool,
    y: *mut f32,
    part: Part,
) {
    // SAFETY: the caller's word.
    unsafe {
        let epilogue = Epilogue { bias, relu, gate: std::ptr::null() };
        correlate(isa, shape, Direction::Forward, x, packed, epilogue, y, part);
    }
}

/// A part of `dx`, the gradient by the input, from `dy`. Where `gate` is not null it is the relu
/// whose result the convolution read, and `dx` is the gradient by what went into that relu: zero
/// unless the gate is above zero.
///
/// # Safety
/// As for [`forward`], with `packed` of [`Direction::InputGrad`]; `gate` has the length of `x`.
pub(crate) unsafe fn input_grad(
    isa: Isa,
    shape: &ConvShape,
    dy: *const f32,
    packed: *const f32,
    gate: *const f32,
    dx: *mut f32,
    part: Part,
) {
    let epilogue = Epilogue { bias: std::ptr::null(), relu: false, gate };
    // SAFETY: the caller's word.
    unsafe { correlate(isa, shape, Direction::InputGrad, dy, packed, epilogue, dx, part) }
}

/// A part of `dw`, the gradient by the weights, from `x` and `dy`.
///
/// # Safety
/// As for [`forward`]; `scratch` is this part's own.
pub(crate) unsafe fn weight_grad(
    isa: Isa,
    shape: &ConvShape,
    x: *const f32,
    dy: *const f32,
    dw: *mut f32,
    scratch: &mut [f32],
    part: Part,
) {
    assert!(scratch.len() >= shape.weight_grad_scratch_len(), "the scratch has its length");
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller's word, and the length just checked.
    unsafe { isa.run(WeightGrad { shape: *shape, x, dy, dw, scratch, part }) }
}

/// # Safety
/// As for [`forward`].
unsafe fn correlate(
    isa: Isa,
    shape: &ConvShape,
    direction: Direction,
    source: *const f32,
    weights: *const f32,
    epilogue: Epilogue,
    target: *mut f32,
    part: Part,
) {
    let (source_channels, target_channels) = packing::channels(shape, direction);
    let kernel = Correlate {
        batch: shape.batch,
        rows: shape.rows,
        cols: shape.cols,
        reading: match direction {
            Direction::Forward => Reading::Forward,
            Direction::InputGrad => Reading::Backward,
        },
        groups: shape.groups,
        depthwise: shape.is_depthwise(),
        source_channels,
        target_channels,
        source,
        weights,
        epilogue,
        target,
        part,
    };
    // SAFETY: the caller's word.
    unsafe { isa.run(kernel) }
}

#[cfg(test)]
mod tests;
