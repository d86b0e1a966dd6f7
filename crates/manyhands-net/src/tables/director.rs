//! The director: which servers and clients there are, and who holds what. A function of time, state and event.
//!
//! A shard moves in steps: somebody new is filled, then counts as a holder, then those that are not wanted any more go. A lost server's shards are
//! answered for by their copies at once. Each decision has a sentence.

mod holdings;
mod members;
mod unreached;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdings::TableHoldings;
pub(in crate::tables) use holdings::check_same;
use members::{ClientState, ServerState, Shunned};
use unreached::Complaint;

use super::clocks::GoneClients;
use super::error::TableError;
use super::identity::{ClientId, Place, ServerId, TableId};
use super::message::{FromDirector, Opened, ToDirector};
use super::spec::TableSpec;

/// The most tables.
const MOST_TABLES: usize = 1 << 16;

/// A connection to the director, numbered by its event loop and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// What the director hears.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // few of them, and not kept
pub enum Event {
    /// Somebody says something.
    Received {
        /// On which connection.
        from: Connection,
        /// What.
        message: ToDirector,
    },
    /// A connection is lost.
    Closed {
        /// Which.
        from: Connection,
    },
    /// Clients of this name do not take part any more, as who began the run knows: nobody is to wait for their clocks.
    Dropped {
        /// The name.
        client: String,
        /// Why.
        reason: String,
    },
    /// Time has passed.
    Tick,
}

/// What the director does.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // as above
pub enum Action {
    /// Say something.
    Send {
        /// On which connection.
        to: Connection,
        /// What.
        message: FromDirector,
    },
    /// Close a connection, when all that was said has left.
    Close(Connection),
    /// Tell people.
    Say(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Server(ServerId),
    Client(ClientId),
}

/// A server as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Which.
    pub id: ServerId,
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Bytes that its tables take.
    pub n_bytes: u64,
    /// Shards that it answers for.
    pub n_first: usize,
    /// Shards that it holds in all.
    pub n_held: usize,
    /// Whether it is about to leave.
    pub is_leaving: bool,
    /// How long nothing was heard of it, as of the last look.
    pub silent_for: Duration,
}

/// The director of tables.
pub struct Director {
    silence: Duration,
    /// Nothing is placed before so many servers are there.
    n_expected: usize,
    servers: BTreeMap<ServerId, ServerState>,
    clients: BTreeMap<ClientId, ClientState>,
    connections: BTreeMap<Connection, Who>,
    gone_clients: GoneClients,
    tables: BTreeMap<TableId, TableHoldings>,
    by_name: BTreeMap<String, TableId>,
    lost: BTreeMap<Place, TableError>,
    /// Servers that cannot reach each other.
    complaints: BTreeMap<(ServerId, ServerId), Complaint>,
    /// Servers that were left out, by name.
    shunned: BTreeMap<String, Shunned>,
    /// When it last looked who is silent.
    looked: Duration,
    next_table: u32,
    next_server: u32,
    next_client: u32,
    /// Counts decisions.
    number: u64,
    out: Vec<Action>,
}

impl Director {
    /// A director that takes nobody for lost who is silent for less than this, and places tables when so many servers are there.
    pub fn new(silence: Duration, n_expected: usize) -> Director {
        Director {
            silence,
            n_expected,
            servers: BTreeMap::new(),
            clients: BTreeMap::new(),
            connections: BTreeMap::new(),
            gone_clients: GoneClients::default(),
            tables: BTreeMap::new(),
            by_name: BTreeMap::new(),
            lost: BTreeMap::new(),
            complaints: BTreeMap::new(),
            shunned: BTreeMap::new(),
            looked: Duration::ZERO,
            next_table: 1,
            next_server: 1,
            next_client: 1,
            number: 0,
            out: Vec::new(),
        }
    }

