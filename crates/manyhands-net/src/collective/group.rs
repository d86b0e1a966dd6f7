//! Ranks that do operations together: a link to each, and the loop that moves frames until an operation is done.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::call::{Call, Header, Kind};
use super::element::Element;
use super::error::{At, CollectiveError, Place, Places};
use super::hierarchical::Nearness;
use super::plan::Plan;
use super::port::{Heard, Port, Trouble};
use super::run::Progress;
use crate::transport::Link;
use crate::transport::patience::Patience;
use crate::transport::wait::{Interest, WaitError, Waiting};

/// How long a rank that failed waits for the others to say where they are.
const LISTENING: Duration = Duration::from_millis(700);
/// How often a flag that asks to give up is looked at while asleep.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Ranks that do operations together. All of them must call the same operations in the same order.
pub struct Group {
    pub(super) rank: usize,
    pub(super) ports: Vec<Option<Port>>,
    n_calls: u64,
    /// Sends to and receives from each rank.
    n_pair_calls: Vec<[u64; 2]>,
    patience: Patience,
    broken: Option<String>,
    /// An operation that was begun, and goes on outside.
    pub(super) begun: Option<Call>,
    abort: Arc<AtomicBool>,
    waiting: Waiting,
    interests: Vec<Interest>,
    /// By rank: seconds in which nobody but that one was waited for.
    held_up: Vec<f64>,
    /// The exchange at hand; kept for its memory between them.
    pub(super) progress: Progress,
    /// Memory for the sums that a host passes on.
    pub(super) passed: Vec<u64>,
    /// How the last operations went, the newest last.
    pub(super) plans: Vec<Plan>,
    /// The leaves that each rank brings where every rank is one.
    pub(super) leaf_each: Arc<Vec<Vec<Range<usize>>>>,
    /// Who shares memory with whom, once that was asked.
    pub(super) nearness: Option<Nearness>,
}

/// A look at all frames of an operation: moves what can be moved, and says by rank what to wait for.
pub(super) type PassFn<'a> =
    dyn FnMut(&mut [Option<Port>], &mut [Interest]) -> Result<Pass, (usize, Trouble)> + 'a;

/// How far an operation is after a look at all of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Done,
    Moved,
    /// Nothing moves without the others.
    Stuck,
}

impl Group {
    /// A group of `links.len()` ranks, of which this is `rank`: links to all others, none to itself.
    pub fn new(
        rank: usize,
        mut links: Vec<Option<Box<dyn Link>>>,
    ) -> Result<Group, CollectiveError> {
        let complete = links.iter().enumerate().all(|(idx, link)| link.is_some() != (idx == rank));
        if !complete || rank >= links.len() {
            let n = links.len();
            let sentence =
                format!("rank {rank} of {n} needs one link to each other rank, none to itself");
            return Err(CollectiveError::Misuse(sentence));
        }
        let leaf_each = (0..links.len()).map(|rank| iter::once(rank..rank + 1).collect()).collect();
        let waiting = Waiting::on(links.len());
        // Of 16 MiB among 4 processes over TCP on two cores this takes a third of the time away, of 1 MiB between 2 a fifth.
        links.iter_mut().flatten().for_each(|link| link.keep_near());
        Ok(Group {
            rank,
            n_pair_calls: vec![[0; 2]; links.len()],
            held_up: vec![0.0; links.len()],
            ports: links.into_iter().map(|link| link.map(Port::new)).collect(),
            n_calls: 0,
            patience: Patience::default(),
            broken: None,
            begun: None,
            abort: Arc::default(),
            waiting,
            interests: Vec::new(),
            progress: Progress::default(),
            passed: Vec::new(),
            plans: Vec::new(),
            leaf_each: Arc::new(leaf_each),
            nearness: None,
        })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.ports.len()
    }

