//! A link that carries messages: those that wait to be sent, and the one that is arriving.

use std::ops::{Deref, DerefMut};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frames::{FrameError, FrameReader, write_message};
use crate::transport::wait::Interest;
use crate::transport::{Link, LinkError};

/// What has left is given back in pieces of at least this, also where there is always something left.
const GIVEN_BACK: usize = 1 << 20;

/// From so many bytes beside a message on, they are sent from where they lie, as far as there is room: a copy costs more than a call of the system.
const DIRECT: usize = 64 << 10;

/// What two sides may say to each other.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest message.
    pub text: usize,
    /// The most bytes beside a message.
    pub bytes: usize,
    /// What may wait to be sent to one who does not read.
    pub unsent: usize,
}

/// Why messages cannot be sent or received any more.
#[derive(Debug, thiserror::Error)]
pub enum FramedError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What arrived, or was to be sent, is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The other side does not read.
    #[error("{n_bytes} bytes wait for the other side, which does not read")]
    NotRead {
        /// How many.
        n_bytes: usize,
    },
}

/// Messages over a link, with bytes beside them. Nothing here waits.
pub struct Framed {
    link: Box<dyn Link>,
    bounds: Bounds,
    reader: FrameReader,
    unsent: Vec<u8>,
    n_sent: usize,
}

impl Framed {
    /// Messages within these bounds.
    pub fn new(link: Box<dyn Link>, bounds: Bounds) -> Framed {
        let reader = FrameReader::with_bytes(bounds.text, bounds.bytes);
        Framed { link, bounds, reader, unsent: Vec::new(), n_sent: 0 }
    }

    /// Queues a message with bytes beside it, which come in parts; of many bytes, what there is room for leaves at once. One that is refused leaves no trace, unless the queue is too long.
    pub fn queue(&mut self, message: &impl Serialize, parts: &[&[u8]]) -> Result<(), FramedError> {
        let n_beside: usize = parts.iter().map(|part| part.len()).sum();
        if n_beside > self.bounds.bytes {
            let max_len = self.bounds.bytes;
            return Err(FrameError::TooLongToSend { len: n_beside, max_len }.into());
        }
        write_message(&mut self.unsent, message, n_beside, self.bounds.text)?;
        if n_beside >= DIRECT {
            self.push()?;
        }
        for part in parts {
            let n = self.send_direct(part)?;
            self.unsent.extend_from_slice(&part[n..]);
        }
        let n_bytes = self.unsent.len() - self.n_sent;
        match n_bytes > self.bounds.unsent {
            true => Err(FramedError::NotRead { n_bytes }),
            false => Ok(()),
        }
    }

    /// Sends bytes from where they lie, unless others are to leave before them. How many have left.
    fn send_direct(&mut self, bytes: &[u8]) -> Result<usize, FramedError> {
        let mut n_sent = 0;
        while !self.has_unsent() && n_sent < bytes.len() {
            match self.link.try_send(&bytes[n_sent..])? {
                0 => break,
                n => n_sent += n,
            }
        }
        Ok(n_sent)
    }

    /// Sends what there is room for. Whether anything moved.
    pub fn push(&mut self) -> Result<bool, FramedError> {
        let before = self.n_sent;
        while self.has_unsent() {
            match self.link.try_send(&self.unsent[self.n_sent..])? {
                0 => break,
                n => self.n_sent += n,
            }
        }
        let moved = self.n_sent > before;
        if !self.has_unsent() || self.n_sent >= GIVEN_BACK.max(self.unsent.len() / 2) {
            self.unsent.drain(..self.n_sent);
            self.n_sent = 0;
        }
        self.link.try_flush()?;
        Ok(moved)
    }

    /// The next message, if all of it has arrived. `moved` is set where any byte has.
    pub fn next<T: DeserializeOwned>(
        &mut self,
        moved: &mut bool,
    ) -> Result<Option<T>, FramedError> {
        while let Some(room) = self.reader.room()? {
            let n = self.link.try_receive(room)?;
            if n == 0 {
                return Ok(None);
            }
            *moved = true;
            self.reader.arrived(n);
        }
        Ok(Some(self.reader.parsed()?))
    }

    /// The bytes beside the last message, until more is received.
    pub fn bytes(&self) -> &[u8] {
        self.reader.bytes()
    }

    /// Whether something waits for room.
    pub fn has_unsent(&self) -> bool {
        self.n_sent < self.unsent.len()
    }

    /// Whether everything has left this side, also what an encrypted link holds.
    pub fn is_sent(&mut self) -> Result<bool, FramedError> {
        Ok(self.link.try_flush()? && !self.has_unsent())
    }

    /// What it waits for.
    pub fn interest(&self) -> Interest {
        if self.has_unsent() { Interest::ReceiveOrRoom } else { Interest::Receive }
    }
}

/// Waiting sees the link.
impl Deref for Framed {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl DerefMut for Framed {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::in_process;

    const BOUNDS: Bounds = Bounds { text: 1000, bytes: 1 << 20, unsent: 4 << 20 };

    /// Two ends over rings that hold little, so that everything goes in pieces.
    fn ends() -> [Framed; 2] {
        let (one, other) = in_process::pair(64).unwrap();
        [Framed::new(Box::new(one), BOUNDS), Framed::new(Box::new(other), BOUNDS)]
    }

    #[test]
    fn messages_with_bytes_beside_them_arrive_through_a_narrow_link() {
        let [mut one, mut other] = ends();
        let beside: Vec<u8> = (0..100_000).map(|n| n as u8).collect();
        for n in 0..5usize {
            one.queue(&n, &[&beside[..n * 100], &beside[n * 100..n * 20_000]]).unwrap();
        }
        let mut heard = 0;
        while heard < 5 {
            let mut moved = one.push().unwrap();
            assert_eq!(one.interest() == Interest::ReceiveOrRoom, one.has_unsent());
            while let Some(n) = other.next::<usize>(&mut moved).unwrap() {
                assert_eq!(n, heard);
                assert_eq!(other.bytes(), &beside[..n * 20_000]);
                heard += 1;
            }
            assert!(moved, "no progress");
        }
        assert!(one.is_sent().unwrap());
        assert!(other.next::<usize>(&mut false).unwrap().is_none());
    }

    #[test]
    fn one_who_does_not_read_does_not_cost_all_memory() {
        let [mut one, _other] = ends();
        let beside = vec![0; 1 << 20];
        let error = (0..10).find_map(|n| one.queue(&n, &[&beside]).err());
        assert!(matches!(error, Some(FramedError::NotRead { .. })), "{error:?}");
        let error = one.queue(&0, &[&beside, &[0]]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a message of 1048577 bytes is longer than the 1048576 that may be sent"
        );
    }

    #[test]
    fn after_what_is_no_message_nothing_more_is_taken_for_one() {
        let (mut one, other) = in_process::pair(64).unwrap();
        let mut other = Framed::new(Box::new(other), BOUNDS);
        assert_eq!(one.try_send(&[0xff; 20]).unwrap(), 20);
        assert!(matches!(
            other.next::<usize>(&mut false),
            Err(FramedError::Frame(FrameError::TooLong { .. }))
        ));
        assert!(other.next::<usize>(&mut false).is_err(), "the stream stays lost");
    }
}
