//! The weight gradient: rows of `(kh, kw, ci)` by vectors of output channels, summed over
//! positions.
//!
//! A register tile of rows by channels walks the positions of a chain. Threads share the rows and
//! channels, never the positions, so nothing is added across threads. Padded inputs are copied into
//! a frame of zeros first. Where the data of a chain outgrow a core's cache the walk pauses after a
//! segment of it, its sums kept in scratch, so that all tiles use the segment while it is near;
//! pausing changes no bit.

#![allow(clippy::needless_range_loop)] // plain counted loops unroll into registers

use super::super::Part;
use super::ConvShape;
use super::tile::{MAX_PIXELS, with_const};
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// Bytes of inputs and gradients that the tiles go through together.
const SEGMENT_BYTES: usize = 384 * 1024;
/// Positions that a segment has at least.
const SEGMENT_POSITIONS: usize = 256;

/// Floats of scratch that each thread needs.
pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    let plan = Plan::new(shape);
    plan.frame_len() + plan.partial_len(shape)
}

/// How the positions are walked; depends on the shape alone.
struct Plan {
    images_per_chain: usize,
    rows_per_segment: usize,
    padded: bool,
    /// Height and width of what the tiles read: the input, or its frame.
    height: usize,
    width: usize,
    in_channels: usize,
    n_segments: usize,
}

impl Plan {
    fn new(shape: &ConvShape) -> Plan {
        let (rows, cols) = (&shape.rows, &shape.cols);
        let padded = rows.is_padded() || cols.is_padded();
        let height = rows.input + rows.pad_low + rows.pad_high;
        let width = cols.input + cols.pad_low + cols.pad_high;
        let images_per_chain = shape.images_per_chain().min(shape.batch.max(1));
        let n_rows = rows.output().max(1);
        let row_bytes =
            4 * (rows.stride * width * shape.in_channels + cols.output() * shape.out_channels);
        // A pause costs a trip to memory for every sum, so it has to be worth some positions.
        let worth = SEGMENT_POSITIONS.div_ceil(cols.output().max(1));
        let near = SEGMENT_BYTES / row_bytes.max(1);
        let rows_per_segment = match images_per_chain {
            1 => near.max(worth).min(n_rows),
            _ => n_rows,
        };
        let n_segments = n_rows.div_ceil(rows_per_segment);
        Plan {
            images_per_chain,
            rows_per_segment,
            padded,
            height,
            width,
            in_channels: shape.in_channels,
            n_segments,
        }
    }

    /// Floats of the frames of a chain's images.
    fn frame_len(&self) -> usize {
        if self.padded {
            self.images_per_chain * self.height * self.width * self.in_channels
        } else {
            0
        }
    }

    /// Floats for the sums of a paused walk.
    fn partial_len(&self, shape: &ConvShape) -> usize {
        if self.n_segments > 1 { shape.weights_len() } else { 0 }
    }
}

/// The kernel's arguments.
pub(super) struct WeightGrad {
    pub(super) shape: ConvShape,
    pub(super) x: *const f32,
    pub(super) dy: *const f32,
    pub(super) dw: *mut f32,
    pub(super) scratch: *mut f32,
    pub(super) part: Part,
}

/// Positions of one segment and what becomes of their sums.
#[derive(Clone, Copy)]
struct Segment {
    x: *const f32,
    dy: *const f32,
    /// Images, and the distance between them in `x` and `dy`.
    images: (usize, usize, usize),
    rows: (usize, usize, usize),
    cols: (usize, usize, usize),
    /// Sums so far, null at the start of a chain.
    resume: *const f32,
    /// Where the sums go.
    into: *mut f32,
    /// Whether they are added to what is there.
    add: bool,
}

/// How rows and channels of the gradient are cut into tiles.
struct Tiles {
    n_rows: usize,
    n_row_tiles: usize,
    /// Channels of a group, and of a panel of it.
    n_channels: usize,
    panel: usize,
    n_panels: usize,
    groups: usize,
}

