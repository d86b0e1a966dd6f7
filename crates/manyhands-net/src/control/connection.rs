//! A connection that carries control messages.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CONTROL, MAX_MESSAGE};
use crate::membership::message::{FromCoordinator, Order, ToCoordinator};
use crate::membership::status::Status;
use crate::secure::{Secret, SecureLink};
use crate::transport::wait::{Interest, Waiting};
use crate::transport::{Link, LinkError, TcpLink};
use crate::wire::{Admitted, DialError, FrameError, FrameReader, Socket, dial, write_frame};

/// What may wait to be sent to one who does not read.
const MOST_UNSENT: usize = 4 << 20;

/// Why a control connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What arrived is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The other side does not read.
    #[error("{n_bytes} bytes wait for the other side, which does not read")]
    NotRead {
        /// How many.
        n_bytes: usize,
    },
    /// Nobody has this name.
    #[error("no worker of the cluster is called {name}")]
    NoWorker {
        /// Which.
        name: String,
    },
    /// No answer came.
    #[error("no answer came within {:.0} s", after.as_secs_f64())]
    NoAnswer {
        /// How long it was waited for.
        after: Duration,
    },
}

/// A connection that carries control messages, always encrypted.
pub(super) struct Connection {
    link: Box<dyn Link>,
    reader: FrameReader,
    unsent: Vec<u8>,
    n_sent: usize,
    chunk: Vec<u8>,
}

impl Connection {
    pub(super) fn new(admitted: Admitted) -> Result<Connection, ControlError> {
        let link: Box<dyn Link> = match admitted.socket {
            Socket::Tcp(stream) => {
                Box::new(SecureLink::new(TcpLink::new(stream)?, admitted.established.keys))
            }
            // The coordinator listens on TCP only.
            Socket::Unix(_) => return Err(LinkError::Closed.into()),
        };
        let reader = FrameReader::new(MAX_MESSAGE);
        Ok(Connection { link, reader, unsent: Vec::new(), n_sent: 0, chunk: vec![0; 16 << 10] })
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        write_frame(&mut self.unsent, message, MAX_MESSAGE)?;
        let n_bytes = self.unsent.len() - self.n_sent;
        if n_bytes > MOST_UNSENT {
            return Err(ControlError::NotRead { n_bytes });
        }
        Ok(())
    }

    /// Sends what there is room for, and hands every message that has arrived to `take`. Whether anything moved.
    pub(super) fn pump<T: DeserializeOwned>(
        &mut self,
        mut take: impl FnMut(T),
    ) -> Result<bool, ControlError> {
        let mut moved = false;
        while self.n_sent < self.unsent.len() {
            let n = self.link.try_send(&self.unsent[self.n_sent..])?;
            if n == 0 {
                break;
            }
            self.n_sent += n;
            moved = true;
        }
        if self.n_sent == self.unsent.len() {
            self.unsent.clear();
            self.n_sent = 0;
        }
        self.link.try_flush()?;
        loop {
            let n = self.link.try_receive(&mut self.chunk)?;
            if n == 0 {
                return Ok(moved);
            }
            moved = true;
            let mut bytes = &self.chunk[..n];
            while let Some(message) = self.reader.next(&mut bytes)? {
                take(message);
            }
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.n_sent < self.unsent.len()
    }

    /// What it waits for.
    pub(super) fn interest(&self) -> Interest {
        if self.has_unsent() { Interest::ReceiveOrRoom } else { Interest::Receive }
    }
}

/// A set of connections is waited on by their links.
impl std::ops::Deref for Connection {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl std::ops::DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}

/// Asks a coordinator how its cluster stands.
pub fn ask_status(
    address: &str,
    secret: &Secret,
    within: Duration,
) -> Result<Status, ControlError> {
    ask(address, secret, &ToCoordinator::StatusRequest, within)
}

/// Says something to a coordinator that it answers with how its cluster stands.
fn ask(
    address: &str,
    secret: &Secret,
    message: &ToCoordinator,
    within: Duration,
) -> Result<Status, ControlError> {
    let deadline = Instant::now() + within;
    let mut connection = [Some(Connection::new(dial(address, secret, CONTROL, &[], within)?)?)];
    let mut waiting = Waiting::new();
    let mut status = None;
    if let Some(connection) = &mut connection[0] {
        connection.send(message)?;
    }
    while Instant::now() < deadline {
        let [Some(one)] = &mut connection else { break };
        one.pump(|message: FromCoordinator| {
            if let Order::Status(found) = message.order {
                status = Some(*found);
            }
        })?;
        if let Some(status) = status {
            return Ok(status);
        }
        let interest = one.interest();
        let _ = waiting.wait(&mut connection, |_| interest, None, deadline);
    }
    Err(ControlError::NoAnswer { after: within })
}

/// Asks a coordinator to have a worker leave after the step at hand.
pub fn ask_drain(
    address: &str,
    secret: &Secret,
    name: &str,
    within: Duration,
) -> Result<Status, ControlError> {
    let status = ask(address, secret, &ToCoordinator::Drain { name: name.to_string() }, within)?;
    // Told before it leaves, so one that is not there was not there before.
    if !status.members.iter().any(|member| member.name == name) {
        return Err(ControlError::NoWorker { name: name.to_string() });
    }
    Ok(status)
}
