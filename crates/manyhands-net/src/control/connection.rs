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
use crate::wire::{Admitted, Bounds, DialError, Framed, FramedError, Socket, dial};

/// What may wait to be sent to one who does not read.
const MOST_UNSENT: usize = 4 << 20;

/// Why a control connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The link failed, or what it carries is no message.
    #[error(transparent)]
    Framed(#[from] FramedError),
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
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

impl ControlError {
    /// Whether trying again is of no use: the other side has another secret or another version.
    pub fn is_hopeless(&self) -> bool {
        matches!(self, ControlError::Dial(error) if super::follower::is_hopeless(error))
    }
}

/// A connection that carries control messages, always encrypted.
pub(super) struct Connection(Framed);

impl Connection {
    pub(super) fn new(admitted: Admitted) -> Result<Connection, ControlError> {
        let link: Box<dyn Link> = match admitted.socket {
            Socket::Tcp(stream) => {
                let link = TcpLink::new(stream).map_err(FramedError::from)?;
                Box::new(SecureLink::new(link, admitted.established.keys))
            }
            // The coordinator listens on TCP only.
            Socket::Unix(_) => return Err(FramedError::from(LinkError::Closed).into()),
        };
        let bounds = Bounds { text: MAX_MESSAGE, bytes: 0, unsent: MOST_UNSENT };
        Ok(Connection(Framed::new(link, bounds)))
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        Ok(self.0.queue(message, &[])?)
    }

    /// Sends what there is room for, and hands every message that has arrived to `take`. Whether anything moved.
    pub(super) fn pump<T: DeserializeOwned>(
        &mut self,
        mut take: impl FnMut(T),
    ) -> Result<bool, ControlError> {
        let mut moved = self.0.push()?;
        while let Some(message) = self.0.next(&mut moved)? {
            take(message);
        }
        Ok(moved)
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.0.has_unsent()
    }

    /// What it waits for.
    pub(super) fn interest(&self) -> Interest {
        self.0.interest()
    }
}

/// A set of connections is waited on by their links.
impl std::ops::Deref for Connection {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::ops::DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
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
