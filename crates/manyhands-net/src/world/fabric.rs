//! What a process needs to make links to the other ranks of its world, as often as it likes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::WorldError;
use super::mix;
use super::rendezvous::Roster;
use crate::collective::Group;
use crate::station::Station;
use crate::transport::Link;

/// The way from this process to the others.
pub(super) struct Fabric {
    rank: usize,
    roster: Roster,
    /// None where there is one rank alone.
    station: Option<Station>,
    /// How long the links of a group may take.
    within: Duration,
    /// How many groups of the same ranks for the same there have been: all ranks count alike.
    made: Mutex<BTreeMap<(String, Vec<usize>), u64>>,
    patience_ms: AtomicU64,
}

impl Fabric {
    pub(super) fn new(
        rank: usize,
        roster: Roster,
        station: Option<Station>,
        within: Duration,
        patience: Duration,
    ) -> Fabric {
        let patience_ms = AtomicU64::new(patience.as_millis() as u64);
        Fabric { rank, roster, station, within, made: Mutex::default(), patience_ms }
    }

    pub(super) fn size(&self) -> usize {
        self.roster.members.len()
    }

    /// The ranks of this machine.
    pub(super) fn near(&self) -> Vec<usize> {
        let own = &self.roster.members[self.rank].host;
        let is_near = |rank: &usize| &self.roster.members[*rank].host == own;
        (0..self.size()).filter(is_near).collect()
    }

    /// Where the machine of a rank is reached.
    pub(super) fn address_of(&self, rank: usize) -> Option<IpAddr> {
        let addresses = &self.roster.members.get(rank)?.addresses;
        let mut places = addresses.iter().filter_map(|place| place.parse::<SocketAddr>().ok());
        places.next().map(|place| place.ip()).filter(|ip| !ip.is_unspecified())
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.load(Ordering::Relaxed))
    }

    pub(super) fn set_patience(&self, patience: Duration) {
        self.patience_ms.store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    /// The name of the next group of these ranks for this use.
    pub(super) fn next_name(&self, usage: &str, ranks: &[usize]) -> String {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let count = made.entry((usage.to_string(), ranks.to_vec())).or_insert(0);
        *count += 1;
        let hash = mix(ranks.iter().map(|rank| *rank as u64));
        format!("{usage} {count} of {} ranks ({hash:016x})", ranks.len())
    }

    /// A group of these ranks with links of its own. All of them must ask for it, by the same name. Setting `abort` ends the wait, and later all operations.
    pub(super) fn group(
        &self,
        name: &str,
        ranks: &[usize],
        abort: Arc<AtomicBool>,
    ) -> Result<Group, WorldError> {
        let Some(place) = ranks.iter().position(|rank| *rank == self.rank) else {
            let sentence = format!("rank {} is not in {name}", self.rank);
            return Err(WorldError::Misuse(sentence));
        };
        let deadline = Instant::now() + self.within;
        let mut links: Vec<Option<Box<dyn Link>>> = Vec::with_capacity(ranks.len());
        let mut problems = Vec::new();
        for (other_place, other) in ranks.iter().enumerate() {
            // Later ones call earlier ones. All calls are made before any is waited for, since nobody waits to be called
            // by one who does not call.
            links.push(None);
            if other_place < place {
                match self.call(name, *other, deadline, &abort) {
                    Ok(link) => links[other_place] = Some(link),
                    Err(reason) => problems.push(format!("rank {other}: {reason}")),
                }
            }
        }
        for (other_place, other) in ranks.iter().enumerate().skip(place + 1) {
            // Who is known to be lost need not be waited for at length; who called is here already.
            let until = if problems.is_empty() { deadline } else { Instant::now() };
            match self.await_call(name, *other, until, &abort) {
                Ok(link) => links[other_place] = Some(link),
                Err(reason) => problems.push(format!("rank {other}: {reason}")),
            }
        }
        if !problems.is_empty() {
            let problems = problems.join("; ");
            return Err(WorldError::NoLinks { rank: self.rank, group: name.into(), problems });
        }
        let mut group = Group::new(place, links)?;
        group.set_patience(self.patience());
        group.set_abort_flag(abort);
        Ok(group)
    }

    fn key(&self, name: &str, from: usize, to: usize) -> String {
        format!("{:016x}/{name}/{from}>{to}", self.roster.number)
    }

    fn call(
        &self,
        name: &str,
        other: usize,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<Box<dyn Link>, String> {
        let station = self.station.as_ref().ok_or("this rank is alone")?;
        let member = &self.roster.members[other];
        let key = self.key(name, self.rank, other);
        let called = station.call(&member.addresses, &member.host, &key, deadline, || {
            abort.load(Ordering::Relaxed)
        });
        called.map_err(|error| error.to_string())
    }

    fn await_call(
        &self,
        name: &str,
        other: usize,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<Box<dyn Link>, String> {
        let station = self.station.as_ref().ok_or("this rank is alone")?;
        let key = self.key(name, other, self.rank);
        let start = Instant::now();
        let gives_up = || abort.load(Ordering::Relaxed);
        station.await_call(&key, deadline, gives_up).map_err(|error| match error {
            crate::station::StationError::NoCall { .. } => {
                format!("it did not come within {:.1} s", start.elapsed().as_secs_f64())
            }
            other => other.to_string(),
        })
    }
}