    /// What follows from an event.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Received { from, message } => self.received(now, from, message),
            Event::Closed { from } => match self.connections.get(&from) {
                Some(Who::Server(id)) => self.lose_server(*id, "its connection closed"),
                Some(Who::Client(id)) => self.lose_client(*id, "its connection closed"),
                None => {}
            },
            Event::Dropped { client, reason } => self.drop_clients(&client, &reason),
            Event::Tick => {
                self.look_for_silence(now);
                self.weigh_complaints(now);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// The servers, for people.
    pub fn servers(&self) -> Vec<ServerStatus> {
        let status = |(id, server): (&ServerId, &ServerState)| {
            let holdings = || self.tables.values().flat_map(TableHoldings::holdings);
            ServerStatus {
                id: *id,
                name: server.name.clone(),
                address: server.reach.addresses.first().cloned().unwrap_or_default(),
                n_bytes: server.n_bytes,
                n_first: holdings().filter(|holding| holding.first() == Some(*id)).count(),
                n_held: holdings().filter(|holding| holding.holders.contains(id)).count(),
                is_leaving: server.is_leaving,
                silent_for: server.arrivals.silent_for(self.looked),
            }
        };
        self.servers.iter().map(status).collect()
    }

    /// Whether every shard has all the holders that it should have, and nothing moves.
    pub fn is_settled(&self) -> bool {
        self.lost.is_empty() && self.tables.values().all(TableHoldings::is_settled)
    }

    fn received(&mut self, now: Duration, from: Connection, message: ToDirector) {
        match (self.connections.get(&from).copied(), message) {
            (None, ToDirector::JoinAsServer { version, name, reach, memory_limit: _ }) => {
                if self.speaks(from, version, &name) {
                    self.join_server(now, from, name, reach);
                }
            }
            (None, ToDirector::JoinAsClient { version, name }) => {
                if self.speaks(from, version, &name) {
                    self.join_client(now, from, name);
                }
            }
            (Some(Who::Server(id)), message) => self.hear_server(now, id, message),
            (Some(Who::Client(id)), message) => self.hear_client(now, id, message),
            // Whoever is not known any more is told by the end of its connection.
            (None, _) => self.out.push(Action::Close(from)),
        }
    }

    fn hear_server(&mut self, now: Duration, id: ServerId, message: ToDirector) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        server.arrivals.heard(now);
        match message {
            ToDirector::Beat { n_bytes } => {
                server.n_bytes = n_bytes;
                let to = server.connection;
                self.send(to, FromDirector::Alive);
            }
            ToDirector::Leave => {
                server.is_leaving = true;
                let name = server.name.clone();
                self.say(format!("{id} ({name}) wants to leave: its shards move first"));
                self.place_all(&format!("{id} leaves"));
            }
            ToDirector::Complete { place, term, server } => {
                let Some(table) = self.tables.get_mut(&place.table) else { return };
                if table.complete(place.shard, term, server, &mut self.number) {
                    self.tell_changed(place.table);
                    self.let_go();
                }
            }
            ToDirector::CannotHold { place, error } => self.cannot_hold(id, place, error),
            ToDirector::CannotReach { server, reason } => self.complain(now, id, server, reason),
            ToDirector::Reaches { server } => self.withdraw(id, server),
            _ => {}
        }
    }

