//! Joining, returning, leaving, draining and being dropped.

use std::time::Duration;

use super::super::arrivals::{Arrivals, FLOOR};
use super::super::identity::{Connection, MemberId, ViewId};
use super::super::log::Entry;
use super::super::message::{Doing, Heartbeat, Join, Order};
use super::super::status::MemberStatus;
use super::left_out::LeftOut;
use super::{Action, Coordinator, Phase};

/// How long a worker whose connections failed is left out the first time; doubled each time.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest it is left out.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long workers that leave all together wait for the driver to take their state, which is lost without it.
const SAVE: Duration = Duration::from_secs(60);

/// A worker that the coordinator knows.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) join: Join,
    /// None while it may return after the coordinator restarted.
    pub(super) connection: Option<Connection>,
    pub(super) arrivals: Arrivals,
    pub(super) heartbeat: Heartbeat,
    pub(super) joined_at: Duration,
    pub(super) drain: Option<Drain>,
    /// It gave its connection up and said that it comes back on another.
    pub(super) is_returning: bool,
    /// It was sent to rest, and has been in no view since.
    pub(super) was_sent_to_rest: bool,
}

/// A member that wants to leave. It stays for one step, to which it brings the grains it has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drain {
    /// The view in which it gets no more grains, and the steps that view began with.
    pub(super) last_view: Option<(ViewId, u64)>,
}

/// Nobody pauses yet.
pub(super) fn pauses() -> LeftOut {
    LeftOut::new(PAUSE, MAX_PAUSE)
}

impl Member {
    pub(super) fn new(now: Duration, join: Join, connection: Option<Connection>) -> Member {
        let heartbeat = Heartbeat {
            number: 0,
            view: join.view,
            steps: None,
            doing: Doing::Nothing,
            seconds_per_grain: None,
            seconds_waiting: 0.0,
            held_up: None,
        };
        let arrivals = Arrivals::new(now);
        Member {
            join,
            connection,
            arrivals,
            heartbeat,
            joined_at: now,
            drain: None,
            is_returning: false,
            was_sent_to_rest: false,
        }
    }

    /// How it stands: whether it is in the view, and for how much longer it rests.
    pub(super) fn status(
        &self,
        id: MemberId,
        now: Duration,
        is_in_view: bool,
        rest: Option<Duration>,
    ) -> MemberStatus {
        MemberStatus {
            id,
            name: self.join.name.clone(),
            host: self.join.host.clone(),
            cores: self.join.cores,
            is_in_view,
            is_draining: self.drain.is_some(),
            seconds_to_rest: rest.map(|rest| rest.as_secs_f64()),
            doing: self.heartbeat.doing,
            steps: self.heartbeat.steps,
            bound: None,
            seconds_per_grain: self.heartbeat.seconds_per_grain,
            seconds_waiting: self.heartbeat.seconds_waiting,
            seconds_silent: self.arrivals.silent_for(now).as_secs_f64(),
        }
    }
}

impl Coordinator {
    pub(super) fn member_on(&self, connection: Connection) -> Option<MemberId> {
        let on = |(id, m): (&MemberId, &Member)| (m.connection == Some(connection)).then_some(*id);
        self.members.iter().find_map(on)
    }

    /// What people read: the worker's name and its id.
    pub(super) fn name(&self, id: MemberId) -> String {
        match self.members.get(&id) {
            Some(member) => format!("worker {} (member {id})", member.join.name),
            None => format!("member {id}"),
        }
    }

    pub(super) fn join(&mut self, from: Connection, join: Join) {
        let who = format!("worker {}", join.name);
        if !self.may_follow(&who, from, join.follows) {
            return;
        }
        if let Some(needed) = self.job.as_ref().map(|job| &job.submit.kernel_set)
            && *needed != join.kernel_set
        {
            let reason = format!(
                "{who} has kernels {}, and the job needs {needed}: its results would differ",
                join.kernel_set
            );
            return self.refuse(from, reason);
        }
        let known = self.members.iter().find(|(_, member)| member.join.name == join.name);
        match known.map(|(id, _)| *id) {
            Some(id) if self.returns(id, from, join.clone()) => {}
            Some(id) if self.is_taken(id, &join) => {
                self.refuse(from, format!("{who} is here already, from another process"));
            }
            Some(id) => {
                let reason = format!("{} was started anew", self.name(id));
                self.drop_member(id, reason, false);
                self.enter(from, join);
            }
            None => self.enter(from, join),
        }
    }

