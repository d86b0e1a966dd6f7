//! Why a worker does not go on.

use manyhands_net::membership::message::Peer;

use super::talk::TalkError;
use crate::error::Error;

/// Why a worker does not go on in a view.
pub(super) enum Halt {
    /// It was told to stop.
    Stopped,
    /// Another cannot be reached.
    Lost(Peer, String),
    /// Parameters were lost with the servers that held them.
    Parameters(String),
    /// This worker itself cannot go on.
    Broken(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Broken(error)
    }
}

impl From<manyhands_device::DeviceError> for Halt {
    fn from(error: manyhands_device::DeviceError) -> Halt {
        Halt::Broken(error.into())
    }
}

pub(super) fn driver_halt(error: TalkError) -> Halt {
    match error {
        TalkError::Aborted => Halt::Stopped,
        error => Halt::Lost(Peer::Driver, error.to_string()),
    }
}
