//! The exchange of a step of training, as it is measured: partial sums over the leaves of a tree, at once, or bucket by bucket while others are computed.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{MeasureError, Settings};
use crate::collective::{Brought, CollectiveError, Group, subtrees};

/// Numbers that busy work goes over: they stay in the nearest cache.
const BUSY: usize = 1024;

/// Sums over leaves instead of one value of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaves {
    /// How many there are: the grains of a step. Ranks have runs of them that are as even as they can be.
    pub n_leaves: usize,
    /// Into how many buckets the elements go; 0 for all at once.
    pub n_buckets: usize,
    /// How long ranks compute in every round, in microseconds: evenly before each bucket, which is offered and pumped. The times of rounds hold it.
    pub computing_us: u64,
}

/// What a rank brings again and again.
pub(super) struct LeafSums {
    leaves: Leaves,
    brings: Vec<Vec<Range<usize>>>,
    buckets: Vec<Range<usize>>,
    sums: Vec<Vec<f32>>,
    totals: Vec<f32>,
}

impl LeafSums {
    pub(super) fn new(group: &Group, leaves: Leaves, n: usize) -> LeafSums {
        let (n_leaves, size) = (leaves.n_leaves.max(1), group.size());
        let edge = |rank: usize| n_leaves * rank / size;
        let brings: Vec<_> =
            (0..size).map(|rank| subtrees(n_leaves, &(edge(rank)..edge(rank + 1)))).collect();
        let n_buckets = leaves.n_buckets.max(1);
        let edge = |bucket: usize| n * bucket / n_buckets;
        let buckets = (0..n_buckets).rev().map(|bucket| edge(bucket)..edge(bucket + 1)).collect();
        let sums = brings[group.rank()].iter().map(|leaves| vec![leaves.len() as f32; n]).collect();
        LeafSums { leaves, brings, buckets, sums, totals: vec![0.0; n] }
    }

    /// One round; in the end the totals are how many leaves there are.
    pub(super) fn round(
        &mut self,
        group: &mut Group,
        settings: &Settings,
    ) -> Result<(), CollectiveError> {
        let LeafSums { leaves, brings, buckets, sums, totals } = self;
        let computing = Duration::from_micros(leaves.computing_us) / buckets.len() as u32;
        let n_leaves = leaves.n_leaves.max(1);
        if leaves.n_buckets == 0 {
            compute(computing);
            let own = &brings[group.rank()];
            let sums: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
            let brought = Brought { subtrees: own, sums: &sums };
            let algorithm = settings.algorithm;
            return group.all_reduce_tree_by(n_leaves, brings, &brought, totals, algorithm);
        }
        let mut underway =
            group.begin_tree_by(n_leaves, brings, buckets, totals, settings.algorithm)?;
        for (bucket, elements) in buckets.iter().enumerate() {
            compute(computing);
            let sums: Vec<&[f32]> = sums.iter().map(|sum| &sum[elements.clone()]).collect();
            underway.offer(bucket, &sums)?;
            underway.pump()?;
        }
        underway.finish()
    }

    pub(super) fn check(&self, n_bytes: usize) -> Result<(), MeasureError> {
        let wanted = self.leaves.n_leaves.max(1) as f32;
        match self.totals.iter().find(|found| **found != wanted) {
            Some(&found) => Err(MeasureError::Wrong { n_bytes, found, wanted }),
            None => Ok(()),
        }
    }
}

/// Keeps the processor busy.
fn compute(time: Duration) {
    let start = Instant::now();
    let mut numbers = [1.0f32; BUSY];
    while start.elapsed() < time {
        numbers.iter_mut().for_each(|number| *number = *number * 0.999 + 0.001);
        black_box(&mut numbers);
    }
}
