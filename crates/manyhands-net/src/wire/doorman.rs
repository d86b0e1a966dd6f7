//! The door of a process: one thread that does the handshakes of all who connect, and lets in those who know the secret.
//!
//! Those who do not can cost no more than a bounded number of connections, each for a bounded time and memory. When the room is full, who is
//! least likely to be of the cluster makes room, the oldest first.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::refusals::{Counts, Refusals};
use super::socket::Socket;
use super::visitor::{Turn, Visitor};
use crate::secure::{Established, Handshake, HandshakeError, Purpose, Secret, Stage};

/// Connections taken before those in the room get their turn again.
const ACCEPTS_PER_ROUND: usize = 16;
/// How long nobody is let in after the system could not give a connection.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections that the system holds until they are taken. More than its own default of 128: a burst must not cost who is of the cluster the
/// second after which a lost first packet is sent again.
const BACKLOG: i32 = 1024;

/// A connection whose other side knows the secret.
#[derive(Debug)]
pub struct Admitted {
    /// The connection, which never blocks. Nothing of what follows the handshake has been read.
    pub socket: Socket,
    /// The other side's address, for people.
    pub peer: String,
    /// Purpose, hello and keys.
    pub established: Established,
}

/// What a door needs to know.
#[derive(Clone, Debug)]
pub struct DoormanSettings {
    /// What visitors must prove.
    pub secret: Secret,
    /// What is served here.
    pub accepts: Vec<Purpose>,
    /// What visitors are told once they have shown that they may know the secret.
    pub hello: Vec<u8>,
    /// Connections that may be in their handshake at a time.
    pub max_unproven: usize,
    /// How long a handshake may take.
    pub deadline: Duration,
}

