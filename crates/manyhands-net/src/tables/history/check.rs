//! Whether a history keeps its promise.
//!
//! What every table promises: an operation is done once and has one place in its shard's order; what was acknowledged is there at the end; a reader sees its
//! own operations, and never less than before. SSP beyond that: a read at clock c with bound s has every push of every client of clocks up to c - s - 1. BSP: a
//! step is applied when all its grains are there, and a read is of the step that it asked for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Record, Write};
use crate::tables::identity::{ClientId, Place, Term, Version};
use crate::tables::message::Until;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Two operations have one place in the order.
    #[error("{place}: version {} is of two operations, number {} of {} and number {} of {}", version.0, one.1, one.0, other.1, other.0)]
    TwoOfAVersion {
        /// Where.
        place: Place,
        /// Which version.
        version: Version,
        /// An operation.
        one: (ClientId, u64),
        /// Another.
        other: (ClientId, u64),
    },
    /// An operation was done twice.
    #[error("{place}: number {number} of {client} was done twice, as versions {} and {}", versions[0].0, versions[1].0)]
    DoneTwice {
        /// Where.
        place: Place,
        /// Whose.
        client: ClientId,
        /// Its number.
        number: u64,
        /// Both places in the order.
        versions: [Version; 2],
    },
    /// Operations of one client are in another order than it did them.
    #[error("{place}: number {number} of {client} has version {}, and one before it has {}", version.0, before.0)]
    OutOfOrder {
        /// Where.
        place: Place,
        /// Whose.
        client: ClientId,
        /// Its number.
        number: u64,
        /// Its version.
        version: Version,
        /// The version of one with a smaller number.
        before: Version,
    },
    /// Something that was acknowledged is not there.
    #[error(
        "{place}: number {number} of {client} was acknowledged and is lost: at the end there are {found}"
    )]
    Lost {
        /// Where.
        place: Place,
        /// Whose.
        client: ClientId,
        /// Its number.
        number: u64,
        /// What there is of that client.
        found: u64,
    },
    /// A reader did not see its own operation.
    #[error("{place}: {client} read version {} without its own number {number}, which is version {}", found.0, wanted.0)]
    OwnNotSeen {
        /// Where.
        place: Place,
        /// Whose.
        client: ClientId,
        /// The number.
        number: u64,
        /// What it read.
        found: Version,
        /// What it should have had.
        wanted: Version,
    },
    /// A reader saw less than before.
    #[error("{place}: {client} read version {} after it had read {}", found.0, before.0)]
    WentBack {
        /// Where.
        place: Place,
        /// Who.
        client: ClientId,
        /// What it read.
        found: Version,
        /// What it had read.
        before: Version,
    },
    /// A read that is staler than its bound.
    #[error("{place}: {client} at clock {clock} with bound {bound} read version {} without version {} of {author}, of clock {of_clock}", found.0, wanted.0)]
    TooStale {
        /// Where.
        place: Place,
        /// Who.
        client: ClientId,
        /// Its clock.
        clock: u64,
        /// Its bound.
        bound: u32,
        /// What it read.
        found: Version,
        /// What it misses.
        wanted: Version,
        /// Whose that is.
        author: ClientId,
        /// Of which clock.
        of_clock: u64,
    },
    /// A read of another step than it asked for.
    #[error("{place}: {client} read {found} steps where it asked for {asked}")]
    WrongStep {
        /// Where.
        place: Place,
        /// Who.
        client: ClientId,
        /// What it asked for.
        asked: u64,
        /// What it read.
        found: u64,
    },
    /// A step was read that cannot have been applied: not all of its grains are in what was read.
    #[error("{place}: {client} read {steps} steps at version {}, but of step {step} only {covered} of {n_grains} grains are there", found.0)]
    StepNotCovered {
        /// Where.
        place: Place,
        /// Who.
        client: ClientId,
        /// Steps that it read.
        steps: u64,
        /// What it read.
        found: Version,
        /// The step that is not there.
        step: u64,
        /// Grains of it.
        covered: usize,
        /// Grains that it has.
        n_grains: usize,
    },
}

/// The writes of one shard.
#[derive(Default)]
struct Shard<'a> {
    writes: BTreeMap<(ClientId, u64), (Version, &'a Write)>,
    entered: BTreeMap<ClientId, Version>,
    reads: Vec<Read>,
    end: Option<((Term, Version), BTreeMap<ClientId, u64>)>,
}

