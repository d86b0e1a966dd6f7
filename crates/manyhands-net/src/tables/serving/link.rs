//! The links of a server: who is at the other end, and what comes.

use std::time::Instant;

use crate::tables::identity::{ClientId, ServerId};
use crate::tables::line::Line;
use crate::tables::message::{Body, FromDirector, FromServer, ToServer};
use crate::transport::wait::Interest;

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Director,
    /// It has called and not said who it is.
    Unknown,
    Client(ClientId),
    /// A first holder that made the link.
    First(ServerId),
    /// A copy that this server called.
    Copy(ServerId),
}

pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) line: Line,
    /// When something last moved on it.
    pub(super) moved: Instant,
}

impl Link {
    pub(super) fn new(peer: Peer, line: Line) -> Link {
        Link { peer, line, moved: Instant::now() }
    }
}

/// Waiting sees the link.
impl std::ops::Deref for Link {
    type Target = dyn crate::transport::Link;

    fn deref(&self) -> &Self::Target {
        &*self.line
    }
}

impl std::ops::DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.line
    }
}

/// What came on a link.
pub(super) enum Came {
    Asked(ToServer, Option<Body>),
    Answered(FromServer),
    Directed(FromDirector),
}

/// What a link waits for.
pub(super) fn interest(link: &Option<Link>) -> Interest {
    link.as_ref().map_or(Interest::Nothing, |link| link.line.interest())
}
