//! From `dy` to `dx`.
//!
//! Where windows cover the input exactly once each place is written once. Elsewhere `dx` starts as
//! zeros and windows add to it, one after the other; there a thread takes whole images of some
//! channels, so that no two threads add to the same place.

#![allow(clippy::needless_range_loop)] // plain counted loops unroll into registers

use super::super::Part;
use super::{PoolShape, Pooling, VECTORS, Window, load, store, takes_over};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// The kernel's arguments.
pub(super) struct Backward {
    pub(super) shape: PoolShape,
    pub(super) pooling: Pooling,
    /// Whether the gradient goes on through the relu that made `x`; for the max only.
    pub(super) relu: bool,
    pub(super) x: *const f32,
    pub(super) dy: *const f32,
    pub(super) dx: *mut f32,
    pub(super) part: Part,
}

impl Kernel for Backward {
    type Output = ();

    // SAFETY: called by `Isa::run` alone; the pointers are what the public functions ask for.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let shape = &self.shape;
        let (height, width) = (shape.rows.output(), shape.cols.output());
        // SAFETY: windows name only positions inside the input; pointers are the caller's.
        unsafe {
            if shape.tiles_exactly() {
                for pixel in self.part.range(shape.batch * height * width, 1) {
                    self.window::<L, false>(l, pixel, 0..shape.channels);
                }
                return;
            }
            let n_vectors = shape.channels.div_ceil(WIDTH);
            let items = self.part.range(shape.batch * n_vectors, 1);
            let mut at = items.start;
            while at < items.end {
                let (n, first) = (at / n_vectors, at % n_vectors);
                let end = (first + items.end - at).min(n_vectors);
                at += end - first;
                let channels = first * WIDTH..(end * WIDTH).min(shape.channels);
                let n_positions = shape.rows.input * shape.cols.input;
                for position in n * n_positions..(n + 1) * n_positions {
                    let to = self.dx.add(position * shape.channels + channels.start);
                    to.write_bytes(0, channels.len());
                }
                for pixel in n * height * width..(n + 1) * height * width {
                    self.window::<L, true>(l, pixel, channels.clone());
                }
            }
        }
    }
}

impl Backward {
    /// Some channels of one window.
    ///
    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn window<L: Lanes, const ADD: bool>(
        &self,
        l: L,
        pixel: usize,
        channels: std::ops::Range<usize>,
    ) {
        let shape = &self.shape;
        let (height, width) = (shape.rows.output(), shape.cols.output());
        let (row, ow) = (pixel / width, pixel % width);
        let window = shape.window(row / height, row % height, ow);
        let mut channel = channels.start;
        while channel < channels.end {
            let left = channels.end - channel;
            let dy = self.dy.wrapping_add(pixel * shape.channels + channel);
            // SAFETY: the caller's word.
            unsafe {
                if left >= VECTORS * WIDTH {
                    self.one::<L, VECTORS, ADD>(l, &window, dy, channel, WIDTH);
                    channel += VECTORS * WIDTH;
                } else {
                    self.one::<L, 1, ADD>(l, &window, dy, channel, left.min(WIDTH));
                    channel += WIDTH;
                }
            }
        }
    }

    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn one<L: Lanes, const V: usize, const ADD: bool>(
        &self,
        l: L,
        window: &Window,
        dy: *const f32,
        channel: usize,
        lanes: usize,
    ) {
        let (x, dx) = (self.x.wrapping_add(channel), self.dx.wrapping_add(channel));
        // SAFETY: the caller's word.
        unsafe {
            match self.pooling {
                Pooling::Max if (window.rows, window.cols) == (2, 2) => {
                    // The commonest window again, with constants that unroll.
                    let window = Window { rows: 2, cols: 2, ..*window };
                    to_largest::<L, V, ADD>(l, &window, self.relu, x, dy, dx, lanes);
                }
                Pooling::Max => to_largest::<L, V, ADD>(l, window, self.relu, x, dy, dx, lanes),
                Pooling::Average { count_padding } => {
                    let divisor = window.divisor(&self.shape, count_padding);
                    to_all::<L, V, ADD>(l, window, divisor, dy, dx, lanes);
                }
            }
        }
    }
}

/// # Safety
/// As for the kernel.
#[inline(always)]
unsafe fn to_largest<L: Lanes, const V: usize, const ADD: bool>(
    l: L,
    window: &Window,
    relu: bool,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
    lanes: usize,
) {
    // SAFETY: the caller's word.
    unsafe {
        let zero = l.splat(0.0);
        // Numbers of positions are exact as floats up to 2^24, far beyond any window.
        let (mut largest, mut winner) = ([l.splat(f32::NEG_INFINITY); V], [zero; V]);
        let mut number = 0.0;
        for row in 0..window.rows {
            let mut at = window.at + row * window.row_step;
            for _ in 0..window.cols {
                let values = load::<L, V>(l, x.wrapping_add(at), lanes);
                for v in 0..V {
                    let m = takes_over(l, values[v], largest[v]);
                    largest[v] = l.select(m, values[v], largest[v]);
                    winner[v] = l.select(m, l.splat(number), winner[v]);
                }
                number += 1.0;
                at += window.col_step;
            }
        }
        if relu {
            // A number that no position has: the winner is shut off.
            for v in 0..V {
                winner[v] = l.select(l.lt(zero, largest[v]), winner[v], l.splat(-1.0));
            }
        }
        let gradient = load::<L, V>(l, dy, lanes);
        number = 0.0;
        for row in 0..window.rows {
            let mut at = window.at + row * window.row_step;
            for _ in 0..window.cols {
                let to = dx.wrapping_add(at);
                let mut sums = if ADD { load::<L, V>(l, to, lanes) } else { [zero; V] };
                for v in 0..V {
                    let m = l.eq(winner[v], l.splat(number));
                    sums[v] = l.select(m, l.add(sums[v], gradient[v]), sums[v]);
                }
                store::<L, V>(l, to, sums, lanes);
                number += 1.0;
                at += window.col_step;
            }
        }
    }
}

/// # Safety
/// As for the kernel.
#[inline(always)]
unsafe fn to_all<L: Lanes, const V: usize, const ADD: bool>(
    l: L,
    window: &Window,
    divisor: f32,
    dy: *const f32,
    dx: *mut f32,
    lanes: usize,
) {
    // SAFETY: the caller's word.
    unsafe {
        let zero = l.splat(0.0);
        let mut share = load::<L, V>(l, dy, lanes);
        for v in 0..V {
            share[v] = l.div(share[v], l.splat(divisor));
        }
        for row in 0..window.rows {
            let mut at = window.at + row * window.row_step;
            for _ in 0..window.cols {
                let to = dx.wrapping_add(at);
                let mut sums = if ADD { load::<L, V>(l, to, lanes) } else { [zero; V] };
                for v in 0..V {
                    sums[v] = l.add(sums[v], share[v]);
                }
                store::<L, V>(l, to, sums, lanes);
                at += window.col_step;
            }
        }
    }
}
