//! The worker's side: follows the coordinator's views and tells its data plane what to do.
//!
//! The data plane is what runs grains, exchanges sums and copies state. It says what happens there with the view it happened in; what is of
//! an older view is passed over (M1). While the coordinator is away, steps go on.

mod event;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::event::{Action, Event};

use super::assign::{measured_again, runs};
use super::following::{Due, Following, Heard};
use super::identity::{ClusterId, Incarnation, JobId, MemberId, ViewId};
use super::message::{
    Doing, FromCoordinator, Go, Heartbeat, Join, Order, Peer, Ready, Stalled, ToCoordinator,
};

/// How often the event loop sends [`Event::Tick`].
pub const TICK: Duration = Duration::from_millis(50);
/// Waiting for others is no stall before this, however short steps are.
const STALL_FLOOR: Duration = Duration::from_millis(500);
/// It is one by then, however long they are. Also where no step was measured: the first includes compiling.
const STALL_CEILING: Duration = Duration::from_secs(30);
/// How many times the usual time of a step others may take.
const STALL_FACTOR: f64 = 4.0;
/// A connection that failed is complained of after this: mostly it is the end of a view or of the job, of which the coordinator tells by then.
const COMPLAIN: Duration = Duration::from_millis(500);
/// A stall is told again so often, in case the coordinator was away.
const STALL_AGAIN: Duration = Duration::from_millis(300);

#[derive(Debug)]
enum Phase {
    Idle,
    Stopped,
    Copying(Box<Go>),
    Running,
}

/// A worker's side of membership. See the module.
#[derive(Debug)]
pub struct Worker {
    join: Join,
    following: Following,
    id: Option<MemberId>,
    /// The newest view heard of: nothing is done for an older one, and no view is begun twice.
    view: Option<ViewId>,
    phase: Phase,
    job: Option<JobId>,
    steps: Option<u64>,
    done: Vec<u32>,
    n_to_do: usize,
    seconds_per_grain: Option<f64>,
    step_seconds: Option<f64>,
    last_step_at: Option<Duration>,
    waiting: Option<Waiting>,
    /// Whether it gives its state to others.
    gives: bool,
    /// Those to whom the connection failed in this view. Steps may still be completed, but sooner or later it is needed.
    broken: Vec<Peer>,
    /// What went wrong with the first of them, and since when, until it is said.
    complaint: Option<(Duration, String)>,
    told_at: Option<Duration>,
    seconds_waiting: f64,
    held_up: Option<(MemberId, f64)>,
    is_draining: bool,
    n_heartbeats: u64,
}

#[derive(Debug)]
struct Waiting {
    peers: Vec<Peer>,
    since: Duration,
}

impl Worker {
    /// One that is not connected yet. Of `join`, the last three fields are filled in here.
    pub fn new(now: Duration, join: Join) -> Worker {
        Worker {
            join,
            following: Following::new(now),
            id: None,
            view: None,
            phase: Phase::Idle,
            job: None,
            steps: None,
            done: Vec::new(),
            n_to_do: 0,
            seconds_per_grain: None,
            step_seconds: None,
            last_step_at: None,
            waiting: None,
            gives: false,
            broken: Vec::new(),
            complaint: None,
            told_at: None,
            seconds_waiting: 0.0,
            held_up: None,
            is_draining: false,
            n_heartbeats: 0,
        }
    }

