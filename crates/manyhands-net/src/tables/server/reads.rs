//! Reads of a shard: those that wait, and answers that may not be shown yet.

use std::collections::VecDeque;
use std::time::Duration;

use super::kept::{Kept, RowsBefore};
use super::saved::pieces;
use super::{Action, Outbox};
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, Version};
use crate::tables::message::{Body, FromServer, MOST_BYTES, Until, Wanted, keys};
use crate::tables::packing::pack_values;
use crate::tables::spec::Consistency;
use crate::tables::store::{Shard, StoreError};

/// How often one who waits is told for whom.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// A read that waits.
pub(super) struct Read {
    pub(super) client: ClientId,
    pub(super) id: u64,
    pub(super) after: u64,
    pub(super) until: Until,
    pub(super) wanted: Wanted,
    pub(super) keys: Option<Body>,
    pub(super) told: Duration,
}

/// The reads of a shard.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<Read>,
    /// Answers that wait until all holders have what they show: a read shows nothing that can be lost.
    answers: VecDeque<Answer>,
}

/// What one who reads is told, when it may be shown.
struct Answer {
    version: Version,
    client: ClientId,
    id: u64,
    actions: Vec<Action>,
}

impl Reads {
    pub(super) fn take(&mut self, read: Read) {
        // One that was sent again takes the place of the first.
        self.forget(read.client, read.id);
        self.waiting.push(read);
    }

    pub(super) fn forget(&mut self, client: ClientId, id: u64) {
        self.waiting.retain(|read| (read.client, read.id) != (client, id));
        self.answers.retain(|answer| (answer.client, answer.id) != (client, id));
    }

    /// One who reads is gone.
    pub(super) fn forget_all(&mut self, client: ClientId) {
        self.waiting.retain(|read| read.client != client);
        self.answers.retain(|answer| answer.client != client);
    }

    /// Answers those that may be, with what there is now.
    pub(super) fn answer(&mut self, kept: &Kept, name: &dyn Fn(ClientId) -> String) {
        let mut idx = 0;
        while idx < self.waiting.len() {
            let read = &self.waiting[idx];
            if waits_for(read, kept).is_some() {
                idx += 1;
                continue;
            }
            let read = self.waiting.remove(idx);
            let (version, client, id) = (kept.version, read.client, read.id);
            let actions = answers(&read, kept, name);
            self.answers.push_back(Answer { version, client, id, actions });
        }
    }

    /// Sends the answers whose version every holder has.
    pub(super) fn release(&mut self, safe: Version, out: &mut Outbox) {
        while self.answers.front().is_some_and(|answer| answer.version <= safe) {
            let actions = self.answers.pop_front().map(|answer| answer.actions);
            actions.into_iter().flatten().for_each(|action| out.push(action));
        }
    }

    /// Tells those who wait long for whom.
    pub(super) fn tell(
        &mut self,
        now: Duration,
        kept: &Kept,
        name: &dyn Fn(ClientId) -> String,
        out: &mut Outbox,
    ) {
        for read in &mut self.waiting {
            if now < read.told + TELL_EVERY {
                continue;
            }
            read.told = now;
            let Some(waited) = waits_for(read, kept) else { continue };
            let waits_for = match waited {
                Waited::Own { has, after } => {
                    format!("it has {has} of the reader's own {after} pushes")
                }
                Waited::Client { client, done, wanted } => {
                    let name = name(client);
                    format!("{name} has done {done} clocks of the {wanted} that the read must have")
                }
                Waited::Steps { has, wanted } => format!(
                    "it has {has} of {wanted} steps; of the next one {} parts are there",
                    kept.steps.parts().filter(|part| part.step == has).count()
                ),
            };
            let (place, id) = (kept.place, read.id);
            let message = FromServer::Waits { place, id, waits_for };
            out.push(Action::ToClient { client: read.client, message, body: None });
        }
    }

    /// This server is not the first holder any more: readers must ask elsewhere.
    pub(super) fn readers(&self) -> impl Iterator<Item = ClientId> {
        let answered = self.answers.iter().map(|answer| answer.client);
        self.waiting.iter().map(|read| read.client).chain(answered)
    }
}

/// What a read waits for.
enum Waited {
    Own { has: u64, after: u64 },
    Client { client: ClientId, done: u64, wanted: u64 },
    Steps { has: u64, wanted: u64 },
}

