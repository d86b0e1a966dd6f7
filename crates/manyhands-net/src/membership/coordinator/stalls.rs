//! Members that wait for others although nobody is silent: a straggler, a broken connection between two members, or one that
//! passes nothing in one direction.
//!
//! The rule cannot drop everybody: a stall drops one member at most, never the last one, and begins anew with the next view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::identity::MemberId;
use super::super::message::{Doing, Heartbeat, Peer, Stalled};
use super::{Coordinator, Phase, Running};

/// A stall that is not reported again by then is over.
const FORGET: Duration = Duration::from_millis(1500);
/// One whose grains others do, and that takes so long to come back from what it does, is not waited for any longer. Nor is it before it has had the time of so many of its grains.
const STUCK: Duration = Duration::from_secs(10);
const STUCK_GRAINS: f64 = 20.0;

/// What a member said of its waiting.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) stalled: Stalled,
    first: Duration,
    latest: Duration,
}

impl Report {
    /// One that was just made, after this one by the same member, if it made any. They are of one stall if nothing came between.
    pub(super) fn new(now: Duration, stalled: Stalled, before: Option<Report>) -> Report {
        let is_same = |before: &Report| {
            before.stalled.steps == stalled.steps && now <= before.latest + FORGET
        };
        let first = before.filter(is_same).map_or(now, |before| before.first);
        Report { stalled, first, latest: now }
    }

    /// Whether the stall is not over, going by the last heartbeat of the one that told of it.
    pub(super) fn lasts(&self, now: Duration, heartbeat: &Heartbeat) -> bool {
        now <= self.latest + FORGET && heartbeat.steps <= self.stalled.steps
    }
}

/// One waits for another.
#[derive(Clone, Copy, Debug)]
struct Edge {
    waits: MemberId,
    on: Peer,
    steps: Option<u64>,
    is_broken: bool,
}

impl Coordinator {
    pub(super) fn stalled(&mut self, id: MemberId, stalled: Stalled) {
        let now = self.now;
        self.note_while_returning(id, &stalled);
        let Phase::Running(running) = &mut self.phase else { return };
        if running.go.view != stalled.view || running.go.rank(id).is_none() {
            return;
        }
        let before = running.reports.remove(&id);
        running.reports.insert(id, Report::new(now, stalled, before));
    }

    pub(super) fn settle_stalls(&mut self) {
        let now = self.now;
        let Phase::Running(running) = &mut self.phase else { return };
        let members = &self.members;
        running.reports.retain(|id, report| {
            members.get(id).is_some_and(|member| report.lasts(now, &member.heartbeat))
        });
        let Some(first) = running.reports.values().map(|report| report.first).min() else { return };
        let mut edges = edges(running);
        // Who is silent and still here is waited for: nothing can be said of its connections.
        edges.retain(|edge| !matches!(edge.on, Peer::Member(id) if !self.is_well(id)));
        // By then the silent ones have been dropped, and the others' heartbeats are newer than the stall.
        let on_members = edges.iter().filter_map(|edge| match edge.on {
            Peer::Member(id) => members.get(&id),
            Peer::Driver => None,
        });
        let patience = on_members.map(|m| m.arrivals.patience()).max().unwrap_or_default();
        let patience = patience.max(super::super::arrivals::FLOOR);
        if now < first + patience || self.wanted.is_some() {
            return;
        }
        self.decide_stall(&edges, first);
    }

    fn decide_stall(&mut self, edges: &[Edge], first: Duration) {
        let stragglers: BTreeSet<MemberId> =
            edges.iter().filter_map(|edge| self.straggler(edge)).collect();
        if let Some(stuck) = stragglers.iter().copied().find(|id| self.is_stuck(*id)) {
            let since = self.slow_since.get(&stuck).map_or(self.now, |(since, _)| *since);
            let (name, seconds) = (self.name(stuck), self.now.saturating_sub(since).as_secs());
            let reason =
                format!("{name} is dropped: it is there, but has not gone on for {seconds} s");
            return self.drop_member(stuck, reason, true);
        }
        if let Some(straggler) = stragglers.first() {
            let cost = Duration::from_secs_f64(self.view_cost.unwrap_or(0.0));
            if self.now >= first + cost {
                let name = self.name(*straggler);
                self.want(format!("{name} is far slower than usual, others do its grains"));
                self.excuse(stragglers);
            }
            return;
        }
        let mut edges: Vec<Edge> =
            edges.iter().copied().filter(|edge| self.is_fault(edge)).collect();
        // A connection that failed says more than waiting does.
        if edges.iter().any(|edge| edge.is_broken) {
            edges.retain(|edge| edge.is_broken);
        }
        let Some(edge) = edges.first() else { return };
        if edge.is_broken && self.retried != Some(edge.steps) {
            self.retried = Some(edge.steps);
            return self.want(format!("the connection between {} failed", self.ends(edge)));
        }
        let Some(culprit) = self.culprit(&edges) else { return };
        if self.in_view().len() < 2 || self.holds_alone(culprit) {
            return self.want(format!("nothing passes between {}", self.ends(edge)));
        }
        let reason = self.why_dropped(culprit, &edges);
        self.drop_member(culprit, reason, true);
    }

