//! Forward convolution and the input gradient as one kernel: outputs gather taps, channel by
//! channel.

use super::super::Part;
use super::super::window::Axis;
use super::span::{Reading, Span, Spans};
use super::tile::{Epilogue, MAX_PIXELS, PANEL, Places, Walk, tile, with_const};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// Tiles that go through all panels together.
const TILES_PER_PASS: usize = 4;
/// Floats of weights up to which that is done: what a second-level cache keeps beside other data.
const NEAR_WEIGHTS: usize = 128 * 1024;

/// Gathers `source` through packed weights into `target`.
pub(super) struct Correlate {
    pub(super) batch: usize,
    pub(super) rows: Axis,
    pub(super) cols: Axis,
    pub(super) reading: Reading,
    pub(super) groups: usize,
    /// Whether groups are single channels on both sides.
    pub(super) depthwise: bool,
    /// Channels of the source, per group.
    pub(super) source_channels: usize,
    /// Channels of the target, per group.
    pub(super) target_channels: usize,
    pub(super) source: *const f32,
    /// Weights as `packing` lays them out.
    pub(super) weights: *const f32,
    pub(super) epilogue: Epilogue,
    pub(super) target: *mut f32,
    pub(super) part: Part,
}

/// The outputs of a part.
struct Share {
    /// Rows, counted through all images.
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
}

impl Correlate {
    /// Source and target length of an axis.
    fn lengths(&self, axis: &Axis) -> (usize, usize) {
        match self.reading {
            Reading::Forward => (axis.input, axis.output()),
            Reading::Backward => (axis.output(), axis.input),
        }
    }

    /// Rows of all images are cut between the parts, or columns where there are too few rows.
    fn share(&self) -> Share {
        let height = self.batch * self.lengths(&self.rows).1;
        let width = self.lengths(&self.cols).1;
        if height >= 8 * self.part.count || height >= width {
            Share { rows: self.part.range(height, 1), cols: 0..width }
        } else {
            Share { rows: 0..height, cols: self.part.range(width, 1) }
        }
    }
}

impl Kernel for Correlate {
    type Output = ();

    // SAFETY: called by `Isa::run` alone; the pointers are what the public functions ask for.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let (source_height, source_width) =
            (self.lengths(&self.rows).0, self.lengths(&self.cols).0);
        let (target_height, target_width) =
            (self.lengths(&self.rows).1, self.lengths(&self.cols).1);
        let source_stride = self.groups * self.source_channels;
        let target_stride = self.groups * self.target_channels;
        let share = self.share();
        let mut at = share.rows.start;
        while at < share.rows.end {
            let image = at / target_height;
            let first = at % target_height;
            let end = (first + share.rows.end - at).min(target_height);
            at += end - first;
            for rows in Spans::new(self.rows, self.reading, first..end) {
                for cols in Spans::new(self.cols, self.reading, share.cols.clone()) {
                    let pixels = Pixels {
                        n_rows: rows.count,
                        n_cols: cols.count,
                        x_start: ((image * source_height + rows.in_start) * source_width
                            + cols.in_start)
                            * source_stride,
                        x_row: rows.in_step * source_width * source_stride,
                        x_col: cols.in_step * source_stride,
                        y_start: ((image * target_height + rows.out_start) * target_width
                            + cols.out_start)
                            * target_stride,
                        y_row: rows.out_step * target_width * target_stride,
                        y_col: cols.out_step * target_stride,
                    };
                    // SAFETY: spans name only positions that exist; pointers are the caller's.
                    unsafe { self.rectangle(l, &rows, &cols, &pixels, source_width) };
                }
            }
        }
    }
}

/// A rectangle of outputs with the same taps: where each reads and writes.
struct Pixels {
    n_rows: usize,
    n_cols: usize,
    x_start: usize,
    x_row: usize,
    x_col: usize,
    y_start: usize,
    y_row: usize,
    y_col: usize,
}

impl Pixels {
    /// The offsets of `n` outputs from number `first` on.
    #[inline(always)]
    fn places(&self, first: usize, n: usize) -> Places {
        let mut places = Places { x: [0; MAX_PIXELS], y: [0; MAX_PIXELS] };
        let (mut row, mut col) = (first / self.n_cols, first % self.n_cols);
        for (x, y) in places.x.iter_mut().zip(&mut places.y).take(n) {
            *x = self.x_start + row * self.x_row + col * self.x_col;
            *y = self.y_start + row * self.y_row + col * self.y_col;
            col += 1;
            if col == self.n_cols {
                (row, col) = (row + 1, 0);
            }
        }
        places
    }
}

/// Channels that the tiles of a rectangle do together.
struct Panel {
    walk: Walk,
    /// Of the first tap.
    weights: *const f32,
    /// First channel in the source.
    source: usize,
    /// First channel in the target.
    target: usize,
    /// Channels that exist, and as the weights are padded.
    n_channels: usize,
    width: usize,
}

impl Correlate {
    /// Panels of all groups.
    fn n_panels(&self) -> usize {
        match self.depthwise {
            true => self.groups.div_ceil(WIDTH),
            false => self.groups * self.target_channels.div_ceil(PANEL),
        }
    }

