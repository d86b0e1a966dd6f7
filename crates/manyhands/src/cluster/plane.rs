//! A worker's data plane: inputs from the driver, grains on the device, sums exchanged with the other members, the update.
//!
//! The position (how many steps the state has behind it) moves in one place, [`Plane::commit`], under the gate that the follower holds while it
//! handles what the coordinator says: either the coordinator hears of the step, or the step is not taken.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_net::collective::{CollectiveError, Group};
use manyhands_net::control::Follower;
use manyhands_net::mail::Mail;
use manyhands_net::membership::assign::{measured_again, not_measured_lately};
use manyhands_net::membership::identity::{MemberId, ViewId};
use manyhands_net::membership::message::{Go, Grains, Peer};
use manyhands_net::membership::worker::Event;
use manyhands_net::station::{Station, StationError};
use manyhands_net::transport::Link;

use super::halt::{Halt, driver_halt};
use super::job_at_hand::JobAtHand;
use super::overlap::least_seconds;
use super::pace::MOST_DEPTH;
use super::padding::Padding;
use super::reading::Reading;
use super::servers::TableAtHand;
use super::shares::{Part, first_part, next_parts};
use super::step::{StepOf, waiting_for_others};
use super::sums::ExchangeError;
use super::talk::{Talk, TalkError, Until};
use super::watch::{Point, Watcher};
use super::words::{FromDriver, FromWorker, heads, tensors};
use crate::error::Error;

/// How long members may take to reach each other when a view begins; the coordinator's own deadlines are shorter.
const MEETING: Duration = Duration::from_secs(20);
/// Bytes a second that state is copied with at least: one that takes longer is taken for lost.
const LEAST_RATE: f64 = 1e6;
/// How long a member that has a core for itself waits for others before it sleeps: they come together within fractions of a millisecond, and meanwhile the core is offered to
/// others. Against 50 us, two processes on an MLP were between 2 % slower and 6 % faster in four interleaved rounds on a noisy machine.
const AWAKE: Duration = Duration::from_millis(1);
/// How long the driver may take to hear that parameters are lost.
const TELLING: Duration = Duration::from_secs(5);
/// After so many steps the members look at their speeds again.
pub(super) const REBALANCE_EVERY: u64 = 32;
/// How often a member tells who holds it up.
const HELD_UP_EVERY: Duration = Duration::from_millis(200);
/// How many losses of past steps go with the state: as many as the driver may not have heard of.
pub(super) const LOSSES: usize = 2 * MOST_DEPTH;

/// A worker's data plane.
pub(super) struct Plane<'a> {
    station: Arc<Station>,
    /// What others are told instead of "all addresses".
    public: Option<IpAddr>,
    threads: usize,
    pub(super) follower: &'a Follower<Event>,
    /// The job at hand: its driver, its programs on the device.
    pub(super) job: Option<JobAtHand>,
    /// Steps behind the state, where there is one.
    pub(super) steps: Option<u64>,
    name: String,
    pub(super) watcher: Watcher,
    /// Where the data of jobs is on this machine, unless where jobs say.
    data: Option<PathBuf>,
    /// What the job before has opened.
    opened: Option<Reading>,
    /// How it sleeps, in measurements.
    pub(super) padding: Option<Padding>,
}

