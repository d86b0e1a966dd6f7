//! The register tile of forward convolution and of the input gradient.
//!
//! A tile is a few output positions by one or two vectors of output channels. It holds its sums in
//! registers while it walks the taps and the input channels, so every output element is one chain
//! of fused multiply-adds in that order whatever the size of the tile.

#![allow(clippy::needless_range_loop)] // plain counted loops unroll into registers

use crate::cpu::simd::{Lanes, WIDTH};

/// The most positions of a tile.
pub(super) const MAX_PIXELS: usize = 12;
/// Channels of a panel of packed weights.
pub(super) const PANEL: usize = 2 * WIDTH;

/// The walk of a tile: two loops over taps around one over neighbouring values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Taps along the rows, the distance between them in the input and in the weights.
    pub(super) rows: (usize, usize, usize),
    /// Taps along the columns, likewise.
    pub(super) cols: (usize, usize, usize),
    /// Values in a row per tap: neighbouring channels, or the column taps of a depthwise channel.
    pub(super) run: usize,
    /// Distance between those values in the input; one unless depthwise.
    pub(super) run_step: usize,
    /// Floats from one row of the packed weights to the next.
    pub(super) weight_row: usize,
}

/// What happens to a finished sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epilogue {
    /// Added to each channel; null for none.
    pub(super) bias: *const f32,
    /// Whether negative results become zero.
    pub(super) relu: bool,
    /// As many values as the target has; where one is not above zero the result becomes zero. Null
    /// for none.
    pub(super) gate: *const f32,
}

/// Where the positions of a tile read and write: offsets into the input and the output.
pub(super) struct Places {
    pub(super) x: [usize; MAX_PIXELS],
    pub(super) y: [usize; MAX_PIXELS],
}

/// Sums, finishes and stores `P` positions by `V` vectors, of which the first `n_channels` lanes
/// exist. An input value meets all channels of the tile, or, `DEPTHWISE`, each channel its own.
/// Pointers are of input, weights (`V` vectors a row; `n_channels` lanes where depthwise), output.
///
/// # Safety
/// All that the walk and the epilogue reach from the places is inside its buffer.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, const P: usize, const V: usize, const DEPTHWISE: bool>(
    l: L,
    walk: &Walk,
    places: &Places,
    (x, weights, y): (*const f32, *const f32, *mut f32),
    epilogue: Epilogue,
    n_channels: usize,
) {
    let lanes = |v: usize| n_channels.saturating_sub(v * WIDTH).min(WIDTH);
    // SAFETY: the caller's word on all offsets; pointers of walks without taps are never read.
    unsafe {
        let mut sums = [[l.splat(0.0); V]; P];
        let mut from = [x; P];
        for p in 0..P {
            from[p] = x.wrapping_add(places.x[p]);
        }
        // The lines that are written at the end are asked for a few at a time: all at once they
        // would hold up the weights.
        let n_asks = P.div_ceil((walk.rows.0 * walk.cols.0).max(1));
        let mut asked = 0;
        for tap_row in 0..walk.rows.0 {
            for tap_col in 0..walk.cols.0 {
                let upto = P.min(asked + n_asks);
                for at in &places.y[asked..upto] {
                    for v in 0..V {
                        l.prefetch(y.wrapping_add(at + v * WIDTH));
                    }
                }
                asked = upto;
                let mut at = tap_row * walk.rows.1 + tap_col * walk.cols.1;
                let mut w = weights.wrapping_add(tap_row * walk.rows.2 + tap_col * walk.cols.2);
                let end = w.wrapping_add(walk.run * walk.weight_row);
                while w != end {
                    let mut row = [l.splat(0.0); V];
                    for v in 0..V {
                        row[v] = match DEPTHWISE {
                            true => l.load_first(w.wrapping_add(v * WIDTH), lanes(v)),
                            false => l.load(w.add(v * WIDTH)),
                        };
                    }
                    for p in 0..P {
                        let value = from[p].wrapping_add(at);
                        for v in 0..V {
                            let value = match DEPTHWISE {
                                true => l.load_first(value.wrapping_add(v * WIDTH), lanes(v)),
                                false => l.splat(*value),
                            };
                            sums[p][v] = l.mul_add(value, row[v], sums[p][v]);
                        }
                    }
                    w = w.wrapping_add(walk.weight_row);
                    at += if DEPTHWISE { walk.run_step } else { 1 };
                }
            }
        }
        let sums = finish(l, sums, &places.y, epilogue, n_channels);
        if n_channels >= V * WIDTH {
            for p in 0..P {
                for v in 0..V {
                    l.store(y.wrapping_add(places.y[p] + v * WIDTH), sums[p][v]);
                }
            }
        } else {
            for p in 0..P {
                for v in 0..V {
                    let to = y.wrapping_add(places.y[p] + v * WIDTH);
                    l.store_first(to, sums[p][v], lanes(v));
                }
            }
        }
    }
}

/// The epilogue of a tile. Each step is a loop of its own with a small body: only then do all of
/// them unroll, and the sums stay in registers.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn finish<L: Lanes, const P: usize, const V: usize>(
    l: L,
    mut sums: [[L::F; V]; P],
    y_at: &[usize; MAX_PIXELS],
    epilogue: Epilogue,
    n_channels: usize,
) -> [[L::F; V]; P] {
    let lanes = |v: usize| n_channels.saturating_sub(v * WIDTH).min(WIDTH);
    // SAFETY: the caller's word; masked loads touch only the channels that exist.
    unsafe {
        if !epilogue.bias.is_null() {
            let mut bias = [l.splat(0.0); V];
            for v in 0..V {
                bias[v] = l.load_first(epilogue.bias.wrapping_add(v * WIDTH), lanes(v));
            }
            for p in 0..P {
                for v in 0..V {
                    sums[p][v] = l.add(sums[p][v], bias[v]);
                }
            }
        }
        if epilogue.relu {
            for p in 0..P {
                for v in 0..V {
                    sums[p][v] = l.max(l.splat(0.0), sums[p][v]);
                }
            }
        }
        if !epilogue.gate.is_null() {
            for p in 0..P {
                for v in 0..V {
                    let gate = epilogue.gate.wrapping_add(y_at[p] + v * WIDTH);
                    let open = l.lt(l.splat(0.0), l.load_first(gate, lanes(v)));
                    sums[p][v] = l.select(open, sums[p][v], l.splat(0.0));
                }
            }
        }
    }
    sums
}

/// Runs `$body` with `$P` a constant equal to `$n`, which is one to `L::TILE_ROWS` and at most
/// [`MAX_PIXELS`].
macro_rules! with_const {
    ($L:ident, $n:expr, $P:ident, $body:expr) => {
        with_const!(@arms $L, $n, $P, $body, 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@arms $L:ident, $n:expr, $P:ident, $body:expr, $($k:literal)*) => {
        match $n {
            $($k => {
                // Sizes beyond what suits the registers are never asked for, and so never compiled.
                if const { $k <= <$L as Lanes>::TILE_ROWS } {
                    const $P: usize = $k;
                    $body
                }
            })*
            _ => unreachable!("tiles are cut to at most 12"),
        }
    };
}
pub(super) use with_const;
