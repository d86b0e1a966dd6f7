//! Who holds the shards of one table, who should, and the steps from one to the other.

use std::collections::{BTreeMap, BTreeSet};

use crate::tables::error::TableError;
use crate::tables::identity::{Place, ServerId, ShardId, Term};
use crate::tables::message::{Holding, Opened};
use crate::tables::placement::wanted;
use crate::tables::spec::TableSpec;

/// The shards of a table.
pub(super) struct TableHoldings {
    opened: Opened,
    /// Empty until the table is placed.
    holdings: Vec<Holding>,
    wanted: Vec<Vec<ServerId>>,
    changed: BTreeSet<usize>,
}

impl TableHoldings {
    pub(super) fn new(opened: Opened) -> TableHoldings {
        TableHoldings { opened, holdings: Vec::new(), wanted: Vec::new(), changed: BTreeSet::new() }
    }

    pub(super) fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(super) fn is_placed(&self) -> bool {
        !self.holdings.is_empty()
    }

    pub(super) fn holdings(&self) -> impl Iterator<Item = &Holding> {
        self.holdings.iter()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Place, &Holding)> {
        self.holdings.iter().enumerate().map(|(idx, holding)| (self.place_of(idx), holding))
    }

    fn place_of(&self, idx: usize) -> Place {
        Place { table: self.opened.id, shard: ShardId(idx as u32) }
    }

    /// Whether everybody who should hold a shard does, and nobody else.
    pub(super) fn is_settled(&self) -> bool {
        self.is_placed()
            && self
                .holdings
                .iter()
                .zip(&self.wanted)
                .all(|(holding, wanted)| holding.filling.is_empty() && holding.holders == *wanted)
    }

    pub(super) fn is_held_by(&self, server: ServerId) -> bool {
        let holds = |holding: &Holding| {
            holding.holders.contains(&server) || holding.filling.contains(&server)
        };
        self.holdings.iter().any(holds)
    }

    /// Whether of every shard that it holds another has all, of those that count.
    pub(super) fn is_held_by_another(
        &self,
        server: ServerId,
        counts: impl Fn(ServerId) -> bool,
    ) -> bool {
        let holdings = self.holdings.iter();
        let mut own = holdings.filter(|holding| holding.holders.contains(&server));
        own.all(|holding| holding.holders.iter().any(|one| *one != server && counts(*one)))
    }

    /// Whether one of two answers for a shard that the other holds, or is to hold.
    pub(super) fn are_together(&self, one: ServerId, other: ServerId) -> bool {
        self.holdings.iter().any(|holding| followed(holding, one, other).is_some())
    }

    /// Where one of two answers for a shard, the other does not hold it any more. How many shards that are.
    pub(super) fn part(&mut self, one: ServerId, other: ServerId, number: &mut u64) -> usize {
        let mut n_parted = 0;
        for idx in 0..self.holdings.len() {
            if let Some(copy) = followed(&self.holdings[idx], one, other) {
                self.refuse(ShardId(idx as u32), copy, number);
                n_parted += 1;
            }
        }
        n_parted
    }

    pub(super) fn is_lost(&self, shard: ShardId) -> bool {
        self.holdings.get(shard.0 as usize).is_some_and(|holding| holding.holders.is_empty())
    }

