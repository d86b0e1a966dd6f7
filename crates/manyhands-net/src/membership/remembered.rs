//! What the entries of a log come to, and the fewest entries that come to the same.
//!
//! A coordinator recovers from this alone, so a log may be replaced by [`Remembered::entries`] at any time: a log of months is as long as
//! what is going on.

use std::collections::BTreeMap;

use super::identity::{ClusterId, Incarnation, JobId, MemberId};
use super::log::{Entry, LogError};
use super::message::{Go, Join, Submit};

/// What a coordinator's former lives left to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// The cluster.
    pub cluster: ClusterId,
    /// The newest life that was heard of.
    pub newest: Incarnation,
    /// The ids to be given next: none is given twice.
    pub next: NextIds,
    /// The workers.
    pub members: BTreeMap<MemberId, RememberedMember>,
    /// The job, if one runs.
    pub job: Option<(JobId, Submit)>,
    /// The view that was decided last, unless another was begun since.
    pub go: Option<Go>,
}

/// The numbers to be given next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextIds {
    /// To a worker.
    pub member: u32,
    /// To a view.
    pub view: u64,
    /// To a job.
    pub job: u64,
}

/// A worker.
#[derive(Clone, Debug, PartialEq)]
pub struct RememberedMember {
    /// What it said of itself.
    pub join: Join,
    /// Whether it is to leave.
    pub is_draining: bool,
}

impl Remembered {
    /// Reads a log.
    pub fn read(entries: &[Entry]) -> Result<Remembered, LogError> {
        let Some(Entry::Started { cluster, incarnation }) = entries.first() else {
            return Err(LogError::NoStart);
        };
        let mut remembered = Remembered {
            cluster: *cluster,
            newest: *incarnation,
            next: NextIds { member: 0, view: 1, job: 1 },
            members: BTreeMap::new(),
            job: None,
            go: None,
        };
        entries.iter().for_each(|entry| remembered.note(entry));
        Ok(remembered)
    }

    /// Takes note of one more entry.
    pub fn note(&mut self, entry: &Entry) {
        let next = &mut self.next;
        match entry {
            Entry::Started { incarnation: life, .. } | Entry::Superseded { by: life } => {
                self.newest = self.newest.max(*life);
            }
            Entry::Counted { member, view, job } => {
                next.member = next.member.max(*member);
                next.view = next.view.max(*view);
                next.job = next.job.max(*job);
            }
            Entry::Joined { id, join } => {
                next.member = next.member.max(id.0 + 1);
                let member = RememberedMember { join: join.clone(), is_draining: false };
                self.members.insert(*id, member);
            }
            Entry::Draining { id } => {
                if let Some(member) = self.members.get_mut(id) {
                    member.is_draining = true;
                }
            }
            Entry::Dropped { id, .. } => {
                self.members.remove(id);
            }
            Entry::Accepted { job, submit } => {
                next.job = next.job.max(job.number + 1);
                (self.job, self.go) = (Some((*job, submit.clone())), None);
            }
            Entry::Ended { .. } => (self.job, self.go) = (None, None),
            Entry::Prepared { view } => {
                next.view = next.view.max(view.number + 1);
                self.go = None;
            }
            Entry::Went(go) => self.go = Some((**go).clone()),
        }
    }

    /// The entries of a log that comes to the same.
    pub fn entries(&self) -> Vec<Entry> {
        let NextIds { member, view, job } = self.next;
        let mut entries = vec![
            Entry::Started { cluster: self.cluster, incarnation: self.newest },
            Entry::Counted { member, view, job },
        ];
        for (id, member) in &self.members {
            entries.push(Entry::Joined { id: *id, join: member.join.clone() });
            entries.extend(member.is_draining.then_some(Entry::Draining { id: *id }));
        }
        let accepted =
            |(job, submit): &(JobId, Submit)| Entry::Accepted { job: *job, submit: submit.clone() };
        entries.extend(self.job.as_ref().map(accepted));
        entries.extend(self.go.clone().map(|go| Entry::Went(Box::new(go))));
        entries
    }
}

#[cfg(test)]
mod tests;