    /// Whether another process has the name and is well.
    fn is_taken(&self, id: MemberId, join: &Join) -> bool {
        self.members.get(&id).is_some_and(|member| {
            member.join.instance != join.instance
                && member.connection.is_some()
                && member.arrivals.silent_for(self.now) < FLOOR
        })
    }

    /// Takes a known member's process back on another connection, if it is that: its place is as it was.
    fn returns(&mut self, id: MemberId, from: Connection, join: Join) -> bool {
        let is_in_view = self.in_view().contains(&id);
        let now = self.now;
        let Some(member) = self.members.get_mut(&id) else { return false };
        let is_same = member.join.instance == join.instance
            && (join.previous == Some(id) || !is_in_view || member.connection == Some(from));
        if !is_same {
            return false;
        }
        let old = member.connection.replace(from);
        member.is_returning = false;
        member.arrivals = Arrivals::new(now);
        if old != Some(from) {
            member.heartbeat.view = join.view;
            member.join = join;
            if let Some(old) = old {
                self.actions.push(Action::Close { connection: old });
            }
            self.say(format!("{} is back", self.name(id)));
        }
        self.send(from, Order::Welcome { id });
        true
    }

    fn enter(&mut self, from: Connection, join: Join) {
        let id = MemberId(self.next_member);
        self.next_member += 1;
        self.actions.push(Action::Log(Entry::Joined { id, join: join.clone() }));
        let mut member = Member::new(self.now, join, Some(from));
        member.heartbeat.view = None;
        self.members.insert(id, member);
        self.say(format!("{} joined", self.name(id)));
        self.send(from, Order::Welcome { id });
    }

    /// Takes a member out. The reason names it. `is_suspect` leaves it out for a while when it joins again.
    pub(super) fn drop_member(&mut self, id: MemberId, reason: String, is_suspect: bool) {
        let is_in_view = self.in_view().contains(&id);
        let Some(member) = self.members.remove(&id) else { return };
        self.slow_since.remove(&id);
        self.actions.push(Action::Log(Entry::Dropped { id, reason: reason.clone() }));
        if let Some(connection) = member.connection {
            self.send(connection, Order::Dropped { reason: reason.clone() });
            self.actions.push(Action::Close { connection });
        }
        if is_suspect {
            self.pauses.begin(self.now, &member.join.name);
        }
        self.say(reason.clone());
        if is_in_view {
            self.last_failure = Some(reason.clone());
            self.want(reason);
        }
    }

