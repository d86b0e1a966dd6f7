//! Letters between the workers of a mesh.
//!
//! Sending never waits: what a link has no room for is kept, and goes on whenever the mail is used. Letters of one worker to another arrive in order; who
//! waits for a letter with one label keeps those with others for later. While it waits it receives from all workers, so that links never fill up
//! between two who both send, and so that one that is lost is noticed by all, whoever they wait for.
//!
//! ```
//! # use manyhands_net::mail::Mail;
//! # use manyhands_net::transport::in_process;
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = in_process::pair(64 << 10)?;
//! let mut one = Mail::new(0, vec![None, Some(Box::new(here))])?;
//! let mut other = Mail::new(1, vec![Some(Box::new(there)), None])?;
//! one.post(1, 7, &[b"activations"])?;
//! let mut bytes = [0; 11];
//! other.take(0, 7, &mut bytes, &"the activations of grain 0")?;
//! assert_eq!(&bytes, b"activations");
//! # Ok(())
//! # }
//! # example().unwrap();
//! ```

mod error;
mod line;

pub use error::MailError;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::transport::Link;
use crate::transport::patience::Patience;
use crate::transport::wait::{Interest, WaitError, Waiting};
use line::{Arrived, Kind, Line, Trouble, Wanted};

/// How often a flag that asks to give up is looked at while asleep.
const LOOK_UP: Duration = Duration::from_millis(20);

/// How often there is a look at whether more of what was posted can leave.
const FLUSH_LOOK_UP: Duration = Duration::from_millis(1);

/// One worker's letters to and from all others.
pub struct Mail {
    rank: usize,
    lines: Vec<Option<Line>>,
    n_meetings: u64,
    patience: Patience,
    broken: Option<(String, Option<usize>)>,
    abort: Arc<AtomicBool>,
    /// For how long after that is set what is waited for may still come.
    grace: Option<Duration>,
    aborted_at: Option<Instant>,
    waiting: Waiting,
}

/// Somebody who waits: for whom, for what, since when.
struct Wait<'a> {
    from: usize,
    /// The meeting that is waited for, if it is one: who has come to it may leave.
    meeting: Option<u64>,
    what: &'a dyn Display,
    start: Instant,
    moved: Instant,
}

/// A meeting, by its number.
struct Meeting(u64);

impl Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "meeting {}", self.0)
    }
}

impl<'a> Wait<'a> {
    fn new(from: usize, what: &'a dyn Display) -> Wait<'a> {
        let now = Instant::now();
        Wait { from, meeting: None, what, start: now, moved: now }
    }

    fn what(&self) -> String {
        format!("{} from worker {}", self.what, self.from)
    }
}

impl Mail {
    /// The mail of worker `rank` of `links.len()`: links to all others, none to itself.
    pub fn new(rank: usize, links: Vec<Option<Box<dyn Link>>>) -> Result<Mail, MailError> {
        let n = links.len();
        let complete = links.iter().enumerate().all(|(idx, link)| link.is_some() != (idx == rank));
        if !complete || rank >= n {
            let sentence =
                format!("worker {rank} of {n} needs one link to each other, none to itself");
            return Err(MailError::Misuse(sentence));
        }
        Ok(Mail {
            rank,
            lines: links.into_iter().map(|link| link.map(Line::new)).collect(),
            n_meetings: 0,
            patience: Patience::default(),
            broken: None,
            abort: Arc::default(),
            grace: None,
            aborted_at: None,
            waiting: Waiting::on(n),
        })
    }

    /// This worker, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many workers there are.
    pub fn size(&self) -> usize {
        self.lines.len()
    }

    /// Waits this long for a letter while nothing moves, instead of ten times the longest pause between letters so far.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience.fix(patience);
    }

    /// Stays awake for so long before it sleeps: for workers that have a core for themselves.
    pub fn stay_awake_for(&mut self, awake_for: Duration) {
        self.waiting.stay_awake_for(awake_for);
    }

    /// Looks at this flag instead of its own.
    pub fn set_abort_flag(&mut self, flag: Arc<AtomicBool>) {
        self.abort = flag;
    }