fn waits_for(read: &Read, kept: &Kept) -> Option<Waited> {
    let has = kept.number_of(read.client);
    if has < read.after {
        return Some(Waited::Own { has, after: read.after });
    }
    match read.until {
        Until::Now => None,
        Until::Clock { clock, bound } => {
            // Nobody gets less than the table promises.
            let bound = match kept.opened.spec.consistency {
                Consistency::Ssp { staleness } => bound.min(staleness),
                _ => bound,
            };
            let (client, done) = kept.clocks.waits_for(read.client, clock, bound)?;
            let wanted = clock.saturating_sub(u64::from(bound));
            Some(Waited::Client { client, done, wanted })
        }
        Until::Steps { n } if kept.failed.is_none() && kept.steps.n_done() < n => {
            Some(Waited::Steps { has: kept.steps.n_done(), wanted: n })
        }
        Until::Steps { .. } => None,
    }
}

/// What a read is answered with.
fn answers(read: &Read, kept: &Kept, name: &dyn Fn(ClientId) -> String) -> Vec<Action> {
    let (place, id, client) = (kept.place, read.id, read.client);
    let refused = |error: TableError| {
        let message = FromServer::NotRead { place, id, error };
        vec![Action::ToClient { client, message, body: None }]
    };
    if let Some(error) = &kept.failed {
        return refused(error.clone());
    }
    let mut steps = kept.steps.n_done();
    let mut before = None;
    if let Until::Steps { n } = read.until
        && steps != n
    {
        // Rows are still known as they were a step ago.
        let is_known = n + 1 == steps && matches!(read.wanted, Wanted::Values { .. });
        before = kept.before.as_ref().filter(|_| is_known);
        if before.is_none() {
            return refused(TableError::StepPassed { place, asked: n, found: steps });
        }
        steps = n;
    }
    let bodies = match read.wanted {
        Wanted::State => pieces(kept, false),
        Wanted::Values { first, n } => match values(first, n, read, kept, before, name) {
            Ok(values) if kept.opened.spec.traffic.zero_runs && n > 0 => vec![pack_values(&values)],
            Ok(values) => vec![values],
            Err(error) => return refused(error),
        },
    };
    let n_bodies = bodies.len();
    let answer = |(idx, body): (usize, Body)| {
        let (version, is_last) = (kept.version, idx + 1 == n_bodies);
        let message = FromServer::Read { place, id, version, steps, is_last };
        Action::ToClient { client, message, body: Some(body) }
    };
    bodies.into_iter().enumerate().map(answer).collect()
}

fn values(
    first: u64,
    n: u64,
    read: &Read,
    kept: &Kept,
    before: Option<&RowsBefore>,
    name: &dyn Fn(ClientId) -> String,
) -> Result<Body, TableError> {
    let nonsense = |place: Place, what: String| TableError::Nonsense {
        who: name(read.client),
        what: format!("{what}, of {place}"),
    };
    let spec = &kept.opened.spec;
    // Runs of zeros that save nothing take a byte.
    let n_beside = u64::from(spec.traffic.zero_runs);
    let n_bytes = n.saturating_mul(4 * spec.width() as u64).saturating_add(n_beside);
    if n_bytes > MOST_BYTES as u64 {
        let what = format!("a read of the table {}", kept.opened.name);
        return Err(TableError::TooLarge { who: name(read.client), what, n_bytes });
    }
    match &kept.contents {
        Shard::Dense(dense) => {
            let found = dense.share(first..first.saturating_add(n));
            let (values, bytes) = found.map_err(|error| nonsense(kept.place, error.to_string()))?;
            Ok(Body::of(values, bytes))
        }
        Shard::Rows(rows) => {
            let asked = read.keys.as_ref().map(|body| keys(body)).unwrap_or_default();
            if asked.len() as u64 != n {
                return Err(nonsense(kept.place, format!("{n} rows for {} keys", asked.len())));
            }
            let n_floats = asked.len() * rows.width();
            let read = |floats: &mut [f32]| {
                rows.read(&asked, floats)?;
                before.into_iter().for_each(|before| before.put(&asked, rows.width(), floats));
                Ok::<(), StoreError>(())
            };
            let mut filled = Ok(());
            let found = Body::filled_floats(n_floats, |floats| filled = read(floats));
            filled.map_err(|error| nonsense(kept.place, error.to_string()))?;
            Ok(found)
        }
    }
}
