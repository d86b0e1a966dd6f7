//! One rank's end of a link, as frames: what is being sent, what is being received, and whether it is what was expected.

use std::ops::{Deref, DerefMut};

use super::call::{Call, HEADER, Header};
use crate::transport::{Link, LinkError};

/// The most bytes that a rank may say of where it is.
const MAX_WHERE: u64 = 512;

/// What went wrong between this rank and another.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The link failed.
    Link(LinkError),
    /// The other is in another operation, or in another part of this one.
    Elsewhere(Call),
    /// The other says that it failed, and where.
    Told(Call),
    /// A frame that no rank of this version sends.
    Malformed,
    /// The other announces what cannot be, in words.
    Refused(String),
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        Trouble::Link(error)
    }
}

/// A link and how far its frames are.
pub(super) struct Port {
    link: Box<dyn Link>,
    /// Bytes of the frame at hand that were sent, head included; 0 between frames.
    sent: usize,
    head: [u8; HEADER],
    /// Bytes of the frame at hand that were received, head included; 0 between frames.
    got: usize,
    /// The call of the last frame that was as expected.
    seen: Option<Call>,
    /// What was taken for the body of a frame that was another one than expected.
    unread: Vec<u8>,
    /// Whether memory that the other lends was seen.
    pub(super) has_seen_lent: bool,
}

/// Waiting sees the link.
impl Deref for Port {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl DerefMut for Port {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}

impl Port {
    pub(super) fn new(link: Box<dyn Link>) -> Port {
        let (sent, got, seen, unread) = (0, 0, None, Vec::new());
        Port { link, sent, head: [0; HEADER], got, seen, unread, has_seen_lent: false }
    }

    /// Whether the link is memory that both sides see.
    pub(super) fn is_ring(&self) -> bool {
        !self.link.room_is_writable()
    }

    /// The call of the last frame that was as expected.
    pub(super) fn seen(&self) -> Option<Call> {
        self.seen
    }

    /// Bytes of the body of the frame at hand that are here.
    pub(super) fn n_body_bytes(&self) -> usize {
        self.got.saturating_sub(HEADER)
    }

    /// Whether no frame is half sent.
    pub(super) fn is_between_frames(&self) -> bool {
        self.sent == 0
    }

    /// Sends on a frame; whether all of it has left. `moved` is set where any byte did.
    pub(super) fn send(
        &mut self,
        header: &Header,
        body: &[u8],
        moved: &mut bool,
    ) -> Result<bool, Trouble> {
        let n = match self.sent.checked_sub(HEADER) {
            None => self.link.try_send_both(&header.encode()[self.sent..], body)?,
            Some(sent) => self.link.try_send(&body[sent..])?,
        };
        *moved |= n > 0;
        self.sent += n;
        let is_done = self.sent == HEADER + body.len();
        if is_done {
            self.sent = 0;
        }
        Ok(is_done)
    }

    /// Receives on a frame, which must have this head; whether all of it is there.
    pub(super) fn receive(
        &mut self,
        expected: &Header,
        body: &mut [u8],
        moved: &mut bool,
    ) -> Result<bool, Trouble> {
        if self.got < HEADER {
            let n = self.link.try_receive_both(&mut self.head[self.got..], body)?;
            *moved |= n > 0;
            self.got += n;
            if self.got < HEADER {
                return Ok(false);
            }
            let header = Header::decode(&self.head);
            if header != *expected {
                self.unread.extend_from_slice(&body[..self.got - HEADER]);
                self.got = HEADER;
                return Err(match header.said_where() {
                    Some(call) => Trouble::Told(call),
                    None if header.call == expected.call => Trouble::Malformed,
                    None => Trouble::Elsewhere(header.call),
                });
            }
            self.seen = Some(header.call);
        } else {
            let n = self.link.try_receive(&mut body[self.got - HEADER..])?;
            *moved |= n > 0;
            self.got += n;
        }
        let is_done = self.got == HEADER + body.len();
        if is_done {
            self.got = 0;
        }
        Ok(is_done)
    }

    /// Reads on without using it, until the other says where it is: the newest operation that it was seen in.
    pub(super) fn listen(&mut self, scratch: &mut [u8]) -> Result<Option<Heard>, LinkError> {
        let mut heard = None;
        loop {
            if self.got < HEADER {
                let mut head = self.head;
                let n = self.read_on(&mut head[self.got..])?;
                self.head = head;
                self.got += n;
                if self.got < HEADER {
                    return Ok(heard);
                }
            }
            let header = Header::decode(&self.head);
            heard = Some(match header.said_where() {
                Some(call) => Heard::Said(call),
                None => Heard::Seen(header.call),
            });
            if matches!(heard, Some(Heard::Said(_))) && header.n_bytes <= MAX_WHERE {
                return Ok(heard);
            }
            let left = header.n_bytes.saturating_sub((self.got - HEADER) as u64);
            if left > 0 {
                let n = left.min(scratch.len() as u64) as usize;
                let n = self.read_on(&mut scratch[..n])?;
                self.got += n;
                if n == 0 {
                    return Ok(heard);
                }
            } else {
                self.got = 0;
            }
        }
    }

    /// What was taken too early, then what arrives.
    fn read_on(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        if self.unread.is_empty() {
            return self.link.try_receive(bytes);
        }
        let n = bytes.len().min(self.unread.len());
        bytes[..n].copy_from_slice(&self.unread[..n]);
        self.unread.drain(..n);
        Ok(n)
    }
}

/// What is known of where another rank is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// It said so.
    Said(Call),
    /// Its last frame was of this.
    Seen(Call),
}
