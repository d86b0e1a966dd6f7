//! The director of tables on links: a thread in the process that drives a job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::calls::{Bell, Calls};
use super::client::pump;
use super::director::{Action, Connection, Director, Event, ServerStatus};
use super::error::TableError;
use super::line::Line;
use super::message::{Reach, ToDirector};
use super::network::Network;
use crate::host::random_number;
use crate::transport::wait::{Interest, Waiting};

/// How often it is looked who is silent.
const TICK: Duration = Duration::from_millis(100);
/// How long what was sent on a connection that is to be closed may take to leave.
const LINGER: Duration = Duration::from_secs(1);
/// The most connections at a time.
const MOST_CONNECTIONS: usize = 4096;

/// What a director needs to know.
#[derive(Clone, Debug)]
pub struct DirectorSettings {
    /// Nobody who is silent for less than this is lost; beyond it, who is silent for longer than usual is. A connection that closes is noticed at once.
    pub silence: Duration,
    /// Tables are placed when so many servers are there.
    pub n_servers: usize,
}

impl Default for DirectorSettings {
    fn default() -> DirectorSettings {
        DirectorSettings { silence: Duration::from_secs(5), n_servers: 1 }
    }
}

/// A director that runs in a thread until it is dropped.
pub struct DirectorProcess {
    reach: Reach,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stops: AtomicBool,
    bell: Bell,
    status: Mutex<DirectorStatus>,
    /// Clients that do not take part any more, with the reason, which the director was not told yet.
    dropped: Mutex<Vec<(String, String)>>,
}

/// How tables stand, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectorStatus {
    /// The servers.
    pub servers: Vec<ServerStatus>,
    /// Whether every shard has all its holders, and nothing moves.
    pub is_settled: bool,
    /// Sentences of what happened, the last few.
    pub said: Vec<String>,
}

/// Sentences that are kept.
const SAID: usize = 200;

impl Shared {
    fn status(&self) -> MutexGuard<'_, DirectorStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectorProcess {
    /// Starts one. `say` gets every decision as a sentence.
    pub fn start(
        network: Arc<dyn Network>,
        settings: &DirectorSettings,
        say: impl FnMut(&str) + Send + 'static,
    ) -> Result<DirectorProcess, TableError> {
        let failed = |error: std::io::Error| TableError::NoLink {
            who: "servers and clients".into(),
            what: error.to_string(),
        };
        let bell = Bell::new().map_err(failed)?;
        let door = format!("tables/director/{:016x}/", random_number().map_err(failed)?);
        let reach = network.reach(&door);
        let calls = Calls::listening(network, bell.clone(), &door).map_err(failed)?;
        let (status, dropped) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { stops: AtomicBool::new(false), bell, status, dropped });
        let directing = Directing {
            shared: Arc::clone(&shared),
            start: Instant::now(),
            director: Director::new(settings.silence, settings.n_servers),
            calls,
            lines: Vec::new(),
            next_connection: 0,
            places: BTreeMap::new(),
            waiting: Waiting::sleeping_at_once(),
            say: Box::new(say),
        };
        let thread = std::thread::Builder::new().name("tables director".into());
        let thread = Some(thread.spawn(move || directing.run()).map_err(failed)?);
        Ok(DirectorProcess { reach, shared, thread })
    }

    /// Where servers and clients reach it.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// How tables stand.
    pub fn status(&self) -> DirectorStatus {
        self.shared.status().clone()
    }

    /// Clients of this name do not take part any more, whether they are there or not: nobody waits for their clocks from now on. One that is wanted again joins as another.
    pub fn drop_clients(&self, name: &str, reason: &str) {
        self.shared.dropped().push((name.to_string(), reason.to_string()));
        self.shared.bell.ring();
    }
}

impl Drop for DirectorProcess {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Numbered {
    id: Connection,
    line: Line,
    closes: Option<Instant>,
}

impl std::ops::Deref for Numbered {
    type Target = dyn crate::transport::Link;

