//! Taking a tensor apart into what workers hold of it, and putting it together again: checkpoints know no layout.

use std::ops::Range;

use thiserror::Error;

use super::worker::Along;
use crate::error::TensorError;
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// Parts that do not make a tensor.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum AlongError {
    #[error("{along:?} does not lie in a tensor {ty}")]
    Outside { along: Along, ty: TensorType },
    #[error("the part {along:?} is {expected}, not {found}")]
    PartType { along: Along, expected: TensorType, found: TensorType },
    #[error("the parts leave out {n_missing} bytes of a tensor {ty}")]
    Missing { n_missing: usize, ty: TensorType },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The type of what a worker holds of a tensor.
pub fn part_type(ty: &TensorType, along: &Along) -> Result<TensorType, AlongError> {
    let outside = || AlongError::Outside { along: along.clone(), ty: ty.clone() };
    let lies = |run: &Range<usize>, size: usize| run.start <= run.end && run.end <= size;
    match along {
        Along::Whole => Ok(ty.clone()),
        Along::Elements(run) if lies(run, ty.shape.n_elements()) => {
            Ok(TensorType::new(ty.dtype, [run.len()]))
        }
        Along::Axis { axis, runs }
            if *axis < ty.shape.rank() && runs.iter().all(|run| lies(run, ty.shape[*axis])) =>
        {
            let mut sizes = ty.shape.to_vec();
            sizes[*axis] = runs.iter().map(Range::len).sum();
            Ok(TensorType::new(ty.dtype, Shape::from(sizes)))
        }
        Along::AxisElements { axis, runs, elements } => {
            let part = part_type(ty, &Along::Axis { axis: *axis, runs: runs.clone() })?;
            match lies(elements, part.shape.n_elements()) {
                true => Ok(TensorType::new(ty.dtype, [elements.len()])),
                false => Err(outside()),
            }
        }
        _ => Err(outside()),
    }
}

/// What a worker holds of a tensor.
pub fn part_of(tensor: &Tensor, along: &Along) -> Result<Tensor, AlongError> {
    let ty = part_type(tensor.ty(), along)?;
    let mut bytes = Vec::with_capacity(ty.n_bytes());
    for run in byte_runs(tensor.ty(), along) {
        bytes.extend_from_slice(&tensor.bytes()[run]);
    }
    Ok(Tensor::from_bytes(ty, bytes)?)
}

/// The tensor of which the parts are held. Parts may hold the same; each element must be held by one at least.
pub fn put_together(parts: &[(Along, Tensor)], ty: &TensorType) -> Result<Tensor, AlongError> {
    let mut bytes = vec![0; ty.n_bytes()];
    let mut held = Vec::new();
    for (along, part) in parts {
        let expected = part_type(ty, along)?;
        if expected != *part.ty() {
            let (along, found) = (along.clone(), part.ty().clone());
            return Err(AlongError::PartType { along, expected, found });
        }
        let mut from = 0;
        for run in byte_runs(ty, along) {
            bytes[run.clone()].copy_from_slice(&part.bytes()[from..from + run.len()]);
            from += run.len();
            held.push(run);
        }
    }
    match ty.n_bytes() - covered(held) {
        0 => Ok(Tensor::from_bytes(ty.clone(), bytes)?),
        n_missing => Err(AlongError::Missing { n_missing, ty: ty.clone() }),
    }
}

/// How many bytes lie in at least one of the runs.
fn covered(mut runs: Vec<Range<usize>>) -> usize {
    runs.sort_by_key(|run| run.start);
    let (mut n, mut end) = (0, 0);
    for run in runs {
        n += run.end.max(end) - run.start.max(end).min(run.end.max(end));
        end = end.max(run.end);
    }
    n
}