    /// Takes what happened and returns what to do.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        // What the data plane noted is taken later, with its time: it says nothing of when this side last looked.
        if matches!(event, Event::Connected | Event::Closed | Event::Received(_) | Event::Tick) {
            self.following.pass_time(now);
        }
        match event {
            Event::Connected => self.connected(now, &mut actions),
            Event::Closed => self.following.closed(now),
            Event::Received(message) => self.receive(now, message, &mut actions),
            Event::Drain => {
                self.is_draining = true;
                if self.following.is_accepted() {
                    send(&mut actions, ToCoordinator::Draining);
                } else if self.holds_nothing() {
                    actions.push(Action::End);
                } else if self.view_begun().is_some() {
                    // Without it the others would stand still until the coordinator is back, and its state might be the only one.
                    let sentence =
                        "asked to leave while the coordinator is away: stays until it is back";
                    actions.push(Action::Say(sentence.to_string()));
                }
            }
            Event::StateLost { reason } => {
                self.steps = None;
                self.done.clear();
                actions.push(Action::Say(format!("has no state any more: {reason}")));
            }
            Event::Tick => self.tick(now, &mut actions),
            other => self.data_plane(now, other, &mut actions),
        }
        actions
    }

    /// How many steps the state has behind it, if there is one.
    pub fn steps(&self) -> Option<u64> {
        self.steps
    }

    /// The newest view heard of.
    pub fn view(&self) -> Option<ViewId> {
        self.view
    }

    /// The cluster and the coordinator's life that are followed.
    pub fn follows(&self) -> Option<(ClusterId, Incarnation)> {
        self.following.follows
    }

    fn connected(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.following.connected(now) {
            return actions.push(Action::Disconnect);
        }
        self.join.follows = self.following.follows;
        self.join.previous = self.id;
        self.join.view = self.view_begun();
        send(actions, ToCoordinator::Join(self.join.clone()));
    }

    fn receive(&mut self, now: Duration, message: FromCoordinator, actions: &mut Vec<Action>) {
        let order = match self.following.hear(now, message) {
            Heard::Order(order) => order,
            Heard::Nothing => return,
            Heard::Refused(reason) => {
                actions.push(Action::Say(reason));
                self.end_if_leaving(actions);
                return actions.push(Action::Disconnect);
            }
        };
        match order {
            Order::Welcome { id } => self.welcome(id, actions),
            Order::Refused { reason } => {
                actions.push(Action::Say(format!("the coordinator refused: {reason}")));
                self.end_if_leaving(actions);
                self.disconnect(now, actions);
            }
            Order::Dropped { reason } => {
                actions.push(Action::Say(format!("dropped: {reason}")));
                self.id = None;
                self.stop(actions);
                self.disconnect(now, actions);
            }
            // Orders to a member that has not been welcomed here yet overtook the welcome, and are repeated.
            _ if !self.following.is_accepted() => {}
            Order::Prepare { view, job, reason } => self.prepare(view, job, reason, actions),
            Order::Go(go) => self.go(now, go, actions),
            Order::Stop { job, reason } if self.job == Some(job) => {
                actions.push(Action::Say(format!("the job ended: {reason}")));
                self.stop(actions);
                self.forget(actions);
                self.job = None;
            }
            Order::Drained => {
                self.stop(actions);
                actions.push(Action::End);
            }
            _ => {}
        }
    }

    fn welcome(&mut self, id: MemberId, actions: &mut Vec<Action>) {
        self.following.accepted();
        if self.id != Some(id) {
            // Another member than before: its place in the view is gone.
            if self.id.is_some() {
                self.stop(actions);
            }
            self.id = Some(id);
            actions.push(Action::Say(format!("joined as member {id}")));
        }
        if self.is_draining {
            send(actions, ToCoordinator::Draining);
        }
    }

    /// Whether nobody misses it when it goes.
    fn holds_nothing(&self) -> bool {
        self.steps.is_none() && self.view_begun().is_none()
    }

    /// Who was asked to leave and is not let in has nobody to let it go.
    fn end_if_leaving(&self, actions: &mut Vec<Action>) {
        if self.is_draining && self.holds_nothing() {
            actions.push(Action::End);
        }
    }

    fn disconnect(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.following.apart(now);
        actions.push(Action::Disconnect);
    }

    /// Stops what runs. The state and the grains done stay.
    fn stop(&mut self, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Copying(_)) {
            self.forget(actions);
        }
        if !matches!(self.phase, Phase::Idle | Phase::Stopped) {
            actions.push(Action::Abort);
        }
        self.phase = Phase::Idle;
        self.waiting = None;
        self.broken.clear();
        self.complaint = None;
        self.told_at = None;
        self.last_step_at = None;
        self.held_up = None;
    }

    fn forget(&mut self, actions: &mut Vec<Action>) {
        self.steps = None;
        self.done.clear();
        actions.push(Action::Forget);
    }

    fn prepare(&mut self, view: ViewId, job: JobId, reason: String, actions: &mut Vec<Action>) {
        let is_again = self.view == Some(view) && matches!(self.phase, Phase::Stopped);
        if self.view >= Some(view) && !is_again {
            return;
        }
        if !is_again {
            self.stop(actions);
            self.phase = Phase::Stopped;
            self.view = Some(view);
            actions.push(Action::Say(format!("stopped for view {view}: {reason}")));
        }
        if self.job != Some(job) {
            self.job = Some(job);
            // Grains of another job take something else.
            self.seconds_per_grain = None;
            self.forget(actions);
            self.step_seconds = None;
        }
        let ready = Ready {
            view,
            steps: self.steps,
            done: runs(&self.done),
            seconds_per_grain: self.seconds_per_grain,
            step_seconds: self.step_seconds,
        };
        send(actions, ToCoordinator::Ready(ready));
    }

    fn go(&mut self, now: Duration, go: Go, actions: &mut Vec<Action>) {
        let is_expected = self.view == Some(go.view) && matches!(self.phase, Phase::Stopped);
        let Some(rank) = self.id.and_then(|id| go.rank(id)) else { return };
        if !is_expected {
            return;
        }
        self.step_seconds = self.step_seconds.or(go.step_seconds);
        let seat = &go.members[rank];
        // Grains that another has done too, or of another step, are not this one's any more.
        self.done = seat.done.iter().flat_map(|grains| grains.start..grains.end).collect();
        self.n_to_do = seat.to_do.iter().map(|grains| grains.len()).sum();
        if go.copiers.contains(&go.members[rank].id) {
            self.forget(actions);
            actions.push(Action::Copy { go: Box::new(go.clone()), rank });
            self.phase = Phase::Copying(Box::new(go));
        } else {
            self.start(now, go, rank, actions);
        }
    }

    fn start(&mut self, now: Duration, go: Go, rank: usize, actions: &mut Vec<Action>) {
        self.phase = Phase::Running;
        self.gives = false;
        self.last_step_at = Some(now);
        actions.push(Action::Start { go: Box::new(go), rank });
    }

    fn data_plane(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        let of = match &event {
            Event::GrainDone { view, .. }
            | Event::Waiting { view, .. }
            | Event::Gives { view, .. }
            | Event::StepDone { view, .. }
            | Event::StepBegun { view, .. }
            | Event::HeldUp { view, .. }
            | Event::Failed { view, .. }
            | Event::Copied { view, .. } => Some(*view),
            _ => None,
        };
        // M1: what is of an older view, or comes after the stop for the next, is passed over.
        if of != self.view || matches!(self.phase, Phase::Idle | Phase::Stopped) {
            return;
        }
        match event {
            Event::GrainDone { grain, seconds, .. } => self.grain_done(grain, seconds),
            Event::Waiting { waiting_for, .. } => self.wait(now, waiting_for),
            Event::Gives { is_giving, .. } => self.gives = is_giving,
            Event::StepDone { steps, .. } => self.step_done(now, steps),
            Event::StepBegun { n_to_do, .. } => self.n_to_do = n_to_do,
            Event::HeldUp { by, seconds, .. } => self.held_up = Some((by, seconds.min(1e9))),
            Event::Failed { peer, reason, .. } => {
                if self.broken.is_empty() {
                    self.complaint = Some((now, reason));
                }
                if !self.broken.contains(&peer) {
                    self.broken.push(peer);
                }
                self.tell_stall(now, actions);
            }
            Event::Copied { steps, .. } => {
                if let Phase::Copying(go) = std::mem::replace(&mut self.phase, Phase::Stopped)
                    && let Some(rank) = self.id.and_then(|id| go.rank(id))
                {
                    self.steps = Some(steps);
                    self.waiting = None;
                    self.start(now, *go, rank, actions);
                }
            }
            _ => {}
        }
    }

    fn grain_done(&mut self, grain: u32, seconds: f64) {
        if let Err(place) = self.done.binary_search(&grain) {
            self.done.insert(place, grain);
            self.n_to_do = self.n_to_do.saturating_sub(1);
        }
        if seconds.is_finite() && seconds >= 0.0 {
            self.seconds_per_grain = Some(measured_again(self.seconds_per_grain, seconds).min(1e9));
        }
    }

    fn wait(&mut self, now: Duration, peers: Vec<Peer>) {
        if let Some(before) = &self.waiting {
            if before.peers == peers {
                return;
            }
            self.seconds_waiting += now.saturating_sub(before.since).as_secs_f64();
        }
        let waiting = Waiting { peers, since: now };
        self.waiting = (!waiting.peers.is_empty()).then_some(waiting);
    }

    fn step_done(&mut self, now: Duration, steps: u64) {
        self.wait(now, Vec::new());
        self.waiting = None;
        self.steps = Some(steps);
        self.done.clear();
        if let Some(last) = self.last_step_at.replace(now) {
            let seconds = now.saturating_sub(last).as_secs_f64();
            let before = self.step_seconds.unwrap_or(seconds);
            self.step_seconds = Some((0.8 * before + 0.2 * seconds).min(1e9));
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.following.tick(now) {
            Due::Nothing => {}
            Due::Connect => actions.push(Action::Connect),
            Due::Disconnect(reason) => {
                actions.push(Action::Say(reason));
                send(actions, ToCoordinator::Returning);
                actions.push(Action::Disconnect);
            }
            Due::Heartbeat => {
                let heartbeat = self.heartbeat();
                send(actions, ToCoordinator::Heartbeat(heartbeat));
            }
        }
        if let (Some(view), Some((_, reason))) =
            (self.view, self.complaint.take_if(|(since, _)| now >= *since + COMPLAIN))
        {
            actions.push(Action::Say(format!("cannot go on in view {view}: {reason}")));
        }
        let limit = self.stall_limit();
        let is_late = self.waiting.as_ref().is_some_and(|waiting| now > waiting.since + limit);
        let is_due = self.told_at.is_none_or(|told| now >= told + STALL_AGAIN);
        if (is_late || !self.broken.is_empty()) && is_due {
            self.tell_stall(now, actions);
        }
    }

    /// How long waiting for others is usual.
    fn stall_limit(&self) -> Duration {
        match self.step_seconds {
            Some(seconds) => {
                let limit = (STALL_FACTOR * seconds).min(STALL_CEILING.as_secs_f64());
                Duration::from_secs_f64(limit).max(STALL_FLOOR)
            }
            None => STALL_CEILING,
        }
    }

    fn tell_stall(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.following.is_accepted() {
            return;
        }
        let Some(view) = self.view else { return };
        self.told_at = Some(now);
        let waiting = self.waiting.as_ref();
        let since = waiting.map_or(now, |waiting| waiting.since);
        let is_broken = !self.broken.is_empty();
        let stalled = Stalled {
            view,
            steps: self.steps,
            waiting_for: match waiting {
                Some(waiting) if !is_broken => waiting.peers.clone(),
                _ => self.broken.clone(),
            },
            seconds: now.saturating_sub(since).as_secs_f64().min(1e9),
            is_broken,
        };
        send(actions, ToCoordinator::Stalled(stalled));
    }

    /// The view that this worker has taken up.
    fn view_begun(&self) -> Option<ViewId> {
        self.view.filter(|_| matches!(self.phase, Phase::Copying(_) | Phase::Running))
    }

    /// Whether it is others that it waits for, as it may even before it has run its grains: then it is no straggler.
    fn waits_for_members(&self) -> bool {
        let is_member = |peer: &Peer| matches!(peer, Peer::Member(_));
        self.waiting.as_ref().is_some_and(|waiting| waiting.peers.iter().any(is_member))
    }

    fn heartbeat(&mut self) -> Heartbeat {
        let doing = match &self.phase {
            Phase::Idle => Doing::Nothing,
            Phase::Stopped => Doing::Stopped,
            Phase::Copying(_) => Doing::Copying,
            Phase::Running if self.gives => Doing::Copying,
            Phase::Running if self.n_to_do > 0 && !self.waits_for_members() => Doing::Computing,
            Phase::Running => Doing::Exchanging,
        };
        self.n_heartbeats += 1;
        Heartbeat {
            number: self.n_heartbeats,
            view: self.view_begun(),
            steps: self.steps,
            doing,
            seconds_per_grain: self.seconds_per_grain,
            seconds_waiting: self.seconds_waiting.min(1e9),
            held_up: self.held_up,
        }
    }
}

fn send(actions: &mut Vec<Action>, message: ToCoordinator) {
    actions.push(Action::Send(Box::new(message)));
}
