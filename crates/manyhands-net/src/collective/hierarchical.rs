//! All-reduce in two levels: within each host, then between hosts, then within each host again. Between hosts, every host sends each of its sums
//! once, and gets the result once, however many ranks it holds, where the direct exchange sends to each rank.
//!
//! The sums stay in tree order (N3): the ranks of a host add what is complete among them, and pass on as few sums as the tree allows. That is one
//! where the leaves of the host are one subtree, and more the more the hosts are interleaved.

use std::ops::Range;

use super::call::Call;
use super::element::{Element, Reduction};
use super::error::CollectiveError;
use super::exchange::{Exchange, shares};
use super::group::Group;
use super::transfer::{Incoming, Outgoing};
use super::tree::Forest;

/// The round in which ranks tell each other to whom they are near: unlike those of any operation.
const ACQUAINTANCE: usize = u32::MAX as usize;

/// The ranks of each host, in order. There are two hosts or more, and one has two ranks or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts(Vec<Vec<usize>>);

impl Hosts {
    /// The hosts by who shares memory with whom: `None` where ranks do not agree about it, or two levels are of no use.
    fn from_nearness(is_near: &[Vec<bool>]) -> Option<Hosts> {
        let n = is_near.len();
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for rank in 0..n {
            let host: Vec<usize> = (0..n).filter(|other| is_near[rank][*other]).collect();
            match host.first() {
                Some(first) if *first == rank => hosts.push(host),
                Some(first) if is_near[*first] == is_near[rank] => {}
                _ => return None,
            }
        }
        let is_of_use = hosts.len() > 1 && hosts.len() < n;
        (is_of_use && hosts.iter().map(Vec::len).sum::<usize>() == n).then_some(Hosts(hosts))
    }

    /// The host of a rank, and which of its ranks that is.
    fn of(&self, rank: usize) -> (usize, usize) {
        let place = |host: &Vec<usize>| host.binary_search(&rank).ok();
        let found = self.0.iter().enumerate().find_map(|(host, ranks)| Some((host, place(ranks)?)));
        // Every rank is in one.
        found.unwrap_or_default()
    }