    fn hear_client(&mut self, now: Duration, id: ClientId, message: ToDirector) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.arrivals.heard(now);
        let to = client.connection;
        match message {
            ToDirector::Beat { .. } => self.send(to, FromDirector::Alive),
            ToDirector::Open { name, spec } => self.open(to, &name, spec),
            ToDirector::Leave => self.lose_client(id, "it left"),
            _ => {}
        }
    }

    fn open(&mut self, to: Connection, name: &str, spec: TableSpec) {
        if let Err(error) = self.try_open(to, name, spec) {
            let name = name.to_string();
            self.send(to, FromDirector::NotOpened { name, error });
        }
    }

    fn try_open(&mut self, to: Connection, name: &str, spec: TableSpec) -> Result<(), TableError> {
        spec.check(name)?;
        if let Some(id) = self.by_name.get(name) {
            let Some(table) = self.tables.get(id) else { return Ok(()) };
            check_same(table.opened(), &spec)?;
            // One that is not placed yet is told when it is.
            if table.is_placed() {
                let message = FromDirector::Table(table.opened().clone());
                self.send(to, message);
            }
            return Ok(());
        }
        if self.tables.len() >= MOST_TABLES {
            let what = format!("there are {MOST_TABLES} tables already");
            return Err(TableError::Spec { table: name.to_string(), what });
        }
        let id = TableId(self.next_table);
        self.next_table += 1;
        let opened = Opened { id, name: name.to_string(), spec };
        self.by_name.insert(name.to_string(), id);
        self.tables.insert(id, TableHoldings::new(opened));
        self.place_all(&format!("the table {name} was opened"));
        Ok(())
    }

    /// Servers that may be given something.
    fn usable(&self) -> Vec<ServerId> {
        let usable = self.servers.iter().filter(|(_, server)| !server.is_leaving);
        usable.map(|(id, _)| *id).collect()
    }

    /// Decides anew who holds what.
    fn place_all(&mut self, reason: &str) {
        let usable = self.usable();
        let full: BTreeSet<ServerId> =
            self.servers.iter().filter(|(_, server)| server.is_full).map(|(id, _)| *id).collect();
        let n_expected = self.n_expected;
        let mut changed = Vec::new();
        for (id, table) in &mut self.tables {
            if !table.is_placed() && usable.len() < n_expected.max(1) {
                continue;
            }
            let was_placed = table.is_placed();
            table.place(&usable, &full, &mut self.number);
            changed.push((*id, was_placed));
        }
        for (id, was_placed) in changed {
            if !was_placed && let Some(table) = self.tables.get(&id) {
                let opened = table.opened().clone();
                let n_shards = opened.spec.cut().n_shards();
                self.say(format!(
                    "the table {} lies in {n_shards} shards on {} servers",
                    opened.name,
                    usable.len()
                ));
                self.send_all(&FromDirector::Table(opened));
            }
            self.tell_changed_because(id, reason);
        }
        self.let_go();
    }

    fn tell_changed_because(&mut self, table: TableId, reason: &str) {
        let n_filling = self.tell_changed(table);
        if n_filling > 0
            && let Some(table) = self.tables.get(&table)
        {
            let name = table.opened().name.clone();
            self.say(format!("{n_filling} shards of {name} are copied, since {reason}"));
        }
    }

    /// Tells all who must know what has changed. How many shards are being filled of those.
    fn tell_changed(&mut self, table: TableId) -> usize {
        let Some(holdings) = self.tables.get_mut(&table) else { return 0 };
        let changed = holdings.take_changed();
        let mut n_filling = 0;
        for (place, holding) in changed {
            n_filling += usize::from(!holding.filling.is_empty());
            self.send_all(&FromDirector::Holds { place, holding });
        }
        n_filling
    }

    fn cannot_hold(&mut self, id: ServerId, place: Place, error: TableError) {
        self.say(format!("{id} cannot hold {place}: {error}"));
        if let Some(server) = self.servers.get_mut(&id) {
            server.is_full = true;
        }
        let Some(table) = self.tables.get_mut(&place.table) else { return };
        table.refuse(place.shard, id, &mut self.number);
        match table.is_lost(place.shard) {
            true => self.close(place.table, &error),
            false => {
                self.tell_changed(place.table);
            }
        }
    }

    /// A table that cannot be held is closed, so that what there is of it takes no memory. It may be opened again.
    fn close(&mut self, id: TableId, error: &TableError) {
        let Some(mut table) = self.tables.remove(&id) else { return };
        let name = table.opened().name.clone();
        self.by_name.remove(&name);
        self.say(format!("the table {name} is closed again: {error}"));
        table.release(&mut self.number);
        for (place, holding) in table.take_changed() {
            self.send_all(&FromDirector::Lost { place, error: error.clone() });
            self.send_all(&FromDirector::Holds { place, holding });
        }
        self.send_all(&FromDirector::NotOpened { name, error: error.clone() });
    }

    fn send(&mut self, to: Connection, message: FromDirector) {
        self.out.push(Action::Send { to, message });
    }

    fn send_all(&mut self, message: &FromDirector) {
        let all: Vec<Connection> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|to| self.send(to, message.clone()));
    }

    fn say(&mut self, sentence: String) {
        self.out.push(Action::Say(sentence));
    }
}

#[cfg(test)]
mod tests;
