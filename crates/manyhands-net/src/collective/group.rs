//! Ranks that do operations together: a link to each, and the loop that moves frames until an operation is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::call::{Call, Header, Kind};
use super::element::Element;
use super::error::{At, CollectiveError, Place, Places};
use super::exchange::Exchange;
use super::hierarchical::Nearness;
use super::port::{Heard, Port, Trouble};
use crate::transport::Link;
use crate::transport::wait::{Interest, WaitError, Waiting};

/// How long a rank that failed waits for the others to say where they are.
const LISTENING: Duration = Duration::from_millis(700);
/// How long a first operation is waited for, before there is anything to measure.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);
/// The patience that measured times can lead to.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// How many times the longest pause between operations is waited for.
const PAUSES: u32 = 10;
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
    abort: Arc<AtomicBool>,
    waiting: Waiting,
    interests: Vec<Interest>,
    pub(super) scratch: Vec<u64>,
    /// What is left to send to and to receive from each rank; kept for its memory only.
    pub(super) left: Vec<[bool; 2]>,
    /// The last all-reduce in which each rank was a leaf, by the size of an element.
    pub(super) leaf_exchange: Option<(usize, Exchange)>,
    /// Who shares memory with whom, once that was asked.
    pub(super) nearness: Option<Nearness>,
}

/// How long an operation without progress is waited for.
struct Patience {
    fixed: Option<Duration>,
    last_end: Option<Instant>,
    longest_pause: Duration,
}

impl Patience {
    fn now(&self) -> Duration {
        let measured = self.longest_pause.saturating_mul(PAUSES).clamp(PATIENCE.0, PATIENCE.1);
        self.fixed.unwrap_or(match self.last_end {
            Some(_) => measured,
            None => FIRST_PATIENCE,
        })
    }

    fn ended(&mut self, end: Instant) {
        if let Some(last) = self.last_end.replace(end) {
            self.longest_pause = self.longest_pause.max(end - last);
        }
    }
}

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
    pub fn new(rank: usize, links: Vec<Option<Box<dyn Link>>>) -> Result<Group, CollectiveError> {
        let complete = links.iter().enumerate().all(|(idx, link)| link.is_some() != (idx == rank));
        if !complete || rank >= links.len() {
            let n = links.len();
            let sentence =
                format!("rank {rank} of {n} needs one link to each other rank, none to itself");
            return Err(CollectiveError::Misuse(sentence));
        }
        Ok(Group {
            rank,
            n_pair_calls: vec![[0; 2]; links.len()],
            ports: links.into_iter().map(|link| link.map(Port::new)).collect(),
            n_calls: 0,
            patience: Patience { fixed: None, last_end: None, longest_pause: Duration::ZERO },
            broken: None,
            abort: Arc::default(),
            waiting: Waiting::new(),
            interests: Vec::new(),
            scratch: Vec::new(),
            left: Vec::new(),
            leaf_exchange: None,
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
        self.patience.fixed = Some(patience);
    }

    /// Looks at this flag instead of its own.
    pub fn set_abort_flag(&mut self, flag: Arc<AtomicBool>) {
        self.abort = flag;
    }

    /// Setting this makes the operation at hand, and all later ones, fail with [`CollectiveError::Aborted`].
    pub fn abort_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
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
        self.check()?;
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
        self.check()?;
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

    fn check(&self) -> Result<(), CollectiveError> {
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
        let mut interests = std::mem::take(&mut self.interests);
        interests.clear();
        interests.resize(self.ports.len(), Interest::Receive);
        let mut stuck_since = None;
        let outcome = loop {
            let passed = pass(&mut self.ports, &mut interests);
            match passed.and_then(|passed| self.flush(passed, &mut interests)) {
                Ok(Pass::Done) => break Ok(()),
                Ok(Pass::Moved) => {
                    stuck_since = None;
                    self.waiting.progressed();
                }
                Ok(Pass::Stuck) => {
                    if let Err(error) = self.wait(call, start, &interests, &mut stuck_since) {
                        break Err(error);
                    }
                }
                Err(trouble) => break Err(self.failure(call, start, Some(trouble))),
            }
        };
        self.interests = interests;
        self.waiting.progressed();
        if outcome.is_ok() {
            self.patience.ended(Instant::now());
        }
        outcome
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

    /// Waits a moment for the others, unless that has taken too long.
    fn wait(
        &mut self,
        call: Call,
        start: Instant,
        interests: &[Interest],
        stuck_since: &mut Option<Instant>,
    ) -> Result<(), CollectiveError> {
        if self.abort.load(Ordering::Relaxed) {
            self.broken = Some(format!("{call} was given up"));
            return Err(CollectiveError::Aborted { rank: self.rank, call });
        }
        let now = Instant::now();
        let deadline = *stuck_since.get_or_insert(now) + self.patience.now();
        if now >= deadline {
            return Err(self.failure(call, start, None));
        }
        let until = deadline.min(now + LOOK_UP);
        match self.waiting.wait(&mut self.ports, |rank| interests[rank], None, until) {
            Ok(_) => Ok(()),
            Err(WaitError::Link { link_idx, source }) => {
                Err(self.failure(call, start, Some((link_idx, source.into()))))
            }
            Err(WaitError::Poll(error)) => Err(CollectiveError::System { call, error }),
        }
    }

    /// Tells the others where this rank is, hears where they are, and gives up the links.
    fn failure(
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
            None => {}
        }
        let until = Instant::now() + LISTENING;
        let mut told = vec![false; self.size()];
        let mut scratch = vec![0; 64 << 10];
        let header = Header::saying_where(call, 0);
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
        let places = others.map(|(rank, at)| Place { rank, at: at.unwrap_or(At::Missing) });
        let places = Places(places.collect());
        let error = CollectiveError::Failed { rank: self.rank, call, after, places };
        self.broken = Some(error.to_string());
        self.ports.iter_mut().for_each(|port| *port = None);
        error
    }
}
