//! A worker's data plane: inputs from the driver, grains on the device, sums exchanged with the other members, the update.
//!
//! The position (how many steps the state has behind it) moves in one place, [`Plane::commit`], under the gate that the follower holds while it
//! handles what the coordinator says: either the coordinator hears of the step, or the step is not taken.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use manyhands_net::collective::{CollectiveError, Group};
use manyhands_net::control::Follower;
use manyhands_net::membership::identity::{MemberId, ViewId};
use manyhands_net::membership::message::{Go, Grains, Peer};
use manyhands_net::membership::worker::Event;
use manyhands_net::station::Station;
use manyhands_program::LOSS;

use super::halt::{Halt, driver_halt};
use super::job_at_hand::JobAtHand;
use super::shares::{Part, first_part, next_parts, ranges, whole_subtrees};
use super::sums::ExchangeError;
use super::talk::{Talk, TalkError, Until};
use super::words::{FromDriver, FromWorker, Loss, Work, heads, tensors};
use crate::error::Error;

/// How long members may take to reach each other when a view begins; the coordinator's own deadlines are shorter.
const MEETING: Duration = Duration::from_secs(20);
/// After so many steps the members look at their speeds again.
pub(super) const REBALANCE_EVERY: u64 = 32;
/// How many losses of past steps go with the state: as many as the driver may not have heard of.
pub(super) const LOSSES: usize = 8;
/// How many steps ahead inputs are asked for.
pub(super) const AHEAD: u64 = 2;

/// A worker's data plane.
pub(super) struct Plane<'a> {
    station: Station,
    threads: usize,
    follower: &'a Follower<Event>,
    /// The job at hand: its driver, its programs on the device.
    job: Option<JobAtHand>,
    /// Steps behind the state, where there is one.
    steps: Option<u64>,
    name: String,
    at: Watcher,
}

/// A place in a step at which a worker can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Its inputs are there; grains are about to run.
    Grains,
    /// Its grains are done; sums are about to be exchanged.
    Exchange,
    /// The totals are there; the step is about to count.
    Commit,
    /// The parameters are updated; nobody has been told.
    Done,
    /// Its state is about to be given to another.
    GiveState,
}

/// Somebody who watches a worker, told the step too.
pub type Watcher = Box<dyn Fn(Point, u64) + Send>;

/// Measures one thing after the other.
struct Watch(Instant);

impl Watch {
    fn start() -> Watch {
        Watch(Instant::now())
    }

    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now - self.0;
        self.0 = now;
        lap.as_secs_f64()
    }
}

