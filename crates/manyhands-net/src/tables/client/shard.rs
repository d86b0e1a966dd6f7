//! A shard as a client sees it: who is first, what is not acknowledged, what is being read.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Action, Client, ReadResult, TicketId};
use crate::tables::error::TableError;
use crate::tables::history::Record;
use crate::tables::identity::{Place, ServerId, Version};
use crate::tables::key_lists;
use crate::tables::message::{Body, FromServer, Holding, Operation, ToServer, Until, Wanted};
use crate::tables::packing::unpack_values;
use crate::tables::traffic::Saved;
use crate::tables::traffic::key_cache::KeyCache;

/// For which part of which ticket something is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) ticket: TicketId,
    pub(super) part: usize,
}

/// An operation that is not acknowledged.
struct Sent {
    number: u64,
    operation: Operation,
    body: Option<Body>,
    waiting: Waiting,
}

/// A read that is not answered.
struct Reading {
    after: u64,
    until: Until,
    wanted: Wanted,
    keys: Option<Body>,
    waiting: Waiting,
    result: ReadResult,
}

/// A shard as a client sees it.
#[derive(Default)]
pub(super) struct ShardView {
    pub(super) holding: Holding,
    pub(super) lost: Option<TableError>,
    last_number: u64,
    unacknowledged: VecDeque<Sent>,
    reads: BTreeMap<u64, Reading>,
    /// Numbers up to this were sent to who is first now.
    sent_number: u64,
    sent_read: Option<u64>,
    /// Nothing is sent before this.
    pub(super) paused_until: Option<Duration>,
    /// The lists of keys that who is first now has seen, where they go as digests.
    lists: Option<KeyCache>,
}

impl ShardView {
    pub(super) fn is_placed(&self) -> bool {
        self.lost.is_some() || !self.holding.holders.is_empty()
    }

    pub(super) fn add_operation(
        &mut self,
        operation: Operation,
        body: Option<Body>,
        waiting: Waiting,
    ) {
        self.last_number += 1;
        self.unacknowledged.push_back(Sent { number: self.last_number, operation, body, waiting });
    }

    pub(super) fn add_read(
        &mut self,
        id: u64,
        until: Until,
        wanted: Wanted,
        keys: Option<Body>,
        waiting: Waiting,
    ) {
        let (after, result) = (self.last_number, ReadResult::default());
        self.reads.insert(id, Reading { after, until, wanted, keys, waiting, result });
    }

    pub(super) fn pause(&mut self, until: Duration) {
        self.paused_until = Some(until);
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.paused_until.is_some_and(|until| until <= now)
    }

    /// Takes back the reads of a ticket: their numbers.
    pub(super) fn forget_reads(&mut self, ticket: TicketId) -> Vec<u64> {
        let of_ticket = self.reads.iter().filter(|(_, read)| read.waiting.ticket == ticket);
        let ids: Vec<u64> = of_ticket.map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| {
            self.reads.remove(id);
        });
        ids
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    pub(super) fn reader_of(&self, id: u64) -> Option<Waiting> {
        self.reads.get(&id).map(|read| read.waiting)
    }

    /// Gives back what is lent to what is not acknowledged.
    pub(super) fn give_back(&mut self) {
        let bodies = self.unacknowledged.iter_mut().filter_map(|sent| sent.body.as_mut());
        bodies.for_each(Body::give_back);
    }

    pub(super) fn is_waited_for(&self, ticket: TicketId) -> bool {
        self.unacknowledged.iter().any(|sent| sent.waiting.ticket == ticket)
            || self.reads.values().any(|read| read.waiting.ticket == ticket)
    }

    /// Everything that waits, and its weight: the shard is lost.
    pub(super) fn drain(&mut self) -> (Vec<Waiting>, usize) {
        let n_bytes = self.unacknowledged.iter().map(weight).sum();
        let sent = self.unacknowledged.drain(..).map(|sent| sent.waiting);
        let reads = std::mem::take(&mut self.reads).into_values().map(|read| read.waiting);
        (sent.chain(reads).collect(), n_bytes)
    }

    pub(super) fn saved_keys(&self) -> Saved {
        self.lists.as_ref().map(KeyCache::saved).unwrap_or_default()
    }

