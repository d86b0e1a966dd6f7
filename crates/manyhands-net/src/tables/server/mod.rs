//! A server: the shards that it holds, and what it does when it hears something. A function of time, state and event.

mod copies;
mod counted;
mod held;
pub(super) mod kept;
mod reads;
mod saved;
mod steps;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use held::Held;
use reads::Read;

use super::clocks::GoneClients;
use super::error::TableError;
use super::identity::{ClientId, Place, ServerId, TableId, Term, Version};
use super::message::{
    Author, Body, Follow, Followed, FromDirector, FromServer, Opened, ToDirector, ToServer,
};
use super::rules::Rules;

/// The most that first holders may have asked of tables that are not known yet.
const MOST_EARLY: usize = 1 << 16;

/// What a server hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// From a client that said who it is.
    FromClient {
        /// Who.
        client: ClientId,
        /// What.
        message: ToServer,
        /// The bytes beside it.
        body: Option<Body>,
    },
    /// From a first holder, on the link that it made.
    FromFirst {
        /// Who.
        server: ServerId,
        /// What.
        message: Follow,
        /// The bytes beside it.
        body: Option<Body>,
    },
    /// From a copy, on the link that this server made.
    FromCopy {
        /// Who.
        server: ServerId,
        /// What.
        message: Followed,
    },
    /// From the director.
    FromDirector(FromDirector),
    /// What people call a client.
    Named {
        /// Who.
        client: ClientId,
        /// The name.
        name: String,
    },
    /// The link that this server wanted is there.
    Linked(ServerId),
    /// The link that this server made is lost.
    Unlinked(ServerId),
    /// Time has passed.
    Tick,
}

/// What a server does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Say something to a client.
    ToClient {
        /// To whom.
        client: ClientId,
        /// What.
        message: FromServer,
        /// Bytes beside it.
        body: Option<Body>,
    },
    /// Say something to a copy, on the link that this server makes.
    ToCopy {
        /// To whom.
        server: ServerId,
        /// What.
        message: Follow,
        /// Bytes beside it.
        body: Option<Body>,
    },
    /// Say something to a first holder, on the link that it made.
    ToFirst {
        /// To whom.
        server: ServerId,
        /// What.
        message: Followed,
    },
    /// Say something to the director.
    ToDirector(ToDirector),
    /// A link to a server is wanted from now on.
    LinkTo(ServerId),
    /// A link to a server is not wanted any more.
    Unlink(ServerId),
    /// Nothing of this server is needed any more.
    End,
}

/// What is to be done, and which links there are.
#[derive(Default)]
struct Outbox {
    actions: Vec<Action>,
    linked: BTreeSet<ServerId>,
}

impl Outbox {
    fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn is_linked(&self, server: ServerId) -> bool {
        self.linked.contains(&server)
    }
}

/// What a server knows besides its shards.
struct Known {
    own: ServerId,
    rules: Rules,
    tables: BTreeMap<TableId, Opened>,
    names: BTreeMap<ClientId, String>,
    gone: GoneClients,
    memory_limit: u64,
    n_bytes: u64,
}

impl Known {
    fn opened(&self, place: Place) -> Result<&Opened, TableError> {
        let table = || place.table.to_string();
        self.tables.get(&place.table).ok_or_else(|| TableError::UnknownTable { table: table() })
    }

    fn name_of(&self, client: ClientId) -> String {
        self.names.get(&client).cloned().unwrap_or_else(|| client.to_string())
    }

    /// Whether there is memory for so many bytes more.
    fn room_for(&self, wanted: u64) -> Result<(), TableError> {
        if wanted == 0 || self.n_bytes.saturating_add(wanted) <= self.memory_limit {
            return Ok(());
        }
        Err(TableError::MemoryLimit {
            server: self.own.to_string(),
            limit: self.memory_limit,
            used: self.n_bytes,
            wanted,
        })
    }

    fn room_for_new(&self, place: Place) -> Result<(), TableError> {
        let opened = self.opened(place)?;
        self.room_for(kept::Kept::n_bytes_of_new(opened, place, &self.rules))
    }
}

/// How a shard stands on a server: for tests, status and histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub place: Place,
    /// Whether this server is its first holder.
    pub is_first: bool,
    /// The term of the placement that it knows.
    pub term: Term,
    /// What it has of the order.
    pub version: Version,
    /// Steps behind it.
    pub n_steps: u64,
    /// Steps that workers took turns for and of which grains are missing, where it is of elements.
    pub n_begun: u64,
    /// Of each client the number of the last that was done.
    pub numbers: BTreeMap<ClientId, u64>,
}

/// A server of tables.
pub struct Server {
    known: Known,
    shards: BTreeMap<Place, Held>,
    /// First holders that asked how far this one is, of tables that the director has not told of.
    early: BTreeMap<(ServerId, Place), Follow>,
    out: Outbox,
}

impl Server {
    /// A server that holds nothing yet and may use so many bytes.
    pub fn new(own: ServerId, rules: Rules, memory_limit: u64) -> Server {
        let known = Known {
            own,
            rules,
            tables: BTreeMap::new(),
            names: BTreeMap::new(),
            gone: GoneClients::default(),
            memory_limit,
            n_bytes: 0,
        };
        Server { known, shards: BTreeMap::new(), early: BTreeMap::new(), out: Outbox::default() }
    }

    /// Who it is.
    pub fn id(&self) -> ServerId {
        self.known.own
    }

    /// Bytes that its shards take.
    pub fn n_bytes(&self) -> u64 {
        self.known.n_bytes
    }

