//! Reads of a shard: those that wait, and answers that may not be shown yet.

use std::collections::VecDeque;
use std::time::Duration;

use super::kept::Kept;
use super::saved::pieces;
use super::{Action, Outbox};
use crate::tables::body;
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, Version};
use crate::tables::message::{Body, FromServer, Until, Wanted, keys};
use crate::tables::packing::pack_values;
use crate::tables::store::Shard;

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
    answers: VecDeque<(Version, Vec<Action>)>,
}

impl Reads {
    pub(super) fn take(&mut self, read: Read) {
        // One that was sent again takes the place of the first.
        self.forget(read.client, read.id);
        self.waiting.push(read);
    }

    pub(super) fn forget(&mut self, client: ClientId, id: u64) {
        self.waiting.retain(|read| (read.client, read.id) != (client, id));
    }

    /// Answers those that may be, with what there is now.
    pub(super) fn answer(&mut self, kept: &Kept) {
        let mut idx = 0;
        while idx < self.waiting.len() {
            let read = &self.waiting[idx];
            if waits_for(read, kept).is_some() {
                idx += 1;
                continue;
            }
            let read = self.waiting.remove(idx);
            self.answers.push_back((kept.version, answers(&read, kept)));
        }
    }

    /// Sends the answers whose version every holder has.
    pub(super) fn release(&mut self, safe: Version, out: &mut Outbox) {
        while self.answers.front().is_some_and(|(version, _)| *version <= safe) {
            let (_, actions) = self.answers.pop_front().unwrap_or_default();
            actions.into_iter().for_each(|action| out.push(action));
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
        let to = |action: &Action| match action {
            Action::ToClient { client, .. } => Some(*client),
            _ => None,
        };
        // Answers that were not shown yet never will be.
        let answers = self.answers.iter().flat_map(|(_, actions)| actions);
        self.waiting.iter().map(|read| read.client).chain(answers.filter_map(to))
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
fn answers(read: &Read, kept: &Kept) -> Vec<Action> {
    let (place, id, client) = (kept.place, read.id, read.client);
    let refused = |error: TableError| {
        let message = FromServer::NotRead { place, id, error };
        vec![Action::ToClient { client, message, body: None }]
    };
    if let Some(error) = &kept.failed {
        return refused(error.clone());
    }
    if let Until::Steps { n } = read.until
        && kept.steps.n_done() != n
    {
        return refused(TableError::StepPassed { place, asked: n, found: kept.steps.n_done() });
    }
    let bodies = match read.wanted {
        Wanted::State => pieces(kept, false),
        Wanted::Values { first, n } => match values(first, n, read.keys.as_ref(), kept) {
            Ok(values) if kept.opened.spec.traffic.zero_runs && n > 0 => vec![pack_values(&values)],
            Ok(values) => vec![values],
            Err(error) => return refused(error),
        },
    };
    let n_bodies = bodies.len();
    let answer = |(idx, body): (usize, Body)| {
        let (version, steps, is_last) = (kept.version, kept.steps.n_done(), idx + 1 == n_bodies);
        let message = FromServer::Read { place, id, version, steps, is_last };
        Action::ToClient { client, message, body: Some(body) }
    };
    bodies.into_iter().enumerate().map(answer).collect()
}

fn values(first: u64, n: u64, asked: Option<&Body>, kept: &Kept) -> Result<Body, TableError> {
    let nonsense = |place: Place, what: String| TableError::Nonsense {
        who: "a reader".into(),
        what: format!("{what}, of {place}"),
    };
    match &kept.contents {
        Shard::Dense(dense) => {
            let found = dense.read(first..first.saturating_add(n));
            let found = found.map_err(|error| nonsense(kept.place, error.to_string()))?;
            Ok(Body::copy_of(bytemuck::cast_slice(found)))
        }
        Shard::Rows(rows) => {
            let asked = asked.map(|body| keys(body)).unwrap_or_default();
            if asked.len() as u64 != n {
                return Err(nonsense(kept.place, format!("{n} rows for {} keys", asked.len())));
            }
            let mut found = body::any(asked.len() * rows.width() * 4);
            let filled = match bytemuck::try_cast_slice_mut(&mut found) {
                Ok(floats) => rows.read(&asked, floats),
                Err(_) => {
                    let mut floats = vec![0f32; asked.len() * rows.width()];
                    let filled = rows.read(&asked, &mut floats);
                    found.copy_from_slice(bytemuck::cast_slice(&floats));
                    filled
                }
            };
            filled.map_err(|error| nonsense(kept.place, error.to_string()))?;
            Ok(Body::new(found))
        }
    }
}
