//! Keys, and how they fall on shards.

use std::ops::Range;

use crate::tables::error::TableError;
use crate::tables::identity::ShardId;
use crate::tables::server::kept::check_order;
use crate::tables::spec::Cut;

/// Which values: a range of elements, or a list of keys that rise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys<'a> {
    /// Elements of a dense table.
    Range(Range<u64>),
    /// Keys of a table of rows.
    List(&'a [u64]),
}

impl From<Range<u64>> for Keys<'_> {
    fn from(range: Range<u64>) -> Self {
        Keys::Range(range)
    }
}

impl From<Range<usize>> for Keys<'_> {
    fn from(range: Range<usize>) -> Self {
        Keys::Range(range.start as u64..range.end as u64)
    }
}

impl<'a> From<&'a [u64]> for Keys<'a> {
    fn from(keys: &'a [u64]) -> Self {
        Keys::List(keys)
    }
}

impl<'a> From<&'a Vec<u64>> for Keys<'a> {
    fn from(keys: &'a Vec<u64>) -> Self {
        Keys::List(keys)
    }
}

impl<'a, const N: usize> From<&'a [u64; N]> for Keys<'a> {
    fn from(keys: &'a [u64; N]) -> Self {
        Keys::List(keys)
    }
}

/// What falls on which shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// Runs of elements, one for each shard.
    Runs(Vec<(ShardId, Range<u64>)>),
    /// Places in the list of keys, grouped by shard.
    Places {
        /// Of each shard that has any: where its places begin and end in the order.
        shards: Vec<(ShardId, Range<usize>)>,
        /// Places in the list.
        order: Vec<u32>,
    },
}

/// Splits keys by shard, after a check that they can be keys of this table.
pub(super) fn split(cut: &Cut, keys: &Keys<'_>, table: &str) -> Result<Split, TableError> {
    let wrong = |is: &str, what: &str| TableError::WrongKind {
        table: table.to_string(),
        is: is.to_string(),
        what: what.to_string(),
    };
    match (cut, keys) {
        (Cut::Dense { n_elements, .. }, Keys::Range(range)) => {
            let Range { start, end } = range.clone();
            if start > end || end > *n_elements {
                let (table, n_elements) = (table.to_string(), *n_elements);
                return Err(TableError::OutOfRange { table, n_elements, start, end });
            }
            Ok(Split::Runs(runs(cut, range.clone())))
        }
        (Cut::Rows { n_shards, .. }, Keys::List(keys)) => {
            check_order(keys, table)?;
            Ok(places(cut, *n_shards as usize, keys))
        }
        (Cut::Dense { .. }, Keys::List(_)) => Err(wrong("is dense", "a list of keys")),
        (Cut::Rows { .. }, Keys::Range(_)) => Err(wrong("has rows", "a range of elements")),
    }
}

fn runs(cut: &Cut, range: Range<u64>) -> Vec<(ShardId, Range<u64>)> {
    let mut runs = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let shard = cut.shard_of(at);
        let end = cut.elements(shard).end.min(range.end);
        runs.push((shard, at..end));
        at = end;
    }
    runs
}

fn places(cut: &Cut, n_shards: usize, keys: &[u64]) -> Split {
    let shard_of: Vec<u16> = keys.iter().map(|key| cut.shard_of(*key).0 as u16).collect();
    let mut ends = vec![0usize; n_shards];
    shard_of.iter().for_each(|shard| ends[*shard as usize] += 1);
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum - *end;
    }
    // Each begins where the one before ends; filling it moves it to its own end.
    let starts = ends.clone();
    let mut order = vec![0u32; keys.len()];
    for (place, shard) in shard_of.iter().enumerate() {
        let end = &mut ends[*shard as usize];
        order[*end] = place as u32;
        *end += 1;
    }
    let shards = starts.into_iter().zip(ends).enumerate();
    let shards = shards.map(|(shard, (start, end))| (ShardId(shard as u32), start..end));
    Split::Places { shards: shards.filter(|(_, places)| !places.is_empty()).collect(), order }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::spec::TableSpec;
    use crate::tables::store::RowInit;

    #[test]
    fn every_key_falls_on_its_shard_once() {
        let cut = TableSpec::rows(2, RowInit::Zeros).cut();
        let keys: Vec<u64> = (0..1000).map(|n| n * 37).collect();
        let Ok(Split::Places { shards, order }) = split(&cut, &Keys::from(&keys), "t") else {
            panic!()
        };
        let mut seen = vec![false; keys.len()];
        for (shard, places) in shards {
            for place in &order[places.clone()] {
                assert_eq!(cut.shard_of(keys[*place as usize]), shard);
                assert!(!std::mem::replace(&mut seen[*place as usize], true));
            }
            assert!(order[places].is_sorted());
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    #[test]
    fn what_cannot_be_a_key_is_refused_with_its_name() {
        let (rows, dense) = (TableSpec::rows(2, RowInit::Zeros).cut(), TableSpec::dense(10).cut());
        let sentence = |cut, keys: Keys<'_>| split(cut, &keys, "t").unwrap_err().to_string();
        assert_eq!(sentence(&rows, Keys::List(&[1, 1])), "the key 1 comes twice for the table t");
        assert_eq!(
            sentence(&rows, Keys::List(&[5, 2])),
            "the keys for the table t are not in order: 2 comes after 5"
        );
        assert_eq!(
            sentence(&dense, Keys::Range(4..11)),
            "the table t has 10 elements; 4..11 is beyond them"
        );
        assert_eq!(
            sentence(&dense, Keys::List(&[1])),
            "the table t is dense: a list of keys cannot be asked of it"
        );
    }
}
