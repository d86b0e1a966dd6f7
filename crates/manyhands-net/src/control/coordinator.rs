//! The coordinator as a process: a door, connections, the log, and the state machine.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::CONTROL;
use super::connection::Connection;
use super::log_file::LogFile;
use crate::host::random_number;
use crate::membership::coordinator::{Action, Coordinator, Event, TICK};
use crate::membership::identity::{ClusterId, Connection as ConnectionId};
use crate::membership::log::LogError;
use crate::membership::message::ToCoordinator;
use crate::membership::status::Decision;
use crate::secure::Secret;
use crate::transport::wait::{Interest, Waiting};
use crate::wire::{Admitted, Doorman, DoormanError, DoormanSettings};

/// The most connections at a time; more are turned away.
const MOST_CONNECTIONS: usize = 1024;
/// How long what was sent on a connection that is to be closed may take to leave.
const LINGER: Duration = Duration::from_secs(1);

/// What a coordinator needs to know.
pub struct CoordinatorSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What everyone must prove.
    pub secret: Secret,
    /// Where its log is; without one it forgets everything when it ends.
    pub log: Option<PathBuf>,
}

/// Why there is no coordinator.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// Nobody can listen there.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The door cannot be served.
    #[error(transparent)]
    Door(#[from] DoormanError),
    /// The log cannot be used.
    #[error("the coordinator's log {path}: {source}")]
    LogFile {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The log is damaged.
    #[error("the coordinator's log {path}: {source}")]
    Log {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: LogError,
    },
    /// Another process has the log.
    #[error("another coordinator runs with the log {path}")]
    LogTaken {
        /// Which.
        path: PathBuf,
    },
    /// The system reported an error.
    #[error("the coordinator cannot run: {0}")]
    System(#[from] std::io::Error),
}

/// A coordinator that runs in a thread until it is stopped or dropped.
pub struct CoordinatorProcess {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl CoordinatorProcess {
    /// Starts one. `say` gets every decision, with its reason.
    pub fn start(
        settings: CoordinatorSettings,
        say: impl FnMut(&Decision) + Send + 'static,
    ) -> Result<CoordinatorProcess, CoordinatorError> {
        let listening = |source| CoordinatorError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let start = Instant::now();
        let log = settings.log.as_deref().map(LogFile::open).transpose()?;
        let (log, entries) = match log {
            Some((log, entries)) => (Some(log), entries),
            None => (None, Vec::new()),
        };
        let nonce = random_number()?;
        let (coordinator, first) = match entries.is_empty() {
            true => Coordinator::new(Duration::ZERO, ClusterId(random_number()?), nonce),
            false => Coordinator::recover(Duration::ZERO, &entries, nonce).map_err(|source| {
                let path = settings.log.clone().unwrap_or_default();
                CoordinatorError::Log { path, source }
            })?,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(std::io::Error::from)?);
        let (sender, arrivals) = channel();
        let door_bell = Arc::clone(&bell);
        let door = DoormanSettings::new(settings.secret, [CONTROL], []);
        let door = Doorman::start(listener, None, door, move |admitted| {
            // Nobody is there to take it when the loop has ended.
            let _ = sender.send(admitted);
            ring(&door_bell);
        })?;
        let stop = Arc::<AtomicBool>::default();
        let mut event_loop = Loop {
            start,
            coordinator,
            log,
            connections: Vec::new(),
            next_connection: 0,
            arrivals,
            waiting: Waiting::sleeping_at_once(),
            stop: Arc::clone(&stop),
            bell: Arc::clone(&bell),
            say,
            is_over: false,
            _door: door,
        };
        event_loop.perform(first)?;
        if event_loop.log.as_ref().is_some_and(LogFile::is_long) {
            event_loop.shorten_log();
        }
        let thread = std::thread::Builder::new().name("coordinator".into());
        let thread = Some(thread.spawn(move || event_loop.run())?);
        Ok(CoordinatorProcess { address, stop, bell, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has ended by itself, since a newer one of the same cluster runs.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for CoordinatorProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        ring(&self.bell);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn ring(bell: &OwnedFd) {
    // A counter that is full rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

pub(super) fn silence(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

struct Loop<S> {
    start: Instant,
    coordinator: Coordinator,
    log: Option<LogFile>,
    connections: Vec<Option<Line>>,
    next_connection: u64,
    arrivals: Receiver<Admitted>,
    waiting: Waiting,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    say: S,
    is_over: bool,
    _door: Doorman,
}

/// A connection with its number.
struct Line {
    id: ConnectionId,
    connection: Connection,
    /// When it is closed, whatever is unsent.
    closes: Option<Instant>,
}

impl std::ops::Deref for Line {
    type Target = dyn crate::transport::Link;

    fn deref(&self) -> &Self::Target {
        &*self.connection
    }
}

impl std::ops::DerefMut for Line {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.connection
    }
}

impl<S: FnMut(&Decision)> Loop<S> {
    fn run(&mut self) {
        let mut next_tick = Instant::now();
        while !self.stop.load(Ordering::Relaxed) && !self.is_over {
            self.take_arrivals();
            let mut moved = false;
            for place in 0..self.connections.len() {
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
            let interests: Vec<Interest> = self.connections.iter().map(interest).collect();
            let bell = self.bell.as_fd();
            // A link that fails is found by the next pump.
            let _ = self.waiting.wait(
                &mut self.connections,
                |place| interests[place],
                Some(bell),
                next_tick,
            );
            silence(&self.bell);
        }
        // What was decided last is still told.
        let until = Instant::now() + LINGER / 4;
        while self.connections.iter().flatten().any(|line| line.connection.has_unsent())
            && Instant::now() < until
        {
            for place in 0..self.connections.len() {
                self.pump(place);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take_arrivals(&mut self) {
        while let Ok(admitted) = self.arrivals.try_recv() {
            let n_open = self.connections.iter().flatten().count();
            let Ok(connection) = Connection::new(admitted) else { continue };
            if n_open >= MOST_CONNECTIONS {
                continue;
            }
            let id = ConnectionId(self.next_connection);
            self.next_connection += 1;
            let line = Line { id, connection, closes: None };
            match self.connections.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(line),
                None => self.connections.push(Some(line)),
            }
        }
    }

    /// Moves what moves on one connection. Whether anything did.
    fn pump(&mut self, place: usize) -> bool {
        let Some(line) = self.connections[place].as_mut() else { return false };
        let from = line.id;
        let mut messages: Vec<ToCoordinator> = Vec::new();
        let pumped = line.connection.pump(|message| messages.push(message));
        let is_over =
            line.closes.is_some_and(|at| !line.connection.has_unsent() || Instant::now() >= at);
        if line.closes.is_none() {
            for message in messages {
                self.handle(Event::Received { from, message });
            }
        }
        match pumped {
            Ok(moved) if !is_over => moved,
            _ => {
                let was_closing =
                    self.connections[place].take().is_some_and(|line| line.closes.is_some());
                if !was_closing {
                    self.handle(Event::Closed { from });
                }
                true
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let actions = self.coordinator.handle(self.start.elapsed(), event);
        if let Err(error) = self.perform(actions) {
            // What cannot be logged must not be done: another life, from what is logged, goes on.
            let at = self.start.elapsed().as_secs_f64();
            (self.say)(&Decision { at, sentence: format!("the coordinator ends: {error}") });
            self.is_over = true;
        }
        if self.log.as_ref().is_some_and(LogFile::has_grown) {
            self.shorten_log();
        }
    }

    /// A log that cannot be shortened is as good as before.
    fn shorten_log(&mut self) {
        if let Some(Err(error)) = self.log.as_mut().map(LogFile::shorten) {
            let at = self.start.elapsed().as_secs_f64();
            let sentence = format!("the log stays as long as it is: {error}");
            (self.say)(&Decision { at, sentence });
        }
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<(), CoordinatorError> {
        for action in actions {
            match action {
                Action::Log(entry) => {
                    if let Some(log) = &mut self.log {
                        log.append(&entry)?;
                    }
                }
                Action::Send { to, message } => {
                    if let Some(line) = self.line(to)
                        && line.connection.send(&*message).is_err()
                    {
                        line.closes = Some(Instant::now());
                    }
                }
                Action::Close { connection } => {
                    if let Some(line) = self.line(connection) {
                        line.closes = Some(Instant::now() + LINGER);
                    }
                }
                Action::Say(decision) => (self.say)(&decision),
                Action::StepDown { reason } => {
                    let at = self.start.elapsed().as_secs_f64();
                    (self.say)(&Decision { at, sentence: reason });
                    self.is_over = true;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, id: ConnectionId) -> Option<&mut Line> {
        self.connections.iter_mut().flatten().find(|line| line.id == id)
    }
}

fn interest(line: &Option<Line>) -> Interest {
    line.as_ref().map_or(Interest::Nothing, |line| line.connection.interest())
}