    /// Waits this long for an operation that does not move, instead of ten times the longest pause between operations so far.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience.fix(patience);
    }

    /// Stays awake for so long before it sleeps: for groups in which every rank has a core for itself. With more ranks than cores it takes time from those waited for.
    pub fn stay_awake_for(&mut self, awake_for: Duration) {
        self.waiting.stay_awake_for(awake_for);
    }

    /// Looks at this flag instead of its own.
    pub fn set_abort_flag(&mut self, flag: Arc<AtomicBool>) {
        self.abort = flag;
    }

    /// Setting this makes the operation at hand, and all later ones, fail with [`CollectiveError::Aborted`].
    pub fn abort_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    /// By rank: the seconds, in all operations so far, in which this rank waited for that one alone.
    pub fn held_up(&self) -> &[f64] {
        &self.held_up
    }

    /// What the links to the others are, for people.
    pub fn link_kinds(&self) -> Vec<&'static str> {
        self.ports.iter().flatten().map(|port| port.kind()).collect()
    }

    /// The next call of all ranks.
    pub(super) fn call<T: Element>(
        &mut self,
        kind: Kind,
        n: usize,
    ) -> Result<Call, CollectiveError> {
        self.check_idle()?;
        let number = self.n_calls;
        self.n_calls += 1;
        Ok(Call::new::<T>(number, kind, n))
    }

    /// The next call between this rank and another; `receives` says which way.
    pub(super) fn pair_call<T: Element>(
        &mut self,
        other: usize,
        receives: bool,
        n: usize,
    ) -> Result<Call, CollectiveError> {
        self.check_idle()?;
        if other >= self.size() || other == self.rank {
            let (rank, size) = (self.rank, self.size());
            let sentence =
                format!("rank {rank} of {size} cannot send to or receive from rank {other}");
            return Err(CollectiveError::Misuse(sentence));
        }
        let number = &mut self.n_pair_calls[other][usize::from(receives)];
        *number += 1;
        Ok(Call::new::<T>(*number - 1, Kind::Send, n))
    }

    /// An operation that was begun and forgotten left links in the middle of frames.
    fn check_idle(&mut self) -> Result<(), CollectiveError> {
        if let Some(call) = self.begun.take() {
            self.give_up(format!("{call} was begun and never ended on rank {}", self.rank));
        }
        self.check()
    }

    pub(super) fn check(&self) -> Result<(), CollectiveError> {
        match &self.broken {
            Some(first) => Err(CollectiveError::Broken { first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Calls `pass` until it is done. It says, by rank, what it waits for.
    pub(super) fn drive(
        &mut self,
        call: Call,
        mut pass: impl FnMut(&mut [Option<Port>], &mut [Interest]) -> Result<Pass, (usize, Trouble)>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        let mut stuck_since = None;
        let outcome = loop {
            match self.look(call, start, &mut pass) {
                Ok(Pass::Done) => break Ok(()),
                Ok(Pass::Moved) => {
                    stuck_since = None;
                    self.waiting.progressed();
                }
                Ok(Pass::Stuck) => {
                    if let Err(error) = self.wait(call, start, &mut stuck_since) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.waiting.progressed();
        if outcome.is_ok() {
            self.patience.ended(Instant::now());
        }
        outcome
    }

    /// Calls `pass` once, and remembers what it waits for.
    pub(super) fn look(
        &mut self,
        call: Call,
        start: Instant,
        pass: &mut PassFn<'_>,
    ) -> Result<Pass, CollectiveError> {
        let mut interests = std::mem::take(&mut self.interests);
        interests.clear();
        interests.resize(self.ports.len(), Interest::Nothing);
        let passed = pass(&mut self.ports, &mut interests);
        let passed = passed.and_then(|passed| self.flush(passed, &mut interests));
        self.interests = interests;
        passed.map_err(|trouble| self.failure(call, start, Some(trouble)))
    }

    /// Sends on what links hold back: nothing is done before all of it has left.
    fn flush(
        &mut self,
        passed: Pass,
        interests: &mut [Interest],
    ) -> Result<Pass, (usize, Trouble)> {
        let mut is_flushed = true;
        for (rank, port) in self.ports.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            if !port.try_flush().map_err(|error| (rank, error.into()))? {
                is_flushed = false;
                interests[rank] = Interest::ReceiveOrRoom;
            }
        }
        Ok(if passed == Pass::Done && !is_flushed { Pass::Stuck } else { passed })
    }

    /// Fails where someone asked for that.
    pub(super) fn check_abort(&mut self, call: Call) -> Result<(), CollectiveError> {
        if !self.abort.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.broken = Some(format!("{call} was given up"));
        Err(CollectiveError::Aborted { rank: self.rank, call })
    }

    /// Closes all links: the group is of no use any more, and this is why.
    pub(super) fn give_up(&mut self, why: String) {
        self.broken = Some(why);
        self.ports.iter_mut().for_each(|port| *port = None);
    }

    /// Waits a moment for the others, unless that has taken too long.
    fn wait(
        &mut self,
        call: Call,
        start: Instant,
        stuck_since: &mut Option<Instant>,
    ) -> Result<(), CollectiveError> {
        self.check_abort(call)?;
        let now = Instant::now();
        let deadline = *stuck_since.get_or_insert(now) + self.patience.now();
        if now >= deadline {
            return Err(self.failure(call, start, None));
        }
        let until = deadline.min(now + LOOK_UP);
        let culprit = self.waits_for_one(call);
        let interests = &self.interests;
        let waited = self.waiting.wait(&mut self.ports, |rank| interests[rank], None, until);
        let after = now.elapsed();
        // Who comes back far later than asked for was asleep itself.
        if let Some(rank) = culprit.filter(|_| after < 2 * LOOK_UP) {
            self.held_up[rank] += after.as_secs_f64();
        }
        match waited {
            Ok(_) => Ok(()),
            Err(WaitError::Link { link_idx, source }) => {
                Err(self.failure(call, start, Some((link_idx, source.into()))))
            }
            Err(WaitError::Poll(error)) => {
                let error = CollectiveError::System { call, error };
                self.give_up(error.to_string());
                Err(error)
            }
        }
    }

    /// The one that is waited for, where it is one: of several, those that have not come to this operation keep the others.
    fn waits_for_one(&self, call: Call) -> Option<usize> {
        let (mut waited, mut absent) = ((0, None), (0, None));
        for (rank, port) in self.ports.iter().enumerate() {
            if self.interests[rank] == Interest::Nothing {
                continue;
            }
            waited = (waited.0 + 1, Some(rank));
            if port.as_ref().is_some_and(|port| port.seen() != Some(call)) {
                absent = (absent.0 + 1, Some(rank));
            }
        }
        match (absent, waited) {
            ((1, rank), _) | ((0, _), (1, rank)) => rank,
            _ => None,
        }
    }

    /// Tells the others where this rank is, hears where they are, and gives up the links.
    pub(super) fn failure(
        &mut self,
        call: Call,
        start: Instant,
        trouble: Option<(usize, Trouble)>,
    ) -> CollectiveError {
        let after = start.elapsed();
        let mut at: Vec<Option<At>> = vec![None; self.size()];
        at[self.rank] = Some(At::In(call));
        let mut is_final = vec![false; self.size()];
        match trouble {
            Some((rank, Trouble::Link(error))) => {
                (at[rank], is_final[rank]) = (Some(At::Lost(error.to_string())), true);
            }
            Some((rank, Trouble::Told(there))) => {
                (at[rank], is_final[rank]) = (Some(At::In(there)), true);
            }
            Some((rank, Trouble::Elsewhere(there))) => at[rank] = Some(At::In(there)),
            Some((rank, Trouble::Malformed)) => {
                let why = "it sent a frame that does not belong here".to_string();
                (at[rank], is_final[rank]) = (Some(At::Lost(why)), true);
            }
            Some((rank, Trouble::Refused(why))) => {
                (at[rank], is_final[rank]) = (Some(At::Lost(why)), true);
            }
            None => {}
        }
        let until = Instant::now() + LISTENING;
        let mut told = vec![false; self.size()];
        let mut scratch = vec![0; 64 << 10];
        let header = Header::saying_where(call);
        is_final[self.rank] = true;
        while Instant::now() < until && !is_final.iter().all(|is_final| *is_final) {
            for (rank, port) in self.ports.iter_mut().enumerate() {
                let Some(port) = port.as_mut().filter(|_| !matches!(at[rank], Some(At::Lost(_))))
                else {
                    continue;
                };
                if !told[rank] && port.is_between_frames() {
                    told[rank] = matches!(port.send(&header, &[], &mut false), Ok(true));
                }
                if is_final[rank] {
                    continue;
                }
                match port.listen(&mut scratch) {
                    Ok(Some(Heard::Said(there))) => {
                        (at[rank], is_final[rank]) = (Some(At::In(there)), true);
                    }
                    Ok(Some(Heard::Seen(there))) => at[rank] = Some(At::In(there)),
                    Ok(None) => {}
                    Err(error) => {
                        is_final[rank] = true;
                        at[rank].get_or_insert(At::Lost(error.to_string()));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let others = at.into_iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        let unheard = |rank: usize| {
            let seen = self.ports[rank].as_ref().and_then(Port::seen);
            let is_of_call = |seen: &Call| seen.number == call.number && !seen.is_pair();
            seen.filter(is_of_call).map_or(At::Missing, At::Silent)
        };
        let places =
            others.map(|(rank, at)| Place { rank, at: at.unwrap_or_else(|| unheard(rank)) });
        let places = Places(places.collect());
        let error = CollectiveError::Failed { rank: self.rank, call, after, places };
        self.give_up(error.to_string());
        error
    }
}
