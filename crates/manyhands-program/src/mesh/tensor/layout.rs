//! How a value lies on the parts, and what becomes of that under another shape.

use std::ops::Range;

use crate::mesh::worker::Along;
use crate::shape::{Shape, TensorType};

/// How a value lies on the parts of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Every part has all of it.
    Whole,
    /// Every part has some of one axis.
    Split(Cut),
    /// Every part has a summand.
    Partial,
}

/// A cut along an axis. The axis consists of blocks, one after the other, and each part has its equal share of every block: a fused
/// projection to queries, keys and values has three blocks, so that each part has all three of its heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) axis: usize,
    pub(super) blocks: Vec<usize>,
}

impl Layout {
    pub(super) fn cut(&self) -> Option<&Cut> {
        match self {
            Layout::Split(cut) => Some(cut),
            _ => None,
        }
    }

    /// The cut, if it is along this axis.
    pub(super) fn cut_at(&self, axis: usize) -> Option<&Cut> {
        self.cut().filter(|cut| cut.axis == axis)
    }
}

impl Cut {
    pub(super) fn new(axis: usize, blocks: Vec<usize>) -> Cut {
        Cut { axis, blocks }
    }

    /// An axis of a size in so many equal blocks, where the parts get equal shares of them.
    pub(super) fn even(axis: usize, size: usize, n_blocks: usize, n_parts: usize) -> Option<Cut> {
        let fits = n_blocks > 0 && size > 0 && size.is_multiple_of(n_blocks * n_parts);
        fits.then(|| Cut::new(axis, vec![size / n_blocks; n_blocks]))
    }

    /// The same cut along another axis.
    pub(super) fn at(&self, axis: usize) -> Cut {
        Cut { axis, blocks: self.blocks.clone() }
    }

    /// The shape of a part.
    pub(super) fn local(&self, shape: &Shape, n_parts: usize) -> Shape {
        let mut sizes = shape.to_vec();
        sizes[self.axis] /= n_parts;
        Shape::from(sizes)
    }

    /// What a part has, in runs of the axis.
    pub(super) fn runs(&self, part: usize, n_parts: usize) -> Vec<Range<usize>> {
        let mut start = 0;
        let mut runs = Vec::with_capacity(self.blocks.len());
        for &block in &self.blocks {
            let share = block / n_parts;
            runs.push(start + part * share..start + (part + 1) * share);
            start += block;
        }
        runs
    }

    pub(super) fn along(&self, part: usize, n_parts: usize) -> Along {
        Along::Axis { axis: self.axis, runs: self.runs(part, n_parts) }
    }

    /// The blocks between two places of the axis, if both lie on edges; and how much a part has before them.
    pub(super) fn between(
        &self,
        start: usize,
        limit: usize,
        n_parts: usize,
    ) -> Option<(Vec<usize>, usize)> {
        let (mut at, mut inside) = (0, Vec::new());
        let mut is_start = start == 0;
        for &block in &self.blocks {
            is_start |= at == start;
            if at >= start && at + block <= limit {
                inside.push(block);
            }
            at += block;
        }
        let whole = inside.iter().sum::<usize>() == limit - start;
        (is_start && whole && !inside.is_empty()).then_some((inside, start / n_parts))
    }
}

/// The cut of the same elements under another shape, if it is one along an axis again.
pub(super) fn reshaped(cut: &Cut, from: &Shape, to: &Shape, n_parts: usize) -> Option<Cut> {
    let (own, other) = group_around(from, to, cut.axis)?;
    let outer: usize = from[own.start..cut.axis].iter().product();
    let inner: usize = from[cut.axis + 1..own.end].iter().product();
    let row: Vec<usize> = cut.blocks.iter().map(|block| block * inner).collect();
    let flat = row.repeat(outer);
    other.clone().find_map(|axis| {
        let outer: usize = to[other.start..axis].iter().product();
        let inner: usize = to[axis + 1..other.end].iter().product();
        if outer == 0 || !flat.len().is_multiple_of(outer) {
            return None;
        }
        let row = &flat[..flat.len() / outer];
        let repeats = flat.chunks(row.len()).all(|chunk| chunk == row);
        let fits = row.iter().all(|block| block.is_multiple_of(inner * n_parts));
        let sums = row.iter().sum::<usize>() == to[axis] * inner;
        (repeats && fits && sums)
            .then(|| Cut::new(axis, row.iter().map(|block| block / inner).collect()))
    })
}

/// The axes of both shapes that hold the same elements as the fewest axes around `axis` do.
fn group_around(from: &Shape, to: &Shape, axis: usize) -> Option<(Range<usize>, Range<usize>)> {
    if from.n_elements() == 0 {
        return None;
    }
    let (mut i, mut j) = (0, 0);
    while i < from.rank() || j < to.rank() {
        let (first_i, first_j) = (i, j);
        let (mut own, mut other) = (1, 1);
        loop {
            if own <= other && i < from.rank() {
                own *= from[i];
                i += 1;
            } else if j < to.rank() {
                other *= to[j];
                j += 1;
            } else {
                own *= *from.get(i)?;
                i += 1;
            }
            if own == other && i > first_i && j > first_j {
                break;
            }
            if i == from.rank() && j == to.rank() {
                break;
            }
        }
        if (first_i..i).contains(&axis) {
            return (own == other).then_some((first_i..i, first_j..j));
        }
    }
    None
}

/// A type with another shape.
pub(super) fn shaped(ty: &TensorType, shape: Shape) -> TensorType {
    TensorType { dtype: ty.dtype, shape }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        cut: (usize, &[usize]),
        from: &[usize],
        to: &[usize],
        expect: Option<(usize, &[usize])>,
    ) {
        let found = reshaped(&Cut::new(cut.0, cut.1.to_vec()), &from.into(), &to.into(), 2);
        assert_eq!(found, expect.map(|(axis, blocks)| Cut::new(axis, blocks.to_vec())));
    }

    #[test]
    fn a_cut_follows_a_reshape_where_it_stays_along_an_axis() {
        check((2, &[8]), &[3, 5, 8], &[15, 8], Some((1, &[8])));
        check((1, &[8]), &[15, 8], &[3, 5, 8], Some((2, &[8])));
        check((1, &[8]), &[3, 8], &[3, 4, 2], Some((1, &[4])));
        check((1, &[8, 8, 8]), &[3, 24], &[3, 3, 4, 2], Some((2, &[4])));
        check((2, &[4]), &[3, 4, 4], &[3, 16], Some((1, &[4, 4, 4, 4])));
        check((1, &[4, 4, 4, 4]), &[3, 16], &[3, 4, 4], Some((2, &[4])));
        check((1, &[8]), &[3, 8], &[24], Some((0, &[8, 8, 8])));
        check((1, &[2]), &[3, 2], &[2, 3], None);
        check((0, &[8]), &[8], &[1, 8], Some((1, &[8])));
        check((0, &[8]), &[8], &[8, 1], Some((0, &[8])));
    }

    #[test]
    fn a_slice_of_blocks_is_cut_as_they_are() {
        let cut = Cut::new(0, vec![8, 8, 4]);
        assert_eq!(cut.between(8, 16, 2), Some((vec![8], 4)));
        assert_eq!(cut.between(8, 20, 2), Some((vec![8, 4], 4)));
        assert_eq!(cut.between(4, 16, 2), None);
        assert_eq!(cut.runs(1, 2), [4..8, 12..16, 18..20]);
    }
}
