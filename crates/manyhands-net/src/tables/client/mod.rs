//! A client: what it has asked for and what has come. A function of time, state and event; [`Tables`] runs it on links.
//!
//! Operations on a shard are numbered. They go to its first holder in order, and again, in order, to whoever is first later, until they are acknowledged; holders
//! count each number once (S3). Reads carry the number of the last operation before them, so a reader sees its own.

mod filters;
mod in_place;
mod keys;
mod reading;
mod running;
mod shard;
mod table;
mod tables;
mod ticket;
mod values;

pub use filters::{Filters, GoingPush};
pub use keys::Keys;
pub(super) use running::pump;
pub use table::{PushSettings, StepPart, Table, TableState};
pub use tables::{ClientSettings, Tables};
pub use ticket::{PullTicket, Ticket};
pub use values::{Values, ValuesTicket};

use std::collections::BTreeMap;
use std::time::Duration;

use shard::{ShardView, Waiting};

use super::error::TableError;
use super::history::Record;
use super::identity::{ClientId, Place, ServerId, TableId, Version};
use super::message::{
    Body, FromDirector, FromServer, Opened, Operation, Reach, ToDirector, ToServer, Until, Wanted,
};
use super::traffic::SavedByFilter;

/// How long a client waits before it asks again somebody who did not know yet.
const RETRY: Duration = Duration::from_millis(3);

/// Several requests that are waited for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// What a client hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// From the director.
    FromDirector(FromDirector),
    /// From a server.
    FromServer {
        /// Which.
        server: ServerId,
        /// What.
        message: FromServer,
        /// The bytes beside it.
        body: Option<Body>,
    },
    /// A link that was wanted is there.
    Linked(ServerId),
    /// A link is lost, or cannot be made.
    Unlinked(ServerId),
    /// The link to the director is lost.
    DirectorLost(String),
    /// Time has passed.
    Tick,
}

/// What a client does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Say something to a server.
    ToServer {
        /// To whom.
        server: ServerId,
        /// What.
        message: ToServer,
        /// Bytes beside it.
        body: Option<Body>,
    },
    /// Say something to the director.
    ToDirector(ToDirector),
    /// A link to a server is wanted.
    LinkTo {
        /// Which.
        server: ServerId,
        /// Where it is reached.
        reach: Reach,
    },
    /// A link is not wanted any more.
    Unlink(ServerId),
    /// Write this into the history.
    Record(Record),
    /// Something was completed: those who wait may look.
    Wake,
}

/// A request to one shard.
#[derive(Clone, Debug)]
pub enum Request {
    /// Do something.
    Do {
        /// Where.
        place: Place,
        /// What.
        operation: Operation,
        /// Bytes beside it.
        body: Option<Body>,
    },
    /// Read something.
    Read {
        /// Where.
        place: Place,
        /// What it waits for.
        until: Until,
        /// What.
        wanted: Wanted,
        /// The keys.
        keys: Option<Body>,
    },
}

/// What came of a read.
#[derive(Clone, Debug, Default)]
pub struct ReadResult {
    /// The bytes, in pieces.
    pub bodies: Vec<Body>,
    /// What it has of the shard's order.
    pub version: Version,
    /// Steps that it has.
    pub steps: u64,
}

/// What came of several requests.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each request, in their order, what was read. Nothing for operations.
    pub reads: Vec<ReadResult>,
    /// The first thing that went wrong.
    pub error: Option<TableError>,
}

struct TicketState {
    n_left: usize,
    outcome: Outcome,
    /// Nobody waits for it: what goes wrong is told when all is waited for.
    is_detached: bool,
    /// What was read and is not taken yet.
    ready: Vec<(usize, ReadResult)>,
    /// For whom a read was last said to wait.
    waits_for: Option<String>,
}

#[derive(Clone, Debug)]
struct ServerView {
    name: String,
    reach: Reach,
    is_linked: bool,
    is_wanted: bool,
}

