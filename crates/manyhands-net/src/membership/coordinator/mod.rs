//! The coordinator: who is a member, which view the members work in, and why.
//!
//! [`Coordinator::handle`] takes what happened and returns what to do. After every event `settle` looks at the whole state and
//! decides what it asks for, so a decision never depends on having seen one particular message: lost, repeated and late ones
//! make no difference but in time.

mod holders;
mod job;
mod left_out;
mod members;
mod recover;
mod rests;
mod returning;
mod stalls;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::job::Job;
use self::left_out::LeftOut;
use self::members::Member;
use self::rests::Pace;
use self::returning::Returning;
use self::stalls::Report;
use super::identity::{ClusterId, Connection, Incarnation, MemberId, ViewId};
use super::log::Entry;
use super::message::{FromCoordinator, Go, Order, Ready, ToCoordinator};
use super::status::{Decision, MemberStatus, Status};

/// How often the event loop sends [`Event::Tick`].
pub const TICK: Duration = Duration::from_millis(50);
/// How many decisions the status tells.
const HISTORY: usize = 64;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrived.
    Received {
        /// On which connection.
        from: Connection,
        /// What it says.
        message: ToCoordinator,
    },
    /// A connection is no more.
    Closed {
        /// Which.
        from: Connection,
    },
    /// Time went by; sent every [`TICK`].
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this and have it on disk before doing what follows.
    Log(Entry),
    /// Send this; a connection that is no more is passed over.
    Send {
        /// To whom.
        to: Connection,
        /// What.
        message: Box<FromCoordinator>,
    },
    /// Close a connection once what was sent on it is out.
    Close {
        /// Which.
        connection: Connection,
    },
    /// Tell people.
    Say(Decision),
    /// A newer coordinator of the same cluster exists: end.
    StepDown {
        /// A sentence.
        reason: String,
    },
}

/// Where the view stands.
#[derive(Debug)]
enum Phase {
    /// There is none.
    Idle,
    /// Members are asked to stop and to say how far they are.
    Preparing(Preparing),
    /// Members work.
    Running(Running),
}

#[derive(Debug)]
struct Preparing {
    view: ViewId,
    since: Duration,
    reason: String,
    members: Vec<MemberId>,
    /// Those that had the state in the view before.
    went_on: BTreeSet<MemberId>,
    ready: BTreeMap<MemberId, Ready>,
    driver_ready: Option<Ready>,
}

#[derive(Debug)]
struct Running {
    go: Go,
    /// When its preparation began, until its first step was seen completed: to measure what a view costs.
    cost_since: Option<Duration>,
    went_at: Duration,
    reports: BTreeMap<MemberId, Report>,
    /// How members fare in it.
    paces: BTreeMap<MemberId, Pace>,
}

/// Decides who takes part. See the module.
#[derive(Debug)]
pub struct Coordinator {
    cluster: ClusterId,
    incarnation: Incarnation,
    now: Duration,
    members: BTreeMap<MemberId, Member>,
    job: Option<Job>,
    phase: Phase,
    next_member: u32,
    next_view: u64,
    next_job: u64,
    /// Why a new view is needed, if one is.
    wanted: Option<String>,
    /// Members that get no grains of the next view's first step, since they are too slow with those they have.
    excused: BTreeSet<MemberId>,
    /// Members that were too slow, so that others did their grains: since when, and how many steps they had behind them.
    slow_since: BTreeMap<MemberId, (Duration, Option<u64>)>,
    /// Workers that were dropped for a bad connection and are not taken in again at once.
    pauses: LeftOut,
    /// Workers that hold the others up and rest.
    rests: LeftOut,
    /// What a view costs, in seconds from its preparation to its first completed step.
    view_cost: Option<f64>,
    /// The step at which a broken exchange was tried once more with the same members.
    retried: Option<Option<u64>>,
    /// While members that a former life knew may return.
    returning: Option<Returning>,
    /// Members that would be dropped if they did not hold the newest state alone, as found so far and when last looked at.
    spared: BTreeSet<MemberId>,
    spared_before: BTreeSet<MemberId>,
    /// Two heights of the job's steps and when they were seen, for its rate.
    rate: Option<((Duration, u64), (Duration, u64))>,
    is_superseded: bool,
    history: VecDeque<Decision>,
    last_failure: Option<String>,
    actions: Vec<Action>,
}

impl Coordinator {
    /// The first of a new cluster, with what to do first. `cluster` and `nonce` are drawn by chance.
    pub fn new(now: Duration, cluster: ClusterId, nonce: u64) -> (Coordinator, Vec<Action>) {
        let mut coordinator = Coordinator {
            cluster,
            incarnation: Incarnation { epoch: 1, nonce },
            now,
            members: BTreeMap::new(),
            job: None,
            phase: Phase::Idle,
            next_member: 0,
            next_view: 1,
            next_job: 1,
            wanted: None,
            excused: BTreeSet::new(),
            slow_since: BTreeMap::new(),
            pauses: members::pauses(),
            rests: rests::rests(),
            view_cost: None,
            retried: None,
            returning: None,
            spared: BTreeSet::new(),
            spared_before: BTreeSet::new(),
            rate: None,
            is_superseded: false,
            history: VecDeque::new(),
            last_failure: None,
            actions: Vec::new(),
        };
        coordinator.begin_life("a new cluster");
        let actions = std::mem::take(&mut coordinator.actions);
        (coordinator, actions)
    }

