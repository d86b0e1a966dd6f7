//! A server of tables on links: one thread with a door, a link to the director, links of clients and other servers.

mod joining;
mod link;
mod settings;

pub use settings::{ServerSettings, free_memory};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use joining::join;
use link::{Came, Link, Peer, interest};

use super::calls::{Bell, Calls};
use super::client::pump;
use super::error::TableError;
use super::history::{HistoryWriter, Record};
use super::identity::ServerId;
use super::line::Line;
use super::message::{Body, FromDirector, FromServer, Reach, ToDirector, ToServer, VERSION, Who};
use super::network::Network;
use super::reaching::Reaching;
use super::server::{Action, Event, Server};
use crate::host::random_number;
use crate::transport::wait::{Interest, Waiting};
use crate::wire::{FrameError, FramedError};

/// How often the director hears that this server is alive.
const BEAT: Duration = Duration::from_millis(200);
/// Between two calls of a director or server that is not there.
const CALL_AGAIN: Duration = Duration::from_millis(20);
/// How long what was said last may take to leave.
const LINGER: Duration = Duration::from_millis(500);
/// A copy that is waited for and on whose link nothing moves for so long is called again: what cut it off may have left its link in a state in which it carries nothing.
const STALLED: Duration = Duration::from_secs(5);
/// The most that is told of a message that is too long.
const LONGEST_WORDS: usize = 200;
/// The most links of clients and other servers.
const MOST_LINKS: usize = 4096;

/// A server that runs in a thread until it is dropped, sent away, or loses its director.
pub struct ServerProcess {
    id: ServerId,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    bell: Bell,
    /// It is to end at once, without a word: as if its process had been killed.
    stops: AtomicBool,
    /// It is to leave in an orderly way.
    leaves: AtomicBool,
    n_bytes: AtomicU64,
    ended: Mutex<Option<Result<(), TableError>>>,
}

impl ServerProcess {
    /// Joins a director, and serves.
    pub fn start(
        network: Arc<dyn Network>,
        settings: ServerSettings,
    ) -> Result<ServerProcess, TableError> {
        let failed = |what: String| TableError::NoLink { who: "the director".into(), what };
        let system = |error: std::io::Error| failed(error.to_string());
        let bell = Bell::new().map_err(system)?;
        let door = format!("tables/server/{:016x}/", random_number().map_err(system)?);
        let calls = Calls::listening(Arc::clone(&network), bell.clone(), &door).map_err(system)?;
        let until = Instant::now() + settings.deadline;
        let (director, id) = join(&*network, &settings, network.reach(&door), until)?;
        let shared = Arc::new(Shared {
            bell: bell.clone(),
            stops: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            n_bytes: AtomicU64::new(0),
            ended: Mutex::new(None),
        });
        let serving = Serving {
            shared: Arc::clone(&shared),
            start: Instant::now(),
            name: settings.name,
            server: Server::new(id, settings.rules, settings.memory_limit),
            calls,
            links: vec![Some(Link::new(Peer::Director, director))],
            reaches: BTreeMap::new(),
            wanted: BTreeMap::new(),
            waiting: Waiting::new(),
            next_beat: Instant::now(),
            next_call: BTreeMap::new(),
            reaching: Reaching::default(),
            history: settings.history.map(|history| history.of(&settings.director)),
            is_over: None,
            has_asked_to_leave: false,
        };
        let thread = std::thread::Builder::new().name(format!("tables {id}"));
        let thread = thread.spawn(move || serving.run()).map_err(system)?;
        Ok(ServerProcess { id, shared, thread: Some(thread) })
    }

    /// Who it is.
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// Bytes that its tables take.
    pub fn n_bytes(&self) -> u64 {
        self.shared.n_bytes.load(Ordering::Relaxed)
    }

    /// Asks to leave in an orderly way: its shards move first. Then it ends by itself.
    pub fn leave(&self) {
        self.shared.leaves.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
    }

