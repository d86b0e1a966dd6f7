//! Sums of parts along given joins: dense ones element by element, rows by merging lists of keys.

use std::borrow::Cow;
use std::ops::Range;

use crate::tables::message::{Body, floats, keys, keys_and_values};

/// A sum of parts.
#[derive(Debug, PartialEq)]
pub(super) enum Sum {
    /// One part alone, as it was brought.
    Brought(Body, u64),
    /// Of elements.
    Dense(DenseSum),
    /// Of rows: keys in order, and their values.
    Rows(Vec<u64>, Vec<f32>),
}

/// Adds numbers: of each join, the second onto the first.
pub(super) fn add_scalars(mut terms: Vec<f32>, joins: &[(usize, usize)], root: usize) -> f32 {
    for &(into, from) in joins {
        terms[into] += terms[from];
    }
    terms[root]
}

/// The sum of runs of elements that are equally long.
pub(super) fn dense_sum(mut parts: Vec<(u64, Body)>, joins: &[(usize, usize)], root: usize) -> Sum {
    if joins.is_empty() {
        let (n, body) = parts.swap_remove(root);
        return Sum::Brought(body, n);
    }
    let parts = parts.into_iter().map(|(_, body)| body).collect();
    Sum::Dense(DenseSum { parts, joins: joins.to_vec(), root })
}

/// Elements that are added up at a time: what is added is used before it leaves the nearest caches.
const PIECE: usize = 1 << 15;

/// A sum of runs of elements, which is made piece by piece as it is used.
#[derive(Debug, PartialEq)]
pub(super) struct DenseSum {
    parts: Vec<Body>,
    joins: Vec<(usize, usize)>,
    root: usize,
}

