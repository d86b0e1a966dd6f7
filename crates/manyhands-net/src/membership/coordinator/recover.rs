//! A coordinator from the log of its former lives.

use std::time::Duration;

use super::super::identity::{Incarnation, MemberId};
use super::super::log::{Entry, LogError};
use super::super::message::Go;
use super::job::Job;
use super::members::Member;
use super::{Action, Coordinator, Phase, RETURN, Running};

impl Coordinator {
    /// A new life, with what to do first. Members that the log knows may return with their ids; if all do in time, the view goes on
    /// without interruption.
    pub fn recover(
        now: Duration,
        entries: &[Entry],
        nonce: u64,
    ) -> Result<(Coordinator, Vec<Action>), LogError> {
        let Some(Entry::Started { cluster, .. }) = entries.first() else {
            return Err(LogError::NoStart);
        };
        let (mut coordinator, _) = Coordinator::new(now, *cluster, nonce);
        coordinator.history.clear();
        let mut last_go = None;
        let mut epoch = 0;
        for entry in entries {
            match entry {
                Entry::Started { incarnation, .. } => epoch = epoch.max(incarnation.epoch),
                Entry::Superseded { by } => epoch = epoch.max(by.epoch),
                other => coordinator.replay(other, &mut last_go),
            }
        }
        coordinator.incarnation = Incarnation { epoch: epoch + 1, nonce };
        coordinator.begin_life("it returns from its log");
        coordinator.go_on(last_go);
        let actions = std::mem::take(&mut coordinator.actions);
        Ok((coordinator, actions))
    }

    fn replay(&mut self, entry: &Entry, last_go: &mut Option<Go>) {
        let now = self.now;
        match entry {
            Entry::Started { .. } | Entry::Superseded { .. } => {}
            Entry::Joined { id, join } => {
                self.next_member = self.next_member.max(id.0 + 1);
                self.members.insert(*id, Member::new(now, join.clone(), None));
            }
            Entry::Dropped { id, .. } => {
                self.members.remove(id);
            }
            Entry::Accepted { job, submit } => {
                self.next_job = self.next_job.max(job.number + 1);
                self.job = Some(Job::new(now, *job, submit.clone(), None));
                *last_go = None;
            }
            Entry::Ended { .. } => {
                self.job = None;
                *last_go = None;
            }
            Entry::Prepared { view } => {
                self.next_view = self.next_view.max(view.number + 1);
                *last_go = None;
            }
            Entry::Went(go) => *last_go = Some((**go).clone()),
        }
    }

    fn go_on(&mut self, last_go: Option<Go>) {
        let now = self.now;
        if self.members.is_empty() && self.job.is_none() {
            return;
        }
        self.returning_until = Some(now + RETURN);
        let is_whole = |go: &Go| go.members.iter().all(|seat| self.members.contains_key(&seat.id));
        match last_go.filter(is_whole) {
            Some(go) => {
                let reports = Default::default();
                self.phase =
                    Phase::Running(Running { go, cost_since: None, went_at: now, reports });
            }
            None if self.job.is_some() && !self.members.is_empty() => {
                self.want("the coordinator restarted while a view changed".to_string());
            }
            None => {}
        }
    }

    /// Ends the time of returning when all are back, or when it is over: those that are not are dropped.
    pub(super) fn end_return(&mut self) {
        let Some(until) = self.returning_until else { return };
        let away = self.members.iter().filter(|(_, member)| member.connection.is_none());
        let away: Vec<MemberId> = away.map(|(id, _)| *id).collect();
        let driver_is_back = self.job.as_ref().is_none_or(|job| job.connection.is_some());
        if self.now <= until && !(away.is_empty() && driver_is_back) {
            return;
        }
        self.returning_until = None;
        if let Phase::Running(running) = &mut self.phase {
            running.went_at = self.now;
        }
        for id in away {
            let reason = format!("{} did not return after the restart", self.name(id));
            self.drop_member(id, reason, false);
        }
    }
}
