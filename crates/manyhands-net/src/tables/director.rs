//! The director: which servers and clients there are, and who holds what. A function of time, state and event.
//!
//! A shard moves in steps: somebody new is filled, then counts as a holder, then those that are not wanted any more go. A lost server's shards are
//! answered for by their copies at once. Each decision has a sentence.

mod holdings;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdings::TableHoldings;

use super::error::TableError;
use super::identity::{ClientId, Place, ServerId, TableId};
use super::message::{FromDirector, Opened, Reach, ToDirector, VERSION};
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

/// A server as the director knows it.
#[derive(Clone, Debug)]
struct ServerState {
    name: String,
    reach: Reach,
    connection: Connection,
    heard: Duration,
    is_leaving: bool,
    /// It said that it can hold no more.
    is_full: bool,
    n_bytes: u64,
}

#[derive(Clone, Debug)]
struct ClientState {
    name: String,
    connection: Connection,
    heard: Duration,
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
}

/// The director of tables.
pub struct Director {
    silence: Duration,
    /// Nothing is placed before so many servers are there.
    n_expected: usize,
    servers: BTreeMap<ServerId, ServerState>,
    clients: BTreeMap<ClientId, ClientState>,
    connections: BTreeMap<Connection, Who>,
    gone_clients: BTreeMap<ClientId, String>,
    tables: BTreeMap<TableId, TableHoldings>,
    by_name: BTreeMap<String, TableId>,
    lost: BTreeMap<Place, TableError>,
    next_table: u32,
    next_server: u32,
    next_client: u32,
    /// Counts decisions.
    number: u64,
    out: Vec<Action>,
}

impl Director {
    /// A director that takes who is silent for so long for lost, and places tables when so many servers are there.
    pub fn new(silence: Duration, n_expected: usize) -> Director {
        Director {
            silence,
            n_expected,
            servers: BTreeMap::new(),
            clients: BTreeMap::new(),
            connections: BTreeMap::new(),
            gone_clients: BTreeMap::new(),
            tables: BTreeMap::new(),
            by_name: BTreeMap::new(),
            lost: BTreeMap::new(),
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
            Event::Tick => self.look_for_silence(now),
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

    fn speaks(&mut self, from: Connection, version: u32, name: &str) -> bool {
        if version == VERSION {
            return true;
        }
        let who = format!("{name}, which wants to join,");
        let error = TableError::OtherVersion { who, theirs: version, ours: VERSION };
        self.say(error.to_string());
        self.send(from, FromDirector::Unwelcome { error });
        self.out.push(Action::Close(from));
        false
    }

    fn join_server(&mut self, now: Duration, from: Connection, name: String, reach: Reach) {
        let id = ServerId(self.next_server);
        self.next_server += 1;
        self.connections.insert(from, Who::Server(id));
        self.send(from, FromDirector::WelcomeServer { id });
        let server = FromDirector::Server { id, name: name.clone(), reach: reach.clone() };
        self.send_all(&server);
        self.say(format!("{id} ({name}) joined"));
        let state = ServerState {
            name,
            reach,
            connection: from,
            heard: now,
            is_leaving: false,
            is_full: false,
            n_bytes: 0,
        };
        self.servers.insert(id, state);
        self.tell_everything(from);
        self.place_all(&format!("{id} joined"));
    }

    fn join_client(&mut self, now: Duration, from: Connection, name: String) {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.connections.insert(from, Who::Client(id));
        self.clients.insert(id, ClientState { name, connection: from, heard: now });
        self.send(from, FromDirector::WelcomeClient { id });
        self.tell_everything(from);
    }

    /// What one who comes must know: servers, tables that are placed, who holds what, who is gone.
    fn tell_everything(&mut self, to: Connection) {
        for (id, server) in &self.servers {
            let (id, name, reach) = (*id, server.name.clone(), server.reach.clone());
            let message = FromDirector::Server { id, name, reach };
            self.out.push(Action::Send { to, message });
        }
        for (id, reason) in &self.gone_clients {
            let message = FromDirector::ClientGone { id: *id, reason: reason.clone() };
            self.out.push(Action::Send { to, message });
        }
        for table in self.tables.values().filter(|table| table.is_placed()) {
            let message = FromDirector::Table(table.opened().clone());
            self.out.push(Action::Send { to, message });
            for (place, holding) in table.all() {
                let message = FromDirector::Holds { place, holding: holding.clone() };
                self.out.push(Action::Send { to, message });
            }
        }
        for (place, error) in &self.lost {
            let message = FromDirector::Lost { place: *place, error: error.clone() };
            self.out.push(Action::Send { to, message });
        }
    }

    fn hear_server(&mut self, now: Duration, id: ServerId, message: ToDirector) {
        let Some(server) = self.servers.get_mut(&id) else { return };
        server.heard = now;
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
            _ => {}
        }
    }

    fn hear_client(&mut self, now: Duration, id: ClientId, message: ToDirector) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.heard = now;
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
            holdings::check_same(table.opened(), &spec)?;
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

    fn look_for_silence(&mut self, now: Duration) {
        let is_silent = |heard: Duration| now.saturating_sub(heard) > self.silence;
        let reason = format!("nothing was heard of it for {:.1} s", self.silence.as_secs_f64());
        let servers: Vec<ServerId> = self
            .servers
            .iter()
            .filter(|(_, server)| is_silent(server.heard))
            .map(|(id, _)| *id)
            .collect();
        let clients: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| is_silent(client.heard))
            .map(|(id, _)| *id)
            .collect();
        servers.into_iter().for_each(|id| self.lose_server(id, &reason));
        clients.into_iter().for_each(|id| self.lose_client(id, &reason));
    }

