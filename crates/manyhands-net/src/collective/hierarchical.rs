//! All-reduce in two levels: within each host, then between hosts, then within each host again. Each element crosses between two hosts once in
//! each direction however many ranks they hold, where the direct exchange sends it once for each pair of ranks.
//!
//! The sums stay in tree order (N3) where the ranks of every host are one complete subtree of the tree over all ranks; other groups go by direct exchange.

use std::ops::Range;

use super::call::Call;
use super::direct::Buffers;
use super::element::{Element, Reduction};
use super::error::CollectiveError;
use super::exchange::{Exchange, shares};
use super::group::Group;
use super::transfer::{Incoming, Outgoing};
use super::tree::subtrees;

/// Bytes that go through both levels at a time, so that they are still in the caches in the second.
const CHUNK: usize = 4 << 20;
/// The round in which ranks tell each other to whom they are near: unlike those of any operation.
const ACQUAINTANCE: usize = u32::MAX as usize;
/// What marks the stages of an operation, beside its algorithm.
const STAGE: usize = 16;

/// The ranks of each host, in order; each is a complete subtree. There are two hosts or more, and one has two ranks or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts(Vec<Range<usize>>);

impl Hosts {
    /// The hosts by who shares memory with whom: `None` where they are none that a sum in tree order can go by.
    fn from_nearness(is_near: &[Vec<bool>]) -> Option<Hosts> {
        let n = is_near.len();
        let mut hosts: Vec<Range<usize>> = Vec::new();
        while let Some(start) = Some(hosts.last().map_or(0, |last| last.end)).filter(|at| *at < n) {
            let end = (start..n).find(|&rank| !is_near[start][rank]).unwrap_or(n).max(start + 1);
            let host = start..end;
            let agrees = |rank: usize| (0..n).all(|b| is_near[rank][b] == host.contains(&b));
            if !host.clone().all(agrees) || subtrees(n, &host) != [host.clone()] {
                return None;
            }
            hosts.push(host);
        }
        let is_of_use = hosts.len() > 1 && hosts.len() < n;
        is_of_use.then_some(Hosts(hosts))
    }

    /// The host of a rank.
    fn of(&self, rank: usize) -> Range<usize> {
        self.0[self.0.partition_point(|host| host.end <= rank)].clone()
    }

    /// Into how many parts the elements go: the first ranks of every host own one each.
    fn n_parts(&self) -> usize {
        self.0.iter().map(Range::len).min().unwrap_or(1)
    }
}

/// Which ranks are near each other.
#[derive(Clone, Debug)]
pub(super) struct Nearness {
    /// Whether all are.
    pub(super) is_one_host: bool,
    /// The hosts, where a sum in tree order can go by them.
    pub(super) hosts: Option<Hosts>,
}

/// How some elements go through both levels, as one rank sees it.
struct Levels {
    parts: Vec<Range<usize>>,
    /// Among the ranks of a host: the owners of parts get the sums of the host.
    within: Option<Exchange>,
    /// Among the owners of one part: all get the sums of all hosts.
    between: Option<Exchange>,
}

impl Levels {
    fn new<T: Element>(
        hosts: &Hosts,
        rank: usize,
        n_ranks: usize,
        n: usize,
        reduction: Reduction,
    ) -> Result<Levels, CollectiveError> {
        let host = hosts.of(rank);
        let parts = shares::<T>(&(0..n), hosts.n_parts());
        let part_of = |of: usize| parts.get(of - hosts.of(of).start).cloned();
        let to_list = |range: Option<Range<usize>>| range.into_iter().collect::<Vec<_>>();
        let within = (host.len() > 1)
            .then(|| {
                let place = |of: usize| of - host.start..of - host.start + 1;
                let brings: Vec<_> =
                    (0..n_ranks).map(|of| to_list(host.contains(&of).then(|| place(of)))).collect();
                let owned = |of: usize| part_of(of).filter(|_| host.contains(&of));
                let owned = (0..n_ranks).map(|of| owned(of).unwrap_or(0..0)).collect();
                // A mean is divided once, at the end.
                let reduction =
                    if reduction == Reduction::Mean { Reduction::Sum } else { reduction };
                let members = (0..n_ranks).map(|of| host.contains(&of)).collect();
                let exchange = Exchange::new::<T>(host.len(), &brings, n, reduction)?;
                Ok(exchange.scattered(owned).among(members))
            })
            .transpose()?;
        let own_part = part_of(rank);
        let between = own_part
            .map(|part| {
                let place = rank - host.start;
                let is_owner = |of: usize| of - hosts.of(of).start == place;
                let brings: Vec<_> =
                    (0..n_ranks).map(|of| to_list(is_owner(of).then(|| hosts.of(of)))).collect();
                let mut owned = vec![0..0; n_ranks];
                for (host, share) in hosts.0.iter().zip(shares::<T>(&part, hosts.0.len())) {
                    owned[host.start + place] = share;
                }
                let members = (0..n_ranks).map(is_owner).collect();
                let exchange = Exchange::new::<T>(n_ranks, &brings, n, reduction)?;
                Ok(exchange.owning(owned).among(members).divided_by(n_ranks))
            })
            .transpose()?;
        Ok(Levels { parts, within, between })
    }
}

