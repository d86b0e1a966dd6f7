//! Making views: whom to take, asking all to stop, and deciding how it goes on.

use std::time::Duration;

use super::super::assign::{Share, assign};
use super::super::identity::{MemberId, ViewId};
use super::super::log::Entry;
use super::super::message::{Go, Order, Peer, Ready, Seat};
use super::{Action, Coordinator, Phase, Preparing, Running, are_here, n_workers};

/// Joins so close together are taken in one view.
const JOIN_WINDOW: Duration = Duration::from_millis(200);
/// A view for a join alone is made when the last one's cost is at most one part in so many of the time since.
const JOIN_COST_SHARE: f64 = 10.0;
/// A joining worker waits no longer than this, whatever views cost.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(30);
/// A joining worker waits so long for the first step of the view before.
const FIRST_STEP_WAIT: Duration = Duration::from_secs(5);
/// Nobody is dropped sooner for not following an order.
const ORDER_FLOOR: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Whom a view takes now: as many as a step has grains of those that it may take.
    pub(super) fn candidates(&self) -> Vec<MemberId> {
        let mut all = self.available();
        all.truncate(self.most_members());
        all.sort();
        all
    }

    /// How many members a view has at most: each needs a grain.
    fn most_members(&self) -> usize {
        self.job.as_ref().map_or(0, |job| job.submit.grains.most() as usize)
    }

    /// Whom a view may take now, the present members first, then in the order of joining.
    fn available(&self) -> Vec<MemberId> {
        let Some(job) = &self.job else { return Vec::new() };
        let in_view = self.in_view();
        let fits = |id: &MemberId| {
            let member = &self.members[id];
            (member.connection.is_some() || member.is_returning)
                && member.join.kernel_set == job.submit.kernel_set
                && if in_view.contains(id) { !self.is_drained(*id) } else { member.drain.is_none() }
        };
        let is_left_out = |id: &MemberId| {
            let name = &self.members[id].join.name;
            let pauses = self.pauses.left(self.now, name).is_some();
            // A rest is what takes a member out of its view.
            let rests = self.rests.left(self.now, name).is_some();
            (rests || (pauses && !in_view.contains(id))) && !self.holds_alone(*id)
        };
        let mut all: Vec<MemberId> = self.members.keys().copied().filter(fits).collect();
        if !all.iter().all(is_left_out) {
            all.retain(|id| !is_left_out(id));
        }
        all.sort_by_key(|id| (!in_view.contains(id), *id));
        all
    }

    fn newcomers(&self) -> Vec<MemberId> {
        let in_view = self.in_view();
        self.candidates().into_iter().filter(|id| !in_view.contains(id)).collect()
    }

    /// Without a view, one is made as soon as workers that come together are here.
    pub(super) fn settle_idle(&mut self) {
        let candidates = self.candidates();
        let first = candidates.iter().map(|id| self.members[id].joined_at).min();
        if first.is_some_and(|first| self.now >= first + JOIN_WINDOW) {
            self.want(are_here(candidates.len()));
        }
    }

    pub(super) fn settle_running(&mut self) {
        if self.returning.is_some() {
            return;
        }
        self.drop_those_not_going();
        self.renew_for_driver();
        self.settle_stalls();
        self.settle_rests();
        let drained: Vec<MemberId> =
            self.in_view().into_iter().filter(|id| self.is_drained(*id)).collect();
        if let Some(id) = drained.first() {
            self.want(format!("{} is drained", self.name(*id)));
        }
        self.take_newcomers();
    }

    fn take_newcomers(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        // Who is waited for may well work with the others: a view would stop them for nothing.
        if !self.spared.is_empty() {
            return;
        }
        let newcomers = self.newcomers();
        let Some(first) = newcomers.iter().map(|id| self.members[id].joined_at).min() else {
            return;
        };
        let cost = self.view_cost.unwrap_or(0.0) * JOIN_COST_SHARE;
        let wait = Duration::from_secs_f64(cost).min(MAX_JOIN_WAIT);
        // While the last view's cost is not known yet, its first step is waited for, but not for long.
        let is_early = running.cost_since.is_some() && self.now < running.went_at + FIRST_STEP_WAIT;
        // Nor is there anything to wait for while the members do no steps, since they are too few for their mesh.
        let mesh = self.job.as_ref().and_then(|job| job.standing.mesh.as_ref());
        let is_unformed = mesh.is_some_and(|mesh| mesh.formed.is_none());
        let is_worth_it = self.now >= running.went_at + wait && !is_early;
        let is_due = self.now >= first + JOIN_WINDOW && (is_worth_it || is_unformed);
        if is_due || running.go.is_holding() {
            let how = |id: &MemberId| {
                let has_rested = self.members[id].was_sent_to_rest;
                format!("{} {}", self.name(*id), if has_rested { "has rested" } else { "joined" })
            };
            let sentences: Vec<String> = newcomers.iter().map(how).collect();
            self.want(sentences.join(", "));
        }
    }

    /// Begins a view, unless the driver or members of a former life are still to come back.
    pub(super) fn begin_view(&mut self) {
        if self.returning.is_some() || self.job.as_ref().is_none_or(|j| j.connection.is_none()) {
            return;
        }
        let Some(reason) = self.wanted.take() else { return };
        let leaving: Vec<MemberId> =
            self.in_view().into_iter().filter(|id| self.is_drained(*id)).collect();
        let (members, went_on) = (self.candidates(), self.going_on());
        let n_spare = self.available().len() - members.len();
        // Who rests stops as well.
        let before = self.in_view().into_iter().filter(|id| !members.contains(id));
        let told: Vec<MemberId> = members.iter().copied().chain(before).collect();
        self.phase = Phase::Idle;
        leaving.into_iter().for_each(|id| self.let_go(id));
        if members.is_empty() {
            return self.say(format!("no workers are left, the job waits for some: {reason}"));
        }
        let view = ViewId { incarnation: self.incarnation, number: self.next_view };
        self.next_view += 1;
        self.actions.push(Action::Log(Entry::Prepared { view }));
        self.say(format!("view {view} is prepared with {}: {reason}", n_workers(members.len())));
        self.warn_of_spares(n_spare);
        let to = told.iter().filter_map(|id| self.members.get(id)?.connection);
        let to: Vec<_> = to.chain(self.job.as_ref().and_then(|job| job.connection)).collect();
        self.phase = Phase::Preparing(Preparing {
            view,
            since: self.now,
            reason,
            members,
            went_on,
            ready: Default::default(),
            driver_ready: None,
        });
        let Some(order) = self.prepare_order() else { return };
        to.into_iter().for_each(|to| self.send(to, order.clone()));
    }

    fn warn_of_spares(&mut self, n_spare: usize) {
        let most = self.most_members();
        if n_spare > 0 {
            self.say(format!(
                "{} idle: a step has {most} grains, and a worker needs one; use smaller grains to use more",
                n_workers(n_spare)
            ));
        }
    }

    pub(super) fn prepare_order(&self) -> Option<Order> {
        let (Phase::Preparing(preparing), Some(job)) = (&self.phase, &self.job) else {
            return None;
        };
        let (view, reason) = (preparing.view, preparing.reason.clone());
        Some(Order::Prepare { view, job: job.id, reason })
    }

    pub(super) fn member_ready(&mut self, id: MemberId, ready: Ready) {
        if let Phase::Preparing(preparing) = &mut self.phase
            && preparing.view == ready.view
            && preparing.members.contains(&id)
        {
            preparing.ready.insert(id, ready);
        }
    }

    pub(super) fn settle_preparing(&mut self) {
        let Phase::Preparing(preparing) = &self.phase else { return };
        let (since, view) = (preparing.since, preparing.view);
        let missing = preparing.members.iter().filter(|id| !preparing.ready.contains_key(id));
        let missing: Vec<MemberId> = missing.copied().collect();
        for id in &missing {
            let reason = format!("{} did not stop for view {view}", self.name(*id));
            self.drop_disobedient(*id, since, reason);
        }
        if missing.is_empty() && self.wanted.is_none() {
            self.go();
        }
    }

    fn order_patience(&self, id: MemberId) -> Duration {
        let patience = self.members.get(&id).map(|member| 2 * member.arrivals.patience());
        patience.unwrap_or_default().max(ORDER_FLOOR)
    }

    fn drop_those_not_going(&mut self) {
        let Phase::Running(running) = &self.phase else { return };
        let (view, went_at) = (running.go.view, running.went_at);
        for id in self.in_view() {
            let Some(member) = self.members.get(&id) else { continue };
            if member.heartbeat.view != Some(view) {
                let reason = format!("{} did not take up view {view}", self.name(id));
                self.drop_disobedient(id, went_at, reason);
            }
        }
    }

    /// Drops a member that has not followed an order given at some time, if it had time enough.
    fn drop_disobedient(&mut self, id: MemberId, since: Duration, reason: String) {
        let waited = self.now.saturating_sub(since);
        if waited > self.order_patience(id) && !self.is_spared(id, waited, &reason) {
            self.drop_member(id, reason, true);
        }
    }

    /// A driver that followed another coordinator meanwhile may know a newer view than the one that runs here, and takes up none
    /// but a newer one still.
    fn renew_for_driver(&mut self) {
        let (Phase::Running(running), Some(job)) = (&self.phase, &self.job) else { return };
        let since = running.went_at.max(job.away_since);
        let is_late = self.now > since + 2 * ORDER_FLOOR;
        if job.connection.is_some() && job.view != Some(running.go.view) && is_late {
            self.want(format!("the driver did not take up view {}", running.go.view));
        }
    }

    /// All are ready: decides how it goes on.
    fn go(&mut self) {
        let Phase::Preparing(preparing) = &self.phase else { return };
        let Some(job) = &self.job else { return };
        let Some(driver) = &preparing.driver_ready else { return };
        let saved = driver.steps.unwrap_or(0);
        // M3: the highest state goes on.
        let reached = preparing.ready.values().filter_map(|ready| ready.steps).max();
        let steps = reached.unwrap_or(0).max(saved);
        let holds = |id: &MemberId| preparing.ready[id].steps == Some(steps);
        let source = preparing.members.iter().find(|id| holds(id));
        let go = Go {
            view: preparing.view,
            job: job.id,
            grains: job.submit.grains,
            driver: job.submit.driver.clone(),
            members: self.seats(preparing, steps, job.submit.grains.of_step(steps)),
            steps,
            source: source.map_or(Peer::Driver, |id| Peer::Member(*id)),
            copiers: preparing.members.iter().copied().filter(|id| !holds(id)).collect(),
            step_seconds: preparing.ready.values().filter_map(|r| r.step_seconds).reduce(f64::max),
            reason: preparing.reason.clone(),
        };
        let since = preparing.since;
        self.start_running(go, since);
    }

    fn seats(&self, preparing: &Preparing, steps: u64, n_grains: u32) -> Vec<Seat> {
        let is_leaving = |id: &MemberId| self.members[id].drain.is_some();
        let share = |id: &MemberId| {
            let ready = &preparing.ready[id];
            Share {
                seconds_per_grain: ready.seconds_per_grain,
                done: if ready.steps == Some(steps) { ready.done.clone() } else { Vec::new() },
                is_excused: is_leaving(id) || self.excused.contains(id),
            }
        };
        let shares: Vec<Share> = preparing.members.iter().map(share).collect();
        let is_holding = preparing.members.iter().all(is_leaving);
        let parts = preparing.members.iter().zip(assign(n_grains, &shares));
        parts
            .map(|(id, part)| {
                let join = &self.members[id].join;
                Seat {
                    id: *id,
                    name: join.name.clone(),
                    host: join.host.clone(),
                    addresses: join.addresses.clone(),
                    done: part.done,
                    to_do: if is_holding { Vec::new() } else { part.to_do },
                    seconds_per_grain: preparing.ready[id].seconds_per_grain,
                    is_leaving: is_leaving(id),
                }
            })
            .collect()
    }

    fn say_how_it_goes_on(&mut self, go: &Go) {
        let (view, steps) = (go.view, go.steps);
        let workers = n_workers(go.members.len());
        let source = match go.source {
            Peer::Member(id) => self.name(id),
            Peer::Driver => "the driver".to_string(),
        };
        let copiers = match go.copiers.len() {
            0 => String::new(),
            1 => format!("; 1 copies the state from {source}"),
            n => format!("; {n} copy the state from {source}"),
        };
        self.say(format!("view {view} goes on from step {steps} with {workers}{copiers}"));
    }

    fn start_running(&mut self, go: Go, since: Duration) {
        self.excused.clear();
        self.actions.push(Action::Log(Entry::Went(Box::new(go.clone()))));
        self.say_how_it_goes_on(&go);
        for seat in &go.members {
            let Some(member) = self.members.get_mut(&seat.id) else { continue };
            member.was_sent_to_rest = false;
            if let Some(drain) = &mut member.drain {
                drain.last_view = Some((go.view, go.steps));
            }
        }
        let to = go.members.iter().filter_map(|seat| self.members.get(&seat.id)?.connection);
        let to: Vec<_> = to.chain(self.job.as_ref().and_then(|job| job.connection)).collect();
        to.into_iter().for_each(|to| self.send(to, Order::Go(go.clone())));
        let went_at = self.now;
        let (reports, paces) = Default::default();
        self.phase =
            Phase::Running(Running { go, cost_since: Some(since), went_at, reports, paces });
    }
}

impl Go {
    /// Whether all members are about to leave: then they do nothing but give their state to the driver.
    pub fn is_holding(&self) -> bool {
        self.members.iter().all(|seat| seat.is_leaving)
    }
}