    /// Whether a copy has not got everything yet that this server did.
    pub fn waits_for(&self, server: ServerId) -> bool {
        self.shards.values().any(|held| held.waits_for(server))
    }

    /// How its shards stand.
    pub fn standings(&self) -> Vec<Standing> {
        let standing = |(place, held): (&Place, &Held)| {
            let kept = held.kept()?;
            Some(Standing {
                place: *place,
                is_first: held.is_first(),
                term: held.term(),
                version: kept.version,
                n_steps: kept.steps.n_done(),
                // A shard of rows hears of no turn whose rows lie elsewhere.
                n_begun: if kept.has_rows() { 0 } else { kept.counted.n_begun() },
                numbers: kept.all_numbers(),
            })
        };
        self.shards.iter().filter_map(standing).collect()
    }

    /// What follows from an event.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::FromClient { client, message, body } => {
                self.hear_client(now, client, message, body);
            }
            Event::FromFirst { server, message, body } => self.hear_first(server, message, body),
            Event::FromCopy { server, message } => {
                let (Followed::Has { place, .. }
                | Followed::Stands { place, .. }
                | Followed::Outdated { place, .. }) = message;
                if let Some(held) = self.shards.get_mut(&place) {
                    held.followed(&self.known, server, &message, &mut self.out);
                }
            }
            Event::FromDirector(message) => self.hear_director(message),
            Event::Named { client, name } => {
                self.known.names.insert(client, name);
            }
            Event::Linked(server) => {
                self.out.linked.insert(server);
                self.shards.values_mut().for_each(|held| held.linked(server, &mut self.out));
            }
            Event::Unlinked(server) => {
                self.out.linked.remove(&server);
                self.shards.values_mut().for_each(|held| held.unlinked(server));
            }
            Event::Tick => {
                for held in self.shards.values_mut() {
                    held.tell_waiting(now, &self.known, &mut self.out);
                    held.tidy();
                }
                self.known.n_bytes = self.shards.values().map(Held::n_bytes).sum();
            }
        }
        std::mem::take(&mut self.out.actions)
    }

    fn hear_client(
        &mut self,
        now: Duration,
        client: ClientId,
        message: ToServer,
        body: Option<Body>,
    ) {
        let (ToServer::Do { place, .. }
        | ToServer::Read { place, .. }
        | ToServer::Forget { place, .. }) = message
        else {
            return;
        };
        if self.known.gone.contains(client) {
            let error = TableError::ClientLost {
                client: self.known.name_of(client),
                reason: "its pushes do not count any more".into(),
            };
            let message = FromServer::Unwelcome { error };
            return self.out.push(Action::ToClient { client, message, body: None });
        }
        let Some(held) = self.shards.get_mut(&place) else {
            return Held::new(place).elsewhere(client, None, &mut self.out);
        };
        let before = held.n_bytes();
        match message {
            ToServer::Do { number, operation, .. } => {
                let author = Author { client, number };
                held.operate(&self.known, author, operation, body, &mut self.out);
            }
            ToServer::Read { id, after, until, wanted, .. } => {
                let read = Read { client, id, after, until, wanted, keys: body, told: now };
                held.read(&self.known, read, &mut self.out);
            }
            ToServer::Forget { id, .. } => held.forget(client, id),
            ToServer::Hello { .. } | ToServer::Follow(_) => {}
        }
        let after = held.n_bytes();
        self.known.n_bytes = (self.known.n_bytes + after).saturating_sub(before);
    }

    fn hear_first(&mut self, server: ServerId, message: Follow, body: Option<Body>) {
        let (Follow::Do { place, .. } | Follow::Align { place, .. } | Follow::Fill { place, .. }) =
            message;
        if !self.known.tables.contains_key(&place.table) {
            // Nothing else is said before that is answered.
            if matches!(message, Follow::Align { .. }) && self.early.len() < MOST_EARLY {
                self.early.insert((server, place), message);
            }
            return;
        }
        let held = self.shards.entry(place).or_insert_with(|| Held::new(place));
        let before = held.n_bytes();
        if let Err(error) = held.follow(&self.known, server, message, body, &mut self.out) {
            held.give_up(error, &mut self.out);
        }
        let after = held.n_bytes();
        self.known.n_bytes = (self.known.n_bytes + after).saturating_sub(before);
    }

    fn hear_director(&mut self, message: FromDirector) {
        match message {
            FromDirector::Table(opened) => {
                self.known.tables.insert(opened.id, opened);
                for ((server, _), message) in std::mem::take(&mut self.early) {
                    self.hear_first(server, message, None);
                }
            }
            FromDirector::Holds { place, holding } => {
                let held = self.shards.entry(place).or_insert_with(|| Held::new(place));
                let before = held.n_bytes();
                if let Err(error) = held.placed(&self.known, holding, &mut self.out) {
                    held.give_up(error, &mut self.out);
                }
                let after = held.n_bytes();
                self.known.n_bytes = (self.known.n_bytes + after).saturating_sub(before);
            }
            FromDirector::ClientGone { id, .. } => {
                self.known.gone.insert(id..=id);
                self.known.names.remove(&id);
                for held in self.shards.values_mut() {
                    held.client_gone(&self.known, id, &mut self.out);
                }
            }
            FromDirector::ClientsGone { ranges } => {
                for [first, last] in ranges {
                    self.known.gone.insert(first..=last);
                }
            }
            FromDirector::ServerGone { id, .. } => self.out.push(Action::Unlink(id)),
            FromDirector::MayLeave => self.out.push(Action::End),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