impl Group {
    /// Who shares memory with whom. Ranks tell each other once, in a round of the operation at hand.
    pub(super) fn nearness(&mut self, call: Call) -> Result<&Nearness, CollectiveError> {
        let known = match self.nearness.take() {
            Some(known) => known,
            None => self.ask_nearness(call)?,
        };
        Ok(self.nearness.insert(known))
    }

    fn ask_nearness(&mut self, call: Call) -> Result<Nearness, CollectiveError> {
        let n = self.size();
        let is_near = |port: &Option<_>| port.as_ref().is_none_or(super::port::Port::is_ring);
        let mut near: Vec<Vec<u8>> = vec![vec![0; n]; n];
        near[self.rank] = self.ports.iter().map(is_near).map(u8::from).collect();
        let own = near[self.rank].clone();
        let outgoing: Vec<_> = self.others().map(|to| Outgoing { to, bytes: &own }).collect();
        let rank = self.rank;
        let others = near.iter_mut().enumerate().filter(|(from, _)| *from != rank);
        let mut incoming: Vec<_> =
            others.map(|(from, row)| Incoming { from, bytes: row.as_mut_slice() }).collect();
        self.transfer(call, ACQUAINTANCE, &outgoing, &mut incoming)?;
        let near = near.into_iter().map(|row| row.into_iter().map(|near| near == 1).collect());
        let near: Vec<Vec<bool>> = near.collect();
        let is_one_host = near.iter().flatten().all(|near| *near);
        Ok(Nearness { is_one_host, hosts: Hosts::from_nearness(&near) })
    }

    pub(super) fn hierarchical<T: Element>(
        &mut self,
        call: Call,
        hosts: &Hosts,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let levels = |n: usize, group: &Group| {
            Levels::new::<T>(hosts, group.rank, group.size(), n, reduction)
        };
        let host = hosts.of(self.rank);
        let mut last: Option<(usize, Levels)> = None;
        for chunk in values.chunks_mut(CHUNK / size_of::<T>()) {
            let alike = last.take().filter(|(n, _)| *n == chunk.len());
            let levels = match alike {
                Some((_, levels)) => levels,
                None => levels(chunk.len(), self)?,
            };
            let out = chunk.as_mut_ptr();
            for (stage, exchange) in [&levels.within, &levels.between].into_iter().enumerate() {
                let Some(exchange) = exchange else { continue };
                let buffers = Buffers { sums: &[out.cast_const()], out };
                // SAFETY: the one sum is the result's own memory, of as many elements as the exchange.
                unsafe { self.exchange(call.stage(STAGE * (stage + 1)), exchange, &buffers) }?;
            }
            self.share_parts(call.stage(3 * STAGE), &host, &levels.parts, chunk)?;
            last = Some((chunk.len(), levels));
        }
        Ok(())
    }

    /// The owners of parts give them to all ranks of their host.
    fn share_parts<T: Element>(
        &mut self,
        call: Call,
        host: &Range<usize>,
        parts: &[Range<usize>],
        values: &mut [T],
    ) -> Result<(), CollectiveError> {
        let place = self.rank - host.start;
        let mut slices: Vec<&mut [T]> = Vec::with_capacity(parts.len());
        let mut rest = values;
        for part in parts {
            let (slice, behind) = rest.split_at_mut(part.len());
            slices.push(slice);
            rest = behind;
        }
        let mut own: &[T] = &[];
        let mut incoming = Vec::with_capacity(parts.len());
        for (owner, slice) in slices.into_iter().enumerate() {
            match owner == place {
                true => own = slice,
                false => incoming.push(Incoming {
                    from: host.start + owner,
                    bytes: bytemuck::cast_slice_mut(slice),
                }),
            }
        }
        let is_owner = place < parts.len();
        let others = host.clone().filter(|to| is_owner && *to != self.rank);
        let bytes = bytemuck::cast_slice(own);
        let outgoing: Vec<_> = others.map(|to| Outgoing { to, bytes }).collect();
        self.transfer(call, 0, &outgoing, &mut incoming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of ranks that share memory within these hosts.
    fn check(hosts: &[usize], found: bool) {
        let host_of: Vec<usize> =
            hosts.iter().enumerate().flat_map(|(host, n)| vec![host; *n]).collect();
        let near: Vec<Vec<bool>> =
            host_of.iter().map(|a| host_of.iter().map(|b| a == b).collect()).collect();
        assert_eq!(Hosts::from_nearness(&near).is_some(), found, "{hosts:?}");
    }

    #[test]
    fn hosts_count_where_they_are_subtrees() {
        check(&[2, 2], true);
        check(&[4, 2], true);
        check(&[2, 1], true);
        check(&[4, 4, 1], true);
        check(&[2, 4], false); // ranks 2..6 of 6 are no subtree
        check(&[3, 3], false);
        check(&[4], false);
        check(&[1, 1, 1], false);
    }

    #[test]
    fn ranks_that_disagree_about_who_is_near_are_no_hosts() {
        let mut near = vec![vec![true, true, false]; 2];
        near.push(vec![false, true, true]);
        assert_eq!(Hosts::from_nearness(&near), None);
        // Hosts whose ranks are not side by side.
        let near = [[true, false, true, false], [false, true, false, true]];
        let near: Vec<Vec<bool>> = (0..4).map(|rank| near[rank % 2].to_vec()).collect();
        assert_eq!(Hosts::from_nearness(&near), None);
    }
}