    fn lose_server(&mut self, id: ServerId, reason: &str) {
        let Some(server) = self.servers.remove(&id) else { return };
        self.connections.remove(&server.connection);
        self.out.push(Action::Close(server.connection));
        let name = server.name;
        self.say(format!("{id} ({name}) is lost: {reason}"));
        for table in self.tables.values_mut() {
            let opened = table.opened().clone();
            for place in table.lose(id, &mut self.number) {
                let error = TableError::LostShard {
                    table: opened.name.clone(),
                    shard: place.shard.0,
                    server: format!("{id} ({name})"),
                    replication: opened.spec.replication,
                };
                self.lost.insert(place, error);
            }
        }
        let lost: Vec<(Place, TableError)> =
            self.lost.iter().map(|(place, error)| (*place, error.clone())).collect();
        for (place, error) in lost {
            self.send_all(&FromDirector::Lost { place, error });
        }
        self.place_all(&format!("{id} is lost"));
        self.send_all(&FromDirector::ServerGone { id, reason: reason.to_string() });
    }

    fn lose_client(&mut self, id: ClientId, reason: &str) {
        let Some(client) = self.clients.remove(&id) else { return };
        // It may be there still, and should know why it is sent away.
        self.send(client.connection, FromDirector::ClientGone { id, reason: reason.to_string() });
        self.connections.remove(&client.connection);
        self.out.push(Action::Close(client.connection));
        self.say(format!("{} ({id}) does not take part any more: {reason}", client.name));
        self.gone_clients.insert(id, reason.to_string());
        self.send_all(&FromDirector::ClientGone { id, reason: reason.to_string() });
    }

    /// Lets servers go that hold nothing any more and wanted to leave.
    fn let_go(&mut self) {
        let holds = |id: ServerId| self.tables.values().any(|table| table.is_held_by(id));
        let free: Vec<ServerId> = self
            .servers
            .iter()
            .filter(|(id, server)| server.is_leaving && !holds(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in free {
            let Some(server) = self.servers.remove(&id) else { continue };
            self.connections.remove(&server.connection);
            self.send(server.connection, FromDirector::MayLeave);
            self.out.push(Action::Close(server.connection));
            self.say(format!("{id} ({}) holds nothing any more and leaves", server.name));
            self.send_all(&FromDirector::ServerGone { id, reason: "it left".into() });
        }
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
