//! Other ways to all-reduce: halving and doubling, and the ring.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::element::{Element, Reduction, fold, fold_left};
use super::error::CollectiveError;
use super::group::Group;
use super::plan::{Sharing, Way};
use super::table::{Summed, Topology, fastest};
use super::transfer::{Incoming, Outgoing};

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
    /// Within each host through shared memory, then between hosts, then within each host. Tree order; ranks that are all on one host, or all on different
    /// ones, go by direct exchange.
    Hierarchical = 3,
    /// The one of those in tree order that is likely the fastest, by size and hosts.
    Auto = 4,
}

impl Algorithm {
    const ALL: [Algorithm; 5] =
        [Self::Direct, Self::HalvingDoubling, Self::Ring, Self::Hierarchical, Self::Auto];

    pub(super) fn from_code(code: u8) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|algorithm| *algorithm as u8 == code)
    }

    /// The name as it is written in errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct exchange",
            Self::HalvingDoubling => "halving and doubling",
            Self::Ring => "ring",
            Self::Hierarchical => "hosts",
            Self::Auto => "whatever is fast",
        }
    }
}

/// What an algorithm comes to in a group.
pub(super) enum Choice {
    HalvingDoubling,
    Ring,
    Way(Way),
}

impl Group {
    /// What an algorithm comes to for so many bytes of a value of each rank: the same on all ranks.
    pub(super) fn choose(
        &mut self,
        call: Call,
        algorithm: Algorithm,
        sharing: &Sharing<'_>,
        n_bytes: usize,
    ) -> Result<Choice, CollectiveError> {
        let can_halve = self.size().is_power_of_two();
        let fastest = match algorithm {
            Algorithm::Auto => self.fastest(call, Summed::Ranks, n_bytes)?,
            asked_for => asked_for,
        };
        Ok(match fastest {
            Algorithm::Ring => Choice::Ring,
            Algorithm::HalvingDoubling if can_halve => Choice::HalvingDoubling,
            way => Choice::Way(self.way(call, way, algorithm, sharing, n_bytes)?),
        })
    }

    /// What an algorithm comes to for so many bytes of sums over leaves: the same on all ranks.
    pub(super) fn choose_way(
        &mut self,
        call: Call,
        algorithm: Algorithm,
        sharing: &Sharing<'_>,
        n_bytes: usize,
    ) -> Result<Way, CollectiveError> {
        let fastest = match algorithm {
            Algorithm::Ring => {
                let sentence = "a ring does not add in the order of the tree: use another way";
                return Err(CollectiveError::Misuse(sentence.to_string()));
            }
            Algorithm::Auto => self.fastest(call, Summed::Leaves, n_bytes)?,
            asked_for => asked_for,
        };
        self.way(call, fastest, algorithm, sharing, n_bytes)
    }

    /// What the table says. Where there is one way only, nobody is asked who is near whom.
    fn fastest(
        &mut self,
        call: Call,
        summed: Summed,
        n_bytes: usize,
    ) -> Result<Algorithm, CollectiveError> {
        let n_ranks = self.size();
        if n_ranks <= 2 || n_bytes == 0 {
            return Ok(Algorithm::Direct);
        }
        let nearness = self.nearness(call)?;
        let topology = match &nearness.hosts {
            Some(_) => Topology::Hosts,
            None if nearness.is_one_host => Topology::OneHost,
            None => Topology::Apart,
        };
        Ok(fastest(summed, topology, n_ranks, n_bytes))
    }

    /// Among the ways that any leaves can go.
    fn way(
        &mut self,
        call: Call,
        algorithm: Algorithm,
        asked_for: Algorithm,
        sharing: &Sharing<'_>,
        n_bytes: usize,
    ) -> Result<Way, CollectiveError> {
        if algorithm != Algorithm::Hierarchical || self.size() <= 2 || n_bytes == 0 {
            return Ok(Way::Direct);
        }
        let Some(hosts) = &self.nearness(call)?.hosts else { return Ok(Way::Direct) };
        let is_asked_for = asked_for == Algorithm::Hierarchical;
        Ok(match is_asked_for || hosts.saves_bytes(sharing.n_leaves, sharing.brings) {
            true => Way::Hierarchical,
            false => Way::Direct,
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