    /// Setting this makes whoever waits, now or later, fail with [`MailError::Aborted`].
    pub fn abort_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abort)
    }

    /// From now on, what is waited for may still come for so long after the flag is set: for what others have begun to count on. None: not at all.
    pub fn set_grace(&mut self, grace: Option<Duration>) {
        self.grace = grace;
    }

    /// Whether whoever waits now fails, since the flag is set.
    pub fn is_aborted(&mut self) -> bool {
        if !self.abort.load(Ordering::Relaxed) {
            return false;
        }
        let since = self.aborted_at.get_or_insert_with(Instant::now);
        self.grace.is_none_or(|grace| since.elapsed() >= grace)
    }

    /// Has what was posted leave, as far as that goes within so long.
    pub fn flush(&mut self, longest: Duration) {
        let until = Instant::now() + longest;
        while self.has_more_to_send() && Instant::now() < until {
            let (_, moved) = self.pump_all(None);
            if !moved {
                std::thread::sleep(FLUSH_LOOK_UP);
            }
        }
    }

    /// What the links to the others are, for people.
    pub fn link_kinds(&self) -> Vec<&'static str> {
        self.lines.iter().flatten().map(|line| line.kind()).collect()
    }

    /// Whether something that was posted is still here.
    pub fn has_outgoing(&self) -> bool {
        self.lines.iter().flatten().any(Line::has_outgoing)
    }

    /// Whether something that was posted can still leave: not to one whose link has failed, which is found out when something of it is waited for.
    fn has_more_to_send(&self) -> bool {
        let is_left = |line: &Line| line.has_outgoing() && line.trouble.is_none();
        self.lines.iter().flatten().any(is_left)
    }

    /// Sends a letter of these parts, one after the other. Never waits: what there is no room for is kept, and goes on whenever the mail is used.
    pub fn post(&mut self, to: usize, label: u64, parts: &[&[u8]]) -> Result<(), MailError> {
        self.line(to)?.post(Kind::Letter, label, parts);
        Ok(())
    }

    /// Sends on and receives what goes without waiting. What is wrong with a link is found when something is waited for.
    pub fn pump(&mut self) {
        self.pump_all(None);
    }

    /// Waits for the next letter with this label from a worker, which must be exactly as long as `into`. `what` is what errors call it.
    pub fn take(
        &mut self,
        from: usize,
        label: u64,
        into: &mut [u8],
        what: &dyn Display,
    ) -> Result<(), MailError> {
        self.take_into(from, Wanted { label, into, is_whole: true }, what).map(|_| ())
    }

    /// As [`Mail::take`], of a letter that may be shorter: it goes to the front of `into`, and its length is given.
    pub fn take_up_to(
        &mut self,
        from: usize,
        label: u64,
        into: &mut [u8],
        what: &dyn Display,
    ) -> Result<usize, MailError> {
        self.take_into(from, Wanted { label, into, is_whole: false }, what)
    }

    fn take_into(
        &mut self,
        from: usize,
        mut wanted: Wanted<'_>,
        what: &dyn Display,
    ) -> Result<usize, MailError> {
        let mut wait = Wait::new(from, what);
        let line = self.line(from)?;
        if let Some(bytes) = line.take_kept(wanted.label) {
            let n = bytes.len();
            if !wanted.fits(n as u64) {
                return Err(self.unfit(&wait, wanted.into.len(), n as u64));
            }
            wanted.into[..n].copy_from_slice(&bytes);
            line.recycle(bytes);
            self.patience.ended(Instant::now());
            return Ok(n);
        }
        loop {
            let (arrived, moved) = self.pump_all(Some((from, &mut wanted)));
            match arrived {
                Arrived::Wanted(n) => {
                    self.came();
                    return Ok(n);
                }
                Arrived::Unfit(found) => return Err(self.unfit(&wait, wanted.into.len(), found)),
                Arrived::NotYet => {}
            }
            self.go_on(&mut wait, moved)?;
            self.check_not_past(&wait)?;
        }
    }

    /// As [`Mail::take`], of up to so many bytes.
    pub fn take_bytes(
        &mut self,
        from: usize,
        label: u64,
        longest: usize,
        what: &dyn Display,
    ) -> Result<Vec<u8>, MailError> {
        let mut wait = Wait::new(from, what);
        loop {
            if let Some(bytes) = self.line(from)?.take_kept(label) {
                if bytes.len() > longest {
                    return Err(self.unfit(&wait, longest, bytes.len() as u64));
                }
                self.came();
                return Ok(bytes);
            }
            let (_, moved) = self.pump_all(None);
            // What has just come may be it.
            if !moved {
                self.go_on(&mut wait, moved)?;
                self.check_not_past(&wait)?;
            }
        }
    }

    /// The next letter with this label from a worker, if it is here. After a meeting, all that were posted before it are.
    pub fn take_if_here(&mut self, from: usize, label: u64) -> Option<Vec<u8>> {
        self.lines.get_mut(from)?.as_mut()?.take_kept(label)
    }

    /// Waits until all workers are here, and all that was posted has left.
    pub fn meet(&mut self) -> Result<(), MailError> {
        self.check()?;
        let number = self.n_meetings;
        self.n_meetings += 1;
        for line in self.lines.iter_mut().flatten() {
            line.post(Kind::Meet, number, &[]);
        }
        let what = Meeting(number);
        let mut wait = Wait { meeting: Some(number), ..Wait::new(self.rank, &what) };
        loop {
            let (_, moved) = self.pump_all(None);
            let is_away =
                |line: &Option<Line>| line.as_ref().is_some_and(|line| line.n_met <= number);
            match self.lines.iter().position(is_away) {
                Some(from) => wait.from = from,
                None if !self.has_more_to_send() => break,
                None => {}
            }
            self.go_on(&mut wait, moved)?;
        }
        self.came();
        Ok(())
    }

    /// Waits until all that was posted has left: others would wait for it as long as this worker does something else.
    pub fn see_off(&mut self) -> Result<(), MailError> {
        self.check()?;
        let mut wait = Wait::new(self.rank, &"room for letters");
        while self.has_more_to_send() {
            let (_, moved) = self.pump_all(None);
            let waits = |line: &Option<Line>| line.as_ref().is_some_and(Line::has_outgoing);
            let Some(to) = self.lines.iter().position(waits) else { break };
            wait.from = to;
            self.go_on(&mut wait, moved)?;
        }
        self.came();
        Ok(())
    }

    fn check(&self) -> Result<(), MailError> {
        match &self.broken {
            Some((first, culprit)) => {
                Err(MailError::Broken { first: first.clone(), culprit: *culprit })
            }
            None => Ok(()),
        }
    }

    fn line(&mut self, other: usize) -> Result<&mut Line, MailError> {
        self.check()?;
        let (rank, n) = (self.rank, self.lines.len());
        self.lines.get_mut(other).and_then(Option::as_mut).ok_or_else(|| {
            MailError::Misuse(format!("worker {rank} of {n} has no letters from or to {other}"))
        })
    }

    /// Takes note that what was waited for is there.
    fn came(&mut self) {
        self.waiting.progressed();
        self.patience.ended(Instant::now());
    }

    /// Moves what goes on all lines; whether what is wanted came, and whether anything moved.
    fn pump_all(&mut self, mut wanted: Option<(usize, &mut Wanted<'_>)>) -> (Arrived, bool) {
        let (mut arrived, mut moved) = (Arrived::NotYet, false);
        for (other, line) in self.lines.iter_mut().enumerate() {
            let Some(line) = line else { continue };
            moved |= line.send_on();
            match &mut wanted {
                Some((from, wanted)) if *from == other => {
                    arrived = line.receive_on(Some(wanted), &mut moved);
                }
                _ => {
                    line.receive_on(None, &mut moved);
                }
            }
        }
        (arrived, moved)
    }

    /// After a look at all lines: waits a moment, unless something moved, or all is lost.
    fn go_on(&mut self, wait: &mut Wait<'_>, moved: bool) -> Result<(), MailError> {
        if let Some(error) = self.lost(wait) {
            return Err(self.give_up(error));
        }
        if self.is_aborted() {
            let error = MailError::Aborted { worker: self.rank, what: wait.what() };
            return Err(self.give_up(error));
        }
        if moved {
            wait.moved = Instant::now();
            self.waiting.progressed();
            return Ok(());
        }
        let now = Instant::now();
        let patience = self.patience.now();
        let deadline = wait.moved + patience;
        if now >= deadline {
            let line = self.lines[wait.from].as_ref();
            let error = MailError::TimeOver {
                worker: self.rank,
                culprit: wait.from,
                what: wait.what(),
                after: wait.start.elapsed(),
                patience,
                n_others: line.map_or(0, |line| line.kept.len()),
            };
            return Err(self.give_up(error));
        }
        let room: u128 = self.wants_room();
        let interest = |other: usize| match other < 128 && room >> other & 1 == 1 {
            true => Interest::ReceiveOrRoom,
            false => Interest::Receive,
        };
        let until = deadline.min(now + LOOK_UP);
        match self.waiting.wait(&mut self.lines, interest, None, until) {
            Ok(_) => Ok(()),
            Err(WaitError::Link { link_idx, source }) => {
                if let Some(line) = &mut self.lines[link_idx] {
                    line.trouble.get_or_insert(Trouble::Link(source.to_string()));
                }
                Ok(())
            }
            Err(WaitError::Poll(error)) => {
                let error = MailError::System { worker: self.rank, what: wait.what(), error };
                Err(self.give_up(error))
            }
        }
    }

    /// The workers to whom something is still to be sent, as bits; of more than fit all wake up now and then anyway.
    fn wants_room(&self) -> u128 {
        let waits = |line: &Option<Line>| line.as_ref().is_some_and(Line::has_outgoing);
        let waiting = self.lines.iter().take(128).enumerate().filter(|(_, line)| waits(line));
        waiting.fold(0, |bits, (other, _)| bits | 1 << other)
    }

    /// Who is lost, if anybody is.
    fn lost(&self, wait: &Wait<'_>) -> Option<MailError> {
        let troubled = self.lines.iter().enumerate();
        // Where others have begun to count on this worker, it goes on as long as what it waits for may come.
        let matters = |other: usize| self.grace.is_none() || other == wait.from;
        let has_come = |line: &Option<Line>| {
            let n_met = line.as_ref().map_or(0, |line| line.n_met);
            wait.meeting.is_some_and(|number| n_met > number)
        };
        let mut troubled = troubled
            .filter(|(other, line)| matters(*other) && !has_come(line))
            .filter_map(|(other, line)| Some((other, line.as_ref()?.trouble.as_ref()?)));
        // Who says whom to blame knows more than a closed link.
        let farewell = troubled.clone().find(|(_, one)| matches!(one, Trouble::Farewell(_)));
        let (other, trouble) = farewell.or_else(|| troubled.next())?;
        let (culprit, why) = match trouble {
            Trouble::Link(why) => (other, why.clone()),
            Trouble::Malformed => (other, "it sent what is no letter of this version".to_string()),
            Trouble::TooLong(n) => {
                (other, format!("it sent a letter of {n} bytes, for which there is no memory"))
            }
            Trouble::Farewell(culprit) if *culprit == other => (other, "it gave up".to_string()),
            Trouble::Farewell(culprit) => (*culprit, format!("worker {other} says so")),
        };
        let (worker, what, after) = (self.rank, wait.what(), wait.start.elapsed());
        Some(MailError::Lost { worker, what, after, culprit, why })
    }

    /// A worker that has come to a meeting sends nothing before this one comes too.
    fn check_not_past(&mut self, wait: &Wait<'_>) -> Result<(), MailError> {
        let n_met = self.lines[wait.from].as_ref().map_or(0, |line| line.n_met);
        if n_met <= self.n_meetings {
            return Ok(());
        }
        let where_it_is = format!("is at meeting {} and has not sent it", n_met - 1);
        let (worker, culprit, what) = (self.rank, wait.from, wait.what());
        let error = MailError::Elsewhere { worker, what, culprit, where_it_is };
        Err(self.give_up(error))
    }

    fn unfit(&mut self, wait: &Wait<'_>, expected: usize, found: u64) -> MailError {
        let (worker, culprit, what) = (self.rank, wait.from, wait.what());
        self.give_up(MailError::Length { worker, culprit, what, expected, found })
    }

    /// Closes all links, and says why to those who can hear it.
    fn give_up(&mut self, error: MailError) -> MailError {
        let culprit = error.culprit();
        for line in &mut self.lines {
            if let Some(mut line) = line.take() {
                line.say_farewell(culprit.unwrap_or(self.rank));
            }
        }
        self.broken = Some((error.to_string(), culprit));
        error
    }
}