    /// Takes what happened and returns what to do.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        if self.is_superseded {
            return Vec::new();
        }
        self.pass_time(now);
        match event {
            Event::Received { from, message } => self.receive(from, message),
            Event::Closed { from } => self.closed(from),
            Event::Tick => {}
        }
        self.settle();
        std::mem::take(&mut self.actions)
    }

    /// This life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn begin_life(&mut self, how: &str) {
        let (cluster, incarnation) = (self.cluster, self.incarnation);
        self.actions.push(Action::Log(Entry::Started { cluster, incarnation }));
        self.say(format!("coordinator {incarnation} of cluster {cluster} starts: {how}"));
    }

    /// Moves the time on. A gap much longer than a tick is this process's own sleep, which is nobody else's silence.
    fn pass_time(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if gap <= 6 * TICK {
            return;
        }
        self.members.values_mut().for_each(|member| member.arrivals.forgive(gap));
        self.slow_since.values_mut().for_each(|(since, _)| *since += gap);
        if let Some(job) = &mut self.job {
            job.forgive(gap);
        }
        if let Some(returning) = &mut self.returning {
            returning.since += gap;
            returning.reports.clear();
        }
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Preparing(preparing) => preparing.since += gap,
            Phase::Running(running) => {
                running.went_at += gap;
                running.reports.clear();
                running.paces.clear();
            }
        }
    }

    fn receive(&mut self, from: Connection, message: ToCoordinator) {
        if let Err(reason) = message.check() {
            self.send(from, Order::Refused { reason: format!("a message is not valid: {reason}") });
            self.actions.push(Action::Close { connection: from });
            return self.closed(from);
        }
        if let Some(id) = self.member_on(from) {
            let now = self.now;
            if let Some(member) = self.members.get_mut(&id) {
                member.arrivals.heard(now);
            }
            return match message {
                ToCoordinator::Join(join) => self.join(from, join),
                ToCoordinator::Heartbeat(heartbeat) => self.heartbeat(id, heartbeat),
                ToCoordinator::Ready(ready) => self.member_ready(id, ready),
                ToCoordinator::Stalled(stalled) => self.stalled(id, stalled),
                ToCoordinator::Draining => self.drain(id),
                ToCoordinator::Returning => self.returning(id),
                ToCoordinator::StatusRequest => self.tell_status(from),
                _ => {}
            };
        }
        if self.job.as_ref().is_some_and(|job| job.connection == Some(from)) {
            return self.driver_said(from, message);
        }
        match message {
            ToCoordinator::Join(join) => self.join(from, join),
            ToCoordinator::Submit(submit) => self.submit(from, submit),
            ToCoordinator::StatusRequest => self.tell_status(from),
            ToCoordinator::Drain { name } => {
                self.drain_by_name(&name);
                self.tell_status(from);
            }
            // Late words of one that was dropped or has come back on another connection.
            _ => {}
        }
    }

    fn closed(&mut self, from: Connection) {
        if let Some(id) = self.member_on(from) {
            let comes_back = self.comes_back(id);
            if let Some(member) = self.members.get_mut(&id) {
                member.connection = None;
            }
            if !comes_back {
                let reason = format!("the connection of {} closed", self.name(id));
                self.drop_member(id, reason, false);
            }
        }
        self.driver_closed(from);
    }

    /// Looks at everything and decides what it asks for.
    fn settle(&mut self) {
        self.drop_silent();
        self.end_return();
        self.settle_driver();
        self.finish_drains();
        if self.job.is_none() {
            self.phase = Phase::Idle;
            self.wanted = None;
            return;
        }
        match &self.phase {
            Phase::Idle => self.settle_idle(),
            Phase::Preparing(_) => self.settle_preparing(),
            Phase::Running(_) => self.settle_running(),
        }
        if self.wanted.is_some() {
            self.begin_view();
        }
        self.note_spared();
    }

    /// Members of the view that runs or is prepared.
    fn in_view(&self) -> Vec<MemberId> {
        match &self.phase {
            Phase::Idle => Vec::new(),
            Phase::Preparing(preparing) => preparing.members.clone(),
            Phase::Running(running) => running.go.members.iter().map(|seat| seat.id).collect(),
        }
    }

    fn want(&mut self, reason: String) {
        self.wanted.get_or_insert(reason);
    }

    fn say(&mut self, sentence: String) {
        let decision = Decision { at: self.now.as_secs_f64(), sentence };
        self.history.push_back(decision.clone());
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.actions.push(Action::Say(decision));
    }

    fn send(&mut self, to: Connection, order: Order) {
        let (cluster, incarnation) = (self.cluster, self.incarnation);
        let message = Box::new(FromCoordinator { cluster, incarnation, order });
        self.actions.push(Action::Send { to, message });
    }

    fn refuse(&mut self, to: Connection, reason: String) {
        self.say(format!("refused: {reason}"));
        self.send(to, Order::Refused { reason });
        self.actions.push(Action::Close { connection: to });
    }

    /// Whether one who followed another coordinator may be heard; if not, it is told, or this one steps down.
    fn may_follow(
        &mut self,
        who: &str,
        from: Connection,
        follows: Option<(ClusterId, Incarnation)>,
    ) -> bool {
        let Some((cluster, incarnation)) = follows else { return true };
        if cluster != self.cluster {
            let here = self.cluster;
            self.refuse(from, format!("{who} belongs to cluster {cluster}, and this is {here}"));
            return false;
        }
        if incarnation > self.incarnation {
            let reason = format!(
                "{who} follows coordinator {incarnation} of this cluster, which is newer than this one ({})",
                self.incarnation
            );
            self.actions.push(Action::Log(Entry::Superseded { by: incarnation }));
            self.say(reason.clone());
            self.actions.push(Action::StepDown { reason });
            self.is_superseded = true;
            return false;
        }
        true
    }

    fn tell_status(&mut self, to: Connection) {
        let status = Box::new(self.status());
        self.send(to, Order::Status(status));
    }

    /// How the cluster stands.
    pub fn status(&self) -> Status {
        let in_view = self.in_view();
        let view = match &self.phase {
            Phase::Idle => None,
            Phase::Preparing(preparing) => Some(preparing.view),
            Phase::Running(running) => Some(running.go.view),
        };
        let standing = self.job.as_ref().map(|job| &job.standing);
        let members = self.members.iter().map(|(id, member)| {
            let is_in_view = in_view.contains(id);
            // Where all others are gone, one that should rest takes part.
            let rest = self.rests.left(self.now, &member.join.name).filter(|_| !is_in_view);
            let status = member.status(*id, self.now, is_in_view, rest);
            let told = standing.and_then(|standing| {
                standing.workers.iter().find(|worker| worker.name == status.name)
            });
            match told.filter(|_| is_in_view) {
                Some(told) => MemberStatus { steps: Some(told.step), bound: told.bound, ..status },
                None => status,
            }
        });
        Status {
            cluster: self.cluster,
            incarnation: self.incarnation,
            view,
            summary: self.summary(),
            job: self.job.as_ref().map(|job| job.submit.name.clone()),
            driver: self.job.as_ref().map(|job| (job.id, job.submit.driver.clone())),
            steps: self.highest(),
            consistency: standing.and_then(|standing| standing.consistency.clone()),
            servers: standing.map_or_else(Vec::new, |standing| standing.servers.clone()),
            mesh: standing.and_then(|standing| standing.mesh.as_ref()?.formed.clone()),
            steps_per_second: self.steps_per_second(),
            members: members.collect(),
            last_failure: self.last_failure.clone(),
            history: self.history.iter().cloned().collect(),
        }
    }

    fn summary(&self) -> String {
        let n = self.in_view().len();
        if let (Some(waits), Some(job)) = (self.waited_for(), &self.job) {
            return format!("{} {waits}", job.submit.name);
        }
        let workers = n_workers(n);
        match (&self.phase, &self.job) {
            (_, None) => format!("no job; {}", are_here(self.members.len())),
            (Phase::Idle, Some(job)) => format!("{} waits for workers", job.submit.name),
            (Phase::Preparing(p), Some(_)) => format!("{workers} regroup: {}", p.reason),
            (Phase::Running(running), Some(job)) if running.go.is_holding() => {
                format!(
                    "{} waits: all {n} workers leave, the driver takes their state",
                    job.submit.name
                )
            }
            (Phase::Running(_), Some(job)) => format!("{} runs on {workers}", job.submit.name),
        }
    }

    /// The most steps that a member or the driver told of.
    fn highest(&self) -> u64 {
        let told = self.job.as_ref().map(|job| job.standing.steps);
        let members = self.members.values().filter_map(|member| member.heartbeat.steps);
        members.chain(told).max().unwrap_or(0)
    }

    fn steps_per_second(&self) -> Option<f64> {
        let ((from, first), (to, last)) = self.rate?;
        let seconds = to.saturating_sub(from).as_secs_f64();
        (seconds > 0.0 && last >= first).then(|| (last - first) as f64 / seconds)
    }
}

/// So many workers, as people write it.
fn n_workers(n: usize) -> String {
    if n == 1 { "1 worker".to_string() } else { format!("{n} workers") }
}

fn are_here(n: usize) -> String {
    format!("{} {} here", n_workers(n), if n == 1 { "is" } else { "are" })
}