    /// Whether it has ended, and how: in order, or since the director is gone or does not want it.
    pub fn ended(&self) -> Option<Result<(), TableError>> {
        // Looked at before its last word, which it may say meanwhile.
        let is_finished = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match is_finished {
            // A thread that ends without a word of it has panicked, and said where.
            true => Some(ended.unwrap_or(Err(TableError::ServerFailed { server: self.id }))),
            false => ended,
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    shared: Arc<Shared>,
    start: Instant,
    name: String,
    server: Server,
    calls: Calls<ServerId>,
    /// The first is the director's.
    links: Vec<Option<Link>>,
    reaches: BTreeMap<ServerId, Reach>,
    /// Servers to which links are wanted, and whether there is one or a call underway.
    wanted: BTreeMap<ServerId, bool>,
    waiting: Waiting,
    next_beat: Instant,
    next_call: BTreeMap<ServerId, Instant>,
    reaching: Reaching,
    history: Option<HistoryWriter>,
    is_over: Option<Result<(), TableError>>,
    has_asked_to_leave: bool,
}

impl Serving {
    fn run(mut self) {
        while !self.shared.stops.load(Ordering::Relaxed) && self.is_over.is_none() {
            self.take_calls();
            let mut moved = false;
            for place in 0..self.links.len() {
                moved |= self.pump(place);
            }
            self.tick();
            if moved {
                self.waiting.progressed();
                continue;
            }
            let interests: Vec<Interest> = self.links.iter().map(interest).collect();
            let next_call = self.next_call.values().min().copied().unwrap_or(self.next_beat);
            let until = self.next_beat.min(next_call);
            let bell = self.shared.bell.clone();
            // A link that fails is found by the next pump.
            let _ = self.waiting.wait(
                &mut self.links,
                |place| interests[place],
                Some(bell.as_fd()),
                until,
            );
            bell.silence();
        }
        if !self.shared.stops.load(Ordering::Relaxed) {
            self.linger();
        }
        let ended = self.is_over.take().unwrap_or(Ok(()));
        self.record_end();
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    }

    /// What was said last still leaves.
    fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        while Instant::now() < until
            && self.links.iter_mut().flatten().any(|link| !link.line.is_sent())
        {
            for link in self.links.iter_mut().flatten() {
                let _ = link.line.push();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes how the shards stand that this server answers for.
    fn record_end(&self) {
        let Some(history) = &self.history else { return };
        for standing in self.server.standings().into_iter().filter(|standing| standing.is_first) {
            let numbers = standing.numbers.into_iter().collect();
            let (place, term, version) = (standing.place, standing.term, standing.version);
            let n_begun = standing.n_begun;
            history.write(&Record::End { place, term, version, n_begun, numbers });
        }
    }

    fn take_calls(&mut self) {
        while let Some(link) = self.calls.next_incoming() {
            if self.links.iter().flatten().count() < MOST_LINKS {
                self.add_link(Link::new(Peer::Unknown, Line::showing(link)));
            }
        }
        while let Some((server, called)) = self.calls.next_called() {
            let who = Who::Server(self.server.id());
            let hello = ToServer::Hello { version: VERSION, who, name: self.name.clone() };
            let line = called.and_then(|link| {
                let mut line = Line::showing(link);
                line.queue(&hello, None).map_err(|error| error.to_string())?;
                Ok(line)
            });
            match line {
                _ if !self.wanted.contains_key(&server) => {}
                Ok(line) => {
                    self.add_link(Link::new(Peer::Copy(server), line));
                    self.handle(Event::Linked(server));
                }
                Err(reason) => {
                    if self.reaching.failed(server, Instant::now()) {
                        let message = ToDirector::CannotReach { server, reason };
                        self.perform(vec![Action::ToDirector(message)]);
                    }
                    self.call_later(server);
                }
            }
        }
    }

    fn add_link(&mut self, link: Link) {
        match self.links.iter_mut().skip(1).find(|place| place.is_none()) {
            Some(place) => *place = Some(link),
            None => self.links.push(Some(link)),
        }
    }

    /// Calls a copy again in a moment, if it is still wanted.
    fn call_later(&mut self, server: ServerId) {
        if let Some(is_called) = self.wanted.get_mut(&server) {
            *is_called = false;
            self.next_call.insert(server, Instant::now() + CALL_AGAIN);
        }
    }

    fn call(&mut self, server: ServerId) {
        self.next_call.remove(&server);
        let Some(is_called) = self.wanted.get_mut(&server) else { return };
        let Some(reach) = self.reaches.get(&server) else { return };
        if !std::mem::replace(is_called, true) {
            self.reaching.tries(server, Instant::now());
            self.calls.call(server, reach.clone());
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let due: Vec<ServerId> = self
            .next_call
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(server, _)| *server)
            .collect();
        due.into_iter().for_each(|server| self.call(server));
        if self.shared.leaves.load(Ordering::Relaxed) && !self.has_asked_to_leave {
            self.has_asked_to_leave = true;
            self.perform(vec![Action::ToDirector(ToDirector::Leave)]);
        }
        if now >= self.next_beat {
            self.next_beat = now + BEAT;
            self.look_for_stalled(now);
            self.handle(Event::Tick);
            let n_bytes = self.server.n_bytes();
            // Somebody who wants all of it, and is filled with it, is not at fault.
            let usual = usize::try_from(n_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
            self.links.iter_mut().flatten().for_each(|link| link.line.may_hold(usual));
            self.shared.n_bytes.store(n_bytes, Ordering::Relaxed);
            self.perform(vec![Action::ToDirector(ToDirector::Beat { n_bytes })]);
        }
    }

    /// Leaves links to copies that are waited for and say nothing.
    fn look_for_stalled(&mut self, now: Instant) {
        for place in 0..self.links.len() {
            let Some(Link { peer: Peer::Copy(server), moved, .. }) = self.links[place] else {
                continue;
            };
            if now >= moved + STALLED && self.server.waits_for(server) {
                self.reaching.tries(server, moved);
                self.lost(place, "it did not answer".to_string());
            }
        }
    }

    /// Moves what moves on one link. Whether anything did.
    fn pump(&mut self, place: usize) -> bool {
        let Some(link) = self.links[place].as_mut() else { return false };
        let peer = link.peer;
        let mut came = Vec::new();
        let pumped = match link.peer {
            Peer::Director => pump(&mut link.line, |message, _| came.push(Came::Directed(message))),
            Peer::Copy(_) => pump(&mut link.line, |message, _| came.push(Came::Answered(message))),
            Peer::Unknown | Peer::Client(_) | Peer::First(_) => {
                pump(&mut link.line, |message, body| came.push(Came::Asked(message, body)))
            }
        };
        if let Ok(true) = pumped {
            link.moved = Instant::now();
        }
        if let (Peer::Copy(server), false) = (peer, came.is_empty())
            && self.reaching.reached(server)
        {
            self.perform(vec![Action::ToDirector(ToDirector::Reaches { server })]);
        }
        for came in came {
            self.came(place, came);
        }
        match pumped {
            Ok(moved) => moved,
            Err(reason) => {
                self.lost(place, reason);
                true
            }
        }
    }

    fn came(&mut self, place: usize, came: Came) {
        let Some(peer) = self.links[place].as_ref().map(|link| link.peer) else { return };
        match (peer, came) {
            (Peer::Director, Came::Directed(message)) => self.directed(message),
            (Peer::Copy(server), Came::Answered(FromServer::Followed(message))) => {
                self.handle(Event::FromCopy { server, message });
            }
            (Peer::Unknown, Came::Asked(ToServer::Hello { version, who, name }, _)) => {
                self.hello(place, version, who, name);
            }
            (Peer::Client(client), Came::Asked(message, body)) => {
                self.handle(Event::FromClient { client, message, body });
            }
            (Peer::First(server), Came::Asked(ToServer::Follow(message), body)) => {
                self.handle(Event::FromFirst { server, message, body });
            }
            // Whoever says what cannot be is left.
            _ => self.links[place] = None,
        }
    }

    fn hello(&mut self, place: usize, version: u32, who: Who, name: String) {
        if version != VERSION {
            let ours = VERSION;
            let error = TableError::OtherVersion { who: name, theirs: version, ours };
            if let Some(link) = &mut self.links[place] {
                let _ = link.line.queue(&FromServer::Unwelcome { error }, None);
                let _ = link.line.push();
            }
            self.links[place] = None;
            return;
        }
        let peer = match who {
            Who::Client(client) => Peer::Client(client),
            Who::Server(server) => Peer::First(server),
        };
        // Who calls again has lost the link before.
        for link in &mut self.links {
            if link.as_ref().is_some_and(|link| link.peer == peer) {
                *link = None;
            }
        }
        if let Some(link) = &mut self.links[place] {
            link.peer = peer;
        }
        if let Who::Client(client) = who {
            self.handle(Event::Named { client, name });
        }
    }

    fn directed(&mut self, message: FromDirector) {
        if let FromDirector::Server { id, reach, .. } = &message {
            self.reaches.insert(*id, reach.clone());
            self.call(*id);
        }
        if let FromDirector::Unwelcome { error } = &message {
            self.is_over.get_or_insert(Err(error.clone()));
        }
        self.handle(Event::FromDirector(message));
    }

    fn lost(&mut self, place: usize, reason: String) {
        let Some(link) = self.links[place].take() else { return };
        match link.peer {
            Peer::Director => {
                self.is_over.get_or_insert(Err(TableError::DirectorLost { reason }));
            }
            Peer::Copy(server) => {
                self.handle(Event::Unlinked(server));
                self.call_later(server);
            }
            Peer::Unknown | Peer::Client(_) | Peer::First(_) => {}
        }
    }

    fn handle(&mut self, event: Event) {
        let actions = self.server.handle(self.start.elapsed(), event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::ToClient { client, message, body } => {
                    self.send(Peer::Client(client), &message, body);
                }
                Action::ToCopy { server, message, body } => {
                    self.send(Peer::Copy(server), &ToServer::Follow(message), body);
                }
                Action::ToFirst { server, message } => {
                    self.send(Peer::First(server), &FromServer::Followed(message), None);
                }
                Action::ToDirector(message) => self.send(Peer::Director, &message, None),
                Action::LinkTo(server) => {
                    self.wanted.entry(server).or_insert(false);
                    self.call(server);
                }
                Action::Unlink(server) => {
                    self.wanted.remove(&server);
                    self.next_call.remove(&server);
                    self.reaching.reached(server);
                    self.reaches.remove(&server);
                    self.handle(Event::Unlinked(server));
                    for link in &mut self.links {
                        if link.as_ref().is_some_and(|link| link.peer == Peer::Copy(server)) {
                            *link = None;
                        }
                    }
                }
                Action::End => {
                    self.is_over.get_or_insert(Ok(()));
                }
            }
        }
    }

    fn send(
        &mut self,
        to: Peer,
        message: &(impl serde::Serialize + std::fmt::Debug),
        body: Option<Body>,
    ) {
        let link = self.links.iter_mut().flatten().find(|link| link.peer == to);
        let Some(link) = link else { return };
        // A line that fails otherwise is found by the next pump.
        let Err(FramedError::Frame(error)) = link.line.queue(message, body) else { return };
        if let FrameError::TooLongToSend { len, .. } = error {
            // Nothing that is so long is made, and who waits for it would do so for ever.
            let mut what = format!("{message:?}");
            what.truncate(what.floor_char_boundary(LONGEST_WORDS));
            let (who, n_bytes) = (self.name.clone(), len as u64);
            self.is_over.get_or_insert(Err(TableError::TooLarge { who, what, n_bytes }));
        }
    }
}