    /// Into how many parts the elements go: the first ranks of every host own one each.
    fn n_parts(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The sums that each host passes on.
    fn passes_on(
        &self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
    ) -> Option<Vec<Vec<Range<usize>>>> {
        let of_host = |host: &Vec<usize>| {
            let subtrees: Vec<_> = host.iter().flat_map(|rank| brings[*rank].clone()).collect();
            let forest = Forest::new(n_leaves, &subtrees)?;
            Some(forest.roots.into_iter().map(|root| root.leaves).collect())
        };
        self.0.iter().map(of_host).collect()
    }

    /// Whether fewer bytes go between hosts in two levels than directly. Counted in sums, times what both are divided by.
    pub(super) fn saves_bytes(&self, n_leaves: usize, brings: &[Vec<Range<usize>>]) -> bool {
        let Some(passed) = self.passes_on(n_leaves, brings) else { return false };
        let (n_ranks, n_hosts) = (brings.len(), self.0.len());
        // Every rank owns as many elements: it gets all sums of those, and gives all others the result.
        let directly: usize = self
            .0
            .iter()
            .map(|host| {
                let n_sums: usize = host.iter().map(|rank| brings[*rank].len()).sum();
                (n_sums + host.len()) * (n_ranks - host.len())
            })
            .sum();
        let n_owners = passed.iter().filter(|sums| !sums.is_empty()).count().max(1);
        let n_passed: usize = passed.iter().map(Vec::len).sum();
        let in_levels = n_passed * (n_owners - 1) + (n_hosts - 1) * n_owners;
        in_levels * n_ranks < directly * n_owners
    }
}

/// Which ranks are near each other.
#[derive(Clone, Debug)]
pub(super) struct Nearness {
    /// Whether all are.
    pub(super) is_one_host: bool,
    /// The hosts, where there are several and one has several ranks.
    pub(super) hosts: Option<Hosts>,
}

/// How some elements go through both levels, as one rank sees it.
pub(super) struct Levels {
    /// Among the ranks of a host: the owners of parts get the sums that the host passes on. None where they have them.
    pub(super) within: Option<Exchange>,
    /// Among the owners of one part: all get the result.
    pub(super) between: Option<Exchange>,
    /// Among the ranks of a host: the owners of parts give all the result.
    pub(super) back: Option<Exchange>,
    /// The part of this rank.
    pub(super) part: Range<usize>,
    /// How many sums the host passes on, and the one of them that the first sum of this rank is in.
    pub(super) n_passed: usize,
    pub(super) own_root: usize,
    /// Which of this rank's sums they are, where nothing is added within the host.
    pub(super) given: Vec<usize>,
}

impl Levels {
    pub(super) fn new<T: Element>(
        hosts: &Hosts,
        rank: usize,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        n: usize,
        reduction: Reduction,
    ) -> Result<Levels, CollectiveError> {
        let (host, place) = hosts.of(rank);
        let parts = shares::<T>(&(0..n), hosts.n_parts());
        let mut levels = Levels {
            within: None,
            between: None,
            back: None,
            part: parts.get(place).cloned().unwrap_or(0..0),
            n_passed: 0,
            own_root: 0,
            given: Vec::new(),
        };
        let ranks = &hosts.0[host];
        let is_near: Vec<bool> = (0..brings.len()).map(|of| ranks.contains(&of)).collect();
        let mut owned = vec![0..0; brings.len()];
        ranks.iter().zip(&parts).for_each(|(owner, part)| owned[*owner] = part.clone());
        let near = |of: usize| if is_near[of] { brings[of].clone() } else { Vec::new() };
        let near: Vec<_> = (0..brings.len()).map(near).collect();
        // A mean is divided once, at the end.
        let plain = if reduction == Reduction::Mean { Reduction::Sum } else { reduction };
        let within = Exchange::partial::<T>(n_leaves, &near, n, plain)?;
        levels.n_passed = within.forest.roots.len();
        let first = brings[rank].first().map_or(0, |leaves| leaves.start);
        let roots = within.forest.roots.iter();
        levels.own_root = roots.take_while(|root| root.leaves.end <= first).count();
        if ranks.len() == 1 && within.forest.joins.is_empty() {
            levels.given = within.forest.roots.iter().map(|root| root.slot).collect();
        } else if levels.n_passed > 0 {
            levels.within = Some(within.scattered(owned.clone()).among(is_near.clone()));
        }
        if place < parts.len() {
            let between = between::<T>(hosts, place, n_leaves, brings, &parts[place], n, reduction);
            levels.between = Some(between?);
        }
        if ranks.len() > 1 {
            levels.back = Some(Exchange::gather(n, owned).among(is_near));
        }
        Ok(levels)
    }
}

/// The exchange of one part among those who own it.
fn between<T: Element>(
    hosts: &Hosts,
    place: usize,
    n_leaves: usize,
    brings: &[Vec<Range<usize>>],
    part: &Range<usize>,
    n: usize,
    reduction: Reduction,
) -> Result<Exchange, CollectiveError> {
    let passed = hosts.passes_on(n_leaves, brings).unwrap_or_default();
    let mut passes = vec![Vec::new(); brings.len()];
    let mut members = vec![false; brings.len()];
    let mut owned = vec![0..0; brings.len()];
    // Hosts that bring nothing own nothing: all sums would have to go there.
    let n_owners = passed.iter().filter(|sums| !sums.is_empty()).count();
    let mut shares = shares::<T>(part, n_owners.max(1)).into_iter();
    for (host, sums) in hosts.0.iter().zip(passed) {
        let owner = host[place];
        members[owner] = true;
        if !sums.is_empty() {
            owned[owner] = shares.next().unwrap_or(0..0);
        }
        passes[owner] = sums;
    }
    let divisor = brings.iter().filter(|subtrees| !subtrees.is_empty()).count();
    let exchange = Exchange::new::<T>(n_leaves, &passes, n, reduction)?;
    Ok(exchange.owning(owned).among(members).divided_by(divisor))
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is near whom on hosts that hold these ranks.
    fn nearness(host_of: &[usize]) -> Vec<Vec<bool>> {
        host_of.iter().map(|a| host_of.iter().map(|b| a == b).collect()).collect()
    }

    #[track_caller]
    fn check(host_of: &[usize], found: Option<&[&[usize]]>) {
        let found = found.map(|hosts| Hosts(hosts.iter().map(|host| host.to_vec()).collect()));
        assert_eq!(Hosts::from_nearness(&nearness(host_of)), found);
    }

    #[test]
    fn hosts_count_where_there_are_several_and_one_has_several_ranks() {
        check(&[0, 0, 1, 1], Some(&[&[0, 1], &[2, 3]]));
        check(&[0, 1, 0, 1, 2], Some(&[&[0, 2], &[1, 3], &[4]]));
        check(&[0, 0, 0], None);
        check(&[0, 1, 2], None);
        check(&[0], None);
    }

    #[test]
    fn ranks_that_disagree_about_who_is_near_are_no_hosts() {
        let mut near = vec![vec![true, true, false]; 2];
        near.push(vec![false, true, true]);
        assert_eq!(Hosts::from_nearness(&near), None);
        let near = [[true, true, false], [true, true, true], [false, true, true]];
        assert_eq!(Hosts::from_nearness(&near.map(|row| row.to_vec())), None);
        assert_eq!(Hosts::from_nearness(&vec![vec![false; 2]; 2]), None);
    }

    #[test]
    fn two_levels_save_bytes_unless_hosts_are_finely_interleaved() {
        let saves = |host_of: &[usize]| {
            let leaf = |rank: usize| std::iter::once(rank..rank + 1).collect();
            let brings: Vec<Vec<Range<usize>>> = (0..host_of.len()).map(leaf).collect();
            Hosts::from_nearness(&nearness(host_of)).unwrap().saves_bytes(brings.len(), &brings)
        };
        assert!(saves(&[0, 0, 1, 1]));
        assert!(saves(&[0, 0, 1]));
        // No host has two neighbours, but each result goes to each host once.
        assert!(saves(&[0, 1, 0, 1]));
    }
}
