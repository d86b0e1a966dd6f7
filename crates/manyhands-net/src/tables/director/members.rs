//! Who is there: servers and clients come, leave, and are missed.

use std::time::Duration;

use super::{Action, Connection, Director, Who};
use crate::membership::arrivals::Arrivals;
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, ServerId};
use crate::tables::message::{FromDirector, Reach, VERSION};

/// A gap between two looks that is longer is this process's own sleep, which is nobody else's silence.
const OWN_SLEEP: Duration = Duration::from_millis(600);

/// Who is silent for longer is quiet: five beats of a server were not heard.
const QUIET: Duration = Duration::from_secs(1);

/// A server as the director knows it.
#[derive(Clone, Debug)]
pub(super) struct ServerState {
    pub(super) name: String,
    pub(super) reach: Reach,
    pub(super) connection: Connection,
    pub(super) arrivals: Arrivals,
    pub(super) is_leaving: bool,
    /// It said that it can hold no more.
    pub(super) is_full: bool,
    pub(super) n_bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ClientState {
    pub(super) name: String,
    pub(super) connection: Connection,
    pub(super) arrivals: Arrivals,
}

/// A server that was left out for a while.
#[derive(Clone, Debug)]
pub(super) struct Shunned {
    pub(super) until: Duration,
    pub(super) error: TableError,
}

impl Director {
    pub(super) fn speaks(&mut self, from: Connection, version: u32, name: &str) -> bool {
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

    pub(super) fn join_server(
        &mut self,
        now: Duration,
        from: Connection,
        name: String,
        reach: Reach,
    ) {
        self.shunned.retain(|_, shunned| shunned.until > now);
        if let Some(Shunned { error, .. }) = self.shunned.get(&name) {
            let error = error.clone();
            self.send(from, FromDirector::Unwelcome { error });
            return self.out.push(Action::Close(from));
        }
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
            arrivals: Arrivals::new(now),
            is_leaving: false,
            is_full: false,
            n_bytes: 0,
        };
        self.servers.insert(id, state);
        self.tell_everything(from);
        self.place_all(&format!("{id} joined"));
    }

    pub(super) fn join_client(&mut self, now: Duration, from: Connection, name: String) {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.connections.insert(from, Who::Client(id));
        self.clients
            .insert(id, ClientState { name, connection: from, arrivals: Arrivals::new(now) });
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
        let ranges = self.gone_clients.runs().collect();
        self.out.push(Action::Send { to, message: FromDirector::ClientsGone { ranges } });
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

    /// Takes for lost who is silent for longer than it usually is. Nobody within [`Director::new`]'s time: the thread of a server that beats applies updates too, and its loss
    /// moves all that it holds. One that alone holds something is waited for much longer, since that would be lost with it.
    pub(super) fn look_for_silence(&mut self, now: Duration) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let servers = self.servers.values_mut().map(|server| &mut server.arrivals);
        let clients = self.clients.values_mut().map(|client| &mut client.arrivals);
        if gap > OWN_SLEEP {
            servers.chain(clients).for_each(|arrivals| arrivals.forgive(gap));
        }
        let silent = |arrivals: &Arrivals, patience: Duration| {
            let patience = patience.max(self.silence);
            let reason = format!("nothing was heard of it for {:.1} s", patience.as_secs_f64());
            (arrivals.silent_for(now) > patience).then_some(reason)
        };
        let server = |(id, server): (&ServerId, &ServerState)| {
            let patience = match self.is_spare(now, *id) {
                true => server.arrivals.patience(),
                false => server.arrivals.long_patience(),
            };
            Some((*id, silent(&server.arrivals, patience)?))
        };
        let client = |(id, client): (&ClientId, &ClientState)| {
            Some((*id, silent(&client.arrivals, client.arrivals.patience())?))
        };
        let servers: Vec<(ServerId, String)> = self.servers.iter().filter_map(server).collect();
        let clients: Vec<(ClientId, String)> = self.clients.iter().filter_map(client).collect();
        servers.into_iter().for_each(|(id, reason)| self.lose_server(id, &reason));
        clients.into_iter().for_each(|(id, reason)| self.lose_client(id, &reason));
    }

    /// Whether others have all that a server holds, who speak: one that is quiet may be gone too.
    pub(super) fn is_spare(&self, now: Duration, id: ServerId) -> bool {
        let speaks = |other| self.servers.contains_key(&other) && !self.is_quiet(now, other);
        self.tables.values().all(|table| table.is_held_by_another(id, speaks))
    }

    /// Whether nothing was heard of a server for a while.
    pub(super) fn is_quiet(&self, now: Duration, id: ServerId) -> bool {
        let server = self.servers.get(&id);
        server.is_some_and(|server| server.arrivals.silent_for(now) > QUIET)
    }

    pub(super) fn lose_server(&mut self, id: ServerId, reason: &str) {
        let Some(server) = self.servers.remove(&id) else { return };
        self.connections.remove(&server.connection);
        self.out.push(Action::Close(server.connection));
        self.complaints.retain(|(from, to), _| *from != id && *to != id);
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

    pub(super) fn lose_client(&mut self, id: ClientId, reason: &str) {
        let Some(client) = self.clients.remove(&id) else { return };
        // It may be there still, and should know why it is sent away.
        self.send(client.connection, FromDirector::ClientGone { id, reason: reason.to_string() });
        self.connections.remove(&client.connection);
        self.out.push(Action::Close(client.connection));
        self.say(format!("{} ({id}) does not take part any more: {reason}", client.name));
        self.gone_clients.insert(id..=id);
        self.send_all(&FromDirector::ClientGone { id, reason: reason.to_string() });
    }

    /// Those of this name are there and do not take part: one that is wanted again comes as another.
    pub(super) fn drop_clients(&mut self, name: &str, reason: &str) {
        let is_of_name = |(_, client): &(&ClientId, &ClientState)| client.name == name;
        let ids: Vec<ClientId> =
            self.clients.iter().filter(is_of_name).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.lose_client(id, reason));
    }

    /// Lets servers go that hold nothing any more and wanted to leave.
    pub(super) fn let_go(&mut self) {
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
            self.complaints.retain(|(from, to), _| *from != id && *to != id);
            self.send(server.connection, FromDirector::MayLeave);
            self.out.push(Action::Close(server.connection));
            self.say(format!("{id} ({}) holds nothing any more and leaves", server.name));
            self.send_all(&FromDirector::ServerGone { id, reason: "it left".into() });
        }
    }
}
