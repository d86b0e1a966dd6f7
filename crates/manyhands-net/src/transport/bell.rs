//! The bell of a ring link: a socket that carries wake-ups, with files beside one of them where memory is lent, and that hangs up when the other side is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};

/// How many files come with a ring, where any do.
const N_FILES: usize = 2;

/// A connected stream socket that never blocks.
pub(super) struct Bell {
    socket: UnixStream,
    /// The files that came with a ring; of several rings, the last.
    brought: Option<[OwnedFd; N_FILES]>,
}

impl Bell {
    pub(super) fn new(socket: UnixStream) -> io::Result<Bell> {
        socket.set_nonblocking(true)?;
        Ok(Bell { socket, brought: None })
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

    /// Wakes the other side with files for it.
    pub(super) fn ring_with(&self, files: [BorrowedFd<'_>; N_FILES]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(N_FILES))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&[1])], &mut beside, flags)?;
        Ok(())
    }

    /// The files that came with a ring, if one has come with them.
    pub(super) fn take_brought(&mut self) -> Option<[OwnedFd; N_FILES]> {
        self.brought.take()
    }

    /// Takes in the rings so far. Whether the other side is still there.
    pub(super) fn listen(&mut self) -> bool {
        let mut rings = [0u8; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(N_FILES))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let heard = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut rings)], &mut beside, flags);
        for item in beside.drain() {
            // Where this process may not have more files, some are missing.
            if let RecvAncillaryMessage::ScmRights(files) = item
                && let Ok(files) = files.collect::<Vec<_>>().try_into()
            {
                self.brought = Some(files);
            }
        }
        match heard {
            Ok(heard) => heard.bytes > 0,
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
