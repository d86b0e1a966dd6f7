//! A shard on a server: as its first holder, as a copy, or as one that is being filled.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::copies::Copies;
use super::kept::Kept;
use super::reads::{Read, Reads};
use super::saved::Arriving;
use super::{Action, Known, Outbox};
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, ServerId, Term, Version};
use crate::tables::key_lists;
use crate::tables::message::{
    Author, Body, Follow, Followed, FromServer, Holding, Operation, ToDirector,
};
use crate::tables::packing::unpack;
use crate::tables::traffic::TrafficError;
use crate::tables::traffic::key_cache::KeyCache;

/// A shard on a server.
pub(super) struct Held {
    place: Place,
    holding: Holding,
    /// The newest term that was heard of: older first holders are not listened to.
    term: Term,
    /// The newest of the director's decisions that a first holder knew of: older ones that come late are not acted on.
    heard_of: u64,
    kept: Option<Kept>,
    arriving: Option<Arriving>,
    leading: Option<Leading>,
}

/// What the first holder of a shard has besides.
struct Leading {
    copies: Copies,
    reads: Reads,
    /// What is done here, and not yet by all holders.
    acknowledgements: VecDeque<Acknowledgement>,
    /// Lists of keys that each client has sent, where they may come as digests.
    lists: BTreeMap<ClientId, KeyCache>,
}

impl Leading {
    /// What a client sent, with its keys in place of their digest.
    fn with_keys(
        &mut self,
        client: ClientId,
        most_keys: Option<usize>,
        body: Option<Body>,
    ) -> Result<Option<Body>, TrafficError> {
        let (Some(most), Some(body)) = (most_keys, &body) else { return Ok(body) };
        let lists = self.lists.entry(client).or_insert_with(|| KeyCache::new(most));
        key_lists::with_keys(lists, body).map(Some)
    }
}

struct Acknowledgement {
    /// What every holder must have.
    waits_for: Version,
    version: Version,
    author: Author,
    done: Result<(), TableError>,
}

impl Held {
    pub(super) fn new(place: Place) -> Held {
        Held {
            place,
            holding: Holding::default(),
            term: Term(0),
            heard_of: 0,
            kept: None,
            arriving: None,
            leading: None,
        }
    }

    /// Lets go of memory that nobody reads any more.
    pub(super) fn tidy(&mut self) {
        self.kept.iter_mut().for_each(Kept::tidy);
    }

    pub(super) fn n_bytes(&self) -> u64 {
        let lists = self.leading.iter().flat_map(|leading| leading.lists.values());
        let n_listed: usize = lists.map(KeyCache::n_bytes).sum();
        let arriving = self.arriving.as_ref().map_or(0, Arriving::n_bytes);
        self.kept.as_ref().map_or(0, Kept::n_bytes) + arriving + n_listed as u64
    }

    pub(super) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    pub(super) fn term(&self) -> Term {
        self.holding.term
    }

    pub(super) fn is_first(&self) -> bool {
        self.leading.is_some()
    }

    /// The director says who holds it.
    pub(super) fn placed(
        &mut self,
        known: &Known,
        holding: Holding,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let own = known.own;
        let is_holder = holding.holders.contains(&own);
        // The first term of a table: all its holders begin with the same nothing.
        if is_holder && self.kept.is_none() && holding.term == Term(1) {
            known.room_for_new(self.place)?;
            let opened = known.opened(self.place)?;
            self.kept = Some(Kept::new(opened, self.place, &known.rules)?);
        }
        if holding.number < self.heard_of {
            return Ok(());
        }
        self.term = self.term.max(holding.term);
        if !is_holder && !holding.filling.contains(&own) {
            self.step_down(out);
            (self.kept, self.arriving) = (None, None);
        }
        let is_first = holding.first() == Some(own) && holding.term == self.term;
        let is_same_term = self.holding.term == holding.term;
        if self.leading.is_some() && !(is_first && is_same_term) {
            self.step_down(out);
        }
        if is_first
            && self.leading.is_none()
            && let Some(kept) = &self.kept
        {
            let copies = Copies::new(self.place, holding.term, kept);
            let (acknowledgements, lists) = (VecDeque::new(), BTreeMap::new());
            let reads = Reads::default();
            self.leading = Some(Leading { copies, reads, acknowledgements, lists });
        }
        if let Some(leading) = &mut self.leading {
            leading.copies.set(own, &holding, out);
        }
        self.holding = holding;
        let clients = self.kept.iter().flat_map(Kept::clients);
        let gone: Vec<ClientId> = clients.filter(|client| known.gone.contains(*client)).collect();
        gone.into_iter().for_each(|client| self.client_gone(known, client, out));
        self.settle(known, out);
        Ok(())
    }