    /// Panel number `idx` for outputs with the taps of `rows` and `cols`.
    #[inline(always)]
    fn panel(&self, idx: usize, rows: &Span, cols: &Span, source_width: usize) -> Panel {
        let source_stride = self.groups * self.source_channels;
        let n_taps = self.rows.kernel * self.cols.kernel;
        let first_tap = rows.tap_start * self.cols.kernel + cols.tap_start;
        let row_step = rows.tap_in_step * source_width * source_stride;
        let col_step = cols.tap_in_step * source_stride;
        if self.depthwise {
            let channel = idx * WIDTH;
            return Panel {
                walk: Walk {
                    rows: (rows.taps, row_step, rows.tap_step * self.cols.kernel * self.groups),
                    cols: (1, 0, 0),
                    run: cols.taps,
                    run_step: col_step,
                    weight_row: cols.tap_step * self.groups,
                },
                weights: self.weights.wrapping_add(first_tap * self.groups + channel),
                source: channel,
                target: channel,
                n_channels: self.groups - channel,
                width: WIDTH,
            };
        }
        let group_panels = self.target_channels.div_ceil(PANEL);
        let (group, first) = (idx / group_panels, idx % group_panels * PANEL);
        let padded_channels = self.target_channels.next_multiple_of(WIDTH);
        let width = PANEL.min(padded_channels - first);
        let tap_len = self.source_channels * width;
        let mut walk = Walk {
            rows: (rows.taps, row_step, rows.tap_step * self.cols.kernel * tap_len),
            cols: (cols.taps, col_step, cols.tap_step * tap_len),
            run: self.source_channels,
            run_step: 1,
            weight_row: width,
        };
        if walk.cols.1 == walk.run && walk.cols.2 == tap_len {
            // Neighbouring taps are neighbours in both memories: one longer run.
            walk.run *= walk.cols.0;
            walk.cols.0 = 1;
        }
        let weights = n_taps * self.source_channels * (group * padded_channels + first);
        Panel {
            walk,
            weights: self.weights.wrapping_add(weights + first_tap * tap_len),
            source: group * self.source_channels,
            target: group * self.target_channels + first,
            n_channels: self.target_channels - first,
            width,
        }
    }

    /// All channels of one rectangle, in tiles of nearly equal size. A few tiles go through all
    /// panels before the next few, so that input and output stay near; where the weights are the
    /// larger part, all tiles go through one panel before the next one.
    ///
    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn rectangle<L: Lanes>(
        &self,
        l: L,
        rows: &Span,
        cols: &Span,
        pixels: &Pixels,
        source_width: usize,
    ) {
        let n_tiles = (pixels.n_rows * pixels.n_cols).div_ceil(L::TILE_ROWS.min(MAX_PIXELS));
        let n_panels = self.n_panels();
        let weights_len =
            self.rows.kernel * self.cols.kernel * self.source_channels * n_panels * PANEL;
        let tiles_per_pass = match n_panels > 1 && weights_len <= NEAR_WEIGHTS {
            true => TILES_PER_PASS,
            false => n_tiles,
        };
        for first in (0..n_tiles).step_by(tiles_per_pass) {
            let end = (first + tiles_per_pass).min(n_tiles);
            for idx in 0..n_panels {
                let panel = self.panel(idx, rows, cols, source_width);
                for tile in first..end {
                    let n_pixels = pixels.n_rows * pixels.n_cols;
                    let start = tile * n_pixels / n_tiles;
                    let n = (tile + 1) * n_pixels / n_tiles - start;
                    // SAFETY: the panel's walk reaches only taps that exist.
                    unsafe { self.tile(l, &panel, pixels, start, n) };
                }
            }
        }
    }

    /// Outputs `first..first + n` of a rectangle in the channels of a panel.
    ///
    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn tile<L: Lanes>(&self, l: L, panel: &Panel, pixels: &Pixels, first: usize, n: usize) {
        let (walk, x) = (&panel.walk, self.source.wrapping_add(panel.source));
        let places = pixels.places(first, n);
        let mut done = 0;
        while done < panel.width {
            let mut epilogue = self.epilogue;
            if !epilogue.bias.is_null() {
                epilogue.bias = epilogue.bias.wrapping_add(panel.target + done);
            }
            if !epilogue.gate.is_null() {
                epilogue.gate = epilogue.gate.wrapping_add(panel.target + done);
            }
            let y = self.target.wrapping_add(panel.target + done);
            let ends = (x, panel.weights.wrapping_add(done), y);
            let lanes = panel.n_channels - done;
            // SAFETY: offsets are of outputs that exist and of the taps that they have.
            unsafe {
                if self.depthwise {
                    with_const!(L, n, P, {
                        tile::<L, P, 1, true>(l, walk, &places, ends, epilogue, lanes)
                    });
                    done += WIDTH;
                } else if L::TILE_VECTORS > 1 && done + PANEL <= panel.width {
                    with_const!(L, n, P, {
                        tile::<L, P, 2, false>(l, walk, &places, ends, epilogue, lanes)
                    });
                    done += PANEL;
                } else {
                    with_const!(L, n, P, {
                        tile::<L, P, 1, false>(l, walk, &places, ends, epilogue, lanes)
                    });
                    done += WIDTH;
                }
            }
        }
    }
}