impl DoormanSettings {
    /// 64 at a time, two seconds each.
    pub fn new(
        secret: Secret,
        accepts: impl Into<Vec<Purpose>>,
        hello: impl Into<Vec<u8>>,
    ) -> Self {
        let (accepts, hello) = (accepts.into(), hello.into());
        let deadline = Duration::from_secs(2);
        DoormanSettings { secret, accepts, hello, max_unproven: 64, deadline }
    }
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoormanError {
    /// The system reported an error.
    #[error("cannot serve connections: {0}")]
    Io(#[from] io::Error),
    /// Handshakes cannot be done.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// A door that is served until this is dropped.
#[derive(Debug)]
pub struct Doorman {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Doorman {
    /// Serves one listener or two. `admit` gets those who are let in, in the thread of the door: it must not wait.
    pub fn start(
        tcp: TcpListener,
        unix: Option<UnixListener>,
        settings: DoormanSettings,
        admit: impl FnMut(Admitted) + Send + 'static,
    ) -> Result<Doorman, DoormanError> {
        // What is wrong with the settings is wrong with every handshake: say it now.
        Handshake::respond(&settings.secret, &settings.accepts[..], &settings.hello)?;
        let mut listeners = vec![Listener::Tcp(tcp)];
        listeners.extend(unix.map(Listener::Unix));
        for listener in &listeners {
            listener.prepare()?;
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(rustix::event::eventfd(0, flags).map_err(io::Error::from)?);
        let (counts, stop) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let accepts = settings.accepts.clone().into();
        let door = Door {
            listeners,
            settings,
            accepts,
            admit,
            visitors: Vec::new(),
            paused: None,
            counts: counts.clone(),
            stop: stop.clone(),
            bell: bell.clone(),
        };
        let thread = std::thread::Builder::new().name("doorman".into());
        let thread = Some(thread.spawn(move || door.serve())?);
        Ok(Doorman { counts, stop, bell, thread })
    }

    /// Who was let in and who was not, so far.
    pub fn refusals(&self) -> Refusals {
        self.counts.now()
    }
}

impl Drop for Doorman {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A full counter is as good as one that was added to: the bell is up.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of `admit` was reported when it happened.
            let _ = thread.join();
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn prepare(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        Ok(rustix::net::listen(self, BACKLOG)?)
    }

    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// What the thread has.
struct Door<F> {
    listeners: Vec<Listener>,
    settings: DoormanSettings,
    accepts: Arc<[Purpose]>,
    admit: F,
    /// In the order in which they came.
    visitors: Vec<Visitor>,
    /// Nobody new is let in until then.
    paused: Option<Instant>,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl<F: FnMut(Admitted)> Door<F> {
    fn serve(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            self.paused = self.paused.filter(|end| *end > now);
            self.send_away_the_slow(now);
            let Ok(ready) = self.wait(now) else {
                // Waiting fails only for want of kernel memory: try again, but do not spin.
                std::thread::sleep(PAUSE);
                continue;
            };
            let now = Instant::now();
            // From the back, so that places stay what they were when one leaves.
            for place in ready.into_iter().rev() {
                self.give_turn(place, now);
            }
            self.take_new_ones(now);
        }
    }

    fn send_away_the_slow(&mut self, now: Instant) {
        let counts = &self.counts;
        self.visitors.retain(|visitor| {
            let stays = visitor.end > now;
            if !stays && visitor.is_open() {
                counts.add(|refusals| &mut refusals.too_slow);
            }
            stays
        });
    }

    /// Waits until something can be done. The places of the visitors that it can be done for.
    fn wait(&self, now: Instant) -> Result<Vec<usize>, Errno> {
        let mut polled = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        polled.extend(self.visitors.iter().map(|v| PollFd::new(&v.socket, v.interest())));
        if self.paused.is_none() {
            polled.extend(self.listeners.iter().map(|door| PollFd::new(door, PollFlags::IN)));
        }
        let ends = self.visitors.iter().map(|visitor| visitor.end).chain(self.paused);
        let left = ends.min().map(|end| end.saturating_duration_since(now));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut polled, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let visitors = polled[1..][..self.visitors.len()].iter().enumerate();
        Ok(visitors.filter(|(_, p)| !p.revents().is_empty()).map(|(place, _)| place).collect())
    }

    fn give_turn(&mut self, place: usize, now: Instant) {
        match self.visitors[place].turn(now, &self.counts) {
            Turn::Waits => {}
            Turn::Gone => drop(self.visitors.remove(place)),
            Turn::Proven => {
                let Visitor { socket, handshake, .. } = self.visitors.remove(place);
                if let Some(established) = handshake.finish() {
                    self.counts.add(|refusals| &mut refusals.admitted);
                    let peer = socket.peer();
                    (self.admit)(Admitted { socket, peer, established });
                }
            }
        }
    }

    fn take_new_ones(&mut self, now: Instant) {
        for listener_idx in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_ROUND {
                if self.paused.is_some() {
                    return;
                }
                match self.listeners[listener_idx].accept() {
                    Ok(socket) => self.welcome(socket, now),
                    Err(error) => match self.after_failed_accept(&error, now) {
                        true => continue,
                        false => break,
                    },
                }
            }
        }
    }

    /// What to do when there is no connection to take. Whether to try again now.
    fn after_failed_accept(&mut self, error: &io::Error, now: Instant) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::AGAIN) => return false,
            // The one that waited is gone; the next may be there.
            Some(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => return true,
            _ => {}
        }
        // Too many open files, or no memory. The connection stays in the system's queue, so the listener would be ready for
        // ever: a pause keeps this thread from spinning. Who has shown nothing makes room first.
        self.counts.add(|refusals| &mut refusals.accept_failures);
        if self.make_room(Stage::Unknown) {
            return true;
        }
        self.paused = Some(now + PAUSE);
        false
    }

    fn welcome(&mut self, socket: Socket, now: Instant) {
        let settings = &self.settings;
        let handshake = Handshake::respond(&settings.secret, self.accepts.clone(), &settings.hello);
        let (Ok(handshake), Ok(())) = (handshake, socket.prepare()) else {
            self.counts.add(|refusals| &mut refusals.cut_off);
            return;
        };
        let end = now + settings.deadline;
        if self.visitors.len() >= self.settings.max_unproven.max(1) {
            self.make_room(Stage::Proven);
        }
        self.visitors.push(Visitor::new(socket, handshake, end));
        // Its first message has often arrived with it; once that is taken it is not the first to make room.
        self.give_turn(self.visitors.len() - 1, now);
    }

    /// Drops the one who is worth least, and of these the oldest, if it has shown no more than the given stage. Whether one was dropped.
    fn make_room(&mut self, at_most: Stage) -> bool {
        let worths = self.visitors.iter().map(Visitor::worth).enumerate();
        let Some((place, (_, stage))) = worths.min_by_key(|(_, worth)| *worth) else {
            return false;
        };
        if stage > at_most {
            return false;
        }
        if self.visitors.remove(place).is_open() {
            self.counts.add(|refusals| &mut refusals.crowded_out);
        }
        true
    }
}
