//! The side that connects: one call from an address to a proven connection, or a sentence why not.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::doorman::Admitted;
use super::socket::Socket;
use crate::secure::{Handshake, HandshakeError, Purpose, Secret, Stage};

/// An address that begins with this is the path of a Unix socket.
const UNIX_PREFIX: &str = "unix:";
/// A path that begins with this is a name without a file.
const ABSTRACT_PREFIX: char = '@';
/// What is done until a connection is there.
const CONNECTING: &str = "connecting";
/// Between two attempts to enter a full queue.
const RETRY: Duration = Duration::from_millis(2);
/// How often it is looked whether to give up.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name means nothing.
    #[error("cannot find {address}: {source}")]
    Unfindable {
        /// What was dialled.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("nothing listens at {address}")]
    Refused {
        /// What was dialled.
        address: String,
    },
    /// The deadline passed.
    #[error("{address} did not answer in time, while {doing}")]
    TimedOut {
        /// What was dialled.
        address: String,
        /// What was waited for.
        doing: &'static str,
    },
    /// The system reported an error.
    #[error("the connection to {address} failed: {source}")]
    Io {
        /// What was dialled.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The other side is not one of the cluster, or thinks so of this one.
    #[error("no handshake with {address}: {source}")]
    Handshake {
        /// What was dialled.
        address: String,
        /// What went wrong.
        source: HandshakeError,
    },
    /// Somebody asked to give up.
    #[error("the call of {address} was given up, while {doing}")]
    Aborted {
        /// What was dialled.
        address: String,
        /// What was waited for.
        doing: &'static str,
    },
}

/// Connects to `host:port`, `unix:path` or `unix:@name`, proves the secret both ways, and exchanges hellos, all before the deadline has passed.
pub fn dial(
    address: &str,
    secret: &Secret,
    purpose: Purpose,
    hello: &[u8],
    deadline: Duration,
) -> Result<Admitted, DialError> {
    dial_unless(address, secret, purpose, hello, deadline, || false)
}

/// As [`dial`], until `gives_up` says so: it is asked every few milliseconds, whatever is being waited for.
pub fn dial_unless(
    address: &str,
    secret: &Secret,
    purpose: Purpose,
    hello: &[u8],
    deadline: Duration,
    gives_up: impl Fn() -> bool,
) -> Result<Admitted, DialError> {
    let attempt = Attempt { address, end: Instant::now() + deadline, gives_up: &gives_up };
    let handshake =
        Handshake::initiate(secret, purpose, hello).map_err(|error| attempt.refused(error))?;
    let socket = attempt.connect()?;
    socket.prepare().map_err(|error| attempt.failed(error))?;
    attempt.shake_hands(socket, handshake)
}

/// One call of an address, with all that ends it.
struct Attempt<'a> {
    address: &'a str,
    end: Instant,
    gives_up: &'a dyn Fn() -> bool,
}

