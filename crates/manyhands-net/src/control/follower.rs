//! Those who follow a coordinator: a thread that keeps the connection, the time and the state machine, and hands what is to be done to the
//! data plane.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::CONTROL;
use super::connection::Connection;
use super::coordinator::{ring, silence};
use crate::membership::message::{FromCoordinator, ToCoordinator};
use crate::membership::worker::TICK;
use crate::membership::{driver, worker};
use crate::secure::{HandshakeError, Secret};
use crate::transport::wait::{Interest, Waiting};
use crate::wire::{DialError, dial};

/// How long an attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(1);

/// A side of membership that follows a coordinator.
pub trait Side: Send + 'static {
    /// What happens to it.
    type Event: Send + 'static;
    /// What it wants done.
    type Action;

    /// Takes what happened and returns what to do.
    fn handle(&mut self, now: Duration, event: Self::Event) -> Vec<Self::Action>;
    /// The connection was made, or lost.
    fn connection(is_there: bool) -> Self::Event;
    /// The coordinator said something.
    fn received(message: FromCoordinator) -> Self::Event;
    /// Time went by.
    fn tick() -> Self::Event;
    /// What of an action the loop itself carries out.
    fn errand(action: Self::Action) -> Errand<Self::Action>;
}

/// Who carries out an action.
pub enum Errand<A> {
    /// The loop: connect.
    Connect,
    /// The loop: disconnect.
    Disconnect,
    /// The loop: send.
    Send(Box<ToCoordinator>),
    /// The data plane.
    Other(A),
}

impl Side for worker::Worker {
    type Event = worker::Event;
    type Action = worker::Action;

    fn handle(&mut self, now: Duration, event: Self::Event) -> Vec<Self::Action> {
        worker::Worker::handle(self, now, event)
    }

    fn connection(is_there: bool) -> Self::Event {
        if is_there { worker::Event::Connected } else { worker::Event::Closed }
    }

    fn received(message: FromCoordinator) -> Self::Event {
        worker::Event::Received(message)
    }

    fn tick() -> Self::Event {
        worker::Event::Tick
    }

    fn errand(action: Self::Action) -> Errand<Self::Action> {
        match action {
            worker::Action::Connect => Errand::Connect,
            worker::Action::Disconnect => Errand::Disconnect,
            worker::Action::Send(message) => Errand::Send(message),
            other => Errand::Other(other),
        }
    }
}

impl Side for driver::Driver {
    type Event = driver::Event;
    type Action = driver::Action;

    fn handle(&mut self, now: Duration, event: Self::Event) -> Vec<Self::Action> {
        driver::Driver::handle(self, now, event)
    }

    fn connection(is_there: bool) -> Self::Event {
        if is_there { driver::Event::Connected } else { driver::Event::Closed }
    }

    fn received(message: FromCoordinator) -> Self::Event {
        driver::Event::Received(Box::new(message))
    }

    fn tick() -> Self::Event {
        driver::Event::Tick
    }

    fn errand(action: Self::Action) -> Errand<Self::Action> {
        match action {
            driver::Action::Connect => Errand::Connect,
            driver::Action::Disconnect => Errand::Disconnect,
            driver::Action::Send(message) => Errand::Send(message),
            other => Errand::Other(other),
        }
    }
}

/// Why there is no connection to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// What the last attempt came to.
    pub reason: String,
    /// There never was one, and trying again cannot help: a wrong secret, a name that means nothing.
    pub is_hopeless: bool,
    /// Whether there was one before.
    pub has_connected: bool,
}

/// A thread that follows a coordinator until this is dropped.
pub struct Follower<E> {
    teller: Teller<E>,
    apart: Arc<Mutex<Option<Apart>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Tells a follower what happened, from any thread. What is told after its end is lost.
pub struct Teller<E> {
    events: Sender<(Instant, E)>,
    bell: Arc<OwnedFd>,
    gate: Arc<Mutex<()>>,
}

impl<E> Clone for Teller<E> {
    fn clone(&self) -> Teller<E> {
        let (bell, gate) = (Arc::clone(&self.bell), Arc::clone(&self.gate));
        Teller { events: self.events.clone(), bell, gate }
    }
}

impl<E> Teller<E> {
    /// Held while what the coordinator says is handled, after all that was told before. Who holds it too, looks whether it was stopped and tells
    /// that it went on, has either told it in time or does not go on.
    pub fn gate(&self) -> &Mutex<()> {
        &self.gate
    }

    /// Tells the state machine that something happened.
    pub fn tell(&self, event: E) {
        self.note(event);
        ring(&self.bell);
    }

    /// Tells the state machine without waking it: it takes what was noted in order and with its time, before the next thing that
    /// happens, and at its next tick at the latest. For what happens many times in a step.
    pub fn note(&self, event: E) {
        // The loop outlives all who tell it something, unless it panicked.
        let _ = self.events.send((Instant::now(), event));
    }
}

impl<E: Send + 'static> Follower<E> {
    /// Follows the coordinator at an address, with a side whose time starts now. `perform` gets, in the thread of the
    /// loop, what is to be done by the data plane: it must not wait.
    pub fn start<S: Side<Event = E>>(
        address: String,
        secret: Secret,
        side: S,
        perform: impl FnMut(S::Action) + Send + 'static,
    ) -> std::io::Result<Follower<E>> {
        let (events, received) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let stop = Arc::<AtomicBool>::default();
        let gate = Arc::<Mutex<()>>::default();
        let apart = Arc::<Mutex<Option<Apart>>>::default();
        let mut event_loop = Loop {
            address,
            secret,
            start: Instant::now(),
            side,
            connection: [None],
            events: received,
            bell: Arc::clone(&bell),
            stop: Arc::clone(&stop),
            gate: Arc::clone(&gate),
            apart: Arc::clone(&apart),
            has_connected: false,
            perform,
        };
        let thread = std::thread::Builder::new().name("follower".into());
        let thread = Some(thread.spawn(move || event_loop.run())?);
        Ok(Follower { teller: Teller { events, bell, gate }, apart, stop, thread })
    }