    /// What has changed since it was last asked.
    pub(super) fn take_changed(&mut self) -> Vec<(Place, Holding)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|idx| (self.place_of(idx), self.holdings[idx].clone())).collect()
    }

    /// Decides who should hold what, and begins to bring it about. Servers that are full keep what they have and get no more.
    pub(super) fn place(
        &mut self,
        servers: &[ServerId],
        full: &BTreeSet<ServerId>,
        number: &mut u64,
    ) {
        let n_shards = self.opened.spec.cut().n_shards() as usize;
        let (table, replication) = (self.opened.id, self.opened.spec.replication);
        let is_new = !self.is_placed();
        // Those that are being filled count as if they were, so that they are not moved again.
        let now: Vec<Vec<ServerId>> = match is_new {
            true => vec![Vec::new(); n_shards],
            false => self
                .holdings
                .iter()
                .zip(&self.wanted)
                .map(|(holding, wanted)| {
                    let is_there = |server: &&ServerId| {
                        holding.holders.contains(server) || holding.filling.contains(server)
                    };
                    let kept = wanted.iter().filter(is_there).copied();
                    let others = holding.holders.iter().copied();
                    let mut now: Vec<ServerId> = kept.collect();
                    others.for_each(|server| {
                        if !now.contains(&server) {
                            now.push(server);
                        }
                    });
                    now
                })
                .collect(),
        };
        // A new table may be small: who has no room for it says so.
        let may_hold =
            |server: &&ServerId| is_new || !full.contains(server) || self.is_held_by(**server);
        let servers: Vec<ServerId> = servers.iter().filter(may_hold).copied().collect();
        self.wanted = wanted(table, &servers, replication, &now);
        if is_new {
            *number += 1;
            let holding = |holders: &Vec<ServerId>| Holding {
                number: *number,
                term: Term(1),
                holders: holders.clone(),
                filling: Vec::new(),
            };
            self.holdings = self.wanted.iter().map(holding).collect();
            self.changed = (0..n_shards).collect();
            return;
        }
        (0..n_shards).for_each(|idx| self.settle(idx, number));
    }

    /// One step of a shard towards what is wanted of it.
    fn settle(&mut self, idx: usize, number: &mut u64) {
        let wanted = self.wanted[idx].clone();
        let mut next = self.holdings[idx].clone();
        if next.holders.is_empty() {
            return;
        }
        next.filling.retain(|server| wanted.contains(server));
        for server in &wanted {
            if !next.holders.contains(server) && !next.filling.contains(server) {
                next.filling.push(*server);
            }
        }
        // Who is not wanted goes only when all who are have everything.
        if !wanted.is_empty() && wanted.iter().all(|server| next.holders.contains(server)) {
            next.holders = wanted;
        }
        self.set(idx, next, number);
    }

    fn set(&mut self, idx: usize, mut next: Holding, number: &mut u64) {
        let now = &mut self.holdings[idx];
        if *now == next {
            return;
        }
        if now.first() != next.first() {
            next.term = Term(now.term.0 + 1);
        }
        *number += 1;
        next.number = *number;
        *now = next;
        self.changed.insert(idx);
    }

    /// A server has everything of a shard now. Whether that changed something.
    pub(super) fn complete(
        &mut self,
        shard: ShardId,
        term: Term,
        server: ServerId,
        number: &mut u64,
    ) -> bool {
        let idx = shard.0 as usize;
        let Some(holding) = self.holdings.get(idx) else { return false };
        if holding.term != term || !holding.filling.contains(&server) {
            return false;
        }
        let mut next = holding.clone();
        next.filling.retain(|one| *one != server);
        next.holders.push(server);
        self.set(idx, next, number);
        self.settle(idx, number);
        true
    }

    /// A server cannot hold a shard.
    pub(super) fn refuse(&mut self, shard: ShardId, server: ServerId, number: &mut u64) {
        let idx = shard.0 as usize;
        let Some(holding) = self.holdings.get(idx) else { return };
        let mut next = holding.clone();
        next.filling.retain(|one| *one != server);
        next.holders.retain(|one| *one != server);
        self.wanted[idx].retain(|one| *one != server);
        self.set(idx, next, number);
    }

    /// Nobody holds anything of it any more.
    pub(super) fn release(&mut self, number: &mut u64) {
        for idx in 0..self.holdings.len() {
            let mut next = self.holdings[idx].clone();
            (next.holders, next.filling) = (Vec::new(), Vec::new());
            self.set(idx, next, number);
            self.changed.insert(idx);
        }
    }

    /// A server is lost. The shards that nobody else holds are lost with it.
    pub(super) fn lose(&mut self, server: ServerId, number: &mut u64) -> Vec<Place> {
        let mut lost = Vec::new();
        for idx in 0..self.holdings.len() {
            let mut next = self.holdings[idx].clone();
            next.filling.retain(|one| *one != server);
            next.holders.retain(|one| *one != server);
            if next.holders.is_empty() {
                next.filling.clear();
                if !self.holdings[idx].holders.is_empty() {
                    lost.push(self.place_of(idx));
                }
            }
            self.set(idx, next, number);
        }
        lost
    }
}

/// Which of two follows the other in a shard.
fn followed(holding: &Holding, one: ServerId, other: ServerId) -> Option<ServerId> {
    let first = holding.first()?;
    let copy = if first == one { other } else { one };
    let is_copy = holding.holders.contains(&copy) || holding.filling.contains(&copy);
    (is_copy && copy != first && [one, other].contains(&first)).then_some(copy)
}

/// Two who open a table must mean the same.
pub(in crate::tables) fn check_same(opened: &Opened, spec: &TableSpec) -> Result<(), TableError> {
    let own = &opened.spec;
    let differences = BTreeMap::from([
        ("the shape", own.shape != spec.shape),
        ("the rule", own.rule != spec.rule),
        ("the consistency", own.consistency != spec.consistency),
        ("the replication", own.replication != spec.replication),
        ("the number of shards", own.cut() != spec.cut()),
        ("the traffic", own.traffic != spec.traffic),
        ("the check of values", own.rejects_nan != spec.rejects_nan),
    ]);
    match differences.into_iter().find(|(_, differs)| *differs) {
        None => Ok(()),
        Some((what, _)) => {
            Err(TableError::OtherSpec { table: opened.name.clone(), what: what.to_string() })
        }
    }
}