    /// Another is the first holder now: whoever waits here must ask there.
    fn step_down(&mut self, out: &mut Outbox) {
        let Some(leading) = self.leading.take() else { return };
        let authors = leading.acknowledgements.iter().map(|one| one.author.client);
        let mut clients: Vec<ClientId> = authors.chain(leading.reads.readers()).collect();
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().for_each(|client| self.elsewhere(client, None, out));
    }

    pub(super) fn elsewhere(&self, client: ClientId, has: Option<u64>, out: &mut Outbox) {
        let message = FromServer::Elsewhere { place: self.place, term: self.term, has };
        out.push(Action::ToClient { client, message, body: None });
    }

    /// A client must send its lists of keys whole.
    fn unknown_keys(&self, client: ClientId, out: &mut Outbox) {
        let message = FromServer::UnknownKeys { place: self.place };
        out.push(Action::ToClient { client, message, body: None });
    }

    /// A client wants something done.
    pub(super) fn operate(
        &mut self,
        known: &Known,
        author: Author,
        mut operation: Operation,
        body: Option<Body>,
        out: &mut Outbox,
    ) {
        let Author { client, number } = author;
        let (Some(kept), Some(leading)) = (&mut self.kept, &mut self.leading) else {
            return self.elsewhere(client, None, out);
        };
        let has = kept.number_of(client);
        if number > has.saturating_add(1) {
            return self.elsewhere(client, Some(has), out);
        }
        let most_keys =
            key_lists::n_keys_of(&operation).and_then(|_| key_lists::most_keys(&kept.opened.spec));
        // Lists are learned from what comes again, too: what follows may be their digest.
        let body = leading.with_keys(client, most_keys, body);
        if number <= has {
            // It was done; where its acknowledgement still waits, that will do.
            if !leading.acknowledgements.iter().any(|one| one.author == author) {
                let (waits_for, done) = (kept.version, kept.outcome_of(author));
                let version = kept.version_of(author).unwrap_or_default();
                let acknowledgement = Acknowledgement { waits_for, version, author, done };
                leading.acknowledgements.push_back(acknowledgement);
            }
            return self.settle(known, out);
        }
        let worker = known.name_of(client);
        let (mut body, written) = match body {
            Ok(body) => (body.unwrap_or_default(), Ok(())),
            Err(TrafficError::UnknownKeys { .. }) => return self.unknown_keys(client, out),
            Err(error) => {
                let (who, what) = (worker.clone(), error.to_string());
                (Body::default(), Err(TableError::Nonsense { who, what }))
            }
        };
        let checked = written
            .and_then(|()| unpack(&kept.opened.spec, &worker, &mut operation, &mut body))
            .and_then(|()| kept.check(&operation, &body, &worker))
            .and_then(|()| known.room_for(kept.n_bytes_for(&operation, &body)));
        // That it was refused is an operation too: whoever is first next must know.
        let (operation, body) = match checked {
            Ok(()) => (operation, body),
            Err(error) => (Operation::Refused { error }, Body::default()),
        };
        self.carry_out(known, Some(author), operation, body, out);
        self.settle(known, out);
    }