/// The state of a client.
pub struct Client {
    id: Option<ClientId>,
    servers: BTreeMap<ServerId, ServerView>,
    tables: BTreeMap<TableId, Opened>,
    /// Tables that were asked for and are not there, with why not where that is known.
    refused: BTreeMap<String, TableError>,
    shards: BTreeMap<Place, ShardView>,
    tickets: BTreeMap<TicketId, TicketState>,
    next_ticket: u64,
    next_read: u64,
    n_unacknowledged: usize,
    /// What went wrong with something that nobody waited for.
    unheard: Option<TableError>,
    /// Why nothing works any more.
    over: Option<TableError>,
    is_recording: bool,
    /// Of each table, what was saved by what this side of a link does.
    saved: BTreeMap<TableId, SavedByFilter>,
    out: Vec<Action>,
}

impl Client {
    /// A client that knows nothing yet. `is_recording` where it is to write a history.
    pub fn new(is_recording: bool) -> Client {
        Client {
            id: None,
            servers: BTreeMap::new(),
            tables: BTreeMap::new(),
            refused: BTreeMap::new(),
            shards: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            next_read: 0,
            n_unacknowledged: 0,
            unheard: None,
            over: None,
            is_recording,
            saved: BTreeMap::new(),
            out: Vec::new(),
        }
    }

    /// Bytes that digests of lists of keys, and runs of zeros in what was read, saved of a table.
    pub fn saved(&self, table: TableId) -> SavedByFilter {
        let mut saved = self.saved.get(&table).copied().unwrap_or_default();
        let of_table = self.shards.iter().filter(|(place, _)| place.table == table);
        of_table.for_each(|(_, shard)| saved.key_lists += shard.saved_keys());
        saved
    }

    /// Who it is, when the director has said so.
    pub fn id(&self) -> Option<ClientId> {
        self.id
    }

    /// Why nothing works any more, where that is so.
    pub fn over(&self) -> Option<&TableError> {
        self.over.as_ref()
    }

    /// A table, when it is open and all its shards are placed.
    pub fn table(&self, name: &str) -> Option<Result<&Opened, TableError>> {
        if let Some(error) = self.refused.get(name).or(self.over.as_ref()) {
            return Some(Err(error.clone()));
        }
        let opened = self.tables.values().rev().find(|opened| opened.name == name)?;
        let is_placed = (0..opened.spec.cut().n_shards()).all(|shard| {
            let place = Place { table: opened.id, shard: super::identity::ShardId(shard) };
            self.shards.get(&place).is_some_and(ShardView::is_placed)
        });
        is_placed.then_some(Ok(opened))
    }

    /// Bytes and operations that are not acknowledged yet.
    pub fn n_unacknowledged(&self) -> usize {
        self.n_unacknowledged
    }

    /// What went wrong with something that nobody waited for, once.
    pub fn take_unheard(&mut self) -> Option<TableError> {
        self.unheard.take()
    }

    /// The actions that [`Client::submit`] and others led to.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    /// Forgets that a table was refused, to ask again.
    pub fn ask_for(&mut self, name: &str, spec: &super::spec::TableSpec) {
        self.refused.remove(name);
        let message = ToDirector::Open { name: name.to_string(), spec: spec.clone() };
        self.out.push(Action::ToDirector(message));
    }

    /// Asks for several things at once.
    pub fn submit(&mut self, requests: Vec<Request>) -> TicketId {
        let ticket = TicketId(self.next_ticket);
        self.next_ticket += 1;
        let mut state = TicketState {
            n_left: requests.len(),
            outcome: Outcome { reads: vec![ReadResult::default(); requests.len()], error: None },
            is_detached: false,
            ready: Vec::new(),
            waits_for: None,
        };
        state.outcome.error = self.over.clone();
        self.tickets.insert(ticket, state);
        for (part, request) in requests.into_iter().enumerate() {
            let waiting = Waiting { ticket, part };
            let place = match &request {
                Request::Do { place, .. } | Request::Read { place, .. } => *place,
            };
            let shard = self.shards.entry(place).or_default();
            if let Some(error) = shard.lost.clone() {
                self.fail_part(ticket, error);
                continue;
            }
            match request {
                Request::Do { operation, body, .. } => {
                    self.n_unacknowledged += 1 + body.as_ref().map_or(0, |body| body.len());
                    shard.add_operation(operation, body, waiting);
                }
                Request::Read { until, wanted, keys, .. } => {
                    let id = self.next_read;
                    self.next_read += 1;
                    shard.add_read(id, until, wanted, keys, waiting);
                }
            }
            self.send_new(place);
        }
        ticket
    }