impl<'a> Plane<'a> {
    pub(super) fn new(
        station: Station,
        threads: usize,
        follower: &'a Follower<Event>,
        (name, at): (String, Watcher),
    ) -> Plane<'a> {
        Plane { station, threads, follower, job: None, steps: None, name, at }
    }

    /// Gives up the state.
    pub(super) fn forget(&mut self) {
        self.steps = None;
        if let Some(job) = &mut self.job {
            job.executor.forget_step();
            job.held_step = None;
        }
    }

    /// Copies the state for a view from its source.
    pub(super) fn copy(
        &mut self,
        go: &Go,
        own: MemberId,
        stop: &AtomicBool,
        say: &dyn Fn(&str),
    ) -> Result<(), Error> {
        let outcome = self.meet_driver(go, own, stop).and_then(|()| match go.source {
            Peer::Driver => self.copy_from_driver(stop),
            Peer::Member(id) => self.copy_from_member(go, id, own, stop),
        });
        match outcome {
            Ok(steps) => {
                self.steps = Some(steps);
                self.follower.tell(Event::Copied { view: go.view, steps });
            }
            Err(Halt::Broken(error)) => return Err(error),
            Err(halt) => self.tell_halt(go.view, halt, say),
        }
        Ok(())
    }

    /// Takes part in a view until it is told to stop, or cannot go on.
    pub(super) fn take_part(
        &mut self,
        go: &Go,
        rank: usize,
        stop: &Arc<AtomicBool>,
        drain: &AtomicBool,
        say: &dyn Fn(&str),
    ) -> Result<(), Error> {
        match self.steps_of_view(go, rank, stop, drain) {
            Err(Halt::Broken(error)) => Err(error),
            Err(halt) => {
                self.tell_halt(go.view, halt, say);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn tell_halt(&mut self, view: ViewId, halt: Halt, say: &dyn Fn(&str)) {
        match halt {
            Halt::Stopped => {}
            Halt::Lost(peer, reason) => {
                if let Some(job) = self.job.as_mut().filter(|_| peer == Peer::Driver) {
                    // The state is still good; the driver is called again in the next view.
                    job.driver_is_lost = true;
                }
                say(&format!("cannot go on in view {view}: {reason}"));
                self.follower.tell(Event::Failed { view, peer });
            }
            Halt::Broken(_) => {}
        }
    }

    /// Sees to it that the driver of the view's job is there, and its programs on the device. A worker that was dropped and comes back as another
    /// member calls again: what cut it off may have left its link in a state in which it carries nothing for many seconds.
    fn meet_driver(&mut self, go: &Go, own: MemberId, stop: &AtomicBool) -> Result<(), Halt> {
        let is_known = self.job.as_ref().is_some_and(|job| job.id == go.job);
        let is_met = |job: &JobAtHand| job.member == own && !job.driver_is_lost;
        if is_known && self.job.as_ref().is_some_and(is_met) {
            return Ok(());
        }
        if !is_known {
            (self.job, self.steps) = (None, None);
        }
        let deadline = Instant::now() + MEETING;
        let key = format!("driver/{}/{}", go.job, self.name);
        let link = self
            .station
            .call(&go.driver.addresses, &go.driver.host, &key, deadline)
            .map_err(|error| Halt::Lost(Peer::Driver, error.to_string()))?;
        let mut driver = Talk::new(link);
        let until = until(stop, Some(deadline));
        let programs = match driver.await_message(&until).map_err(driver_halt)? {
            FromDriver::Programs(programs) => *programs,
            _ => {
                return Err(Halt::Lost(Peer::Driver, "it did not begin with programs".to_string()));
            }
        };
        match &mut self.job {
            Some(job) => job.meet_again(own, driver),
            None => self.job = Some(JobAtHand::new(go.job, own, driver, programs, self.threads)?),
        }
        Ok(())
    }

    fn copy_from_driver(&mut self, stop: &AtomicBool) -> Result<u64, Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        job.driver.say(&FromWorker::NeedState, &[]).map_err(driver_halt)?;
        loop {
            let until = until(stop, None);
            match job.driver.await_message(&until).map_err(driver_halt)? {
                FromDriver::State { steps, tensors: heads } => {
                    let tensors = tensors(heads, job.driver.bytes())?;
                    job.load(&tensors)?;
                    job.losses.clear();
                    return Ok(steps);
                }
                other => job.note(other),
            }
        }
    }

    fn copy_from_member(
        &mut self,
        go: &Go,
        source: MemberId,
        own: MemberId,
        stop: &AtomicBool,
    ) -> Result<u64, Halt> {
        let lost = |reason: String| Halt::Lost(Peer::Member(source), reason);
        let Some(seat) = go.members.iter().find(|seat| seat.id == source) else {
            return Err(lost("it has no place in the view".to_string()));
        };
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let deadline = Instant::now() + MEETING;
        let key = key_of(go, "state", own);
        let link = self.station.call(&seat.addresses, &seat.host, &key, deadline);
        let mut talk = Talk::new(link.map_err(|error| lost(error.to_string()))?);
        let until = until(stop, None);
        match talk.await_message(&until) {
            Ok(FromWorker::State { steps, tensors: heads, losses }) => {
                job.load(&tensors(heads, talk.bytes())?)?;
                job.losses = losses;
                Ok(steps)
            }
            Ok(_) => Err(lost("it sent something else than its state".to_string())),
            Err(TalkError::Aborted) => Err(Halt::Stopped),
            Err(error) => Err(lost(error.to_string())),
        }
    }
}

/// The steps of a view.
impl Plane<'_> {
    fn steps_of_view(
        &mut self,
        go: &Go,
        rank: usize,
        stop: &Arc<AtomicBool>,
        drain: &AtomicBool,
    ) -> Result<(), Halt> {
        self.meet_driver(go, go.members[rank].id, stop)?;
        if self.steps != Some(go.steps) {
            let found = format!("its state has {:?} steps behind it, not {}", self.steps, go.steps);
            return Err(Halt::Lost(Peer::Member(go.members[rank].id), found));
        }
        // Who said it may be lost, and its words with it; the driver waits for every step's loss.
        if let Some(job) = &mut self.job {
            job.tell_losses(LOSSES)?;
        }
        self.give_state(go, rank, stop)?;
        if go.is_holding() {
            return self.hold(go.steps, stop);
        }
        let mut group = self.meet_members(go, rank, stop)?;
        let mut parts: Vec<Part> = go.members.iter().map(first_part).collect();
        let mut speeds: Vec<Option<f64>> =
            go.members.iter().map(|seat| seat.seconds_per_grain).collect();
        let mut measured = speeds[rank];
        let mut told_drain = false;
        let mut steps = go.steps;
        loop {
            let n_grains = go.grains.of_step(steps) as usize;
            let seconds = self.step(go, rank, &mut group, &parts, (steps, n_grains), stop)?;
            steps += 1;
            if let Some(seconds) = seconds {
                measured = Some(measured.map_or(seconds, |before| 0.8 * before + 0.2 * seconds));
            }
            // All must share alike, so only what all know counts.
            if steps.is_multiple_of(REBALANCE_EVERY) {
                speeds = exchange_speeds(&mut group, go, measured)?;
            }
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            let n_next = go.grains.of_step(steps);
            parts = next_parts(go, n_next, &speeds, &parts);
            let n_to_do = parts[rank].to_do.iter().map(Grains::len).sum();
            self.follower.tell(Event::StepBegun { view: go.view, n_to_do });
        }
    }

    /// One step. Gives the seconds that a grain took.
    fn step(
        &mut self,
        go: &Go,
        rank: usize,
        group: &mut Group,
        parts: &[Part],
        (steps, n_grains): (u64, usize),
        stop: &AtomicBool,
    ) -> Result<Option<f64>, Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let number = steps + 1;
        let own = &parts[rank];
        let mut to_do = ranges(&own.to_do);
        if job.held_step != Some(number) || !job.holds(&own.grains, &own.to_do, n_grains) {
            // What is held is of another step, or not what the others count on.
            to_do = ranges(&own.grains);
            job.held_step = None;
        }
        let mut watch = Watch::start();
        let mut work = Work::default();
        let inputs = job.inputs_for(number, &to_do, steps, stop)?;
        let plan = job.plan(inputs.n_samples, n_grains)?;
        if job.held_step.is_none() {
            job.executor.begin_step(plan)?;
            job.held_step = Some(number);
        }
        job.write_shared(plan, &inputs, number)?;
        work.seconds.input = watch.lap();
        (self.at)(Point::Grains, number);
        job.executor.run_grains(plan, &to_do)?;
        let n_done: usize = to_do.iter().map(Range::len).sum();
        work.n_grains = n_done as u64;
        work.seconds.compute = watch.lap();
        let seconds = (n_done > 0).then(|| work.seconds.compute / n_done as f64);
        for grain in to_do.into_iter().flatten() {
            let (grain, seconds) = (grain as u32, seconds.unwrap_or(0.0));
            self.follower.tell(Event::GrainDone { view: go.view, grain, seconds });
        }
        let others = go.members.iter().enumerate().filter(|(idx, _)| *idx != rank);
        let waiting_for = others.map(|(_, seat)| Peer::Member(seat.id)).collect();
        self.follower.tell(Event::Waiting { view: go.view, waiting_for });
        let brings: Vec<Vec<Range<usize>>> =
            parts.iter().map(|part| whole_subtrees(n_grains, &part.grains)).collect();
        (self.at)(Point::Exchange, number);
        match &job.outer {
            None => job.exchange(plan, group, n_grains, &brings),
            Some(_) => job.sum_own(plan),
        }
        .map_err(|error| lost_in(go, error))?;
        work.seconds.exchange = watch.lap();
        (self.at)(Point::Commit, number);
        self.commit(go, number, stop)?;
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        match job.outer.is_some() && own.grains.is_empty() {
            // Without a share of its own there is nothing to learn from.
            true => job.executor.forget_step(),
            false => job.executor.run_update(plan)?,
        }
        job.held_step = None;
        work.seconds.update = watch.lap();
        if let Some(outer) = job.outer.as_mut().filter(|outer| outer.is_due(number)) {
            outer.exchange(&mut job.executor, group).map_err(|error| lost_in(go, error))?;
            work.seconds.exchange += watch.lap();
        }
        (self.at)(Point::Done, number);
        // Under the strategy `local` one without grains has no loss to tell.
        let has_loss = job.outer.is_none() || !own.grains.is_empty();
        let loss = has_loss.then(|| job.executor.step_scalar(plan, LOSS)).transpose()?;
        let loss = Loss::new(number, loss);
        job.note_loss(loss);
        job.driver.say(&FromWorker::Done { loss, work }, &[]).map_err(driver_halt)?;
        job.ask_ahead(go, number, parts, rank)?;
        job.give_state_if_wanted(number)?;
        job.driver.push().map_err(driver_halt)?;
        Ok(seconds)
    }

    /// Moves on by a step, unless the coordinator was told otherwise.
    fn commit(&mut self, go: &Go, number: u64, stop: &AtomicBool) -> Result<(), Halt> {
        let gate = self.follower.gate().lock().unwrap_or_else(PoisonError::into_inner);
        if stop.load(Ordering::SeqCst) {
            return Err(Halt::Stopped);
        }
        self.steps = Some(number);
        self.follower.tell(Event::StepDone { view: go.view, steps: number });
        drop(gate);
        Ok(())
    }

    /// All members are about to leave: the driver takes the state.
    fn hold(&mut self, steps: u64, stop: &AtomicBool) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        loop {
            let message = job.driver.await_message(&until(stop, None)).map_err(driver_halt)?;
            job.note(message);
            job.give_state_if_wanted(steps)?;
        }
    }

    /// Gives the state to those who must copy it, where this member is the source.
    fn give_state(&mut self, go: &Go, rank: usize, stop: &AtomicBool) -> Result<(), Halt> {
        let own = go.members[rank].id;
        if go.source != Peer::Member(own) {
            return Ok(());
        }
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        if !go.copiers.is_empty() {
            (self.at)(Point::GiveState, go.steps);
        }
        let tensors = job.tensors()?;
        for copier in &go.copiers {
            let key = key_of(go, "state", *copier);
            let deadline = Instant::now() + MEETING;
            let call = self.station.await_call(&key, deadline, || stop.load(Ordering::SeqCst));
            let lost = |reason: String| Halt::Lost(Peer::Member(*copier), reason);
            let mut talk = match call {
                Ok(link) => Talk::new(link),
                Err(_) if stop.load(Ordering::SeqCst) => return Err(Halt::Stopped),
                Err(error) => return Err(lost(error.to_string())),
            };
            let (heads, bytes) = heads(&tensors);
            let losses = job.losses.clone();
            let state = FromWorker::State { steps: go.steps, tensors: heads, losses };
            let said = talk.say(&state, &bytes).and_then(|()| talk.await_sent(&until(stop, None)));
            match said {
                Ok(()) => {}
                Err(TalkError::Aborted) => return Err(Halt::Stopped),
                Err(error) => return Err(lost(error.to_string())),
            }
        }
        Ok(())
    }

    /// Links to all other members: those of higher rank call.
    fn meet_members(&self, go: &Go, rank: usize, stop: &Arc<AtomicBool>) -> Result<Group, Halt> {
        let deadline = Instant::now() + MEETING;
        let stopped = || stop.load(Ordering::SeqCst);
        let mut links = Vec::with_capacity(go.members.len());
        for (other, seat) in go.members.iter().enumerate() {
            if other == rank {
                links.push(None);
                continue;
            }
            let link = match other < rank {
                true => {
                    let key = key_of(go, "sums", go.members[rank].id);
                    self.station.call(&seat.addresses, &seat.host, &key, deadline)
                }
                false => self.station.await_call(&key_of(go, "sums", seat.id), deadline, stopped),
            };
            match link {
                Ok(link) => links.push(Some(link)),
                Err(_) if stopped() => return Err(Halt::Stopped),
                Err(error) => return Err(Halt::Lost(Peer::Member(seat.id), error.to_string())),
            }
        }
        let mut group = Group::new(rank, links).map_err(|error| lost_in(go, error))?;
        group.set_abort_flag(Arc::clone(stop));
        // The coordinator decides who is lost; this is for the case that it does not come back.
        group.set_patience(Duration::from_secs(24 * 3600));
        Ok(group)
    }
}

