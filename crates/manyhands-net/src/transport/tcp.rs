//! Links between hosts: TCP sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::{Link, LinkError};

/// How long bytes may stay unacknowledged, or an idle host silent, before the system gives the connection up. It only has to
/// be longer than any cut that is to heal, retries of the system included: who is lost is decided by heartbeats, long before.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// How long a connection is idle before the system asks whether the other host is there, and how often it asks then.
const IDLE_UNTIL_ASKED: Duration = Duration::from_secs(15);

/// Bytes on the way within a machine, of which the system makes twice as many. Left to itself it lets some MiB wait at the socket, which then go through memory twice: pulls
/// and pushes of 16 MiB took a fifth longer, and with half of this a twentieth.
const NEAR: usize = 512 << 10;
/// How the system keeps congestion away there: every system has this one, and it does not send at a pace of its own as `bbr` does. Two all-reduces of 16 MiB take 6.3 ms with it, and took
/// 6.7 to 10 where that was the system's choice.
const UNPACED: &str = "reno";

/// A link over a TCP socket.
#[derive(Debug)]
pub struct TcpLink {
    stream: TcpStream,
}

impl TcpLink {
    /// Takes over a connected socket. The sizes of its buffers are left to the system, which fits them to the connection.
    pub fn new(stream: TcpStream) -> Result<TcpLink, LinkError> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
        sockopt::set_tcp_keepidle(&stream, IDLE_UNTIL_ASKED).map_err(io::Error::from)?;
        sockopt::set_tcp_keepintvl(&stream, IDLE_UNTIL_ASKED).map_err(io::Error::from)?;
        sockopt::set_tcp_user_timeout(&stream, GIVE_UP_AFTER.as_millis() as u32)
            .map_err(io::Error::from)?;
        Ok(TcpLink { stream })
    }
}

/// Connects to an address, or fails at the deadline at the latest.
pub fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpLink, LinkError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    }
    TcpLink::new(TcpStream::connect_timeout(&address, left)?)
}

impl Link for TcpLink {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        moved(self.stream.write(bytes))
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let result = self.stream.read(bytes);
        if matches!(result, Ok(0)) { Err(LinkError::Closed) } else { moved(result) }
    }

    fn try_send_both(&mut self, first: &[u8], second: &[u8]) -> Result<usize, LinkError> {
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        moved(self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]))
    }

    fn try_receive_both(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Result<usize, LinkError> {
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let result = self.stream.read_vectored(&mut both);
        if matches!(result, Ok(0)) { Err(LinkError::Closed) } else { moved(result) }
    }

    /// It always may: what has arrived, and room, show at the socket.
    fn sleepy(&mut self, _wants_room: bool) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn awake(&mut self) {}

    fn bell(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn room_is_writable(&self) -> bool {
        true
    }

    fn keep_near(&mut self) {
        let (own, other) = (self.stream.local_addr(), self.stream.peer_addr());
        let is_same_machine = own.is_ok_and(|own| other.is_ok_and(|other| own.ip() == other.ip()));
        if is_same_machine {
            // A system that does not do it sends as well.
            let _ = sockopt::set_socket_send_buffer_size(&self.stream, NEAR);
            let _ = sockopt::set_tcp_congestion(&self.stream, UNPACED);
        }
    }

    fn kind(&self) -> &'static str {
        "tcp"
    }
}

/// What a call of the system comes to: nothing now, so many bytes, the end, or a failure.
fn moved(result: io::Result<usize>) -> Result<usize, LinkError> {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    match result {
        Ok(n) => Ok(n),
        Err(error) => match error.kind() {
            WouldBlock | Interrupted => Ok(0),
            BrokenPipe | ConnectionReset | ConnectionAborted => Err(LinkError::Closed),
            _ => Err(error.into()),
        },
    }
}