    /// Why the last attempt to reach the coordinator failed; none while there is a connection, or before the first attempt.
    pub fn apart(&self) -> Option<Apart> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`Teller::gate`].
    pub fn gate(&self) -> &Mutex<()> {
        self.teller.gate()
    }

    /// Tells the state machine that something happened.
    pub fn tell(&self, event: E) {
        self.teller.tell(event);
    }

    /// One who tells the same follower, for other threads.
    pub fn teller(&self) -> Teller<E> {
        self.teller.clone()
    }

    /// See [`Teller::note`].
    pub fn note(&self, event: E) {
        self.teller.note(event);
    }
}

impl<E> Drop for Follower<E> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        ring(&self.teller.bell);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Loop<S: Side, P> {
    address: String,
    secret: Secret,
    start: Instant,
    side: S,
    connection: [Option<Connection>; 1],
    events: Receiver<(Instant, S::Event)>,
    bell: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    gate: Arc<Mutex<()>>,
    apart: Arc<Mutex<Option<Apart>>>,
    has_connected: bool,
    perform: P,
}

impl<S: Side, P: FnMut(S::Action)> Loop<S, P> {
    fn run(&mut self) {
        let mut waiting = Waiting::sleeping_at_once();
        let mut next_tick = Instant::now();
        loop {
            let mut moved = self.pump();
            moved |= self.take_told();
            // What was told before the end is still handled and sent.
            if self.stop.load(Ordering::Relaxed) && !moved {
                break;
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.handle(S::tick());
                moved = true;
            }
            if moved {
                waiting.progressed();
                continue;
            }
            let interest =
                self.connection[0].as_ref().map_or(Interest::Nothing, Connection::interest);
            // A link that fails is found by the next pump.
            let _ = waiting.wait(
                &mut self.connection,
                |_| interest,
                Some(self.bell.as_fd()),
                next_tick,
            );
            silence(&self.bell);
        }
    }

    fn pump(&mut self) -> bool {
        let Some(connection) = &mut self.connection[0] else { return false };
        let mut messages = Vec::new();
        let pumped = connection.pump(|message: FromCoordinator| messages.push(message));
        if !messages.is_empty() {
            let gate = Arc::clone(&self.gate);
            let _held = gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.take_told();
            for message in messages {
                self.handle(S::received(message));
            }
        }
        match pumped {
            Ok(moved) => moved,
            Err(_) => {
                self.connection = [None];
                self.handle(S::connection(false));
                true
            }
        }
    }

    /// Handles what was told, each as of its time. Whether there was anything.
    fn take_told(&mut self) -> bool {
        let mut is_any = false;
        while let Ok((at, event)) = self.events.try_recv() {
            self.handle_at(at, event);
            is_any = true;
        }
        is_any
    }

    fn handle(&mut self, event: S::Event) {
        self.handle_at(Instant::now(), event);
    }

    fn handle_at(&mut self, at: Instant, event: S::Event) {
        let actions = self.side.handle(at.saturating_duration_since(self.start), event);
        for action in actions {
            match S::errand(action) {
                Errand::Connect => self.connect(),
                Errand::Disconnect => {
                    // The last word, if there is room for it; what arrives now is not heard any more.
                    if let Some(connection) = &mut self.connection[0] {
                        let _ = connection.pump(|_: FromCoordinator| {});
                    }
                    self.connection = [None];
                }
                Errand::Send(message) => {
                    if let Some(connection) = &mut self.connection[0] {
                        // One that does not read is found silent.
                        let _ = connection.send(&*message);
                    }
                }
                Errand::Other(action) => (self.perform)(action),
            }
        }
    }

    fn connect(&mut self) {
        let dialled = dial(&self.address, &self.secret, CONTROL, &[], CONNECTING);
        let apart = dialled.as_ref().err().map(|error| Apart {
            reason: error.to_string(),
            is_hopeless: !self.has_connected && is_hopeless(error),
            has_connected: self.has_connected,
        });
        *self.apart.lock().unwrap_or_else(PoisonError::into_inner) = apart;
        self.connection = [dialled.ok().and_then(|admitted| Connection::new(admitted).ok())];
        self.has_connected |= self.connection[0].is_some();
        self.handle(S::connection(self.connection[0].is_some()));
    }
}

/// Whether the same attempt would fail again, whatever changes elsewhere.
pub(super) fn is_hopeless(error: &DialError) -> bool {
    match error {
        DialError::Unfindable { .. } => true,
        DialError::Handshake { source, .. } => matches!(
            source,
            HandshakeError::WrongSecret
                | HandshakeError::NotManyhands
                | HandshakeError::OtherVersion { .. }
                | HandshakeError::OtherPurpose { .. }
        ),
        _ => false,
    }
}
