//! Other ways to all-reduce: halving and doubling, and the ring.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::element::{Element, Reduction, fold, fold_left};
use super::error::CollectiveError;
use super::group::Group;
use super::hierarchical::Hosts;
use super::transfer::{Incoming, Outgoing};

/// Where halving and doubling are faster than the direct exchange, between ranks that do not all share memory: from so many ranks on (powers of two), bytes. Made
/// on two cores by `collective_speed --processes N --transport tcp` and `--transport shm --hosts 2`, with each `--algorithm`, for 4 and 8 processes and 4 KiB to 16 MiB:
/// there it took 40 to 90 % of the time. On one host the direct exchange was the fastest throughout.
const HALVING: [(usize, Range<usize>); 2] = [(8, 0..512 << 10), (4, 16 << 10..512 << 10)];
/// From how many bytes on the way over hosts is chosen where there are some, by the same measurement. It sends the fewest bytes between them.
const HIERARCHICAL_FROM: usize = 512 << 10;

/// How an all-reduce is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Every rank owns a part, gets all partial sums of it and gives the result to all. Tree order.
    Direct = 0,
    /// Pairs at growing distances swap halves, then the way back: log2 of the ranks in rounds. Tree order; a number of ranks that is no power of two
    /// goes by direct exchange.
    HalvingDoubling = 1,
    /// Neighbours only. Sums begin at another rank for each part, so this is not in tree order and its bits depend on the number of ranks.
    Ring = 2,
    /// Within each host through shared memory, then between hosts, then within each host. Tree order where the ranks of each host are a complete subtree of
    /// the tree over all; other groups, and those on one host, go by direct exchange.
    Hierarchical = 3,
    /// The one of those in tree order that is likely the fastest, by size and hosts.
    Auto = 4,
}

/// What an algorithm comes to in a group.
pub(super) enum Choice {
    Direct,
    HalvingDoubling,
    Ring,
    Hierarchical(Hosts),
}

impl Group {
    /// What an algorithm comes to for so many bytes: the same on all ranks.
    pub(super) fn choose(
        &mut self,
        call: Call,
        algorithm: Algorithm,
        n_bytes: usize,
    ) -> Result<Choice, CollectiveError> {
        let n_ranks = self.size();
        let can_halve = n_ranks.is_power_of_two();
        // Two ranks have one way only.
        Ok(match algorithm {
            Algorithm::Ring => Choice::Ring,
            Algorithm::HalvingDoubling if can_halve => Choice::HalvingDoubling,
            Algorithm::Hierarchical | Algorithm::Auto if n_ranks > 2 => {
                let is_auto = algorithm == Algorithm::Auto;
                let halves = |(from, bytes): &(usize, Range<usize>)| {
                    n_ranks >= *from && bytes.contains(&n_bytes)
                };
                let nearness = self.nearness(call)?;
                match &nearness.hosts {
                    Some(hosts) if !is_auto || n_bytes >= HIERARCHICAL_FROM => {
                        Choice::Hierarchical(hosts.clone())
                    }
                    _ if is_auto
                        && can_halve
                        && !nearness.is_one_host
                        && HALVING.iter().any(halves) =>
                    {
                        Choice::HalvingDoubling
                    }
                    _ => Choice::Direct,
                }
            }
            _ => Choice::Direct,
        })
    }

    pub(super) fn halving_doubling<T: Element>(
        &mut self,
        call: Call,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let mut range = 0..values.len();
        let mut distance = 1;
        let mut round = 0;
        let mut kept = Vec::new();
        let mut scratch = vec![T::zeroed(); values.len().div_ceil(2)];
        // Nearest ranks first: after k rounds a rank has sums over an aligned block of 2^k ranks, as the tree wants.
        while distance < self.size() {
            let other = self.rank ^ distance;
            let (low, high) = halves(&range);
            let (own, theirs) = if self.rank < other { (low, high) } else { (high, low) };
            let n = own.len();
            let bytes = bytemuck::cast_slice(&values[theirs]);
            let outgoing = [Outgoing { to: other, bytes }];
            let bytes = bytemuck::cast_slice_mut(&mut scratch[..n]);
            self.transfer(call, round, &outgoing, &mut [Incoming { from: other, bytes }])?;
            fold_ordered(reduction, &mut values[own.clone()], &scratch[..n], self.rank < other);
            kept.push((other, range));
            range = own;
            distance *= 2;
            round += 1;
        }
        if reduction == Reduction::Mean {
            divide(&mut values[range.clone()], self.size());
        }
        for (other, whole) in kept.into_iter().rev() {
            let (low, high) = halves(&whole);
            let (first, second) = values[whole].split_at_mut(low.len());
            let (own, theirs) = if range == low { (first, second) } else { (second, first) };
            debug_assert!(range == low || range == high);
            let outgoing = [Outgoing { to: other, bytes: bytemuck::cast_slice(own) }];
            let bytes = bytemuck::cast_slice_mut(theirs);
            self.transfer(call, round, &outgoing, &mut [Incoming { from: other, bytes }])?;
            range = low.start..high.end;
            round += 1;
        }
        Ok(())
    }

    pub(super) fn ring<T: Element>(
        &mut self,
        call: Call,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let (size, rank) = (self.size(), self.rank);
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        let edge = |part: usize| values.len() * part / size;
        let parts: Vec<Range<usize>> = (0..size).map(|part| edge(part)..edge(part + 1)).collect();
        let mut scratch = vec![T::zeroed(); values.len().div_ceil(size)];
        for round in 0..size - 1 {
            let gives = parts[(rank + size - round) % size].clone();
            let gets = parts[(rank + 2 * size - round - 1) % size].clone();
            let outgoing = [Outgoing { to, bytes: bytemuck::cast_slice(&values[gives]) }];
            let bytes = bytemuck::cast_slice_mut(&mut scratch[..gets.len()]);
            self.transfer(call, round, &outgoing, &mut [Incoming { from, bytes }])?;
            fold(reduction, &mut values[gets.clone()], &scratch[..gets.len()]);
        }
        if reduction == Reduction::Mean {
            divide(&mut values[parts[(rank + 1) % size].clone()], size);
        }
        for round in 0..size - 1 {
            let gives = parts[(rank + 1 + size - round) % size].clone();
            let gets = parts[(rank + size - round) % size].clone();
            let n = gets.len();
            let outgoing = [Outgoing { to, bytes: bytemuck::cast_slice(&values[gives]) }];
            let bytes = bytemuck::cast_slice_mut(&mut scratch[..n]);
            self.transfer(call, size + round, &outgoing, &mut [Incoming { from, bytes }])?;
            values[gets].copy_from_slice(&scratch[..n]);
        }
        Ok(())
    }
}

fn halves(range: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len().div_ceil(2);
    (range.start..middle, middle..range.end)
}

/// `into` becomes `into (op) from`, or the other way round, as the ranks stand: the left of two always comes first.
fn fold_ordered<T: Element>(reduction: Reduction, into: &mut [T], from: &[T], into_is_left: bool) {
    if into_is_left {
        return fold(reduction, into, from);
    }
    fold_left(reduction, into, from);
}

fn divide<T: Element>(values: &mut [T], n: usize) {
    for value in values {
        *value = value.divided(n).unwrap_or(*value);
    }
}