    /// Others are to do the grains of these, from now on.
    fn excuse(&mut self, stragglers: BTreeSet<MemberId>) {
        for id in &stragglers {
            let steps = self.members.get(id).and_then(|member| member.heartbeat.steps);
            let since = self.slow_since.entry(*id).or_insert((self.now, steps));
            if since.1 != steps {
                *since = (self.now, steps);
            }
        }
        self.excused = stragglers;
    }

    /// Whether a straggler whose grains others do has long not come back from what it does, though it is there, and others have the state.
    fn is_stuck(&self, id: MemberId) -> bool {
        let (Some(member), Some((since, steps))) =
            (self.members.get(&id), self.slow_since.get(&id))
        else {
            return false;
        };
        // Of a mesh members say no steps, and each holds another part of the state.
        let is_meshed = self.job.as_ref().is_some_and(|job| job.standing.mesh.is_some());
        let grains = STUCK_GRAINS * member.heartbeat.seconds_per_grain.unwrap_or(0.0);
        let patience = Duration::try_from_secs_f64(grains).unwrap_or(Duration::MAX).max(STUCK);
        let is_late = self.now >= since.saturating_add(patience);
        let is_same = member.heartbeat.steps == *steps;
        let can_go = self.in_view().len() > 1 && !self.holds_alone(id);
        is_late && is_same && can_go && !is_meshed
    }

    /// Both ends of a connection, as people read it.
    fn ends(&self, edge: &Edge) -> String {
        match edge.on {
            Peer::Member(id) => format!("{} and {}", self.name(edge.waits), self.name(id)),
            Peer::Driver => format!("{} and the driver", self.name(edge.waits)),
        }
    }

    /// Why this one is dropped: by the connections that it is an end of.
    fn why_dropped(&self, culprit: MemberId, edges: &[Edge]) -> String {
        let on: BTreeSet<MemberId> = edges
            .iter()
            .filter(|edge| edge.on == Peer::Member(culprit))
            .map(|edge| edge.waits)
            .collect();
        let own = edges.iter().find(|edge| edge.waits == culprit);
        let name = self.name(culprit);
        match (on.len(), on.first(), own) {
            (1, Some(by), _) => {
                format!("{name} is dropped: nothing passes between it and {}", self.name(*by))
            }
            (n, Some(_), _) => {
                format!(
                    "{name} is dropped: nothing passes between it and {n} others that wait for it"
                )
            }
            (_, None, Some(Edge { on: Peer::Member(id), .. })) => {
                format!("{name} is dropped: nothing passes between it and {}", self.name(*id))
            }
            _ => format!("{name} is dropped: nothing passes between it and the driver"),
        }
    }

    /// The member waited for, if all it lacks is time: it computes, and waits for nobody itself.
    fn straggler(&self, edge: &Edge) -> Option<MemberId> {
        let (Phase::Running(running), Peer::Member(id)) = (&self.phase, edge.on) else {
            return None;
        };
        let heartbeat = &self.members.get(&id)?.heartbeat;
        let is_slow = heartbeat.view == Some(running.go.view)
            && heartbeat.steps == edge.steps
            && heartbeat.doing == Doing::Computing
            && !running.reports.contains_key(&id)
            && id != edge.waits;
        is_slow.then_some(id)
    }

    /// Whether nothing but a fault explains that one waits for the other.
    fn is_fault(&self, edge: &Edge) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        match edge.on {
            Peer::Driver => {
                let Some(job) = &self.job else { return false };
                let is_copy = edge.steps.is_none();
                let has_sent = is_copy || Some(job.inputs_sent) > edge.steps;
                job.connection.is_some()
                    && job.view == Some(running.go.view)
                    && (edge.is_broken || has_sent)
            }
            Peer::Member(id) => self.members.get(&id).is_some_and(|member| {
                member.heartbeat.view == Some(running.go.view)
                    && (edge.is_broken || member.heartbeat.doing != Doing::Copying)
            }),
        }
    }

    /// Whom to drop: of those on either end, first one without the state (so that the state is never dropped for one who
    /// lacks it), then the one that most wait for, then the youngest.
    fn culprit(&self, edges: &[Edge]) -> Option<MemberId> {
        let mut n_waiting: BTreeMap<MemberId, usize> = BTreeMap::new();
        for edge in edges {
            *n_waiting.entry(edge.waits).or_default() += usize::from(edge.on == Peer::Driver);
            if let Peer::Member(id) = edge.on {
                *n_waiting.entry(id).or_default() += 1;
            }
        }
        let Phase::Running(running) = &self.phase else { return None };
        let is_behind = |id: &MemberId| {
            self.members.get(id).is_none_or(|m| m.heartbeat.steps < Some(running.go.steps))
        };
        n_waiting.into_iter().max_by_key(|(id, n)| (is_behind(id), *n, *id)).map(|(id, _)| id)
    }
}

fn edges(running: &Running) -> Vec<Edge> {
    let reports = running.reports.iter();
    let of = |(waits, report): (&MemberId, &Report)| {
        let (waits, stalled) = (*waits, &report.stalled);
        let edge =
            |on: &Peer| Edge { waits, on: *on, steps: stalled.steps, is_broken: stalled.is_broken };
        stalled.waiting_for.iter().map(edge).collect::<Vec<Edge>>()
    };
    reports.flat_map(of).collect()
}
