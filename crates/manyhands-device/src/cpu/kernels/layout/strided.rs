//! Results whose elements each come from one place of one operand, at a fixed stride per axis:
//! broadcast, transpose, slice.

use std::ops::Range;

use super::tile::{TileKernel, Tiles};
use super::{MAX_AXES, fill, line};
use crate::cpu::kernels::Part;
use crate::cpu::simd::Isa;

/// One axis of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) size: usize,
    /// How far apart neighbours lie in the operand, in elements.
    pub(super) from: usize,
    /// How far apart neighbours lie in the result.
    pub(super) to: usize,
}

/// The merged axes of a result, and what to do along the innermost.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    n_elements: usize,
    /// Where the first element comes from.
    first: usize,
    /// All axes but the innermost, or but the two of the tiles.
    outer: Vec<Axis>,
    inner: Inner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Inner {
    /// Runs of neighbours.
    Copy { n: usize },
    /// Runs of one element.
    Repeat { n: usize },
    /// Runs of elements that lie apart.
    Pick { n: usize, from: usize },
    /// Matrices that are transposed.
    Tiles(Tiles),
}

impl Strided {
    /// The operand as it is.
    pub(super) fn copy(n_elements: usize) -> Strided {
        let inner = Inner::Copy { n: n_elements };
        Strided { n_elements, first: 0, outer: Vec::new(), inner }
    }

    pub(super) fn broadcast(from: &[usize], to: &[usize], axes: &[usize]) -> Option<Strided> {
        let mut strides = vec![0; to.len()];
        for (own, &axis) in axes.iter().enumerate() {
            if from[own] > 1 {
                strides[axis] = step(from, own);
            }
        }
        Strided::new(0, to.iter().copied().zip(strides))
    }

    pub(super) fn transpose(from: &[usize], order: &[usize]) -> Option<Strided> {
        Strided::new(0, order.iter().map(|&axis| (from[axis], step(from, axis))))
    }

    pub(super) fn slice(
        from: &[usize],
        start: &[usize],
        limit: &[usize],
        stride: &[usize],
    ) -> Option<Strided> {
        let first = (0..from.len()).map(|axis| start[axis] * step(from, axis)).sum();
        let own = |axis: usize| {
            let size = (limit[axis] - start[axis]).div_ceil(stride[axis]);
            (size, stride[axis] * step(from, axis))
        };
        Strided::new(first, (0..from.len()).map(own))
    }

    /// From the size and the operand's stride of each axis of the result.
    fn new(first: usize, axes: impl Iterator<Item = (usize, usize)>) -> Option<Strided> {
        let mut merged: Vec<Axis> = Vec::new();
        let mut n_elements = 1;
        for (size, from) in axes {
            n_elements *= size;
            match merged.last_mut() {
                _ if size == 1 => {}
                Some(outer) if outer.from == from * size => {
                    *outer = Axis { size: outer.size * size, from, to: 0 };
                }
                _ => merged.push(Axis { size, from, to: 0 }),
            }
        }
        if n_elements == 0 {
            return Some(Strided::copy(0));
        }
        if merged.len() > MAX_AXES {
            return None;
        }
        let mut to = 1;
        for axis in merged.iter_mut().rev() {
            axis.to = to;
            to *= axis.size;
        }
        let inner = match merged.pop() {
            None => Inner::Copy { n: 1 },
            Some(Axis { size, from: 1, .. }) => Inner::Copy { n: size },
            Some(Axis { size, from: 0, .. }) => Inner::Repeat { n: size },
            Some(columns) => match merged.iter().position(|axis| axis.from == 1) {
                Some(idx) => Inner::Tiles(Tiles::new(merged.remove(idx), columns)),
                None => Inner::Pick { n: columns.size, from: columns.from },
            },
        };
        Some(Strided { n_elements, first, outer: merged, inner })
    }

