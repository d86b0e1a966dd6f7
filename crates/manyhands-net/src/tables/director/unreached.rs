//! Servers that are there and cannot reach each other: who is left out, so that the others go on.
//!
//! A first holder waits for its copies (S2), so two that cannot speak to each other would stop everyone. Where others have all that one of them holds, that
//! one is left out, as if it were lost. Else each goes on with what it holds, without the other.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Director;
use super::members::Shunned;
use crate::tables::error::TableError;
use crate::tables::identity::ServerId;
use crate::tables::message::FromDirector;

/// How long others are listened to before one is left out: whom most cannot reach is the one to blame.
const LISTENING: Duration = Duration::from_secs(1);
/// How long one that was left out may not come back.
const SHUNNED: Duration = Duration::from_secs(30);

/// A server cannot reach another.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    since: Duration,
    reason: String,
}

impl Director {
    /// A server says that it cannot reach another.
    pub(super) fn complain(&mut self, now: Duration, from: ServerId, to: ServerId, reason: String) {
        if from == to || !self.servers.contains_key(&to) {
            return;
        }
        if self.complaints.contains_key(&(from, to)) {
            return;
        }
        let error = self.unreachable(from, to, &reason);
        self.say(error.to_string());
        self.complaints.insert((from, to), Complaint { since: now, reason });
    }

    /// It can again.
    pub(super) fn withdraw(&mut self, from: ServerId, to: ServerId) {
        if self.complaints.remove(&(from, to)).is_some() {
            let (from, to) = (self.called(from), self.called(to));
            self.say(format!("{from} reaches {to} again"));
        }
    }

    /// Decides about those who could not reach each other for a while. Of one who is silent its silence decides, not what is said of it or what it said.
    pub(super) fn weigh_complaints(&mut self, now: Duration) {
        let is_due = |pair, complaint: &Complaint| {
            now >= complaint.since + LISTENING && self.both_speak(now, pair)
        };
        let Some((&(from, to), complaint)) =
            self.complaints.iter().find(|(pair, complaint)| is_due(**pair, complaint))
        else {
            return;
        };
        let error = self.unreachable(from, to, &complaint.reason);
        if !self.tables.values().any(|table| table.are_together(from, to)) {
            // Nothing waits for the two of them now. They are looked at again when that changes.
            self.complaints.entry((from, to)).and_modify(|complaint| complaint.since = now);
            return;
        }
        match self.left_out(now, from, to) {
            Some(id) => self.leave_out(now, id, error),
            None => self.part(from, to),
        }
    }

    /// Whether neither of two is silent.
    fn both_speak(&self, now: Duration, (one, other): (ServerId, ServerId)) -> bool {
        !self.is_quiet(now, one) && !self.is_quiet(now, other)
    }

    /// Which of two can go without loss: the one that more others are apart from, then the one that answers for less, then the younger.
    fn left_out(&self, now: Duration, from: ServerId, to: ServerId) -> Option<ServerId> {
        let n_apart = |id: ServerId| {
            let pairs = self.complaints.keys().filter(|pair| self.both_speak(now, **pair));
            let pairs = pairs.filter(|(one, other)| [*one, *other].contains(&id));
            let others: BTreeSet<ServerId> =
                pairs.map(|(one, other)| if *one == id { *other } else { *one }).collect();
            others.len()
        };
        let n_first = |id: ServerId| {
            let holdings = self.tables.values().flat_map(|table| table.holdings());
            holdings.filter(|holding| holding.first() == Some(id)).count()
        };
        let spare = [from, to].into_iter().filter(|id| self.is_spare(now, *id));
        spare.max_by_key(|id| (n_apart(*id), std::cmp::Reverse(n_first(*id)), *id))
    }

    fn leave_out(&mut self, now: Duration, id: ServerId, error: TableError) {
        let Some(server) = self.servers.get(&id) else { return };
        let (connection, name) = (server.connection, server.name.clone());
        self.send(connection, FromDirector::Unwelcome { error: error.clone() });
        let reason = format!("it is left out, since {error}; others have all that it holds");
        self.shunned.insert(name, Shunned { until: now + SHUNNED, error });
        self.lose_server(id, &reason);
    }

    /// Neither can go: what one of them answers for, the other does not hold any more.
    fn part(&mut self, from: ServerId, to: ServerId) {
        let tables: Vec<_> = self.tables.keys().copied().collect();
        let mut n_parted = 0;
        for id in tables {
            let Some(table) = self.tables.get_mut(&id) else { continue };
            n_parted += table.part(from, to, &mut self.number);
            self.tell_changed(id);
        }
        self.complaints.remove(&(from, to));
        let (from, to) = (self.called(from), self.called(to));
        self.say(format!(
            "{from} and {to} go on without each other: {n_parted} shards have one holder less"
        ));
    }

    fn called(&self, id: ServerId) -> String {
        let name = self.servers.get(&id).map_or("", |server| server.name.as_str());
        format!("{id} ({name})")
    }

    fn unreachable(&self, from: ServerId, to: ServerId, reason: &str) -> TableError {
        let (from, to) = (self.called(from), self.called(to));
        TableError::Unreachable { from, to, reason: reason.to_string() }
    }
}