impl Tiles {
    /// The widest tiles, unless that leaves the parts with too few or uneven numbers of them.
    fn new<L: Lanes>(shape: &ConvShape, count: usize) -> Tiles {
        let n_channels = shape.out_channels / shape.groups;
        let depthwise = shape.is_depthwise();
        let (n_rows, n_channels, groups) = match depthwise {
            true => (shape.n_taps(), shape.out_channels, 1),
            false => (shape.n_taps() * shape.in_channels / shape.groups, n_channels, shape.groups),
        };
        let n_row_tiles = n_rows.div_ceil(L::TILE_ROWS.min(MAX_PIXELS));
        let cut = |panel: usize| {
            let n_panels = n_channels.div_ceil(panel);
            (n_panels, groups * n_panels * n_row_tiles)
        };
        let (_, n_wide) = cut(2 * WIDTH);
        let even = n_wide.is_multiple_of(count) || n_wide >= 8 * count;
        let wide = L::TILE_VECTORS > 1 && even && !depthwise;
        let panel = if wide { 2 * WIDTH } else { WIDTH };
        let (n_panels, _) = cut(panel);
        let n_row_tiles = n_row_tiles.max(count.div_ceil(groups * n_panels)).min(n_rows);
        Tiles { n_rows, n_row_tiles, n_channels, panel, n_panels, groups }
    }
}

impl Kernel for WeightGrad {
    type Output = ();

    // SAFETY: called by `Isa::run` alone; the pointers are what the public functions ask for.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let shape = &self.shape;
        let plan = Plan::new(shape);
        let tiles = Tiles::new::<L>(shape, self.part.count);
        let n_outputs = shape.rows.output() * shape.cols.output();
        // SAFETY: all offsets stay inside the buffers that the caller vouches for.
        unsafe {
            if shape.batch == 0 || n_outputs == 0 {
                for i in self.part.range(shape.weights_len(), 1) {
                    *self.dw.add(i) = 0.0;
                }
                return;
            }
            let frame = self.scratch;
            let partial = self.scratch.wrapping_add(plan.frame_len());
            if plan.padded {
                frame.write_bytes(0, plan.frame_len());
            }
            let image_len = plan.height * plan.width * shape.in_channels;
            let gradient_len = n_outputs * shape.out_channels;
            let x_row = plan.width * shape.in_channels;
            let dy_row = shape.cols.output() * shape.out_channels;
            for first in (0..shape.batch).step_by(plan.images_per_chain) {
                let n_images = plan.images_per_chain.min(shape.batch - first);
                let mut x = self.x.wrapping_add(first * image_len);
                if plan.padded {
                    self.fill_frames(&plan, frame, first, n_images);
                    x = frame;
                }
                let dy = self.dy.add(first * gradient_len);
                for row in (0..shape.rows.output()).step_by(plan.rows_per_segment) {
                    let n_rows = plan.rows_per_segment.min(shape.rows.output() - row);
                    let is_last = row + n_rows == shape.rows.output();
                    let segment = Segment {
                        x: x.add(row * shape.rows.stride * x_row),
                        dy: dy.add(row * dy_row),
                        images: (n_images, image_len, gradient_len),
                        rows: (n_rows, shape.rows.stride * x_row, dy_row),
                        cols: (
                            shape.cols.output(),
                            shape.cols.stride * shape.in_channels,
                            shape.out_channels,
                        ),
                        resume: if row == 0 { std::ptr::null() } else { partial },
                        into: if is_last { self.dw } else { partial },
                        add: is_last && first > 0,
                    };
                    self.all_tiles(l, &tiles, &plan, &segment);
                }
            }
        }
    }
}

impl WeightGrad {
    /// Copies images into the middle of their frames.
    ///
    /// # Safety
    /// As for the kernel.
    unsafe fn fill_frames(&self, plan: &Plan, frame: *mut f32, first: usize, n_images: usize) {
        let (rows, cols, channels) = (&self.shape.rows, &self.shape.cols, self.shape.in_channels);
        let row_len = cols.input * channels;
        for image in 0..n_images {
            for row in 0..rows.input {
                let to = ((image * plan.height + rows.pad_low + row) * plan.width + cols.pad_low)
                    * channels;
                // SAFETY: rows of images and of frames lie inside their buffers.
                unsafe {
                    let from = self.x.add(((first + image) * rows.input + row) * row_len);
                    frame.add(to).copy_from_nonoverlapping(from, row_len);
                }
            }
        }
    }