struct Read {
    client: ClientId,
    after: u64,
    until: Until,
    version: Version,
    steps: u64,
}

/// A history, by shard.
struct History<'a> {
    shards: BTreeMap<Place, Shard<'a>>,
    violations: Vec<Violation>,
}

/// All promises that a history breaks.
pub fn check(records: &[Record]) -> Vec<Violation> {
    let mut history = History::new(records);
    let places: Vec<Place> = history.shards.keys().copied().collect();
    for place in places {
        let Some(shard) = history.shards.remove(&place) else { continue };
        let mut found = Vec::new();
        check_order(place, &shard, &mut found);
        check_end(place, &shard, &mut found);
        check_reads(place, &shard, &mut found);
        history.violations.append(&mut found);
    }
    history.violations
}

impl<'a> History<'a> {
    /// Sorts records by shard. What was done twice shows here.
    fn new(records: &'a [Record]) -> History<'a> {
        let mut history = History { shards: BTreeMap::new(), violations: Vec::new() };
        for record in records {
            match record {
                Record::Write { client, place, number, version, what } => {
                    history.write(*place, (*client, *number), *version, what);
                }
                Record::Read { client, place, after, until, version, steps } => {
                    let read = Read {
                        client: *client,
                        after: *after,
                        until: *until,
                        version: *version,
                        steps: *steps,
                    };
                    history.shards.entry(*place).or_default().reads.push(read);
                }
                Record::End { place, term, version, numbers, .. } => {
                    // One who was cut off may have done what nobody acknowledged: the last word is that of the last term.
                    let numbers = numbers.iter().copied().collect();
                    let end = &mut history.shards.entry(*place).or_default().end;
                    let at = (*term, *version);
                    if end.as_ref().is_none_or(|(before, _)| *before <= at) {
                        *end = Some((at, numbers));
                    }
                }
            }
        }
        history
    }

    fn write(
        &mut self,
        place: Place,
        (client, number): (ClientId, u64),
        version: Version,
        what: &'a Write,
    ) {
        let shard = self.shards.entry(place).or_default();
        if let Some((before, _)) = shard.writes.insert((client, number), (version, what))
            && before != version
        {
            let versions = [before, version];
            self.violations.push(Violation::DoneTwice { place, client, number, versions });
        }
        if matches!(what, Write::Enter { .. }) {
            shard.entered.insert(client, version);
        }
    }
}

/// Versions are given once, and rise with each client's numbers. Version 0 is one that nobody remembers.
fn check_order(place: Place, shard: &Shard<'_>, found: &mut Vec<Violation>) {
    let known = || shard.writes.iter().filter(|(_, (version, _))| version.0 > 0);
    let mut of_version: BTreeMap<Version, (ClientId, u64)> = BTreeMap::new();
    let mut last: BTreeMap<ClientId, Version> = BTreeMap::new();
    for (&(client, number), &(version, _)) in known() {
        if let Some(one) = of_version.insert(version, (client, number)) {
            let other = (client, number);
            found.push(Violation::TwoOfAVersion { place, version, one, other });
        }
        if let Some(before) = last.insert(client, version)
            && before > version
        {
            found.push(Violation::OutOfOrder { place, client, number, version, before });
        }
    }
}

/// What was acknowledged is there at the end.
fn check_end(place: Place, shard: &Shard<'_>, violations: &mut Vec<Violation>) {
    let Some(((_, end), numbers)) = &shard.end else { return };
    for (&(client, number), &(version, _)) in &shard.writes {
        let found = numbers.get(&client).copied().unwrap_or(0);
        if number > found || version > *end {
            violations.push(Violation::Lost { place, client, number, found });
        }
    }
}

/// What reads of a shard are looked up in: there are as many reads as writes, and to go through all of these for each would take hours.
#[derive(Default)]
struct Index {
    /// Of each author its pushes by clock, each with the newest version of those up to it.
    pushes: BTreeMap<ClientId, Vec<(u64, Version)>>,
    steps: BTreeMap<u64, StepParts>,
    /// Those that are known, in order.
    versions: Vec<Version>,
}

/// What was pushed of a step: the grains of each part.
#[derive(Default)]
struct StepParts {
    n_grains: usize,
    parts: Vec<(Version, [usize; 2])>,
}

impl Index {
    fn new(shard: &Shard<'_>) -> Index {
        let mut index = Index::default();
        for (&(author, _), &(version, what)) in &shard.writes {
            index.versions.push(version);
            match *what {
                Write::Push { clock } => {
                    index.pushes.entry(author).or_default().push((clock, version));
                }
                Write::Part { step, grains, n_grains } => {
                    let of_step = index.steps.entry(step).or_default();
                    of_step.n_grains = n_grains;
                    of_step.parts.push((version, grains));
                }
                _ => {}
            }
        }
        index.versions.retain(|version| version.0 > 0);
        index.versions.sort_unstable();
        index.versions.dedup();
        for pushes in index.pushes.values_mut() {
            pushes.sort_unstable();
            let mut newest = Version(0);
            for (_, version) in pushes {
                newest = newest.max(*version);
                *version = newest;
            }
        }
        index
    }

