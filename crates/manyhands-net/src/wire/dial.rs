//! The side that connects: one call from an address to a proven connection, or a sentence why not.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
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
/// Between two attempts to enter a full queue.
const RETRY: Duration = Duration::from_millis(2);

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
}

/// Connects to `host:port`, `unix:path` or `unix:@name`, proves the secret both ways, and exchanges hellos, all before the deadline has passed.
pub fn dial(
    address: &str,
    secret: &Secret,
    purpose: Purpose,
    hello: &[u8],
    deadline: Duration,
) -> Result<Admitted, DialError> {
    let end = Instant::now() + deadline;
    let refused = |source| DialError::Handshake { address: address.into(), source };
    let handshake = Handshake::initiate(secret, purpose, hello).map_err(refused)?;
    let socket = connect(address, end)?;
    let failed = |source| DialError::Io { address: address.into(), source };
    socket.prepare().map_err(failed)?;
    shake_hands(address, socket, handshake, end)
}

fn connect(address: &str, end: Instant) -> Result<Socket, DialError> {
    if let Some(path) = address.strip_prefix(UNIX_PREFIX) {
        return connect_unix(address, path, end);
    }
    let candidates = look_up(address, end)?;
    let n_candidates = candidates.len() as u32;
    let mut last = None;
    for (candidate, left) in candidates.iter().zip((1..=n_candidates).rev()) {
        // Each gets its share of the time, so that one that swallows packets leaves some for the next.
        let share = end.saturating_duration_since(Instant::now()) / left;
        if share.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(candidate, share) {
            Ok(stream) => return Ok(Socket::Tcp(stream)),
            Err(source) => last = Some(connect_error(address, source)),
        }
    }
    Err(last.unwrap_or_else(|| timed_out(address, "connecting")))
}

/// Connecting to a Unix socket blocks while its queue is full, and has no deadline: so it is asked for without blocking, again and again.
fn connect_unix(address: &str, path: &str, end: Instant) -> Result<Socket, DialError> {
    let failed = |error: Errno| connect_error(address, error.into());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(failed)?;
    let place = match path.strip_prefix(ABSTRACT_PREFIX) {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
        None => SocketAddrUnix::new(path),
    };
    let place = place.map_err(failed)?;
    loop {
        match rustix::net::connect(&socket, &place) {
            Ok(()) => return Ok(Socket::Unix(UnixStream::from(socket))),
            Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => return Err(timed_out(address, "connecting")),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn connect_error(address: &str, source: io::Error) -> DialError {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => DialError::Refused { address: address.into() },
        io::ErrorKind::TimedOut => timed_out(address, "connecting"),
        _ => DialError::Io { address: address.into(), source },
    }
}

fn timed_out(address: &str, doing: &'static str) -> DialError {
    DialError::TimedOut { address: address.into(), doing }
}

/// The socket addresses of a name. The system's look-up knows no deadline, so it runs beside; one that takes longer ends unheard.
fn look_up(address: &str, end: Instant) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(literal) = address.parse() {
        return Ok(vec![literal]);
    }
    let unfindable = |source| DialError::Unfindable { address: address.into(), source };
    let (answer, answered) = mpsc::channel();
    let name = address.to_string();
    let look = move || {
        // Nobody listens any more where the deadline has passed.
        let _ = answer.send(name.to_socket_addrs().map(Vec::from_iter));
    };
    std::thread::Builder::new().name("look-up".into()).spawn(look).map_err(unfindable)?;
    let left = end.saturating_duration_since(Instant::now());
    match answered.recv_timeout(left) {
        Ok(found) => match found.map_err(unfindable)? {
            none if none.is_empty() => Err(unfindable(io::ErrorKind::NotFound.into())),
            some => Ok(some),
        },
        Err(_) => Err(timed_out(address, "looking up its name")),
    }
}

fn shake_hands(
    address: &str,
    mut socket: Socket,
    mut handshake: Handshake,
    end: Instant,
) -> Result<Admitted, DialError> {
    let failed = |source| DialError::Io { address: address.into(), source };
    let refused = |source| DialError::Handshake { address: address.into(), source };
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
                Err(error) if handshake.wants() == 0 => return Err(failed(error)),
                Err(_) => {}
            }
        } else if handshake.stage() == Stage::Proven {
            break;
        }
        let wants = handshake.wants().min(bytes.len());
        let read = if wants == 0 { Ok(None) } else { socket.try_read(&mut bytes[..wants]) };
        match read {
            Ok(Some(0)) => return Err(refused(handshake.cut_off())),
            Ok(Some(count)) => {
                handshake.receive(&bytes[..count]).map_err(refused)?;
            }
            Ok(None) => {
                let more = !handshake.outgoing().is_empty();
                if !wait(&socket, more, end).map_err(failed)? {
                    return Err(timed_out(address, "waiting for its proof of the secret"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(refused(handshake.cut_off()));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let peer = address.to_string();
    let cut_off = refused(handshake.cut_off());
    let established = handshake.finish().ok_or(cut_off)?;
    Ok(Admitted { socket, peer, established })
}

/// Waits for bytes or, where asked for, for room. Whether the deadline has not passed.
fn wait(socket: &Socket, for_room: bool, end: Instant) -> io::Result<bool> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Ok(false);
    }
    let flags = if for_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), flags)];
    let limit = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
