//! A link in memory whose bytes a test can see and change, and a link over a plain socket.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use manyhands_net::transport::{Link, LinkError};

/// One end of a link in memory: what it sends, the other end receives, in pieces of at most `piece` bytes.
pub(crate) struct MemoryLink {
    pub(crate) out: Arc<Mutex<VecDeque<u8>>>,
    pub(crate) into: Arc<Mutex<VecDeque<u8>>>,
    pub(crate) room: usize,
    pub(crate) piece: usize,
    /// What `sleepy` was asked, and whether `awake` followed.
    pub(crate) asked: Vec<bool>,
    bell: OwnedFd,
}

/// Both ends. `room` bytes fit into each direction.
pub(crate) fn memory_pair(room: usize, piece: usize) -> (MemoryLink, MemoryLink) {
    let (one, other) = (Arc::default(), Arc::default());
    let end = |out: &Arc<_>, into: &Arc<_>| MemoryLink {
        out: Arc::clone(out),
        into: Arc::clone(into),
        room,
        piece,
        asked: Vec::new(),
        bell: rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap(),
    };
    (end(&one, &other), end(&other, &one))
}

impl Link for MemoryLink {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let mut out = self.out.lock().unwrap();
        let count = bytes.len().min(self.room - out.len()).min(self.piece);
        out.extend(&bytes[..count]);
        Ok(count)
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let mut into = self.into.lock().unwrap();
        let count = bytes.len().min(self.piece).min(into.len());
        for (byte, arrived) in bytes.iter_mut().zip(into.drain(..count)) {
            *byte = arrived;
        }
        Ok(count)
    }

    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        self.asked.push(wants_room);
        let has_room = self.out.lock().unwrap().len() < self.room;
        Ok(self.into.lock().unwrap().is_empty() && !(wants_room && has_room))
    }

    fn awake(&mut self) {
        assert!(!self.asked.is_empty(), "awake without sleepy");
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn room_is_writable(&self) -> bool {
        false
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}

/// A link over a socket that does not block.
pub(crate) struct SocketLink(pub(crate) TcpStream);

fn quiet(result: std::io::Result<usize>, at_end: usize) -> Result<usize, LinkError> {
    match result {
        Ok(0) if at_end > 0 => Err(LinkError::Closed),
        Ok(count) => Ok(count),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error.into()),
    }
}

impl Link for SocketLink {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        quiet(self.0.write(bytes), 0)
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let wanted = bytes.len();
        quiet(self.0.read(bytes), wanted)
    }

    fn sleepy(&mut self, _wants_room: bool) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn awake(&mut self) {}

    fn bell(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn room_is_writable(&self) -> bool {
        true
    }

    fn kind(&self) -> &'static str {
        "tcp"
    }
}