    /// Does something here and passes it on.
    fn carry_out(
        &mut self,
        known: &Known,
        author: Option<Author>,
        operation: Operation,
        body: Body,
        out: &mut Outbox,
    ) {
        let (Some(kept), Some(leading)) = (&mut self.kept, &mut self.leading) else { return };
        let term = self.holding.term;
        let done = kept.apply(term, author, &operation, &body, &known.rules);
        let passed = (!body.is_empty()).then_some(&body);
        leading.copies.done(kept.version, author, &operation, passed, out);
        if let Some(author) = author {
            let (waits_for, version) = (kept.version, kept.version);
            let acknowledgement = Acknowledgement { waits_for, version, author, done };
            leading.acknowledgements.push_back(acknowledgement);
        }
    }

    /// A client is gone: it holds nobody up, and nothing is kept for it.
    pub(super) fn client_gone(&mut self, known: &Known, client: ClientId, out: &mut Outbox) {
        let Some(leading) = &mut self.leading else { return };
        leading.lists.remove(&client);
        leading.reads.forget_all(client);
        leading.acknowledgements.retain(|one| one.author.client != client);
        if self.kept.as_ref().is_some_and(|kept| kept.knows(client)) {
            let leave = Operation::Leave { client };
            self.carry_out(known, None, leave, Body::default(), out);
            self.settle(known, out);
        }
    }

    /// A client wants to read.
    pub(super) fn read(&mut self, known: &Known, mut read: Read, out: &mut Outbox) {
        let (Some(kept), Some(leading)) = (&self.kept, &mut self.leading) else {
            return self.elsewhere(read.client, None, out);
        };
        let most_keys = key_lists::n_keys_read(&read.wanted)
            .and_then(|_| key_lists::most_keys(&kept.opened.spec));
        match leading.with_keys(read.client, most_keys, read.keys.take()) {
            Ok(keys) => leading.reads.take(Read { keys, ..read }),
            Err(TrafficError::UnknownKeys { .. }) => return self.unknown_keys(read.client, out),
            Err(error) => {
                let (who, what) = (known.name_of(read.client), error.to_string());
                let error = TableError::Nonsense { who, what };
                let message = FromServer::NotRead { place: self.place, id: read.id, error };
                return out.push(Action::ToClient { client: read.client, message, body: None });
            }
        }
        self.settle(known, out);
    }

    pub(super) fn forget(&mut self, client: ClientId, id: u64) {
        if let Some(leading) = &mut self.leading {
            leading.reads.forget(client, id);
        }
    }

    pub(super) fn tell_waiting(&mut self, now: Duration, known: &Known, out: &mut Outbox) {
        if let (Some(leading), Some(kept)) = (&mut self.leading, &self.kept) {
            leading.reads.tell(now, kept, &|client| known.name_of(client), out);
        }
    }

    /// Sends what may be sent now: acknowledgements of what every holder has (S2), and reads that show nothing else.
    fn settle(&mut self, known: &Known, out: &mut Outbox) {
        let (Some(leading), Some(kept)) = (&mut self.leading, &self.kept) else { return };
        leading.reads.answer(kept, &|client| known.name_of(client));
        let safe = leading.copies.safe(kept.version);
        while leading.acknowledgements.front().is_some_and(|one| one.waits_for <= safe) {
            let done = leading.acknowledgements.pop_front();
            done.iter().for_each(|done| out.push(answer(self.place, done)));
        }
        leading.reads.release(safe, out);
        leading.copies.release(safe, out);
    }

    /// Whether a copy has not got everything yet.
    pub(super) fn waits_for(&self, server: ServerId) -> bool {
        let (Some(leading), Some(kept)) = (&self.leading, &self.kept) else { return false };
        leading.copies.waits_for(server, kept.version)
    }

    pub(super) fn linked(&mut self, server: ServerId, out: &mut Outbox) {
        if let Some(leading) = &mut self.leading {
            leading.copies.linked(server, out);
        }
    }

    pub(super) fn unlinked(&mut self, server: ServerId) {
        if let Some(leading) = &mut self.leading {
            leading.copies.unlinked(server);
        }
    }