impl<'a> Plane<'a> {
    pub(super) fn new(
        (station, public): (Arc<Station>, Option<IpAddr>),
        threads: usize,
        follower: &'a Follower<Event>,
        (name, watcher): (String, Watcher),
        data: Option<PathBuf>,
    ) -> Plane<'a> {
        Plane {
            station,
            public,
            threads,
            follower,
            job: None,
            steps: None,
            name,
            watcher,
            data,
            opened: None,
            padding: Padding::from_environment(),
        }
    }

    /// Servers that this worker hosts leave. Whether others have what they held; none where there were no servers.
    pub(super) fn leave_as_server(&mut self) -> Option<bool> {
        self.job.as_mut()?.table.as_mut()?.leave_as_server()
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
    pub(super) fn copy(&mut self, go: &Go, own: MemberId, stop: &AtomicBool) -> Result<(), Error> {
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
            Err(halt) => self.tell_halt(go.view, halt),
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
    ) -> Result<(), Error> {
        let ended = self.steps_of_view(go, rank, stop, drain);
        // Values that nobody will use are not kept from the servers.
        let table = self.job.as_mut().and_then(|job| job.table.as_mut());
        table.into_iter().for_each(TableAtHand::forget_values);
        match ended {
            Err(Halt::Broken(error)) => Err(error),
            Err(halt) => {
                self.tell_halt(go.view, halt);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn tell_halt(&mut self, view: ViewId, halt: Halt) {
        match halt {
            Halt::Stopped => {}
            Halt::Lost(peer, reason) => {
                if let Some(job) = self.job.as_mut().filter(|_| peer == Peer::Driver) {
                    // The state is still good; the driver is called again in the next view.
                    job.driver_is_lost = true;
                }
                self.follower.tell(Event::Failed { view, peer, reason });
            }
            // The driver begins again elsewhere, and this view ends with its job.
            Halt::Parameters(reason) => {
                if let Some(job) = &mut self.job {
                    let lost = FromWorker::LostParameters { reason };
                    let never = AtomicBool::new(false);
                    let until = until(&never, Some(Instant::now() + TELLING));
                    let told = job.driver.say(&lost, &[]);
                    let told = told.and_then(|()| job.driver.await_sent(&until));
                    job.driver_is_lost = told.is_err();
                }
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
            if let Some(before) = self.job.take() {
                self.opened = before.reading;
            }
            self.steps = None;
        }
        let deadline = Instant::now() + MEETING;
        let key = format!("driver/{}/{}", go.job, self.name);
        let link = self
            .station
            .call(&go.driver.addresses, &go.driver.host, &key, deadline, || is_set(stop))
            .map_err(|error| no_link(Peer::Driver, &error))?;
        let mut driver = Talk::new(self.watcher.watch_driver(link));
        let until = until(stop, Some(deadline));
        let mut programs = match driver.await_message(&until).map_err(driver_halt)? {
            FromDriver::Programs(programs) => *programs,
            _ => {
                return Err(Halt::Lost(Peer::Driver, "it did not begin with programs".to_string()));
            }
        };
        match &mut self.job {
            Some(job) => job.meet_again(own, driver),
            None => {
                let (offer, opened) = (programs.offer.take(), self.opened.take());
                let table = programs.table.take();
                let lends = self.station.shares_memory() && are_two_of_one_machine(go);
                let mut job = JobAtHand::new(go.job, own, driver, programs, (self.threads, lends))?;
                let at = (&self.station, self.public);
                job.table = table.map(|of| TableAtHand::new(of, at, &self.name));
                job.reading = offer.and_then(|offer| Reading::begin(offer, go, &self.data, opened));
                self.job = Some(JobAtHand { watcher: self.watcher.clone(), ..job });
            }
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
        let stopped = || is_set(stop);
        let link = self.station.call(&seat.addresses, &seat.host, &key, deadline, stopped);
        let link = link.map_err(|error| no_link(Peer::Member(source), &error))?;
        let mut talk = Talk::new(link);
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
        if self.job.as_ref().is_some_and(|job| job.is_meshed) {
            return self.mesh_of_view(go, rank, stop, drain);
        }
        if go.is_holding() {
            return self.hold(go.steps, stop);
        }
        if self.job.as_ref().is_some_and(JobAtHand::takes_turns) {
            return self.turns_of_view(go.steps, stop, drain);
        }
        let mut group = self.meet_members(go, rank, stop)?;
        // Links are there before the other end looks at them, so it may still update from sums of this worker. Who has come together has ended the step before.
        self.follower.note(waiting_for_others(go, rank));
        group.barrier().map_err(|error| lost_in(go, error))?;
        if let Some(job) = &mut self.job {
            job.begin_sums()?;
        }
        if let Some(JobAtHand { outer: Some(outer), executor, .. }) = &mut self.job {
            self.follower.note(waiting_for_others(go, rank));
            outer.catch_up(executor, &mut group).map_err(|error| lost_in(go, error))?;
        }
        let mut parts: Vec<Part> = go.members.iter().map(first_part).collect();
        let mut speeds: Vec<Option<f64>> =
            go.members.iter().map(|seat| seat.seconds_per_grain).collect();
        let mut measured = speeds[rank];
        let (mut told_drain, mut n_measured) = (false, 0);
        let mut held_up_at = Instant::now();
        let mut steps = go.steps;
        loop {
            let n_grains = go.grains.of_step(steps) as usize;
            let (number, grain_seconds) = (steps + 1, least_seconds(&speeds));
            let of = StepOf { go, rank, parts: &parts, number, n_grains, grain_seconds, stop };
            let seconds = self.step(&of, &mut group)?;
            steps += 1;
            if let Some(seconds) = seconds {
                measured = Some(measured_again(measured, seconds));
                n_measured += 1;
            }
            // All must share alike, so only what all know counts.
            if steps.is_multiple_of(REBALANCE_EVERY) {
                self.follower.note(waiting_for_others(go, rank));
                if std::mem::take(&mut n_measured) == 0 {
                    measured = not_measured_lately(measured);
                }
                speeds = exchange_speeds(&mut group, go, measured)?;
            }
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            if held_up_at.elapsed() >= HELD_UP_EVERY {
                held_up_at = Instant::now();
                self.note_held_up(go, &group);
            }
            let nobody = Vec::new();
            self.follower.note(Event::Waiting { view: go.view, waiting_for: nobody });
            let n_next = go.grains.of_step(steps);
            parts = next_parts(go, n_next, &speeds, &parts);
            let n_to_do = parts[rank].to_do.iter().map(Grains::len).sum();
            self.follower.note(Event::StepBegun { view: go.view, n_to_do });
        }
    }

    /// Has the coordinator know who holds this member up most.
    fn note_held_up(&self, go: &Go, group: &Group) {
        let by_rank = group.held_up().iter().enumerate();
        let Some((rank, seconds)) = by_rank.max_by(|a, b| a.1.total_cmp(b.1)) else { return };
        let (by, seconds) = (go.members[rank].id, *seconds);
        self.follower.note(Event::HeldUp { view: go.view, by, seconds });
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
            self.watcher.at(Point::GiveState);
        }
        if let Some(table) = job.table.as_ref().filter(|table| table.is_behind) {
            return Err(Halt::Lost(Peer::Member(own), table.behind()));
        }
        if go.copiers.is_empty() {
            return Ok(());
        }
        // Others wait meanwhile, and not for a straggler.
        self.follower.note(Event::Gives { view: go.view, is_giving: true });
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
            let n_bytes: usize = bytes.iter().map(|one| one.len()).sum();
            let enough = Duration::from_secs_f64(n_bytes as f64 / LEAST_RATE);
            let until = until(stop, Some(Instant::now() + MEETING + enough));
            let said = talk.say(&state, &bytes).and_then(|()| talk.await_sent(&until));
            match said {
                Ok(()) => {}
                Err(TalkError::Aborted) => return Err(Halt::Stopped),
                Err(error) => return Err(lost(error.to_string())),
            }
        }
        self.follower.note(Event::Gives { view: go.view, is_giving: false });
        Ok(())
    }

    /// Links to all other members.
    fn meet_members(&self, go: &Go, rank: usize, stop: &Arc<AtomicBool>) -> Result<Group, Halt> {
        let mut links = self.links_to(go, rank, go.members.len(), "sums", stop)?;
        if let Some(lending) = self.job.as_ref().and_then(|job| job.lending.as_ref()) {
            // Where it cannot be lent, sums are sent; of a link that is gone the first of them tells.
            links.iter_mut().flatten().for_each(|link| drop(link.lend(lending)));
        }
        let links = links.into_iter().map(|link| link.map(|link| self.watcher.watch_sums(link)));
        let links = links.collect();
        let mut group = Group::new(rank, links).map_err(|error| lost_in(go, error))?;
        group.set_abort_flag(Arc::clone(stop));
        // The coordinator decides who is lost; this is for the case that it does not come back.
        group.set_patience(Duration::from_secs(24 * 3600));
        if have_cores(go, rank) {
            group.stay_awake_for(AWAKE);
        }
        Ok(group)
    }

    /// Links to all others of the first `n` members, for something: those of higher rank call.
    pub(super) fn links_to(
        &self,
        go: &Go,
        rank: usize,
        n: usize,
        what: &str,
        stop: &Arc<AtomicBool>,
    ) -> Result<Vec<Option<Box<dyn Link>>>, Halt> {
        let deadline = Instant::now() + MEETING;
        let stopped = || is_set(stop);
        let mut links = Vec::with_capacity(n);
        for (other, seat) in go.members.iter().enumerate().take(n) {
            if other == rank {
                links.push(None);
                continue;
            }
            let link = match other < rank {
                true => {
                    let key = key_of(go, what, go.members[rank].id);
                    self.station.call(&seat.addresses, &seat.host, &key, deadline, stopped)
                }
                false => self.station.await_call(&key_of(go, what, seat.id), deadline, stopped),
            };
            links.push(Some(link.map_err(|error| no_link(Peer::Member(seat.id), &error))?));
        }
        Ok(links)
    }

    /// Has mail stay awake for a while before it sleeps, where every member on this machine has a core for itself.
    pub(super) fn keep_awake(&self, go: &Go, rank: usize, mail: &mut Mail) {
        if have_cores(go, rank) {
            mail.stay_awake_for(AWAKE);
        }
    }
}

/// Whether there are two members, on one machine: of more, nobody would read the others' sums.
fn are_two_of_one_machine(go: &Go) -> bool {
    matches!(&go.members[..], [one, other] if one.host == other.host)
}

/// Whether every member on this machine has a core for itself.
fn have_cores(go: &Go, rank: usize) -> bool {
    let own = &go.members[rank].host;
    let n_near = go.members.iter().filter(|seat| seat.host == *own).count();
    std::thread::available_parallelism().is_ok_and(|n_cores| n_near <= n_cores.get())
}

fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::SeqCst)
}

/// Why there is no link to another.
fn no_link(peer: Peer, error: &StationError) -> Halt {
    match error {
        StationError::Aborted => Halt::Stopped,
        error => Halt::Lost(peer, error.to_string()),
    }
}

pub(super) fn lost_in(go: &Go, error: impl Into<ExchangeError>) -> Halt {
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

/// Why a worker does not go on, where no other took part.
pub(super) fn lost_in_own(error: ExchangeError) -> Halt {
    match error {
        ExchangeError::Other(error) => error.into(),
        ExchangeError::Collective(error) => Halt::Broken(error.into()),
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