    /// What came of a ticket, if everything did. Then it is forgotten.
    pub fn take(&mut self, ticket: TicketId) -> Option<Outcome> {
        let state = self.tickets.get(&ticket)?;
        if state.n_left > 0 && state.outcome.error.is_none() && self.over.is_none() {
            return None;
        }
        let mut state = self.tickets.remove(&ticket)?;
        for (part, result) in state.ready.drain(..) {
            state.outcome.reads[part] = result;
        }
        if state.n_left > 0 && state.outcome.error.is_none() {
            state.outcome.error = self.over.clone();
        }
        Some(state.outcome)
    }

    /// What was read so far and was not taken before, with the number of the request.
    pub fn take_ready(&mut self, ticket: TicketId) -> Vec<(usize, ReadResult)> {
        self.tickets
            .get_mut(&ticket)
            .map(|state| std::mem::take(&mut state.ready))
            .unwrap_or_default()
    }

    /// For which ticket a read is, and which of its requests, where it is answered with the values as they are.
    pub(super) fn reader_of(&self, place: Place, id: u64) -> Option<(TicketId, usize)> {
        self.tables.get(&place.table).filter(|opened| !opened.spec.traffic.zero_runs)?;
        self.shards.get(&place)?.reader_of(id).map(|waiting| (waiting.ticket, waiting.part))
    }

    /// Gives back what is lent to what is not acknowledged.
    pub(super) fn give_back(&mut self) {
        self.shards.values_mut().for_each(ShardView::give_back);
        let bodies = self.out.iter_mut().filter_map(|action| match action {
            Action::ToServer { body, .. } => body.as_mut(),
            _ => None,
        });
        bodies.for_each(Body::give_back);
    }

    /// Nobody waits for a ticket any more.
    pub fn detach(&mut self, ticket: TicketId) {
        let Some(state) = self.tickets.get_mut(&ticket) else { return };
        state.is_detached = true;
        let has_failed = state.outcome.error.is_some();
        if state.n_left == 0 || has_failed {
            let state = self.tickets.remove(&ticket);
            let error = state.and_then(|state| state.outcome.error);
            self.unheard = self.unheard.take().or(error);
        }
    }

    /// Reads that nobody waits for any more are taken back.
    pub fn forget_reads(&mut self, ticket: TicketId) {
        for (place, shard) in &mut self.shards {
            for id in shard.forget_reads(ticket) {
                let Some(server) = shard.holding.first() else { continue };
                let message = ToServer::Forget { place: *place, id };
                let is_linked = self.servers.get(&server).is_some_and(|view| view.is_linked);
                if is_linked {
                    self.out.push(Action::ToServer { server, message, body: None });
                }
            }
        }
        self.tickets.remove(&ticket);
    }

    /// Whom a ticket waits for, in words.
    pub fn waits_for(&self, ticket: TicketId) -> String {
        let said = self.tickets.get(&ticket).and_then(|state| state.waits_for.clone());
        let waited = self.shards.iter().find(|(_, shard)| shard.is_waited_for(ticket));
        let Some((place, shard)) = waited else {
            return said.unwrap_or_else(|| "nothing was sent".into());
        };
        self.waits_at(*place, shard, said)
    }

    /// Why what was pushed is not acknowledged, in words.
    pub fn why_not_acknowledged(&self) -> String {
        let waited = self.shards.iter().find(|(_, shard)| shard.has_unacknowledged());
        let n = self.n_unacknowledged;
        match waited {
            Some((place, shard)) => {
                let waits = self.waits_at(*place, shard, None);
                format!("{n} bytes that were pushed are not acknowledged, and {waits}")
            }
            None => "nothing was sent".into(),
        }
    }

    /// Why a table is not open, in words.
    pub fn why_not_open(&self, name: &str) -> String {
        let n = self.servers.len();
        match self.tables.values().any(|opened| opened.name == name) {
            true => format!("not all of its shards are placed on the {n} servers that are there"),
            false => format!("the director has not placed it; {n} servers are there"),
        }
    }

