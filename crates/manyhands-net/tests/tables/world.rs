//! A simulated cluster: director, servers and clients as they are, links and time as chance has them.
//!
//! Links deliver in order, each with delays of its own, so messages of different links overtake each other. Servers and clients crash, links break and are made
//! anew, servers come and leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use manyhands_net::tables::client;
use manyhands_net::tables::director::{self, Connection, Director};
use manyhands_net::tables::history::Record;
use manyhands_net::tables::identity::{ClientId, ServerId};
use manyhands_net::tables::message::{
    Body, FromDirector, FromServer, Reach, ToDirector, ToServer, VERSION,
};
use manyhands_net::tables::rules::Rules;
use manyhands_net::tables::server::{self, Server};

use crate::chance::Chance;
use crate::script::Script;

pub(crate) type Time = u64;
pub(crate) const MS: Time = 1000;
pub(crate) const SECOND: Time = 1000 * MS;
const BEAT: Time = 200 * MS;
/// How often the director looks who is silent.
const LOOK: Time = 100 * MS;
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Director,
    Server(usize),
    Client(usize),
}

#[derive(Clone, Debug)]
enum Packet {
    ToDirector(ToDirector),
    FromDirector(FromDirector),
    ToServer(ToServer, Option<Body>),
    FromServer(FromServer, Option<Body>),
}

/// A link from who called to who was called. Each side may have noticed its end or not.
struct Link {
    ends: [Node; 2],
    is_open: [bool; 2],
    last: [Time; 2],
}

enum Happening {
    /// To one end of a link.
    Packet {
        link: usize,
        to: usize,
        packet: Box<Packet>,
    },
    Closed {
        link: usize,
        to: usize,
    },
    Connect {
        from: Node,
        to: Node,
        life: u64,
    },
    Tick {
        node: Node,
        life: u64,
    },
    Crash {
        node: Node,
    },
    Cut,
    JoinServer,
    Leave {
        server: usize,
    },
    Wakes {
        client: usize,
    },
}

pub(crate) struct ServerNode {
    pub(crate) server: Option<Server>,
    wanted: BTreeMap<ServerId, ()>,
    director: Option<usize>,
    /// By whom a link was made: the newest.
    clients: BTreeMap<ClientId, usize>,
    firsts: BTreeMap<ServerId, usize>,
    copies: BTreeMap<ServerId, usize>,
}

pub(crate) struct ClientNode {
    pub(crate) client: client::Client,
    director: Option<usize>,
    servers: BTreeMap<ServerId, usize>,
    pub(crate) script: Script,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) chance: Chance,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    links: Vec<Link>,
    pub(crate) director: Director,
    pub(crate) servers: Vec<Option<ServerNode>>,
    pub(crate) clients: Vec<Option<ClientNode>>,
    lives: BTreeMap<Node, u64>,
    ids: BTreeMap<usize, ServerId>,
    idx_of: BTreeMap<ServerId, usize>,
    /// Servers that have said that they leave.
    leaving: BTreeSet<usize>,
    pub(crate) records: Vec<Record>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) n_events: u64,
    pub(crate) n_crashes: u64,
    /// How often a server did not know a list of keys.
    pub(crate) n_unknown_lists: u64,
    pub(crate) failure: Option<String>,
    /// Clients that crashed: what they had not heard of may be there or not.
    pub(crate) dead_clients: Vec<ClientNode>,
    pub(crate) faults_end: Time,
    pub(crate) may_lose: bool,
}

impl World {
    pub(crate) fn new(chance: Chance, n_servers: usize, is_traced: bool) -> World {
        let mut world = World {
            now: 0,
            chance,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            links: Vec::new(),
            director: Director::new(SILENCE, n_servers),
            servers: Vec::new(),
            clients: Vec::new(),
            lives: BTreeMap::new(),
            ids: BTreeMap::new(),
            idx_of: BTreeMap::new(),
            leaving: BTreeSet::new(),
            records: Vec::new(),
            trace: is_traced.then(Vec::new),
            n_events: 0,
            n_crashes: 0,
            n_unknown_lists: 0,
            failure: None,
            dead_clients: Vec::new(),
            faults_end: 0,
            may_lose: false,
        };
        world.at(LOOK, Happening::Tick { node: Node::Director, life: 0 });
        world
    }