    /// What is to be sent to who is first, from where it stands. Lists of keys go as digests where so many keys are remembered.
    fn unsent(&mut self, place: Place, most_keys: Option<usize>) -> Vec<(ToServer, Option<Body>)> {
        let mut lists = most_keys.map(|most| self.lists.take().unwrap_or(KeyCache::new(most)));
        let mut messages = Vec::new();
        let mut written =
            |n_keys: Option<u64>, body: &Option<Body>| match (&mut lists, n_keys, body) {
                (Some(lists), Some(n), Some(body)) => Some(key_lists::with_digest(lists, n, body)),
                _ => body.clone(),
            };
        let from = self.unacknowledged.partition_point(|sent| sent.number <= self.sent_number);
        for sent in self.unacknowledged.range(from..) {
            let (number, operation) = (sent.number, sent.operation.clone());
            let body = written(key_lists::n_keys_of(&operation), &sent.body);
            messages.push((ToServer::Do { place, number, operation }, body));
        }
        self.sent_number = self.last_number;
        let from = self.sent_read.map_or(0, |id| id + 1);
        for (id, read) in self.reads.range(from..) {
            let (id, after) = (*id, read.after);
            let (until, wanted) = (read.until, read.wanted);
            let message = ToServer::Read { place, id, after, until, wanted };
            messages.push((message, written(key_lists::n_keys_read(&wanted), &read.keys)));
            self.sent_read = Some(id);
        }
        self.lists = lists;
        messages
    }

    fn has_anything(&self) -> bool {
        !self.unacknowledged.is_empty() || !self.reads.is_empty()
    }
}

/// What an operation counts while it is not acknowledged.
fn weight(sent: &Sent) -> usize {
    1 + sent.body.as_ref().map_or(0, |body| body.len())
}

impl Client {
    /// Sends what is new of a shard, or asks for a link.
    pub(super) fn send_new(&mut self, place: Place) {
        let Some(shard) = self.shards.get_mut(&place) else { return };
        if shard.paused_until.is_some() || !shard.has_anything() {
            return;
        }
        let Some(server) = shard.holding.first() else { return };
        let Some(view) = self.servers.get_mut(&server) else { return };
        if !view.is_linked {
            if !std::mem::replace(&mut view.is_wanted, true) {
                let reach = view.reach.clone();
                self.out.push(Action::LinkTo { server, reach });
            }
            return;
        }
        let opened = self.tables.get(&place.table);
        let most_keys = opened.and_then(|opened| key_lists::most_keys(&opened.spec));
        for (message, body) in shard.unsent(place, most_keys) {
            self.out.push(Action::ToServer { server, message, body });
        }
    }

    /// Sends everything of a shard that is not acknowledged or answered, in order.
    pub(super) fn resend(&mut self, place: Place) {
        if let Some(shard) = self.shards.get_mut(&place) {
            shard.paused_until = None;
            shard.sent_number = 0;
            shard.sent_read = None;
            // Whoever is first now may have seen nothing of it.
            shard.lists.iter_mut().for_each(KeyCache::forget);
            // Pieces of an answer that did not end are sent again too.
            shard.reads.values_mut().for_each(|read| read.result = ReadResult::default());
        }
        self.send_new(place);
    }

    pub(super) fn resend_to(&mut self, server: ServerId) {
        let of_server = self
            .shards
            .iter()
            .filter(|(_, shard)| shard.holding.first() == Some(server) && shard.has_anything());
        let places: Vec<Place> = of_server.map(|(place, _)| *place).collect();
        places.into_iter().for_each(|place| self.resend(place));
    }

