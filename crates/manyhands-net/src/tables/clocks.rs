//! Vector clocks: of each client how many clocks it has done, and whom a read waits for.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::identity::ClientId;

/// The vector clock of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// How many clocks each client has done, those before it came included.
    done: BTreeMap<ClientId, u64>,
}

impl Clocks {
    /// A client takes part from this clock on. Entering again changes nothing.
    pub fn enter(&mut self, client: ClientId, clock: u64) {
        self.done.entry(client).or_insert(clock);
    }

    /// A client has done all of a clock.
    pub fn finish(&mut self, client: ClientId, clock: u64) {
        if let Some(done) = self.done.get_mut(&client) {
            *done = (*done).max(clock.saturating_add(1));
        }
    }

    /// A client is gone and holds nobody up. Whether it was there.
    pub fn leave(&mut self, client: ClientId) -> bool {
        self.done.remove(&client).is_some()
    }

    /// Who takes part, with the number of clocks done.
    pub fn all(&self) -> impl Iterator<Item = (ClientId, u64)> {
        self.done.iter().map(|(client, done)| (*client, *done))
    }

    /// Whom a read waits for, and how many clocks that one has done: the one who is furthest behind of those that have not done all clocks
    /// before `clock - bound`. A reader does not wait for itself.
    pub fn waits_for(&self, reader: ClientId, clock: u64, bound: u32) -> Option<(ClientId, u64)> {
        let wanted = clock.saturating_sub(u64::from(bound));
        let others = self.all().filter(|(client, done)| *client != reader && *done < wanted);
        others.min_by_key(|(_, done)| *done)
    }
}

/// Clients that are gone for good. Their numbers are never used again and nearly all go some day, so they are kept as runs of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoneClients {
    /// The last of each run by its first; runs do not touch.
    runs: BTreeMap<u32, u32>,
}

impl GoneClients {
    /// These are gone.
    pub fn insert(&mut self, clients: RangeInclusive<ClientId>) {
        let (mut first, mut last) = (clients.start().0, clients.end().0);
        if first > last {
            return;
        }
        let before = self.runs.range(..=last.saturating_add(1));
        let touching: Vec<(u32, u32)> = before
            .rev()
            .map(|(first, last)| (*first, *last))
            .take_while(|(_, end)| end.saturating_add(1) >= first)
            .collect();
        for (start, end) in touching {
            self.runs.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.runs.insert(first, last);
    }

    /// Whether one is gone.
    pub fn contains(&self, client: ClientId) -> bool {
        let before = self.runs.range(..=client.0).next_back();
        before.is_some_and(|(_, last)| client.0 <= *last)
    }

    /// The first and the last of each run.
    pub fn runs(&self) -> impl Iterator<Item = [ClientId; 2]> {
        self.runs.iter().map(|(first, last)| [ClientId(*first), ClientId(*last)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    #[test]
    fn a_read_waits_for_the_slowest_within_its_bound() {
        let mut clocks = Clocks::default();
        clocks.enter(A, 0);
        clocks.enter(B, 0);
        for clock in 0..5 {
            clocks.finish(A, clock);
        }
        // A stands at clock 5, B has done none. With a bound of 2, A's read must have the pushes of clocks up to 2.
        assert_eq!(clocks.waits_for(A, 5, 2), Some((B, 0)));
        clocks.finish(B, 0);
        clocks.finish(B, 1);
        assert_eq!(clocks.waits_for(A, 5, 2), Some((B, 2)));
        clocks.finish(B, 2);
        assert_eq!(clocks.waits_for(A, 5, 2), None);
        assert_eq!(clocks.waits_for(A, 5, 1), Some((B, 3)));
        assert_eq!(clocks.waits_for(B, 3, 0), None);
    }

    #[test]
    fn those_who_are_gone_are_kept_as_runs() {
        let mut gone = GoneClients::default();
        let one = |n: u32| ClientId(n)..=ClientId(n);
        for n in [7, 3, 5, 4, 9, u32::MAX, 3] {
            gone.insert(one(n));
        }
        let runs = |gone: &GoneClients| {
            gone.runs().map(|[first, last]| (first.0, last.0)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&gone), [(3, 5), (7, 7), (9, 9), (u32::MAX, u32::MAX)]);
        assert!(gone.contains(ClientId(4)) && !gone.contains(ClientId(6)));
        gone.insert(ClientId(6)..=ClientId(8));
        assert_eq!(runs(&gone), [(3, 9), (u32::MAX, u32::MAX)]);
        gone.insert(ClientId(0)..=ClientId(20));
        assert_eq!(runs(&gone), [(0, 20), (u32::MAX, u32::MAX)]);
        assert!(!gone.contains(ClientId(21)) && gone.contains(ClientId(u32::MAX)));
    }

    #[test]
    fn who_is_gone_or_comes_late_holds_nobody_up() {
        let mut clocks = Clocks::default();
        clocks.enter(A, 7);
        clocks.enter(B, 0);
        assert_eq!(clocks.waits_for(A, 7, 0), Some((B, 0)));
        assert!(clocks.leave(B));
        assert!(!clocks.leave(B));
        clocks.finish(B, 3);
        assert_eq!(clocks.waits_for(A, 7, 0), None);
        clocks.enter(B, 7);
        assert_eq!(clocks.waits_for(A, 7, 0), None);
    }
}
