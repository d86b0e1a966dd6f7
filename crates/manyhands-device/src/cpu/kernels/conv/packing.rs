//! Weights laid out for the register tiles.
//!
//! A group's weights are cut into panels of thirty-two target channels (the last one sixteen or
//! thirty-two, filled up with zeros); inside a panel come the taps, then the source channels, then
//! the target channels. So a tile reads its weights from one end to the other. For the input
//! gradient source and target change places and the taps are reversed. Depthwise weights are only
//! reversed: their channels are vectors already.

use super::super::Part;
use super::tile::PANEL;
use super::{ConvShape, Direction};
use crate::cpu::simd::WIDTH;

/// Source and target channels of a group.
pub(super) fn channels(shape: &ConvShape, direction: Direction) -> (usize, usize) {
    let (inputs, outputs) = (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
    match direction {
        Direction::Forward => (inputs, outputs),
        Direction::InputGrad => (outputs, inputs),
    }
}

/// Floats of the packed weights.
pub(super) fn packed_len(shape: &ConvShape, direction: Direction) -> usize {
    if shape.is_depthwise() {
        return shape.n_taps() * shape.in_channels;
    }
    let (source, target) = channels(shape, direction);
    shape.groups * shape.n_taps() * source * target.next_multiple_of(WIDTH)
}

/// Packs this part's share.
///
/// # Safety
/// `weights` holds [`ConvShape::weights_len`] floats, `packed` has room for [`packed_len`].
pub(super) unsafe fn pack(
    shape: &ConvShape,
    direction: Direction,
    weights: *const f32,
    packed: *mut f32,
    part: Part,
) {
    let n_taps = shape.n_taps();
    let tap_from = |tap: usize| match direction {
        Direction::Forward => tap,
        Direction::InputGrad => n_taps - 1 - tap,
    };
    if shape.is_depthwise() {
        let n = shape.in_channels;
        for tap in part.range(n_taps, 1) {
            // SAFETY: both hold `n_taps` rows of `n`.
            unsafe {
                packed.add(tap * n).copy_from_nonoverlapping(weights.add(tap_from(tap) * n), n);
            }
        }
        return;
    }
    let (source, target) = channels(shape, direction);
    let padded = target.next_multiple_of(WIDTH);
    let n_panels = padded.div_ceil(PANEL);
    for item in part.range(shape.groups * n_panels * n_taps, 1) {
        let (group, panel, tap) =
            (item / n_taps / n_panels, item / n_taps % n_panels * PANEL, item % n_taps);
        let width = PANEL.min(padded - panel);
        let n = width.min(target - panel);
        let to = group * n_taps * source * padded + (n_taps * panel + tap * width) * source;
        let from = tap_from(tap) * (shape.in_channels / shape.groups) * shape.out_channels
            + group * (shape.out_channels / shape.groups);
        // SAFETY: panels and taps of both layouts lie inside their buffers.
        unsafe {
            let (from, to) = (weights.add(from), packed.add(to));
            match direction {
                Direction::Forward => {
                    for c in 0..source {
                        let row = to.add(c * width);
                        row.copy_from_nonoverlapping(from.add(c * shape.out_channels + panel), n);
                        row.add(n).write_bytes(0, width - n);
                    }
                }
                Direction::InputGrad => {
                    // Sixteen rows of the panel at a time stay near while their columns arrive.
                    for block in (0..source).step_by(WIDTH) {
                        for t in 0..n {
                            let column = from.add((panel + t) * shape.out_channels);
                            for c in block..source.min(block + WIDTH) {
                                *to.add(c * width + t) = *column.add(c);
                            }
                        }
                    }
                    for c in 0..source {
                        to.add(c * width + n).write_bytes(0, width - n);
                    }
                }
            }
        }
    }
}