    /// The newest version of an author's pushes of clocks before one.
    fn newest_before(pushes: &[(u64, Version)], before: u64) -> Version {
        let n = pushes.partition_point(|(clock, _)| *clock < before);
        n.checked_sub(1).map_or(Version(0), |last| pushes[last].1)
    }
}

fn check_reads(place: Place, shard: &Shard<'_>, found: &mut Vec<Violation>) {
    let index = Index::new(shard);
    let mut last: BTreeMap<ClientId, Version> = BTreeMap::new();
    for read in &shard.reads {
        let &Read { client, version, .. } = read;
        if let Some(before) = last.insert(client, version)
            && before > version
        {
            found.push(Violation::WentBack { place, client, found: version, before });
        }
        let own = shard.writes.range((client, 0)..=(client, read.after)).next_back();
        if let Some((&(_, number), &(wanted, _))) = own
            && wanted > version
        {
            found.push(Violation::OwnNotSeen { place, client, number, found: version, wanted });
        }
        match read.until {
            Until::Now => {}
            Until::Clock { clock, bound } => {
                let before = clock.saturating_sub(u64::from(bound));
                let misses = |(author, pushes): (&ClientId, &Vec<(u64, Version)>)| {
                    *author != client && Index::newest_before(pushes, before) > version
                };
                if index.pushes.iter().any(misses) {
                    check_staleness(place, shard, read, (clock, bound), found);
                }
            }
            Until::Steps { n } => check_steps(place, &index, read, n, found),
        }
    }
}

fn check_staleness(
    place: Place,
    shard: &Shard<'_>,
    read: &Read,
    (clock, bound): (u64, u32),
    found: &mut Vec<Violation>,
) {
    let before = clock.saturating_sub(u64::from(bound));
    let missed = shard.writes.iter().find(|&(&(author, _), &(version, what))| {
        let is_early = matches!(what, Write::Push { clock } if *clock < before);
        // Who came later than the read is not missed by it.
        let had_entered = shard.entered.get(&author).is_none_or(|entered| *entered <= read.version);
        author != read.client && is_early && version > read.version && had_entered
    });
    if let Some((&(author, _), &(wanted, what))) = missed {
        let of_clock = if let Write::Push { clock } = what { *clock } else { 0 };
        let (client, version) = (read.client, read.version);
        found.push(Violation::TooStale {
            place,
            client,
            clock,
            bound,
            found: version,
            wanted,
            author,
            of_clock,
        });
    }
}

/// A read of n steps has n steps, and what it has of the order covers the last of them.
fn check_steps(place: Place, index: &Index, read: &Read, asked: u64, found: &mut Vec<Violation>) {
    let &Read { client, version, steps, .. } = read;
    if steps != asked {
        found.push(Violation::WrongStep { place, client, asked, found: steps });
        return;
    }
    let Some(step) = steps.checked_sub(1) else { return };
    let Some(&StepParts { n_grains, ref parts }) = index.steps.get(&step) else { return };
    let there = parts.iter().filter(|(of_part, _)| *of_part <= version);
    let grains: BTreeSet<usize> = there.flat_map(|(_, [start, end])| *start..*end).collect();
    // Where something in the order is in no history (its author was lost before it heard of it), nothing can be said.
    let n_known = index.versions.partition_point(|known| *known <= version) as u64;
    if n_known == version.0 && n_grains > 0 && grains.len() < n_grains {
        let covered = grains.len();
        found.push(Violation::StepNotCovered {
            place,
            client,
            steps,
            found: version,
            step,
            covered,
            n_grains,
        });
    }
}

#[cfg(test)]
mod tests;
