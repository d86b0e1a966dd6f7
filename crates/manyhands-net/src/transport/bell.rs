//! The bell of a ring link: a socket that carries nothing but wake-ups, and that hangs up when the other side is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// A connected stream socket that never blocks.
pub(super) struct Bell {
    socket: UnixStream,
}

impl Bell {
    pub(super) fn new(socket: UnixStream) -> io::Result<Bell> {
        socket.set_nonblocking(true)?;
        Ok(Bell { socket })
    }

    /// Wakes the other side. That it is gone is not an error here: [`Bell::listen`] finds out, and what it wrote before
    /// can still be received.
    pub(super) fn ring(&self) -> io::Result<()> {
        loop {
            match send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                // A socket full of rings is readable, which is all that is asked for.
                Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes in the rings so far. Whether the other side is still there.
    pub(super) fn listen(&self) -> bool {
        let mut rings = [0u8; 64];
        match recv(&self.socket, &mut rings, RecvFlags::DONTWAIT) {
            Ok((_, n)) => n > 0,
            Err(Errno::AGAIN | Errno::INTR) => true,
            // Reset, as when it ended with rings unread; and a socket that fails otherwise rings no more either.
            Err(_) => false,
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Also where a copy of the socket is still open somewhere, as in a child process.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}