impl Attempt<'_> {
    /// How long to wait before looking up again, while it may be waited at all.
    fn moment(&self, doing: &'static str, end: Instant) -> Result<Duration, DialError> {
        if (self.gives_up)() {
            return Err(DialError::Aborted { address: self.address.into(), doing });
        }
        let left = end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(DialError::TimedOut { address: self.address.into(), doing }),
            false => Ok(left.min(LOOK_UP)),
        }
    }

    fn connect(&self) -> Result<Socket, DialError> {
        if let Some(path) = self.address.strip_prefix(UNIX_PREFIX) {
            return self.connect_unix(path);
        }
        let candidates = self.look_up()?;
        let n_candidates = candidates.len() as u32;
        let mut last = None;
        for (candidate, left) in candidates.iter().zip((1..=n_candidates).rev()) {
            // Each gets its share of the time, so that one that swallows packets leaves some for the next.
            let now = Instant::now();
            let share = self.end.saturating_duration_since(now) / left;
            match self.connect_tcp(candidate, now + share) {
                Err(error @ DialError::Aborted { .. }) => return Err(error),
                Err(error) => last = Some(error),
                connected => return connected,
            }
        }
        Err(last.unwrap_or_else(|| self.unfindable(io::ErrorKind::NotFound.into())))
    }

    fn connect_tcp(&self, place: &SocketAddr, end: Instant) -> Result<Socket, DialError> {
        let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = self.socket(family)?;
        match rustix::net::connect(&socket, place) {
            Ok(()) => return Ok(Socket::Tcp(TcpStream::from(socket))),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(self.not_connected(error)),
        }
        loop {
            let moment = self.moment(CONNECTING, end)?;
            if wait(socket.as_fd(), PollFlags::OUT, moment).map_err(|error| self.failed(error))? {
                break;
            }
        }
        match rustix::net::sockopt::socket_error(&socket) {
            Ok(Ok(())) => Ok(Socket::Tcp(TcpStream::from(socket))),
            Ok(Err(error)) | Err(error) => Err(self.not_connected(error)),
        }
    }

    /// Connecting to a Unix socket blocks while its queue is full, and has no deadline: so it is asked for without blocking, again and again.
    fn connect_unix(&self, path: &str) -> Result<Socket, DialError> {
        let socket = self.socket(AddressFamily::UNIX)?;
        let place = match path.strip_prefix(ABSTRACT_PREFIX) {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            None => SocketAddrUnix::new(path),
        };
        let place = place.map_err(|error| self.not_connected(error))?;
        loop {
            match rustix::net::connect(&socket, &place) {
                Ok(()) => return Ok(Socket::Unix(UnixStream::from(socket))),
                Err(Errno::AGAIN) => {
                    std::thread::sleep(self.moment(CONNECTING, self.end)?.min(RETRY));
                }
                Err(error) => return Err(self.not_connected(error)),
            }
        }
    }

    fn socket(&self, family: AddressFamily) -> Result<OwnedFd, DialError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|error| self.failed(error.into()))
    }

    /// The socket addresses of a name. The system's look-up knows no deadline, so it runs beside; one that takes longer ends unheard.
    fn look_up(&self) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(literal) = self.address.parse() {
            return Ok(vec![literal]);
        }
        let (answer, answered) = mpsc::channel();
        let name = self.address.to_string();
        let look = move || {
            // Nobody listens any more where the deadline has passed.
            let _ = answer.send(name.to_socket_addrs().map(Vec::from_iter));
        };
        let thread = std::thread::Builder::new().name("look-up".into()).spawn(look);
        thread.map_err(|error| self.unfindable(error))?;
        loop {
            let moment = self.moment("looking up its name", self.end)?;
            match answered.recv_timeout(moment) {
                Ok(found) => return found.map_err(|error| self.unfindable(error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.unfindable(io::ErrorKind::Other.into()));
                }
            }
        }
    }

    fn shake_hands(
        &self,
        mut socket: Socket,
        mut handshake: Handshake,
    ) -> Result<Admitted, DialError> {
        let mut bytes = [0; 2048];
        loop {
            if !handshake.outgoing().is_empty() {
                match socket.try_write(handshake.outgoing()) {
                    Ok(Some(count)) => {
                        handshake.sent(count);
                        continue;
                    }
                    Ok(None) => {}
                    // A refusal may have arrived before the connection was closed: it says more.
                    Err(error) if handshake.wants() == 0 => return Err(self.failed(error)),
                    Err(_) => {}
                }
            } else if handshake.stage() == Stage::Proven {
                break;
            }
            let wants = handshake.wants().min(bytes.len());
            let read = if wants == 0 { Ok(None) } else { socket.try_read(&mut bytes[..wants]) };
            match read {
                Ok(Some(0)) => return Err(self.refused(handshake.cut_off())),
                Ok(Some(count)) => {
                    handshake.receive(&bytes[..count]).map_err(|error| self.refused(error))?;
                }
                Ok(None) => {
                    let moment = self.moment("waiting for its proof of the secret", self.end)?;
                    let more = !handshake.outgoing().is_empty();
                    let flags = if more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                    wait(socket.as_fd(), flags, moment).map_err(|error| self.failed(error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(self.refused(handshake.cut_off()));
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        let peer = self.address.to_string();
        let cut_off = self.refused(handshake.cut_off());
        let established = handshake.finish().ok_or(cut_off)?;
        Ok(Admitted { socket, peer, established })
    }

    fn failed(&self, source: io::Error) -> DialError {
        DialError::Io { address: self.address.into(), source }
    }

    fn refused(&self, source: HandshakeError) -> DialError {
        DialError::Handshake { address: self.address.into(), source }
    }

    fn unfindable(&self, source: io::Error) -> DialError {
        DialError::Unfindable { address: self.address.into(), source }
    }

    fn not_connected(&self, error: Errno) -> DialError {
        let address = self.address.into();
        match error {
            Errno::CONNREFUSED => DialError::Refused { address },
            Errno::TIMEDOUT => DialError::TimedOut { address, doing: CONNECTING },
            error => self.failed(error.into()),
        }
    }
}

/// Waits for a moment. Whether there is something to be done.
fn wait(socket: BorrowedFd<'_>, flags: PollFlags, moment: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket, flags)];
    let limit = Timespec::try_from(moment).map_err(|_| io::ErrorKind::InvalidInput)?;
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(n_ready) => Ok(n_ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
