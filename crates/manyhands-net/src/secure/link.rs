//! A link that encrypts what goes over another.
//!
//! The stream is cut into records: two bytes of length, then the sealed bytes. Nothing is delivered before its whole record is
//! authenticated. After a record that does not open the link is of no use any more.

use std::os::fd::BorrowedFd;

use super::keys::{Keys, RECORD_MAX, TAG_LEN};
use crate::transport::{Link, LinkError};

const LEN_LEN: usize = 2;
/// What a record carries at most. Longer ones win nothing more over the cost of a record, and a short message does not wait behind a
/// long record.
const CARRIED_MAX: usize = 32 << 10;
const ON_WIRE_MAX: usize = LEN_LEN + CARRIED_MAX + TAG_LEN;
/// Records that are sealed before they are handed on together, and taken in together: half a megabyte keeps the calls of the system below the
/// cost of the cipher.
const BATCH: usize = 16;
const BUFFER_LEN: usize = BATCH * ON_WIRE_MAX;

const _: () = assert!(CARRIED_MAX + TAG_LEN <= RECORD_MAX);

/// An encrypted link over another one. All its memory is taken when it is made.
///
/// The part of the caller's slice behind the received bytes may be overwritten. While [`Link::try_flush`] says that something is left, a
/// side that goes to sleep must want room.
pub struct SecureLink<L> {
    inner: L,
    keys: Keys,
    /// Sealed records, of which `to_send` are still to be handed on.
    sealed: Box<[u8]>,
    to_send: std::ops::Range<usize>,
    /// What arrived, of which `to_open` is not opened yet.
    arrived: Box<[u8]>,
    to_open: std::ops::Range<usize>,
    /// An opened record that did not fit the caller's slice, of which `to_deliver` is left.
    opened: Box<[u8]>,
    to_deliver: std::ops::Range<usize>,
    forged: bool,
    inner_sleepy: bool,
}

impl<L: Link> SecureLink<L> {
    /// Encrypts what goes over a link whose two ends did the handshake that gave the keys.
    pub fn new(inner: L, keys: Keys) -> SecureLink<L> {
        SecureLink {
            inner,
            keys,
            sealed: vec![0; BUFFER_LEN].into(),
            to_send: 0..0,
            arrived: vec![0; BUFFER_LEN].into(),
            to_open: 0..0,
            opened: vec![0; CARRIED_MAX + TAG_LEN].into(),
            to_deliver: 0..0,
            forged: false,
            inner_sleepy: false,
        }
    }

    /// Seals as many of the bytes as there is room for.
    fn seal(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let mut taken = 0;
        while taken < bytes.len() && self.sealed.len() - self.to_send.end >= ON_WIRE_MAX {
            let carried = &bytes[taken..][..CARRIED_MAX.min(bytes.len() - taken)];
            let record = &mut self.sealed[self.to_send.end..];
            let len = self.keys.seal(carried, &mut record[LEN_LEN..])?;
            record[..LEN_LEN].copy_from_slice(&(len as u16).to_le_bytes());
            self.to_send.end += LEN_LEN + len;
            taken += carried.len();
        }
        Ok(taken)
    }

    /// Hands sealed records on. Whether none is left.
    fn hand_on(&mut self) -> Result<bool, LinkError> {
        while !self.to_send.is_empty() {
            match self.inner.try_send(&self.sealed[self.to_send.clone()])? {
                0 => return Ok(false),
                count => self.to_send.start += count,
            }
        }
        self.to_send = 0..0;
        Ok(true)
    }

    /// The place of the next record in `arrived`, where it is complete. Lengths that no right side sends are forged ones.
    fn next_record(&mut self) -> Result<Option<std::ops::Range<usize>>, LinkError> {
        let waiting = &self.arrived[self.to_open.clone()];
        let Some(len) = waiting.first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_le_bytes(*len));
        if len <= TAG_LEN || len > CARRIED_MAX + TAG_LEN {
            self.forged = true;
            return Err(LinkError::Forged);
        }
        let start = self.to_open.start + LEN_LEN;
        Ok((waiting.len() >= LEN_LEN + len).then_some(start..start + len))
    }

    /// Opens a record into the caller's slice, or aside where it does not fit. How many bytes the caller has of it.
    fn open(
        &mut self,
        record: std::ops::Range<usize>,
        bytes: &mut [u8],
    ) -> Result<usize, LinkError> {
        let direct = bytes.len() >= record.len();
        let target = if direct { &mut *bytes } else { &mut self.opened[..] };
        let opened = self.keys.open(&self.arrived[record.clone()], target);
        let len = opened.inspect_err(|_| self.forged = true)?;
        self.to_open.start = record.end;
        if direct {
            return Ok(len);
        }
        self.to_deliver = 0..len;
        Ok(self.deliver(bytes))
    }

    fn deliver(&mut self, bytes: &mut [u8]) -> usize {
        let count = self.to_deliver.len().min(bytes.len());
        bytes[..count].copy_from_slice(&self.opened[self.to_deliver.start..][..count]);
        self.to_deliver.start += count;
        count
    }

    /// Takes in more of what has arrived. Whether there was anything.
    fn take_in(&mut self) -> Result<bool, LinkError> {
        if self.to_open.start > 0 {
            self.arrived.copy_within(self.to_open.clone(), 0);
            self.to_open = 0..self.to_open.len();
        }
        let count = self.inner.try_receive(&mut self.arrived[self.to_open.end..])?;
        self.to_open.end += count;
        Ok(count > 0)
    }

    /// The next opened bytes: 0 where no whole record is here.
    fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        if self.forged {
            return Err(LinkError::Forged);
        }
        if !self.to_deliver.is_empty() {
            return Ok(self.deliver(bytes));
        }
        loop {
            if let Some(record) = self.next_record()? {
                return self.open(record, bytes);
            }
            if !self.take_in()? {
                return Ok(0);
            }
        }
    }
}

impl<L: Link> Link for SecureLink<L> {
    fn keep_near(&mut self) {
        self.inner.keep_near();
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        if self.forged {
            return Err(LinkError::Forged);
        }
        let mut taken = 0;
        loop {
            taken += self.seal(&bytes[taken..])?;
            // Bytes that were taken are sealed once and for all: a failure of the inner link shows at the next call.
            let all_sent = match self.hand_on() {
                Err(_) if taken > 0 => return Ok(taken),
                other => other?,
            };
            if !all_sent || taken == bytes.len() {
                return Ok(taken);
            }
        }
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.receive_some(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                // What came before the failure is whole; the failure shows at the next call.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn try_flush(&mut self) -> Result<bool, LinkError> {
        Ok(self.hand_on()? && self.inner.try_flush()?)
    }

    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        if self.forged {
            return Err(LinkError::Forged);
        }
        if !self.to_deliver.is_empty() || self.next_record()?.is_some() {
            return Ok(false);
        }
        let all_sent = self.try_flush()?;
        if wants_room && all_sent {
            return Ok(false);
        }
        self.inner_sleepy = true;
        // What is sealed but not sent needs the inner link's room, whether or not the caller has more.
        self.inner.sleepy(!all_sent)
    }

    fn awake(&mut self) {
        if std::mem::take(&mut self.inner_sleepy) {
            self.inner.awake();
        }
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.inner.bell()
    }

    fn room_is_writable(&self) -> bool {
        self.inner.room_is_writable()
    }

    fn kind(&self) -> &'static str {
        match self.inner.kind() {
            "tcp" => "tcp, encrypted",
            _ => "encrypted",
        }
    }
}