fn lost_in(go: &Go, error: impl Into<ExchangeError>) -> Halt {
    let error = match error.into() {
        ExchangeError::Other(error) => return error.into(),
        ExchangeError::Collective(error) => error,
    };
    match &error {
        CollectiveError::Aborted { .. } => Halt::Stopped,
        CollectiveError::Failed { call, places, .. } => {
            let culprit = places.culprits(call).first().copied().unwrap_or(0);
            Halt::Lost(Peer::Member(go.members[culprit].id), error.to_string())
        }
        // A fault of this worker's own: another may do better.
        _ => Halt::Broken(error.into()),
    }
}

/// The speeds of all members, as each measured its own.
fn exchange_speeds(group: &mut Group, go: &Go, own: Option<f64>) -> Result<Vec<Option<f64>>, Halt> {
    let own = [own.unwrap_or(f64::NAN)];
    let mut all = vec![0.0; group.size()];
    group.all_gather(&own, &mut all).map_err(|error| lost_in(go, error))?;
    Ok(all.into_iter().map(|seconds| Some(seconds).filter(|s| s.is_finite())).collect())
}

pub(super) fn until(stop: &AtomicBool, deadline: Option<Instant>) -> Until<'_> {
    Until { deadline, stop }
}

/// What a member calls another as.
fn key_of(go: &Go, what: &str, caller: MemberId) -> String {
    format!("{what}/{}/{}/{caller}", go.job, go.view)
}
