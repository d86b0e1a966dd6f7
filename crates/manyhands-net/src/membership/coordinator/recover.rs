//! A coordinator from the log of its former lives.

use std::time::Duration;

use super::super::identity::Incarnation;
use super::super::log::{Entry, LogError};
use super::super::message::Go;
use super::super::remembered::Remembered;
use super::job::Job;
use super::members::{Drain, Member};
use super::returning::Returning;
use super::{Action, Coordinator, Phase, Running};

impl Coordinator {
    /// A new life, with what to do first. Members that the log knows may return with their ids; if all do in time, the view goes on
    /// without interruption.
    pub fn recover(
        now: Duration,
        entries: &[Entry],
        nonce: u64,
    ) -> Result<(Coordinator, Vec<Action>), LogError> {
        let Remembered { cluster, newest, next, members, job, go } = Remembered::read(entries)?;
        let (mut coordinator, _) = Coordinator::new(now, cluster, nonce);
        coordinator.history.clear();
        coordinator.next_member = next.member;
        coordinator.next_view = next.view;
        coordinator.next_job = next.job;
        coordinator.job = job.map(|(id, submit)| Job::new(now, id, submit, None));
        for (id, known) in members {
            let mut member = Member::new(now, known.join, None);
            member.drain = known.is_draining.then(Drain::default);
            coordinator.members.insert(id, member);
        }
        coordinator.incarnation = Incarnation { epoch: newest.epoch + 1, nonce };
        coordinator.begin_life("it returns from its log");
        coordinator.go_on(go);
        let actions = std::mem::take(&mut coordinator.actions);
        Ok((coordinator, actions))
    }

    fn go_on(&mut self, last_go: Option<Go>) {
        let now = self.now;
        if self.members.is_empty() && self.job.is_none() {
            return;
        }
        self.returning = Some(Returning::new(now));
        let is_whole = |go: &Go| go.members.iter().all(|seat| self.members.contains_key(&seat.id));
        match last_go.filter(is_whole) {
            Some(go) => {
                self.go_on_draining(&go);
                let (reports, paces) = Default::default();
                self.phase =
                    Phase::Running(Running { go, cost_since: None, went_at: now, reports, paces });
            }
            None if self.job.is_some() && !self.members.is_empty() => {
                self.want("the coordinator restarted while a view changed".to_string());
            }
            None => {}
        }
    }

    /// Those that were asked to leave do so after this view's first step, or need another view if this one does not know of it.
    fn go_on_draining(&mut self, go: &Go) {
        for seat in &go.members {
            let Some(drain) = self.members.get_mut(&seat.id).and_then(|m| m.drain.as_mut()) else {
                continue;
            };
            if seat.is_leaving {
                drain.last_view = Some((go.view, go.steps));
            } else {
                self.want(format!(
                    "{} drains: it leaves after the step at hand",
                    self.name(seat.id)
                ));
            }
        }
    }
}
