//! The time after a restart in which members of the former life return. Views wait for it, so it ends as soon as it can.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::identity::MemberId;
use super::super::message::{Peer, Stalled};
use super::stalls::Report;
use super::{Coordinator, Phase};

/// How long members may take to return; their pauses between attempts are shorter.
const RETURN: Duration = Duration::from_secs(5);
/// How long they may take if all who are back wait for them: a process that lives tries at least once in a second.
const AWAITED_RETURN: Duration = Duration::from_secs(2);
/// How much longer they may take while none that is back is known to have the newest state.
const HOLDERS_RETURN: Duration = Duration::from_secs(5);

/// What is known while members may return.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) since: Duration,
    /// What those that are back said last of their waiting. It counts while it lasts: a member that others go on with is not lost.
    pub(super) reports: BTreeMap<MemberId, Report>,
}

impl Returning {
    pub(super) fn new(now: Duration) -> Returning {
        Returning { since: now, reports: BTreeMap::new() }
    }

    /// Whether a member waits for another, or has lost its connection to it.
    fn waits(&self, by: MemberId, on: MemberId) -> bool {
        self.reports.get(&by).is_some_and(|report| report.names(on))
    }

    /// Who has lost its connection to a member, if anybody.
    fn says_lost(&self, id: MemberId) -> Option<MemberId> {
        let says = |report: &Report| report.stalled.is_broken && report.names(id);
        self.reports.iter().find(|(_, report)| says(report)).map(|(by, _)| *by)
    }
}

impl Report {
    fn names(&self, id: MemberId) -> bool {
        self.stalled.waiting_for.contains(&Peer::Member(id))
    }
}

impl Coordinator {
    /// Drops those that others know to be lost, and ends the time of returning when all are back or it is over.
    pub(super) fn end_return(&mut self) {
        self.forget_old_words();
        let Some(returning) = &self.returning else { return };
        let since = returning.since;
        // Whose state nobody else has is not given up for a broken connection.
        let state_may_be_away = self.state_may_be_away();
        if !state_may_be_away {
            for id in self.away() {
                self.drop_lost(id, since);
            }
        }
        let limit = if state_may_be_away { RETURN + HOLDERS_RETURN } else { RETURN };
        let away = self.away();
        let driver_is_back = self.job.as_ref().is_none_or(|job| job.connection.is_some());
        if self.now <= since + limit && !(away.is_empty() && driver_is_back) {
            return;
        }
        self.returning = None;
        if let Phase::Running(running) = &mut self.phase {
            running.went_at = self.now;
        }
        for id in away {
            let reason = format!("{} did not return after the restart", self.name(id));
            self.drop_member(id, reason, false);
        }
    }

    /// Takes note of what a member that is back says of its waiting. What it says of another view than the one that goes on, or than
    /// the one it is in, was said of what is over.
    pub(super) fn note_while_returning(&mut self, id: MemberId, stalled: &Stalled) {
        let is_of = match &self.phase {
            Phase::Running(running) => Some(running.go.view),
            _ => self.members.get(&id).and_then(|member| member.heartbeat.view),
        };
        if let Some(returning) = &mut self.returning
            && is_of == Some(stalled.view)
        {
            let before = returning.reports.remove(&id);
            returning.reports.insert(id, Report::new(self.now, stalled.clone(), before));
        }
    }

    /// Withdraws what members said of their waiting and do not say any more.
    fn forget_old_words(&mut self) {
        let (now, members) = (self.now, &self.members);
        let Some(returning) = &mut self.returning else { return };
        returning.reports.retain(|id, report| {
            let member = members.get(id).filter(|member| member.connection.is_some());
            member.is_some_and(|member| {
                let view = member.heartbeat.view;
                report.lasts(now, &member.heartbeat) && view == Some(report.stalled.view)
            })
        });
    }

    /// Members that have not returned.
    fn away(&self) -> Vec<MemberId> {
        let away = self.members.iter().filter(|(_, member)| member.connection.is_none());
        away.map(|(id, _)| *id).collect()
    }

    /// Drops one that is away, if others that are back say that it is lost, or all of them have waited for it long enough.
    fn drop_lost(&mut self, id: MemberId, since: Duration) {
        let name = self.name(id);
        if let Some(by) = self.returning.as_ref().and_then(|returning| returning.says_lost(id)) {
            let by = self.name(by);
            let reason = format!(
                "{name} did not return after the restart, and {by} lost its connection to it"
            );
            self.drop_member(id, reason, false);
        } else if self.now > since + AWAITED_RETURN && self.all_wait_for(id) {
            let reason =
                format!("{name} did not return after the restart, and all others wait for it");
            self.drop_member(id, reason, false);
        }
    }

    /// Whether all members of the view that are back wait for this one, and there are any.
    fn all_wait_for(&self, id: MemberId) -> bool {
        let Some(returning) = &self.returning else { return false };
        let is_back = |id: &MemberId| self.members.get(id).is_some_and(|m| m.connection.is_some());
        let back: Vec<MemberId> = self.in_view().into_iter().filter(is_back).collect();
        !back.is_empty() && back.iter().all(|by| returning.waits(*by, id))
    }
}
