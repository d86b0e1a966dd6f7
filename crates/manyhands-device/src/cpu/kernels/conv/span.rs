//! Runs of neighbouring outputs along one axis that see the same taps.
//!
//! Padding positions are skipped, so outputs near an edge have fewer taps than those inside.
//! Cutting the output into runs with equal taps leaves a register tile without a single test: an
//! image without padding is one run.

use super::super::window::Axis;

/// A run of `count` outputs whose taps are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first output.
    pub(super) out_start: usize,
    /// Distance between the outputs of the run.
    pub(super) out_step: usize,
    /// Outputs in the run.
    pub(super) count: usize,
    /// The position that the first tap of the first output reads.
    pub(super) in_start: usize,
    /// How far that position moves from one output to the next.
    pub(super) in_step: usize,
    /// The first tap, as the packed weights count them.
    pub(super) tap_start: usize,
    /// Distance between taps in the packed weights.
    pub(super) tap_step: usize,
    /// Taps of each output; may be none.
    pub(super) taps: usize,
    /// How far the position moves from one tap to the next.
    pub(super) tap_in_step: usize,
}

/// Which way the windows of an axis are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// An output position gathers the input positions of its window.
    Forward,
    /// An input position gathers the output positions whose windows hold it, in ascending order;
    /// its taps are counted from the last one, so that both positions and taps ascend.
    Backward,
}

/// The runs of `range`, one residue class of the stride after the other.
pub(super) struct Spans {
    axis: Axis,
    reading: Reading,
    range: std::ops::Range<usize>,
    out_step: usize,
    tap_step: usize,
    in_step: usize,
    tap_in_step: usize,
    n_outputs: usize,
    class: usize,
    next: usize,
}

impl Spans {
    pub(super) fn new(axis: Axis, reading: Reading, range: std::ops::Range<usize>) -> Spans {
        let shared = gcd(axis.stride, axis.dilation);
        let (out_step, tap_step, in_step, tap_in_step) = match reading {
            Reading::Forward => (1, 1, axis.stride, axis.dilation),
            Reading::Backward => (axis.stride, axis.stride / shared, 1, axis.dilation / shared),
        };
        Spans {
            axis,
            reading,
            out_step,
            tap_step,
            in_step,
            tap_in_step,
            n_outputs: axis.output(),
            class: 0,
            next: range.start,
            range,
        }
    }

    /// First tap, number of taps and first position of one output.
    fn taps_of(&self, out: usize) -> (usize, usize, usize) {
        let axis = &self.axis;
        match self.reading {
            Reading::Forward => {
                let taps = axis.taps_inside(out);
                let at = if taps.is_empty() { 0 } else { axis.position(out, taps.start) };
                (taps.start, taps.len(), at)
            }
            Reading::Backward => {
                let padded = out + axis.pad_low;
                let window_of = |tap: usize| {
                    let start = padded.checked_sub(tap * axis.dilation)?;
                    let window = start / axis.stride;
                    (start % axis.stride == 0 && window < self.n_outputs).then_some(window)
                };
                let Some((last, at)) =
                    (0..axis.kernel).rev().find_map(|tap| window_of(tap).map(|at| (tap, at)))
                else {
                    return (0, 0, 0);
                };
                let more = (1..)
                    .take_while(|i| {
                        last.checked_sub(i * self.tap_step).and_then(window_of).is_some()
                    })
                    .count();
                (axis.kernel - 1 - last, 1 + more, at)
            }
        }
    }
}

impl Iterator for Spans {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        while self.next >= self.range.end {
            self.class += 1;
            if self.class >= self.out_step {
                return None;
            }
            self.next = self.range.start + self.class;
        }
        let out_start = self.next;
        let (tap_start, taps, in_start) = self.taps_of(out_start);
        self.next += self.out_step;
        let mut count = 1;
        while self.next < self.range.end {
            let (start, n, at) = self.taps_of(self.next);
            let alike = start == tap_start && n == taps && at == in_start + count * self.in_step;
            if n != taps || (n > 0 && !alike) {
                break;
            }
            count += 1;
            self.next += self.out_step;
        }
        Some(Span {
            out_start,
            out_step: self.out_step,
            count,
            in_start,
            in_step: self.in_step,
            tap_start,
            tap_step: self.tap_step,
            taps,
            tap_in_step: self.tap_in_step,
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