    /// # Safety
    /// As of [`super::LayoutPlan::run`].
    pub(super) unsafe fn run<T: Copy>(&self, isa: Isa, src: *const T, dst: *mut T, part: Part) {
        if self.n_elements == 0 {
            return;
        }
        let range = part.range(self.n_elements, line::<T>());
        // SAFETY: as the caller says; runs and tiles stay inside operand and result.
        unsafe {
            let src = src.add(self.first);
            match &self.inner {
                Inner::Copy { n } => self.runs(*n, range, |from, to, column, n| {
                    std::ptr::copy_nonoverlapping(src.add(from + column), dst.add(to), n);
                }),
                Inner::Repeat { n } => self.runs(*n, range, |from, to, _, n| {
                    fill(dst.add(to), *src.add(from), n);
                }),
                Inner::Pick { n, from: apart } => self.runs(*n, range, |from, to, column, n| {
                    let src = src.add(from + column * apart);
                    for i in 0..n {
                        *dst.add(to + i) = *src.add(i * apart);
                    }
                }),
                Inner::Tiles(tiles) => self.tiles(tiles, isa, src, dst, part),
            }
        }
    }

    /// Calls `each` for every run, or piece of a run, of the range: where its run begins in the
    /// operand, where the piece goes, which column of the run it begins at, and its length.
    #[inline(always)]
    fn runs(
        &self,
        n: usize,
        range: Range<usize>,
        mut each: impl FnMut(usize, usize, usize, usize),
    ) {
        if range.is_empty() {
            return;
        }
        let mut odometer = Odometer::new(&self.outer, range.start / n);
        let (mut to, mut column) = (range.start, range.start % n);
        loop {
            let length = (n - column).min(range.end - to);
            each(odometer.from, to, column, length);
            to += length;
            column = 0;
            if to >= range.end {
                return;
            }
            odometer.advance();
        }
    }

    /// # Safety
    /// As of [`Strided::run`], with `src` at the first element.
    unsafe fn tiles<T: Copy>(
        &self,
        tiles: &Tiles,
        isa: Isa,
        src: *const T,
        dst: *mut T,
        part: Part,
    ) {
        let n_planes: usize = self.outer.iter().map(|axis| axis.size).product();
        let n_bands = tiles.n_bands();
        let bands = part.range(n_planes * n_bands, 1);
        if bands.is_empty() {
            return;
        }
        let mut odometer = Odometer::new(&self.outer, bands.start / n_bands);
        let mut at = bands.start;
        while at < bands.end {
            let band = at % n_bands;
            let end = n_bands.min(band + bands.end - at);
            // SAFETY: as the caller says; the plane lies inside operand and result.
            unsafe {
                let (src, dst) = (src.add(odometer.from), dst.add(odometer.to));
                isa.run(TileKernel { tiles, src, dst, bands: band..end });
            }
            at += end - band;
            odometer.advance();
        }
    }
}

/// How far apart neighbours along an axis lie in a row-major tensor.
fn step(sizes: &[usize], axis: usize) -> usize {
    sizes[axis + 1..].iter().product()
}

/// Walks over the places of some axes, the last one fastest.
struct Odometer<'a> {
    axes: &'a [Axis],
    places: [usize; MAX_AXES],
    from: usize,
    to: usize,
}

impl<'a> Odometer<'a> {
    fn new(axes: &'a [Axis], mut position: usize) -> Odometer<'a> {
        let mut own = Odometer { axes, places: [0; MAX_AXES], from: 0, to: 0 };
        for (axis, place) in axes.iter().zip(&mut own.places).rev() {
            *place = position % axis.size;
            position /= axis.size;
            own.from += *place * axis.from;
            own.to += *place * axis.to;
        }
        own
    }

    #[inline(always)]
    fn advance(&mut self) {
        for (axis, place) in self.axes.iter().zip(&mut self.places).rev() {
            *place += 1;
            self.from += axis.from;
            self.to += axis.to;
            if *place < axis.size {
                return;
            }
            *place = 0;
            self.from -= axis.size * axis.from;
            self.to -= axis.size * axis.to;
        }
    }
}
