//! A connection of either family, as the door and the call need it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A connected socket that never blocks.
#[derive(Debug)]
pub enum Socket {
    /// Between machines, or over loopback.
    Tcp(TcpStream),
    /// On one machine.
    Unix(UnixStream),
}

impl Socket {
    /// Makes it ready for use: it never blocks, and small messages go out at once.
    pub(super) fn prepare(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)
            }
            Socket::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// The other side's address, for people.
    pub fn peer(&self) -> String {
        match self {
            Socket::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => address.to_string(),
                Err(_) => "an unknown address".into(),
            },
            Socket::Unix(_) => "this machine".into(),
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn stop_sending(&self) {
        // It may be closed already, which is as good.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// Reads what is there: none where nothing is, 0 where the other side is done.
    pub(super) fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let read = match self {
            Socket::Tcp(stream) => stream.read(bytes),
            Socket::Unix(stream) => stream.read(bytes),
        };
        unless_it_would_block(read)
    }

    /// Writes what there is room for: none where there is no room.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        };
        unless_it_would_block(written)
    }
}

fn unless_it_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}
