//! From `x` to `y`.

#![allow(clippy::needless_range_loop)] // plain counted loops unroll into registers

use super::super::Part;
use super::{PoolShape, Pooling, VECTORS, Window, load, store, takes_over};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// The kernel's arguments.
pub(super) struct Forward {
    pub(super) shape: PoolShape,
    pub(super) pooling: Pooling,
    pub(super) x: *const f32,
    pub(super) y: *mut f32,
    pub(super) part: Part,
}

impl Kernel for Forward {
    type Output = ();

    // SAFETY: called by `Isa::run` alone; the pointers are what the public functions ask for.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let shape = &self.shape;
        let (height, width, channels) = (shape.rows.output(), shape.cols.output(), shape.channels);
        for pixel in self.part.range(shape.batch * height * width, 1) {
            let (row, ow) = (pixel / width, pixel % width);
            let window = shape.window(row / height, row % height, ow);
            let mut channel = 0;
            while channel < channels {
                let lanes = channels - channel;
                // SAFETY: windows name only positions inside the input; pointers are the caller's.
                unsafe {
                    let (x, y) =
                        (self.x.wrapping_add(channel), self.y.add(pixel * channels + channel));
                    if lanes >= VECTORS * WIDTH {
                        self.one::<L, VECTORS>(l, &window, x, y, WIDTH);
                        channel += VECTORS * WIDTH;
                    } else {
                        self.one::<L, 1>(l, &window, x, y, lanes.min(WIDTH));
                        channel += WIDTH;
                    }
                }
            }
        }
    }
}

impl Forward {
    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn one<L: Lanes, const V: usize>(
        &self,
        l: L,
        window: &Window,
        x: *const f32,
        y: *mut f32,
        lanes: usize,
    ) {
        // SAFETY: the caller's word.
        unsafe {
            match self.pooling {
                Pooling::Max if (window.rows, window.cols) == (2, 2) => {
                    // The commonest window again, with constants that unroll.
                    let window = Window { rows: 2, cols: 2, ..*window };
                    largest::<L, V>(l, &window, x, y, lanes);
                }
                Pooling::Max => largest::<L, V>(l, window, x, y, lanes),
                Pooling::Average { count_padding } => {
                    let divisor = window.divisor(&self.shape, count_padding);
                    mean::<L, V>(l, window, divisor, x, y, lanes);
                }
            }
        }
    }
}

/// # Safety
/// As for the kernel.
#[inline(always)]
unsafe fn largest<L: Lanes, const V: usize>(
    l: L,
    window: &Window,
    x: *const f32,
    y: *mut f32,
    lanes: usize,
) {
    // SAFETY: the caller's word.
    unsafe {
        // Everything is at least minus infinity, so starting there keeps the first largest.
        let mut largest = [l.splat(f32::NEG_INFINITY); V];
        for row in 0..window.rows {
            let mut at = window.at + row * window.row_step;
            for _ in 0..window.cols {
                let values = load::<L, V>(l, x.wrapping_add(at), lanes);
                for v in 0..V {
                    let m = takes_over(l, values[v], largest[v]);
                    largest[v] = l.select(m, values[v], largest[v]);
                }
                at += window.col_step;
            }
        }
        store::<L, V>(l, y, largest, lanes);
    }
}

/// # Safety
/// As for the kernel.
#[inline(always)]
unsafe fn mean<L: Lanes, const V: usize>(
    l: L,
    window: &Window,
    divisor: f32,
    x: *const f32,
    y: *mut f32,
    lanes: usize,
) {
    // SAFETY: the caller's word.
    unsafe {
        let mut sums = [l.splat(0.0); V];
        for row in 0..window.rows {
            let mut at = window.at + row * window.row_step;
            for _ in 0..window.cols {
                let values = load::<L, V>(l, x.wrapping_add(at), lanes);
                for v in 0..V {
                    sums[v] = l.add(sums[v], values[v]);
                }
                at += window.col_step;
            }
        }
        if window.rows * window.cols > 0 {
            let divisor = l.splat(divisor);
            for v in 0..V {
                sums[v] = l.div(sums[v], divisor);
            }
        }
        store::<L, V>(l, y, sums, lanes);
    }
}