    pub(crate) fn add_server(&mut self) {
        let node = Node::Server(self.servers.len());
        self.servers.push(Some(ServerNode {
            server: None,
            wanted: BTreeMap::new(),
            director: None,
            clients: BTreeMap::new(),
            firsts: BTreeMap::new(),
            copies: BTreeMap::new(),
        }));
        self.connect_soon(node, Node::Director);
    }

    pub(crate) fn add_client(&mut self, script: Script) {
        let node = Node::Client(self.clients.len());
        let client = client::Client::new(true);
        let (director, servers) = (None, BTreeMap::new());
        self.clients.push(Some(ClientNode { client, director, servers, script }));
        self.connect_soon(node, Node::Director);
    }

    pub(crate) fn plan_crash(&mut self, at: Time, node: Node) {
        self.at(at, Happening::Crash { node });
    }

    pub(crate) fn plan_cut(&mut self, at: Time) {
        self.at(at, Happening::Cut);
    }

    pub(crate) fn plan_join(&mut self, at: Time) {
        self.at(at, Happening::JoinServer);
    }

    pub(crate) fn plan_leave(&mut self, at: Time, server: usize) {
        self.at(at, Happening::Leave { server });
    }

    pub(crate) fn wake_client(&mut self, client: usize, delay: Time) {
        self.at(self.now + delay, Happening::Wakes { client });
    }

