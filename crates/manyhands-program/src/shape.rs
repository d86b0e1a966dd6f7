//! Shapes, and the type of a value: an element type with a shape.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// The most elements a tensor may have; keeps every size computation far from overflow.
pub const MAX_ELEMENTS: usize = 1 << 40;

/// The sizes of a tensor along its axes, outermost first. No axes is a scalar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(Vec::new())
    }

    /// The number of elements, saturating.
    pub fn n_elements(&self) -> usize {
        self.0.iter().fold(1usize, |n, &size| n.saturating_mul(size))
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The shape without the given axes.
    pub fn without(&self, axes: &[usize]) -> Shape {
        let kept = self.0.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        Shape(kept.map(|(_, &size)| size).collect())
    }

    /// The size of the last axis; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The shape to which two operands stretch by the usual rule: aligned at the last axis, sizes equal or one of them 1.
    pub fn stretched(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let size = |shape: &Shape, axis: usize| {
            (axis + shape.rank()).checked_sub(rank).map_or(1, |own| shape.0[own])
        };
        (0..rank)
            .map(|axis| match (size(self, axis), size(other, axis)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Shape {
        Shape(sizes)
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape(sizes.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        Shape(sizes.to_vec())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<T: IntoIterator<Item = usize>>(sizes: T) -> Shape {
        Shape(sizes.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, size) in self.0.iter().enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{size}")?;
        }
        f.write_str("]")
    }
}

/// What a value is: its element type and its shape. Prints as `f32[128, 784]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// The bytes that a tensor of this type takes.
    pub fn n_bytes(&self) -> usize {
        self.shape.n_elements().saturating_mul(self.dtype.size())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_stretch_from_the_last_axis() {
        let stretched = |a: &[usize], b: &[usize]| Shape::from(a).stretched(&Shape::from(b));
        assert_eq!(stretched(&[128, 512], &[512]), Some(Shape::from([128, 512])));
        assert_eq!(stretched(&[4, 1, 3], &[5, 1]), Some(Shape::from([4, 5, 3])));
        assert_eq!(stretched(&[], &[2]), Some(Shape::from([2])));
        assert_eq!(stretched(&[2], &[3]), None);
    }
}
