//! Which servers should hold which shards: as evenly as can be, and as much as before as can be.
//!
//! A function of the servers, the replication and what is held now. Where there is a choice, a hash of server and shard decides (rendezvous hashing), so
//! that small tables do not all lie on the same servers.

use super::identity::{Place, ServerId, ShardId, TableId};
use super::spec::mix;

/// Who should hold the shards of a table: of each the servers, the first holder first. `now` has who holds them now, in the same order; servers that are not
/// in `servers` are not counted on any more.
pub fn wanted(
    table: TableId,
    servers: &[ServerId],
    replication: usize,
    now: &[Vec<ServerId>],
) -> Vec<Vec<ServerId>> {
    let n_copies = replication.min(servers.len());
    let mut shards: Vec<Vec<ServerId>> = now.to_vec();
    for holders in &mut shards {
        holders.retain(|server| servers.contains(server));
        holders.truncate(n_copies);
    }
    let mut spread = Spread { table, servers, shards };
    spread.complete(n_copies);
    spread.balance();
    spread.balance_first();
    spread.shards
}

struct Spread<'a> {
    table: TableId,
    servers: &'a [ServerId],
    shards: Vec<Vec<ServerId>>,
}

impl Spread<'_> {
    /// A number for a server and a shard: who has the greater one is preferred.
    fn chance(&self, server: ServerId, shard_idx: usize) -> u64 {
        let Place { table, shard } = Place { table: self.table, shard: ShardId(shard_idx as u32) };
        mix(mix(mix(u64::from(server.0)) ^ u64::from(table.0)) ^ u64::from(shard.0))
    }

    fn load(&self, server: ServerId) -> usize {
        self.shards.iter().filter(|holders| holders.contains(&server)).count()
    }

    fn n_first(&self, server: ServerId) -> usize {
        self.shards.iter().filter(|holders| holders.first() == Some(&server)).count()
    }

    /// Gives every shard its number of holders, those with the least to hold first.
    fn complete(&mut self, n_copies: usize) {
        for shard_idx in 0..self.shards.len() {
            while self.shards[shard_idx].len() < n_copies {
                let free = self.servers.iter().copied();
                let free = free.filter(|server| !self.shards[shard_idx].contains(server));
                let by = |server: &ServerId| {
                    (self.load(*server), u64::MAX - self.chance(*server, shard_idx))
                };
                let Some(server) = free.min_by_key(by) else { break };
                self.shards[shard_idx].push(server);
            }
        }
    }

    /// Moves shards from who holds most to who holds least, while that makes it more even.
    fn balance(&mut self) {
        loop {
            let by_load = |server: &ServerId| (self.load(*server), server.0);
            let most = self.servers.iter().copied().max_by_key(by_load);
            let least = self.servers.iter().copied().min_by_key(by_load);
            let (Some(most), Some(least)) = (most, least) else { return };
            if self.load(most) < self.load(least) + 2 {
                return;
            }
            let movable = (0..self.shards.len()).filter(|shard_idx| {
                let holders = &self.shards[*shard_idx];
                holders.contains(&most) && !holders.contains(&least)
            });
            let by = |shard_idx: &usize| self.chance(least, *shard_idx);
            let Some(shard_idx) = movable.max_by_key(by) else { return };
            let holders = &mut self.shards[shard_idx];
            holders.iter_mut().filter(|server| **server == most).for_each(|it| *it = least);
        }
    }

    /// Lets others of the holders be the first, while that makes it more even.
    fn balance_first(&mut self) {
        loop {
            let by_first = |server: &ServerId| (self.n_first(*server), server.0);
            let mut order: Vec<ServerId> = self.servers.to_vec();
            order.sort_by_key(by_first);
            let swap = order.iter().rev().find_map(|most| {
                order.iter().find_map(|least| {
                    if self.n_first(*most) < self.n_first(*least) + 2 {
                        return None;
                    }
                    let swappable = (0..self.shards.len()).filter(|shard_idx| {
                        let holders = &self.shards[*shard_idx];
                        holders.first() == Some(most) && holders.contains(least)
                    });
                    let by = |shard_idx: &usize| self.chance(*least, *shard_idx);
                    swappable.max_by_key(by).map(|shard_idx| (shard_idx, *least))
                })
            });
            let Some((shard_idx, least)) = swap else { return };
            let holders = &mut self.shards[shard_idx];
            if let Some(place) = holders.iter().position(|server| *server == least) {
                holders.swap(0, place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn servers(n: u32) -> Vec<ServerId> {
        (1..=n).map(ServerId).collect()
    }

    fn spread_of(servers: &[ServerId], loads: impl Fn(ServerId) -> usize) -> usize {
        let loads: Vec<usize> = servers.iter().map(|server| loads(*server)).collect();
        loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0)
    }

    fn check(servers: &[ServerId], replication: usize, placed: &[Vec<ServerId>]) {
        for holders in placed {
            assert_eq!(holders.len(), replication.min(servers.len()));
            let mut once = holders.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), holders.len(), "{holders:?}");
            assert!(holders.iter().all(|server| servers.contains(server)));
        }
        let load = |server| placed.iter().filter(|holders| holders.contains(&server)).count();
        assert!(spread_of(servers, load) <= 1, "{placed:?}");
    }

    proptest! {
        #[test]
        fn shards_are_spread_evenly_through_any_comings_and_goings(
            n in 1u32..7, replication in 1usize..4, n_shards in 1usize..33, changes in prop::collection::vec(any::<(bool, u32)>(), 0..8)
        ) {
            let mut there = servers(n);
            let mut placed = wanted(TableId(3), &there, replication, &vec![Vec::new(); n_shards]);
            check(&there, replication, &placed);
            let mut next = n;
            for (joins, which) in changes {
                if joins || there.len() == 1 {
                    next += 1;
                    there.push(ServerId(next));
                } else {
                    there.remove(which as usize % there.len());
                }
                placed = wanted(TableId(3), &there, replication, &placed);
                check(&there, replication, &placed);
                prop_assert_eq!(&wanted(TableId(3), &there, replication, &placed), &placed, "nothing moves without a reason");
            }
        }

        #[test]
        fn a_newcomer_takes_its_share_and_nothing_else_moves(n in 1u32..8, n_shards in 1usize..65) {
            let before = wanted(TableId(1), &servers(n), 1, &vec![Vec::new(); n_shards]);
            let after = wanted(TableId(1), &servers(n + 1), 1, &before);
            let moved = before.iter().zip(&after).filter(|(one, other)| one != other).count();
            prop_assert!(moved <= n_shards / (n as usize + 1) + 1, "{moved} of {n_shards} moved");
            for (one, other) in before.iter().zip(&after) {
                prop_assert!(one == other || other[0] == ServerId(n + 1));
            }
        }
    }

    #[test]
    fn who_is_first_is_spread_too_and_a_copy_takes_over_in_place() {
        let placed = wanted(TableId(1), &servers(2), 2, &vec![Vec::new(); 16]);
        let n_first = placed.iter().filter(|holders| holders[0] == ServerId(1)).count();
        assert_eq!(n_first, 8);
        let left = wanted(TableId(1), &[ServerId(2)], 2, &placed);
        assert!(left.iter().all(|holders| holders == &[ServerId(2)]));
    }

    #[test]
    fn small_tables_lie_on_different_servers() {
        let there = servers(4);
        let first = |table| wanted(TableId(table), &there, 1, &[Vec::new()])[0][0];
        let mut firsts: Vec<ServerId> = (0..40).map(first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 4);
    }
}