    /// This part's tiles over one segment.
    ///
    /// # Safety
    /// As for the kernel.
    #[inline(always)]
    unsafe fn all_tiles<L: Lanes>(&self, l: L, tiles: &Tiles, plan: &Plan, segment: &Segment) {
        let shape = &self.shape;
        let group_inputs = shape.in_channels / shape.groups;
        let n_items = tiles.groups * tiles.n_panels * tiles.n_row_tiles;
        for item in self.part.range(n_items, 1) {
            let panel = item % tiles.n_panels * tiles.panel;
            let row_tile = item / tiles.n_panels % tiles.n_row_tiles;
            let group = item / tiles.n_panels / tiles.n_row_tiles;
            let first_row = row_tile * tiles.n_rows / tiles.n_row_tiles;
            let n = (row_tile + 1) * tiles.n_rows / tiles.n_row_tiles - first_row;
            let n_lanes = tiles.panel.min(tiles.n_channels - panel);
            let channel = group * tiles.n_channels + panel;
            let depthwise = shape.is_depthwise();
            let mut x_at = [0; MAX_PIXELS];
            for (i, at) in x_at.iter_mut().enumerate().take(n) {
                let (tap, input) = match depthwise {
                    true => (first_row + i, panel),
                    false => ((first_row + i) / group_inputs, (first_row + i) % group_inputs),
                };
                let (kh, kw) = (tap / shape.cols.kernel, tap % shape.cols.kernel);
                let position = kh * shape.rows.dilation * plan.width + kw * shape.cols.dilation;
                *at = position * shape.in_channels + group * group_inputs + input;
            }
            let mut done = 0;
            while done < n_lanes {
                let left = n_lanes - done;
                let target = Target {
                    offset: first_row * shape.out_channels + channel + done,
                    stride: shape.out_channels,
                    n_lanes: left,
                };
                let segment = Segment { dy: segment.dy.wrapping_add(channel + done), ..*segment };
                // SAFETY: the rows' offsets stay inside the frame for every position of the
                // segment.
                unsafe {
                    if depthwise {
                        with_const!(
                            L,
                            n,
                            R,
                            tile::<L, R, 1, DEPTHWISE>(l, &segment, &x_at, &target)
                        );
                        done += WIDTH;
                    } else if L::TILE_VECTORS > 1 && left >= 2 * WIDTH {
                        with_const!(L, n, R, tile::<L, R, 2, FULL>(l, &segment, &x_at, &target));
                        done += 2 * WIDTH;
                    } else if left >= WIDTH {
                        with_const!(L, n, R, tile::<L, R, 1, FULL>(l, &segment, &x_at, &target));
                        done += WIDTH;
                    } else {
                        with_const!(L, n, R, tile::<L, R, 1, MASKED>(l, &segment, &x_at, &target));
                        done += WIDTH;
                    }
                }
            }
        }
    }
}

/// Where a tile's sums belong in the gradient.
struct Target {
    offset: usize,
    stride: usize,
    n_lanes: usize,
}

const FULL: u8 = 0;
const MASKED: u8 = 1;
const DEPTHWISE: u8 = 2;

/// # Safety
/// As for the kernel.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const V: usize, const KIND: u8>(
    l: L,
    segment: &Segment,
    x_at: &[usize; MAX_PIXELS],
    target: &Target,
) {
    // SAFETY: the caller's word; masked forms touch only the lanes that exist.
    unsafe {
        let n = target.n_lanes.min(WIDTH);
        let mut sums = [[l.splat(0.0); V]; R];
        if !segment.resume.is_null() {
            let from = segment.resume.add(target.offset);
            for r in 0..R {
                for v in 0..V {
                    let at = from.add(r * target.stride + v * WIDTH);
                    sums[r][v] = if KIND == FULL { l.load(at) } else { l.load_first(at, n) };
                }
            }
        }
        let mut from = [segment.x; R];
        for r in 0..R {
            from[r] = segment.x.add(x_at[r]);
        }
        for image in 0..segment.images.0 {
            for row in 0..segment.rows.0 {
                let mut at = image * segment.images.1 + row * segment.rows.1;
                let mut dy = segment.dy.add(image * segment.images.2 + row * segment.rows.2);
                for _ in 0..segment.cols.0 {
                    let mut gradient = [l.splat(0.0); V];
                    for v in 0..V {
                        let from = dy.add(v * WIDTH);
                        gradient[v] =
                            if KIND == FULL { l.load(from) } else { l.load_first(from, n) };
                    }
                    for r in 0..R {
                        let value = match KIND {
                            DEPTHWISE => l.load_first(from[r].add(at), n),
                            _ => l.splat(*from[r].add(at)),
                        };
                        for v in 0..V {
                            sums[r][v] = l.mul_add(value, gradient[v], sums[r][v]);
                        }
                    }
                    at += segment.cols.1;
                    dy = dy.wrapping_add(segment.cols.2);
                }
            }
        }
        let into = segment.into.add(target.offset);
        if segment.add {
            for r in 0..R {
                for v in 0..V {
                    let at = into.add(r * target.stride + v * WIDTH);
                    let before = if KIND == FULL { l.load(at) } else { l.load_first(at, n) };
                    sums[r][v] = l.add(before, sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                let at = into.add(r * target.stride + v * WIDTH);
                if KIND == FULL {
                    l.store(at, sums[r][v])
                } else {
                    l.store_first(at, sums[r][v], n)
                }
            }
        }
    }
}