impl DenseSum {
    /// Hands on the sums of all elements: all at once, or some after the other.
    pub(super) fn in_pieces<E>(
        &self,
        is_whole: bool,
        mut take: impl FnMut(Range<usize>, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let parts: Vec<Cow<'_, [f32]>> = self.parts.iter().map(|body| floats(body)).collect();
        let n = parts[self.root].len();
        let piece = if is_whole { n.max(1) } else { PIECE };
        // Joins come depth first, so few sums are at hand at a time: memory of those that were added is used again.
        let (mut sums, mut free) = (vec![Vec::new(); parts.len()], Vec::new());
        for start in (0..n).step_by(piece) {
            let place = start..(start + piece).min(n);
            for &(into, from) in &self.joins {
                let mut added: Vec<f32> = std::mem::take(&mut sums[from]);
                let terms = match &added[..] {
                    [] => &parts[from][place.clone()],
                    added => added,
                };
                let sum = &mut sums[into];
                if sum.is_empty() {
                    *sum = free.pop().unwrap_or_default();
                    let pairs = parts[into][place.clone()].iter().zip(terms);
                    sum.extend(pairs.map(|(one, other)| one + other));
                } else {
                    sum.iter_mut().zip(terms).for_each(|(sum, one)| *sum += one);
                }
                if !added.is_empty() {
                    added.clear();
                    free.push(added);
                }
            }
            let sum = &mut sums[self.root];
            take(place, sum)?;
            sum.clear();
            free.push(std::mem::take(sum));
        }
        Ok(())
    }
}

/// Adds lists of rows. A row that is in one of them only is taken as it is: nothing is added to it.
pub(super) fn add_rows(
    parts: &[(u64, &Body)],
    width: usize,
    joins: &[(usize, usize)],
    root: usize,
) -> Sum {
    if joins.is_empty() {
        let (n, body) = parts[root];
        return Sum::Brought(Body::clone(body), n);
    }
    let mut sums: Vec<Option<(Vec<u64>, Vec<f32>)>> = vec![None; parts.len()];
    for &(into, from) in joins {
        let term = |slot: usize, sums: &mut Vec<Option<(Vec<u64>, Vec<f32>)>>| {
            sums[slot].take().unwrap_or_else(|| {
                let (n, body) = parts[slot];
                let (all_keys, values) = keys_and_values(body, n, width).unwrap_or_default();
                (keys(all_keys).into_owned(), floats(values).into_owned())
            })
        };
        let (one, other) = (term(into, &mut sums), term(from, &mut sums));
        sums[into] = Some(merge(&one, &other, width));
    }
    let (keys, values) = sums[root].take().unwrap_or_default();
    Sum::Rows(keys, values)
}

/// Two lists as one; rows of both are added, those of the first on the left.
fn merge(
    (keys_a, values_a): &(Vec<u64>, Vec<f32>),
    (keys_b, values_b): &(Vec<u64>, Vec<f32>),
    width: usize,
) -> (Vec<u64>, Vec<f32>) {
    let mut keys = Vec::with_capacity(keys_a.len() + keys_b.len());
    let mut values = Vec::with_capacity(values_a.len() + values_b.len());
    let (mut a, mut b) = (0, 0);
    let row = |i: usize| i * width..(i + 1) * width;
    while a < keys_a.len() || b < keys_b.len() {
        let key_a = keys_a.get(a).copied();
        let key_b = keys_b.get(b).copied();
        let key = match (key_a, key_b) {
            (Some(one), Some(other)) => one.min(other),
            (one, other) => one.or(other).unwrap_or_default(),
        };
        keys.push(key);
        match (key_a == Some(key), key_b == Some(key)) {
            (true, true) => {
                let pairs = values_a[row(a)].iter().zip(&values_b[row(b)]);
                values.extend(pairs.map(|(one, other)| one + other));
            }
            (true, false) => values.extend_from_slice(&values_a[row(a)]),
            _ => values.extend_from_slice(&values_b[row(b)]),
        }
        a += usize::from(key_a == Some(key));
        b += usize::from(key_b == Some(key));
    }
    (keys, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(list: &[(u64, f32)]) -> (u64, Body) {
        let mut bytes = Vec::new();
        list.iter().for_each(|(key, _)| bytes.extend_from_slice(&key.to_le_bytes()));
        list.iter().for_each(|(_, value)| bytes.extend_from_slice(&value.to_le_bytes()));
        (list.len() as u64, Body::new(bytes))
    }

    #[test]
    fn a_row_of_one_part_keeps_its_bits_also_a_negative_zero() {
        let parts = [rows(&[(1, -0.0), (5, 1.0)]), rows(&[(3, 2.0), (5, 0.5)]), rows(&[(9, 4.0)])];
        let parts: Vec<(u64, &Body)> = parts.iter().map(|(n, body)| (*n, body)).collect();
        let Sum::Rows(keys, values) = add_rows(&parts, 1, &[(0, 1), (0, 2)], 0) else { panic!() };
        assert_eq!(keys, [1, 3, 5, 9]);
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        let wanted = [-0.0f32, 2.0, 1.5, 4.0].map(f32::to_bits);
        assert_eq!(bits, wanted);
    }

    /// The sum of dense parts, whose root is the first.
    fn added(parts: Vec<(u64, Body)>, joins: &[(usize, usize)]) -> Vec<f32> {
        let Sum::Dense(sum) = dense_sum(parts, joins, 0) else { panic!() };
        let mut all = Vec::new();
        let taken = sum.in_pieces(false, |place, values| {
            assert_eq!((place.start, place.len()), (all.len(), values.len()));
            all.extend_from_slice(values);
            Ok::<(), ()>(())
        });
        taken.map(|()| all).unwrap()
    }

    #[test]
    fn sums_that_are_made_in_pieces_are_those_of_the_whole() {
        let n = 3 * PIECE + 17;
        let value = |part: usize, at: usize| 1.0 + (part * 7919 + at * 31) as f32 * 1e-6;
        let part = |part| -> Vec<f32> { (0..n).map(|at| value(part, at)).collect() };
        let parts: Vec<Vec<f32>> = (0..4).map(part).collect();
        let bodies = parts.iter().map(|part| (0, Body::copy_of(bytemuck::cast_slice(part))));
        let found = added(bodies.collect(), &[(0, 1), (2, 3), (0, 2)]);
        let wanted = |at: usize| (value(0, at) + value(1, at)) + (value(2, at) + value(3, at));
        assert!((0..n).all(|at| found[at].to_bits() == wanted(at).to_bits()) && found.len() == n);
    }

    #[test]
    fn joins_are_done_in_their_order() {
        let body = |value: f32| Body::new(value.to_le_bytes().to_vec());
        let bodies = [body(1.0), body(2.0f32.powi(-24)), body(2.0f32.powi(-24))];
        let parts = || bodies.iter().map(|body| (1, body.clone())).collect::<Vec<_>>();
        assert_eq!(added(parts(), &[(0, 1), (0, 2)]), [1.0]);
        let together = 1.0 + 2.0f32.powi(-23);
        assert_eq!(added(parts(), &[(1, 2), (0, 1)]), [together]);
        assert_eq!(add_scalars(vec![1.0, 2.0, 4.0], &[(0, 1), (0, 2)], 0), 7.0);
    }
}