    fn deref(&self) -> &Self::Target {
        &*self.line
    }
}

impl std::ops::DerefMut for Numbered {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.line
    }
}

struct Directing {
    shared: Arc<Shared>,
    start: Instant,
    director: Director,
    calls: Calls<()>,
    lines: Vec<Option<Numbered>>,
    next_connection: u64,
    places: BTreeMap<Connection, usize>,
    waiting: Waiting,
    say: Box<dyn FnMut(&str) + Send>,
}

impl Directing {
    fn run(mut self) {
        let mut next_tick = Instant::now() + TICK;
        while !self.shared.stops.load(Ordering::Relaxed) {
            self.take_calls();
            let dropped = std::mem::take(&mut *self.shared.dropped());
            for (client, reason) in dropped {
                self.handle(Event::Dropped { client, reason });
            }
            let mut moved = false;
            for place in 0..self.lines.len() {
                moved |= self.pump(place);
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.handle(Event::Tick);
            }
            if moved {
                self.waiting.progressed();
                continue;
            }
            let interest = |line: &Option<Numbered>| {
                line.as_ref().map_or(Interest::Nothing, |line| line.line.interest())
            };
            let interests: Vec<Interest> = self.lines.iter().map(interest).collect();
            let bell = self.shared.bell.clone();
            // A link that fails is found by the next pump.
            let _ = self.waiting.wait(
                &mut self.lines,
                |place| interests[place],
                Some(bell.as_fd()),
                next_tick,
            );
            bell.silence();
        }
    }

    fn take_calls(&mut self) {
        while let Some(link) = self.calls.next_incoming() {
            if self.lines.iter().flatten().count() >= MOST_CONNECTIONS {
                continue;
            }
            let id = Connection(self.next_connection);
            self.next_connection += 1;
            let numbered = Numbered { id, line: Line::new(link), closes: None };
            let place = match self.lines.iter().position(Option::is_none) {
                Some(place) => place,
                None => {
                    self.lines.push(None);
                    self.lines.len() - 1
                }
            };
            self.lines[place] = Some(numbered);
            self.places.insert(id, place);
        }
    }

    /// Moves what moves on one connection. Whether anything did.
    fn pump(&mut self, place: usize) -> bool {
        let Some(numbered) = self.lines[place].as_mut() else { return false };
        let from = numbered.id;
        let mut messages: Vec<ToDirector> = Vec::new();
        let pumped = pump(&mut numbered.line, |message, _| messages.push(message));
        let is_over =
            numbered.closes.is_some_and(|at| numbered.line.is_sent() || Instant::now() >= at);
        if numbered.closes.is_none() {
            for message in messages {
                self.handle(Event::Received { from, message });
            }
        }
        match pumped {
            Ok(moved) if !is_over => moved,
            _ => {
                self.places.remove(&from);
                let was_closing =
                    self.lines[place].take().is_some_and(|numbered| numbered.closes.is_some());
                if !was_closing {
                    self.handle(Event::Closed { from });
                }
                true
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let actions = self.director.handle(self.start.elapsed(), event);
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    let line = self.places.get(&to).and_then(|place| self.lines.get_mut(*place));
                    if let Some(Some(numbered)) = line {
                        let _ = numbered.line.queue(&message, None);
                    }
                }
                Action::Close(connection) => {
                    let place = self.places.get(&connection);
                    let line = place.and_then(|place| self.lines.get_mut(*place));
                    if let Some(Some(numbered)) = line {
                        numbered.closes.get_or_insert(Instant::now() + LINGER);
                    }
                }
                Action::Say(sentence) => {
                    (self.say)(&sentence);
                    let mut status = self.shared.status();
                    if status.said.len() == SAID {
                        status.said.remove(0);
                    }
                    status.said.push(sentence);
                }
            }
        }
        let mut status = self.shared.status();
        status.servers = self.director.servers();
        status.is_settled = self.director.is_settled();
    }
}