    pub(super) fn drop_silent(&mut self) {
        let now = self.now;
        let is_silent = |member: &Member| {
            let is_here = member.connection.is_some() || member.is_returning;
            is_here && member.arrivals.is_silent(now)
        };
        let silent: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| is_silent(member))
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            let silence = self.members[&id].arrivals.silent_for(now);
            let reason =
                format!("{} has been silent for {:.1} s", self.name(id), silence.as_secs_f64());
            if !self.is_spared(id, silence, &reason) {
                self.drop_member(id, reason, false);
            }
        }
    }

    /// A member gives its connection up, since it heard nothing on it, and tries to come back on another.
    pub(super) fn returning(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_returning = true;
        }
    }

    /// Whether a member whose connection closed is waited for: it said that it comes back, and has what nobody else has.
    pub(super) fn comes_back(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.is_returning) && self.holds_alone(id)
    }

    pub(super) fn heartbeat(&mut self, id: MemberId, heartbeat: Heartbeat) {
        let now = self.now;
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(connection) = member.connection else { return };
        if heartbeat.number <= member.heartbeat.number {
            return;
        }
        let steps = heartbeat.steps;
        member.heartbeat = heartbeat;
        self.send(connection, Order::Alive);
        self.measure_rate(now);
        self.note_pace(id);
        match &mut self.phase {
            Phase::Running(running) if running.go.rank(id).is_some() => {
                let member = &self.members[&id];
                if member.heartbeat.view != Some(running.go.view) {
                    let go = running.go.clone();
                    return self.send(connection, Order::Go(go));
                }
                if steps > Some(running.go.steps) {
                    self.note_view_cost();
                }
            }
            Phase::Preparing(preparing)
                if preparing.members.contains(&id) && !preparing.ready.contains_key(&id) =>
            {
                if let Some(order) = self.prepare_order() {
                    self.send(connection, order);
                }
            }
            _ => {}
        }
    }

    /// The first step of the view is done: what the view has cost is known.
    pub(super) fn note_view_cost(&mut self) {
        let Phase::Running(running) = &mut self.phase else { return };
        let Some(since) = running.cost_since.take() else { return };
        let cost = self.now.saturating_sub(since).as_secs_f64();
        let before = self.view_cost.unwrap_or(cost);
        self.view_cost = Some(0.7 * before + 0.3 * cost);
    }

    fn measure_rate(&mut self, now: Duration) {
        let here = (now, self.highest());
        self.rate = match self.rate {
            None => Some((here, here)),
            Some((from, _)) if now.saturating_sub(from.0) < Duration::from_secs(10) => {
                Some((from, here))
            }
            Some((_, to)) => Some((to, here)),
        };
    }

    pub(super) fn drain_by_name(&mut self, name: &str) {
        let known = self.members.iter().find(|(_, member)| member.join.name == name);
        match known.map(|(id, _)| *id) {
            Some(id) => self.drain(id),
            None => self.say(format!("worker {name} is not here and cannot be drained")),
        }
    }

    pub(super) fn drain(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.drain.is_some() {
            return;
        }
        member.drain = Some(Drain::default());
        self.actions.push(Action::Log(Entry::Draining { id }));
        if self.in_view().contains(&id) {
            let sentence = format!("{} drains: it leaves after the step at hand", self.name(id));
            self.say(sentence.clone());
            self.want(sentence);
        } else {
            self.say(format!("{} drains: it has nothing to do and leaves", self.name(id)));
        }
    }

    /// Whether a draining member has brought what it had to its last step.
    pub(super) fn is_drained(&self, id: MemberId) -> bool {
        let Some(member) = self.members.get(&id) else { return false };
        let Some(drain) = member.drain else { return false };
        if !self.in_view().contains(&id) {
            return true;
        }
        let (Phase::Running(running), Some((view, steps))) = (&self.phase, drain.last_view) else {
            return false;
        };
        if running.go.view != view || member.heartbeat.view != Some(view) {
            return false;
        }
        let is_late = self.now > running.went_at + SAVE;
        let Some(job) = &self.job else { return false };
        if let Some(mesh) = &job.standing.mesh {
            return mesh.saved_in == Some(view) || is_late;
        }
        if running.go.is_holding() {
            return job.saved >= steps || is_late;
        }
        member.heartbeat.steps > Some(steps)
    }

    /// Lets those go that are drained and in no view.
    pub(super) fn finish_drains(&mut self) {
        let in_view = self.in_view();
        let drained: Vec<MemberId> = self.members.keys().copied().collect();
        for id in drained {
            let is_here = self.members.get(&id).is_some_and(|member| member.connection.is_some());
            if is_here && self.is_drained(id) && !in_view.contains(&id) {
                self.let_go(id);
            }
        }
    }

    pub(super) fn let_go(&mut self, id: MemberId) {
        let reason = format!("{} is drained", self.name(id));
        let Some(member) = self.members.remove(&id) else { return };
        self.actions.push(Action::Log(Entry::Dropped { id, reason: reason.clone() }));
        self.say(reason);
        if let Some(connection) = member.connection {
            self.send(connection, Order::Drained);
            self.actions.push(Action::Close { connection });
        }
    }
}