    pub(super) fn hear_server(
        &mut self,
        now: Duration,
        server: ServerId,
        message: FromServer,
        body: Option<Body>,
    ) {
        match message {
            FromServer::Done { place, number, version } => {
                self.acknowledged(place, number, Ok(version));
            }
            FromServer::Refused { place, number, error } => {
                self.acknowledged(place, number, Err(error));
            }
            FromServer::Read { place, id, version, steps, is_last } => {
                self.read_came(server, place, id, (version, steps), is_last, body);
            }
            FromServer::NotRead { place, id, error } => {
                let read = self.shards.get_mut(&place).and_then(|shard| shard.reads.remove(&id));
                if let Some(read) = read {
                    self.fail_part(read.waiting.ticket, error);
                }
            }
            FromServer::Waits { place, id, waits_for } => {
                let read = self.shards.get(&place).and_then(|shard| shard.reads.get(&id));
                let ticket = read.map(|read| read.waiting.ticket);
                if let Some(state) = ticket.and_then(|ticket| self.tickets.get_mut(&ticket)) {
                    state.waits_for = Some(waits_for);
                }
            }
            FromServer::Elsewhere { place, has, .. } => {
                let Some(shard) = self.shards.get_mut(&place) else { return };
                if shard.holding.first() != Some(server) {
                    return;
                }
                let oldest = shard.unacknowledged.front().map(|sent| sent.number);
                if let (Some(has), Some(oldest)) = (has, oldest)
                    && oldest > has.saturating_add(1)
                {
                    let client = self.id.map_or_else(String::new, |id| id.to_string());
                    let error = TableError::MissingPushes { place, client, has, number: oldest };
                    return self.lose(place, &error);
                }
                if shard.paused_until.is_none() {
                    shard.pause(now + super::RETRY);
                }
            }
            FromServer::UnknownKeys { place } => {
                // Where everything has gone out again since, this answers something before.
                let lists = self.shards.get(&place).and_then(|shard| shard.lists.as_ref());
                if lists.is_some_and(KeyCache::has_sent_digests) {
                    self.resend(place);
                }
            }
            FromServer::Unwelcome { error } => self.end(error),
            FromServer::Followed(_) => {}
        }
    }

    fn acknowledged(&mut self, place: Place, number: u64, done: Result<Version, TableError>) {
        let Some(shard) = self.shards.get_mut(&place) else { return };
        // Who answers may have changed in between, so an answer may come twice.
        let Ok(idx) = shard.unacknowledged.binary_search_by_key(&number, |sent| sent.number) else {
            return;
        };
        let Some(sent) = shard.unacknowledged.remove(idx) else { return };
        self.n_unacknowledged = self.n_unacknowledged.saturating_sub(weight(&sent));
        match done {
            Ok(version) => {
                if self.is_recording
                    && let Some(client) = self.id
                {
                    let record =
                        Record::of_operation(client, place, number, version, &sent.operation);
                    self.out.push(Action::Record(record));
                }
                self.part_done(sent.waiting.ticket);
            }
            Err(error) => self.fail_part(sent.waiting.ticket, error),
        }
    }

    fn read_came(
        &mut self,
        server: ServerId,
        place: Place,
        id: u64,
        (version, steps): (Version, u64),
        is_last: bool,
        body: Option<Body>,
    ) {
        let Some(shard) = self.shards.get_mut(&place) else { return };
        let Some(read) = shard.reads.get_mut(&id) else { return };
        let mut body = body.unwrap_or_default();
        if let (Some(opened), Wanted::Values { n, .. }) =
            (self.tables.get(&place.table), read.wanted)
            && opened.spec.traffic.zero_runs
            && n > 0
        {
            let n_bytes = n as usize * opened.spec.width() * size_of::<f32>();
            let saved = self.saved.entry(place.table).or_default();
            saved.zero_runs.count(n_bytes, body.len());
            match unpack_values(&body, n_bytes) {
                Ok(values) => body = values,
                Err(error) => {
                    let ticket = read.waiting.ticket;
                    shard.reads.remove(&id);
                    let (who, what) = (self.called(server), format!("{error}, of {place}"));
                    return self.fail_part(ticket, TableError::Nonsense { who, what });
                }
            }
        }
        read.result.bodies.push(body);
        (read.result.version, read.result.steps) = (version, steps);
        if !is_last {
            return;
        }
        let Some(read) = shard.reads.remove(&id) else { return };
        if self.is_recording
            && let Some(client) = self.id
        {
            let record = Record::Read {
                client,
                place,
                after: read.after,
                until: read.until,
                version,
                steps,
            };
            self.out.push(Action::Record(record));
        }
        let Waiting { ticket, part } = read.waiting;
        if let Some(state) = self.tickets.get_mut(&ticket) {
            // There is something to do for who waits, unless the values are where they belong.
            if !read.result.bodies.iter().all(Body::is_landed) {
                self.out.push(Action::Wake);
            }
            state.ready.push((part, read.result));
        }
        self.part_done(ticket);
    }
}