/// Where the bytes of a part lie in the whole, in the order of the part.
fn byte_runs(ty: &TensorType, along: &Along) -> Vec<Range<usize>> {
    let size = ty.dtype.size();
    match along {
        Along::Whole => std::iter::once(0..ty.n_bytes()).collect(),
        Along::Elements(run) => std::iter::once(run.start * size..run.end * size).collect(),
        Along::AxisElements { axis, runs, elements } => {
            let part = byte_runs(ty, &Along::Axis { axis: *axis, runs: runs.clone() });
            bytes_of_runs(&part, elements.start * size..elements.end * size)
        }
        Along::Axis { axis, runs } => {
            let n_outer: usize = ty.shape[..*axis].iter().product();
            let inner = ty.shape[*axis + 1..].iter().product::<usize>() * size;
            let row = ty.shape[*axis] * inner;
            let of_row = |outer: usize| {
                runs.iter()
                    .map(move |run| outer * row + run.start * inner..outer * row + run.end * inner)
            };
            (0..n_outer).flat_map(of_row).collect()
        }
    }
}

/// Where some bytes lie of those that runs have, one after the other.
fn bytes_of_runs(runs: &[Range<usize>], bytes: Range<usize>) -> Vec<Range<usize>> {
    let mut before = 0;
    let mut found = Vec::new();
    for run in runs {
        let within = bytes.start.max(before)..bytes.end.min(before + run.len());
        if within.start < within.end {
            found.push(run.start + within.start - before..run.start + within.end - before);
        }
        before += run.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let elements: Vec<f32> = (0..shape.n_elements()).map(|i| i as f32).collect();
        Tensor::new(shape, &elements).unwrap()
    }

    #[test]
    fn a_part_along_an_axis_takes_its_runs_of_every_row() {
        let along = Along::Axis { axis: 1, runs: vec![1..2, 4..6] };
        let part = part_of(&counted([2, 6]), &along).unwrap();
        assert_eq!(part, Tensor::new([2, 3], &[1.0f32, 4.0, 5.0, 7.0, 10.0, 11.0]).unwrap());
        let part = part_of(&counted([2, 6]), &Along::Elements(5..8)).unwrap();
        assert_eq!(part, Tensor::new([3], &[5.0f32, 6.0, 7.0]).unwrap());
    }

    #[test]
    fn parts_put_together_are_the_tensor_again() {
        let whole = counted([2, 6, 3]);
        let axis = |runs| Along::Axis { axis: 1, runs };
        let shard = |runs, elements| Along::AxisElements { axis: 1, runs, elements };
        let ways = [
            vec![Along::Whole, Along::Whole],
            vec![Along::Elements(0..20), Along::Elements(20..36)],
            vec![axis(vec![0..1, 3..4]), axis(vec![1..2, 4..5]), axis(vec![2..3, 5..6])],
            vec![
                shard(vec![0..1, 3..6], 0..7),
                shard(vec![0..1, 3..6], 7..24),
                shard(std::iter::once(1..3).collect(), 0..12),
            ],
        ];
        for way in ways {
            let parts: Vec<(Along, Tensor)> =
                way.iter().map(|along| (along.clone(), part_of(&whole, along).unwrap())).collect();
            assert_eq!(put_together(&parts, whole.ty()).unwrap(), whole);
            if parts[0].0 != Along::Whole {
                let error = put_together(&parts[1..], whole.ty()).unwrap_err();
                assert!(matches!(error, AlongError::Missing { .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_shard_of_a_part_is_that_run_of_the_part() {
        let (whole, part) = (counted([2, 6]), Along::Axis { axis: 1, runs: vec![1..2, 4..6] });
        let own = part_of(&whole, &part).unwrap();
        for run in [0..6, 0..2, 2..5, 5..6, 3..3] {
            let along = Along::Elements(run.clone()).within(&part).unwrap();
            let expected = part_of(&own, &Along::Elements(run)).unwrap();
            assert_eq!(part_of(&whole, &along).unwrap(), expected);
        }
        let along = Along::Elements(5..7).within(&part).unwrap();
        assert!(part_of(&whole, &along).is_err());
        assert_eq!(Along::Elements(0..2).within(&Along::Elements(0..1)), None);
    }

    #[test]
    fn what_does_not_lie_in_a_tensor_is_refused() {
        let error = part_of(&counted([2, 3]), &Along::Elements(4..7)).unwrap_err();
        assert_eq!(error.to_string(), "Elements(4..7) does not lie in a tensor f32[2, 3]");
        let along = Along::Axis { axis: 2, runs: Vec::new() };
        assert!(part_of(&counted([2, 3]), &along).is_err());
    }
}