    fn waits_at(&self, place: Place, shard: &ShardView, said: Option<String>) -> String {
        let Some(server) = shard.holding.first() else {
            return format!("nobody holds {place}");
        };
        let is_linked = self.servers.get(&server).is_some_and(|view| view.is_linked);
        let server = self.called(server);
        match (is_linked, said) {
            (false, _) => format!("there is no link to {server}, which holds {place}"),
            (true, Some(said)) => format!("{server} says of {place}: {said}"),
            (true, None) => format!("{server} has not answered for {place}"),
        }
    }

    /// A server, for people.
    fn called(&self, server: ServerId) -> String {
        match self.servers.get(&server) {
            Some(view) => format!("{server} ({})", view.name),
            None => server.to_string(),
        }
    }

    /// What follows from an event.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::FromDirector(message) => self.hear_director(message),
            Event::FromServer { server, message, body } => {
                self.hear_server(now, server, message, body);
            }
            Event::Linked(server) => {
                if let Some(view) = self.servers.get_mut(&server) {
                    view.is_linked = true;
                }
                self.resend_to(server);
            }
            Event::Unlinked(server) => {
                if let Some(view) = self.servers.get_mut(&server) {
                    (view.is_linked, view.is_wanted) = (false, false);
                }
                for shard in self.shards.values_mut() {
                    if shard.holding.first() == Some(server) {
                        shard.pause(now + RETRY);
                    }
                }
            }
            Event::DirectorLost(reason) => self.end(TableError::DirectorLost { reason }),
            Event::Tick => {
                let due = |shard: &ShardView| shard.is_due(now);
                let due = self.shards.iter().filter(|(_, shard)| due(shard));
                let due: Vec<Place> = due.map(|(place, _)| *place).collect();
                due.into_iter().for_each(|place| self.resend(place));
            }
        }
        self.take_actions()
    }

    /// When something is to be sent again at the earliest.
    pub fn next_tick(&self) -> Option<Duration> {
        self.shards.values().filter_map(|shard| shard.paused_until).min()
    }

    fn end(&mut self, error: TableError) {
        self.over.get_or_insert(error);
        self.out.push(Action::Wake);
    }

    fn hear_director(&mut self, message: FromDirector) {
        match message {
            FromDirector::WelcomeClient { id } => self.id = Some(id),
            FromDirector::Unwelcome { error } => self.end(error),
            FromDirector::Server { id, name, reach } => {
                let view = ServerView { name, reach, is_linked: false, is_wanted: false };
                self.servers.entry(id).or_insert(view);
            }
            FromDirector::ServerGone { id, .. } => {
                if self.servers.remove(&id).is_some() {
                    self.out.push(Action::Unlink(id));
                }
            }
            FromDirector::Table(opened) => {
                self.tables.insert(opened.id, opened);
            }
            FromDirector::NotOpened { name, error } => {
                self.refused.insert(name, error);
            }
            FromDirector::Holds { place, holding } => {
                let shard = self.shards.entry(place).or_default();
                let is_moved = shard.holding.first() != holding.first();
                shard.holding = holding;
                if is_moved {
                    self.resend(place);
                }
            }
            FromDirector::Lost { place, error } => self.lose(place, &error),
            FromDirector::ClientGone { id, reason } if self.id == Some(id) => {
                self.end(TableError::ClientLost { client: id.to_string(), reason });
            }
            _ => return,
        }
        self.out.push(Action::Wake);
    }

    /// A shard is lost, and all that waits for it.
    fn lose(&mut self, place: Place, error: &TableError) {
        let shard = self.shards.entry(place).or_default();
        shard.lost = Some(error.clone());
        let (waiting, n_bytes) = shard.drain();
        self.n_unacknowledged = self.n_unacknowledged.saturating_sub(n_bytes);
        waiting.into_iter().for_each(|waiting| self.fail_part(waiting.ticket, error.clone()));
    }

    fn fail_part(&mut self, ticket: TicketId, error: TableError) {
        if let Some(state) = self.tickets.get_mut(&ticket) {
            state.outcome.error.get_or_insert(error);
        }
        self.part_done(ticket);
    }

    fn part_done(&mut self, ticket: TicketId) {
        let Some(state) = self.tickets.get_mut(&ticket) else { return };
        state.n_left = state.n_left.saturating_sub(1);
        if state.n_left > 0 && state.outcome.error.is_none() {
            return;
        }
        if state.is_detached {
            self.detach(ticket);
        }
        self.out.push(Action::Wake);
    }
}