    fn at(&mut self, at: Time, happening: Happening) {
        self.queue.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, happening);
        self.next += 1;
    }

    fn delay(&mut self) -> Time {
        match self.chance.between(0, 30) {
            0 => self.chance.between(MS, 50 * MS),
            _ => self.chance.between(20, 2 * MS),
        }
    }

    fn life(&self, node: Node) -> u64 {
        self.lives.get(&node).copied().unwrap_or(0)
    }

    fn is_alive(&self, node: Node) -> bool {
        match node {
            Node::Director => true,
            Node::Server(idx) => self.servers.get(idx).is_some_and(Option::is_some),
            Node::Client(idx) => self.clients[idx].is_some(),
        }
    }

    fn connect_soon(&mut self, from: Node, to: Node) {
        let (delay, life) = (self.delay(), self.life(from));
        self.at(self.now + delay, Happening::Connect { from, to, life });
    }

    fn clock(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let at = format!("{:>9.3} ms  ", self.now as f64 / MS as f64);
            trace.push(at + &line());
        }
    }

    /// The next event. Whether there was one.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(Reverse((at, number))) = self.queue.pop() else { return false };
        let Some(happening) = self.happenings.remove(&number) else { return true };
        self.now = at;
        self.n_events += 1;
        match happening {
            Happening::Packet { link, to, packet } => self.deliver(link, to, *packet),
            Happening::Closed { link, to } => self.closed(link, to),
            Happening::Connect { from, to, life } => self.connect(from, to, life),
            Happening::Tick { node, life } => self.tick(node, life),
            Happening::Crash { node } => self.crash(node),
            Happening::Cut => self.cut(),
            Happening::JoinServer => self.add_server(),
            Happening::Leave { server } => {
                if self.someone_is_missed_late() {
                    let again = self.now + 20 * MS;
                    self.at(again, Happening::Leave { server });
                    return true;
                }
                if let Some(Some(node)) = self.servers.get(server)
                    && let Some(link) = node.director
                {
                    self.leaving.insert(server);
                    self.note(|| format!("server {server} wants to leave"));
                    self.send(link, 1, Packet::ToDirector(ToDirector::Leave));
                }
            }
            Happening::Wakes { client } => self.run_script(client),
        }
        true
    }

    fn crash(&mut self, node: Node) {
        if !self.is_alive(node) {
            return;
        }
        if let Node::Server(_) = node
            && !self.may_lose
            && !self.can_lose_one()
        {
            // Two lost at once is more than replication promises to survive.
            let again = self.now + 20 * MS;
            return self.at(again, Happening::Crash { node });
        }
        self.n_crashes += 1;
        self.note(|| format!("{node:?} crashes"));
        *self.lives.entry(node).or_insert(0) += 1;
        match node {
            Node::Director => {}
            Node::Server(idx) => self.servers[idx] = None,
            Node::Client(idx) => {
                let dead = self.clients[idx].take();
                self.dead_clients.extend(dead);
            }
        }
        for link in 0..self.links.len() {
            if let Some(own) = self.links[link].ends.iter().position(|end| *end == node) {
                self.close(link, own);
            }
        }
    }

    /// Whether everything has its copies, and nobody is lost whom the director still counts on.
    ///
    /// Who has said that it leaves is not counted on, also where the director has not heard it yet: it would give what it holds to one that is gone.
    fn can_lose_one(&self) -> bool {
        let servers = self.director.servers();
        let stays = |id: &ServerId| {
            let idx = self.idx_of.get(id);
            idx.is_some_and(|idx| !self.leaving.contains(idx))
        };
        self.director.is_settled()
            && servers.iter().filter(|server| !server.is_leaving && stays(&server.id)).count() > 1
            && !self.someone_is_missed_late()
    }

    /// Whether a server is gone of which the director has not heard so. One that leaves then may leave what it holds to the one that is gone: two are lost at once, which is more than
    /// replication promises to survive.
    fn someone_is_missed_late(&self) -> bool {
        let is_there = |id: &ServerId| {
            self.idx_of.get(id).is_some_and(|idx| self.is_alive(Node::Server(*idx)))
        };
        !self.may_lose && !self.director.servers().iter().all(|server| is_there(&server.id))
    }

    /// Breaks a link that is not the director's.
    fn cut(&mut self) {
        let between =
            |link: &Link| !link.ends.contains(&Node::Director) && link.is_open == [true, true];
        let open: Vec<usize> =
            (0..self.links.len()).filter(|link| between(&self.links[*link])).collect();
        if open.is_empty() {
            return;
        }
        let link = open[self.chance.between(0, open.len() as u64) as usize];
        let ends = self.links[link].ends;
        self.note(|| format!("the link {ends:?} breaks"));
        for to in [0, 1] {
            let delay = self.delay();
            self.at(self.now + delay, Happening::Closed { link, to });
        }
        // What is on its way is lost.
        self.drop_packets(link);
    }

    fn drop_packets(&mut self, link: usize) {
        self.happenings.retain(
            |_, happening| !matches!(happening, Happening::Packet { link: of, .. } if *of == link),
        );
    }

    /// One end closes a link; the other notices after what is on its way.
    fn close(&mut self, link: usize, own: usize) {
        if !std::mem::replace(&mut self.links[link].is_open[own], false) {
            return;
        }
        if self.chance.once_in(2) {
            self.drop_packets(link);
        }
        let to = 1 - own;
        let at = self.links[link].last[to].max(self.now) + 50;
        self.at(at, Happening::Closed { link, to });
    }

    fn connect(&mut self, from: Node, to: Node, life: u64) {
        if self.life(from) != life || !self.is_alive(from) {
            return;
        }
        if !self.is_alive(to) {
            return self.not_connected(from, to);
        }
        if let Node::Server(idx) = to
            && self.servers[idx].as_ref().is_some_and(|node| node.server.is_none())
        {
            // It does not know yet who it is.
            return self.at(self.now + MS, Happening::Connect { from, to, life });
        }
        let link = self.links.len();
        self.links.push(Link { ends: [from, to], is_open: [true, true], last: [0, 0] });
        match (from, to) {
            (Node::Server(idx), Node::Director) => {
                if let Some(node) = &mut self.servers[idx] {
                    node.director = Some(link);
                }
                let reach = Reach {
                    host: String::new(),
                    addresses: vec![idx.to_string()],
                    door: String::new(),
                };
                let name = format!("s{idx}");
                let hello = ToDirector::JoinAsServer {
                    version: VERSION,
                    name,
                    reach,
                    memory_limit: u64::MAX,
                };
                self.send(link, 1, Packet::ToDirector(hello));
                self.at(self.now + BEAT, Happening::Tick { node: from, life });
            }
            (Node::Client(idx), Node::Director) => {
                if let Some(node) = &mut self.clients[idx] {
                    node.director = Some(link);
                }
                let hello = ToDirector::JoinAsClient { version: VERSION, name: format!("w{idx}") };
                self.send(link, 1, Packet::ToDirector(hello));
                self.at(self.now + BEAT, Happening::Tick { node: from, life });
            }
            (Node::Client(idx), Node::Server(server)) => {
                let (Some(client), Some(to)) =
                    (self.clients[idx].as_ref(), self.servers[server].as_ref())
                else {
                    return;
                };
                let (Some(id), Some(of)) = (client.client.id(), to.server.as_ref().map(Server::id))
                else {
                    return;
                };
                if let Some(node) = &mut self.servers[server] {
                    node.clients.insert(id, link);
                }
                if let Some(node) = &mut self.clients[idx] {
                    node.servers.insert(of, link);
                }
                self.tell_client(idx, client::Event::Linked(of));
            }
            (Node::Server(idx), Node::Server(server)) => {
                let id = |node: &Option<ServerNode>| {
                    node.as_ref().and_then(|node| node.server.as_ref()).map(Server::id)
                };
                let (Some(own), Some(of)) = (id(&self.servers[idx]), id(&self.servers[server]))
                else {
                    return;
                };
                if let Some(node) = &mut self.servers[server] {
                    node.firsts.insert(own, link);
                }
                if let Some(node) = &mut self.servers[idx] {
                    if !node.wanted.contains_key(&of) {
                        return;
                    }
                    node.copies.insert(of, link);
                }
                self.tell_server(idx, server::Event::Linked(of));
            }
            _ => {}
        }
    }

    fn not_connected(&mut self, from: Node, to: Node) {
        let Node::Server(server) = to else { return };
        match from {
            Node::Client(idx) => {
                let of = self.server_id(server);
                self.tell_client(idx, client::Event::Unlinked(of));
            }
            Node::Server(idx) => {
                let of = self.server_id(server);
                let is_wanted =
                    self.servers[idx].as_ref().is_some_and(|node| node.wanted.contains_key(&of));
                if is_wanted {
                    let (at, life) = (self.now + 20 * MS, self.life(from));
                    self.at(at, Happening::Connect { from, to, life });
                }
            }
            Node::Director => {}
        }
    }

    fn server_id(&self, idx: usize) -> ServerId {
        self.ids.get(&idx).copied().unwrap_or(ServerId(0))
    }

    fn send(&mut self, link: usize, to: usize, packet: Packet) {
        let from = 1 - to;
        if !self.links[link].is_open[from] {
            return;
        }
        let delay = self.delay();
        let last = &mut self.links[link].last[to];
        let at = (self.now + delay).max(*last + 1);
        *last = at;
        self.at(at, Happening::Packet { link, to, packet: Box::new(packet) });
    }

    fn deliver(&mut self, link: usize, to: usize, packet: Packet) {
        let Link { ends, is_open, .. } = &self.links[link];
        let (from, node) = (ends[1 - to], ends[to]);
        if !is_open[to] || !self.is_alive(node) {
            return;
        }
        self.note(|| format!("{from:?} -> {node:?}: {packet:?}").chars().take(400).collect());
        match (node, packet) {
            (Node::Director, Packet::ToDirector(message)) => {
                let from = Connection(link as u64);
                self.tell_director(director::Event::Received { from, message });
            }
            (Node::Server(idx), Packet::FromDirector(message)) => self.directed(idx, message),
            (Node::Server(idx), Packet::ToServer(message, body)) => {
                let node = self.servers[idx].as_ref();
                let client = node.and_then(|node| {
                    node.clients.iter().find(|(_, of)| **of == link).map(|(client, _)| *client)
                });
                let first = node.and_then(|node| {
                    node.firsts.iter().find(|(_, of)| **of == link).map(|(server, _)| *server)
                });
                let event = match (client, first, message) {
                    (Some(client), _, message) => {
                        server::Event::FromClient { client, message, body }
                    }
                    (_, Some(server), ToServer::Follow(message)) => {
                        server::Event::FromFirst { server, message, body }
                    }
                    _ => return,
                };
                self.tell_server(idx, event);
            }
            (Node::Server(idx), Packet::FromServer(FromServer::Followed(message), _)) => {
                let node = self.servers[idx].as_ref();
                let server = node.and_then(|node| {
                    node.copies.iter().find(|(_, of)| **of == link).map(|(server, _)| *server)
                });
                if let Some(server) = server {
                    self.tell_server(idx, server::Event::FromCopy { server, message });
                }
            }
            (Node::Client(idx), Packet::FromDirector(message)) => {
                self.tell_client(idx, client::Event::FromDirector(message));
            }
            (Node::Client(idx), Packet::FromServer(message, body)) => {
                let is_unknown = matches!(message, FromServer::UnknownKeys { .. });
                self.n_unknown_lists += u64::from(is_unknown);
                let node = self.clients[idx].as_ref();
                let server = node.and_then(|node| {
                    node.servers.iter().find(|(_, of)| **of == link).map(|(server, _)| *server)
                });
                if let Some(server) = server {
                    self.tell_client(idx, client::Event::FromServer { server, message, body });
                }
            }
            _ => {}
        }
    }

    fn directed(&mut self, idx: usize, message: FromDirector) {
        let Some(node) = &mut self.servers[idx] else { return };
        if let FromDirector::WelcomeServer { id } = &message {
            node.server = Some(Server::new(*id, Rules::with_built_in(), u64::MAX));
            return;
        }
        self.tell_server(idx, server::Event::FromDirector(message));
    }

    fn closed(&mut self, link: usize, to: usize) {
        if !std::mem::replace(&mut self.links[link].is_open[to], false) {
            return;
        }
        let node = self.links[link].ends[to];
        if !self.is_alive(node) {
            return;
        }
        match node {
            Node::Director => {
                let from = Connection(link as u64);
                self.tell_director(director::Event::Closed { from });
            }
            Node::Server(idx) => {
                let Some(node) = &mut self.servers[idx] else { return };
                node.clients.retain(|_, of| *of != link);
                node.firsts.retain(|_, of| *of != link);
                let copy = node.copies.iter().find(|(_, of)| **of == link).map(|(id, _)| *id);
                if node.director == Some(link) {
                    // Sent away, or taken for lost.
                    self.servers[idx] = None;
                    return;
                }
                if let Some(copy) = copy {
                    node.copies.remove(&copy);
                    let is_wanted = node.wanted.contains_key(&copy);
                    self.tell_server(idx, server::Event::Unlinked(copy));
                    if is_wanted && let Some(to) = self.idx_of.get(&copy).copied() {
                        self.connect_soon(Node::Server(idx), Node::Server(to));
                    }
                }
            }
            Node::Client(idx) => {
                let Some(node) = &mut self.clients[idx] else { return };
                let server = node.servers.iter().find(|(_, of)| **of == link).map(|(id, _)| *id);
                if let Some(server) = server {
                    node.servers.remove(&server);
                    self.tell_client(idx, client::Event::Unlinked(server));
                } else if node.director == Some(link) {
                    self.tell_client(idx, client::Event::DirectorLost("closed".into()));
                }
            }
        }
    }

    fn tick(&mut self, node: Node, life: u64) {
        if self.life(node) != life || !self.is_alive(node) {
            return;
        }
        match node {
            Node::Server(idx) => {
                let link = self.servers[idx].as_ref().and_then(|node| node.director);
                if let Some(link) = link {
                    self.send(link, 1, Packet::ToDirector(ToDirector::Beat { n_bytes: 0 }));
                }
                self.tell_server(idx, server::Event::Tick);
                self.at(self.now + BEAT, Happening::Tick { node, life });
            }
            Node::Client(idx) => {
                let link = self.clients[idx].as_ref().and_then(|node| node.director);
                if let Some(link) = link {
                    self.send(link, 1, Packet::ToDirector(ToDirector::Beat { n_bytes: 0 }));
                }
                self.at(self.now + BEAT, Happening::Tick { node, life });
            }
            Node::Director => {
                self.tell_director(director::Event::Tick);
                self.at(self.now + LOOK, Happening::Tick { node, life });
            }
        }
    }

    fn tell_director(&mut self, event: director::Event) {
        for action in self.director.handle(self.clock(), event) {
            match action {
                director::Action::Send { to, message } => {
                    if let (FromDirector::WelcomeServer { id }, Node::Server(idx)) =
                        (&message, self.links[to.0 as usize].ends[0])
                    {
                        self.ids.insert(idx, *id);
                        self.idx_of.insert(*id, idx);
                    }
                    self.send(to.0 as usize, 0, Packet::FromDirector(message));
                }
                director::Action::Close(connection) => {
                    let link = connection.0 as usize;
                    let at = self.links[link].last[0].max(self.now) + 50;
                    self.links[link].is_open[1] = false;
                    self.at(at, Happening::Closed { link, to: 0 });
                }
                director::Action::Say(sentence) => self.note(|| format!("director: {sentence}")),
            }
        }
    }

    fn tell_server(&mut self, idx: usize, event: server::Event) {
        let now = self.clock();
        let Some(Some(node)) = self.servers.get_mut(idx) else { return };
        let Some(server) = &mut node.server else { return };
        for action in server.handle(now, event) {
            let Some(node) = &mut self.servers[idx] else { return };
            match action {
                server::Action::ToClient { client, message, body } => {
                    if let Some(link) = node.clients.get(&client).copied() {
                        self.send(link, 0, Packet::FromServer(message, body));
                    }
                }
                server::Action::ToCopy { server, message, body } => {
                    if let Some(link) = node.copies.get(&server).copied() {
                        self.send(link, 1, Packet::ToServer(ToServer::Follow(message), body));
                    }
                }
                server::Action::ToFirst { server, message } => {
                    if let Some(link) = node.firsts.get(&server).copied() {
                        let message = FromServer::Followed(message);
                        self.send(link, 0, Packet::FromServer(message, None));
                    }
                }
                server::Action::ToDirector(message) => {
                    if let Some(link) = node.director {
                        self.send(link, 1, Packet::ToDirector(message));
                    }
                }
                server::Action::LinkTo(server) => {
                    let is_new = node.wanted.insert(server, ()).is_none();
                    if is_new && let Some(to) = self.idx_of.get(&server).copied() {
                        self.connect_soon(Node::Server(idx), Node::Server(to));
                    }
                }
                server::Action::Unlink(server) => {
                    node.wanted.remove(&server);
                    if let Some(link) = node.copies.remove(&server) {
                        self.close(link, 0);
                        self.tell_server(idx, server::Event::Unlinked(server));
                    }
                }
                server::Action::End => {}
            }
        }
    }

    pub(crate) fn tell_client(&mut self, idx: usize, event: client::Event) {
        let now = self.clock();
        let Some(Some(node)) = self.clients.get_mut(idx) else { return };
        let actions = node.client.handle(now, event);
        self.perform_client(idx, actions);
        self.run_script(idx);
        let Some(Some(node)) = self.clients.get(idx) else { return };
        if let Some(at) = node.client.next_tick() {
            let at = (at.as_micros() as Time).max(self.now + 1);
            self.at(at, Happening::Wakes { client: idx });
        }
    }

    pub(crate) fn perform_client(&mut self, idx: usize, actions: Vec<client::Action>) {
        for action in actions {
            let Some(node) = &mut self.clients[idx] else { return };
            match action {
                client::Action::ToServer { server, message, body } => {
                    if let Some(link) = node.servers.get(&server).copied() {
                        self.send(link, 1, Packet::ToServer(message, body));
                    }
                }
                client::Action::ToDirector(message) => {
                    if let Some(link) = node.director {
                        self.send(link, 1, Packet::ToDirector(message));
                    }
                }
                client::Action::LinkTo { reach, .. } => {
                    let to = Node::Server(reach.addresses[0].parse().unwrap());
                    self.connect_soon(Node::Client(idx), to);
                }
                client::Action::Unlink(server) => {
                    if let Some(link) = node.servers.remove(&server) {
                        self.close(link, 0);
                    }
                }
                client::Action::Record(record) => self.records.push(record),
                client::Action::Wake => {}
            }
        }
    }

    fn run_script(&mut self, idx: usize) {
        let now = self.clock();
        let Some(Some(node)) = self.clients.get_mut(idx) else { return };
        if node.client.next_tick().is_some_and(|at| at <= now) {
            return self.tell_client(idx, client::Event::Tick);
        }
        Script::go_on(self, idx);
    }
}