    /// A copy says something to this first holder.
    pub(super) fn followed(
        &mut self,
        known: &Known,
        server: ServerId,
        message: &Followed,
        out: &mut Outbox,
    ) {
        if let (Some(leading), Some(kept)) = (&mut self.leading, &self.kept) {
            leading.copies.heard(server, message, kept, out);
        }
        self.settle(known, out);
    }

    /// The first holder says something to this copy.
    pub(super) fn follow(
        &mut self,
        known: &Known,
        from: ServerId,
        message: Follow,
        body: Option<Body>,
        out: &mut Outbox,
    ) -> Result<(), TableError> {
        let term = match &message {
            Follow::Do { term, .. } | Follow::Align { term, .. } | Follow::Fill { term, .. } => {
                *term
            }
        };
        // A newer first holder than this one: the director will say so too.
        if term > self.holding.term {
            self.step_down(out);
        }
        // S4: what an older first holder says is not heard.
        if term < self.term || self.leading.is_some() {
            let message = Followed::Outdated { place: self.place, term: self.term };
            out.push(Action::ToFirst { server: from, message });
            return Ok(());
        }
        self.term = term;
        match message {
            Follow::Align { number, .. } => {
                self.heard_of = self.heard_of.max(number);
                // What has come on another link, or of another, is not gone on with.
                self.arriving = None;
                self.stands(from, out);
            }
            Follow::Do { version, author, operation, .. } => {
                let body = body.unwrap_or_default();
                match &mut self.kept {
                    Some(kept) if Some(version.0) == kept.version.0.checked_add(1) => {
                        if !kept.fits(&operation, &body) {
                            let what = format!("an operation that {} cannot have", self.place);
                            return Err(TableError::Nonsense { who: from.to_string(), what });
                        }
                        // What is refused is refused by the first holder alike.
                        let _ = kept.apply(term, author, &operation, &body, &known.rules);
                        self.has(from, out);
                    }
                    Some(kept) if version <= kept.version => self.has(from, out),
                    _ => self.stands(from, out),
                }
            }
            Follow::Fill { is_first, is_last, .. } => {
                let body = body.unwrap_or_default();
                // What was there stays until all has come: it is worth as much if the first holder is lost meanwhile.
                if is_first {
                    known.room_for_new(self.place)?;
                    let opened = known.opened(self.place)?;
                    self.arriving = Some(Arriving::new(opened, self.place, &known.rules, &body)?);
                } else if let Some(arriving) = &mut self.arriving {
                    known.room_for(arriving.n_bytes_for(&body))?;
                    arriving.take(&body)?;
                }
                if is_last && let Some(arriving) = self.arriving.take() {
                    self.kept = Some(arriving.finish()?);
                    self.has(from, out);
                }
            }
        }
        Ok(())
    }

    fn has(&self, to: ServerId, out: &mut Outbox) {
        if let Some(kept) = &self.kept {
            let (place, term, version) = (self.place, self.term, kept.version);
            out.push(Action::ToFirst {
                server: to,
                message: Followed::Has { place, term, version },
            });
        }
    }

    fn stands(&self, to: ServerId, out: &mut Outbox) {
        let message = Followed::Stands {
            place: self.place,
            term: self.term,
            last_term: self.kept.as_ref().map_or(Term(0), |kept| kept.last_term),
            version: self.kept.as_ref().map(|kept| kept.version),
        };
        out.push(Action::ToFirst { server: to, message });
    }

    /// This server cannot hold it.
    pub(super) fn give_up(&mut self, error: TableError, out: &mut Outbox) {
        (self.kept, self.arriving) = (None, None);
        self.step_down(out);
        let place = self.place;
        out.push(Action::ToDirector(ToDirector::CannotHold { place, error }));
    }
}

/// What a client is told of something that every holder has.
fn answer(place: Place, done: &Acknowledgement) -> Action {
    let Acknowledgement { version, author: Author { client, number }, done, .. } = done;
    let message = match done {
        Ok(()) => FromServer::Done { place, number: *number, version: *version },
        Err(error) => FromServer::Refused { place, number: *number, error: error.clone() },
    };
    Action::ToClient { client: *client, message, body: None }
}
