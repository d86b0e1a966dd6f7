//! One ring: bytes from one sending to one receiving side through memory both see.
//!
//! Each side keeps its own position for itself and publishes it; it reads the other's only when its last copy of it does not
//! suffice. A side that sleeps says so in a flag, and the bell is rung only then. The flag and the position are written and
//! read in opposite order on the two sides, with a full fence between, so one of them always sees the other: no wake-up is lost.
//!
//! **R1** what the other side published is used only after it is checked against the own position and the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::LinkError;
use super::bell::Bell;
use super::copies::Copies;
use super::region::{Positions, Region};

/// Published at once: small enough that the other side copies while this one does, large enough that publishing costs nothing.
const PIECE: usize = 32 << 10;

/// The side of a ring that puts bytes in.
pub(super) struct RingSender {
    region: Arc<Region>,
    ring_idx: usize,
    sent: u64,
    /// The other side's position as last seen.
    received: u64,
    copies: Copies,
}

/// The side of a ring that takes bytes out.
pub(super) struct RingReceiver {
    region: Arc<Region>,
    ring_idx: usize,
    received: u64,
    /// The other side's position as last seen.
    sent: u64,
}

impl RingSender {
    /// The sending side of a ring nothing went through yet. There must be no other.
    pub(super) fn new(region: Arc<Region>, ring_idx: usize) -> RingSender {
        RingSender { region, ring_idx, sent: 0, received: 0, copies: Copies::default() }
    }

    /// Puts in what there is room for, at most one capacity, and wakes the receiving side where it sleeps.
    pub(super) fn send(&mut self, bytes: &[u8], bell: &Bell) -> Result<usize, LinkError> {
        let most = bytes.len().min(self.region.capacity());
        let mut done = 0;
        while done < most {
            let wanted = (most - done).min(PIECE);
            let len = self.room(wanted)?.min(wanted);
            if len == 0 {
                break;
            }
            let (region, piece) = (&self.region, &bytes[done..done + len]);
            let (ring, sent) = (self.ring_idx, self.sent);
            self.copies.copy(len, |streams| region.write(ring, sent, piece, streams));
            self.sent += len as u64;
            self.positions().sent.0.store(self.sent, Ordering::Release);
            wake(&self.positions().sleeping.0.for_bytes, bell)?;
            done += len;
        }
        Ok(done)
    }

    /// Puts in two slices one after the other and publishes them at once, where there is room for both.
    pub(super) fn send_both(
        &mut self,
        first: &[u8],
        second: &[u8],
        bell: &Bell,
    ) -> Result<usize, LinkError> {
        let len = first.len() + second.len();
        if len > PIECE || self.room(len)? < len {
            let sent = self.send(first, bell)?;
            let rest = if sent == first.len() { self.send(second, bell)? } else { 0 };
            return Ok(sent + rest);
        }
        self.region.write(self.ring_idx, self.sent, first, false);
        self.region.write(self.ring_idx, self.sent + first.len() as u64, second, false);
        self.sent += len as u64;
        self.positions().sent.0.store(self.sent, Ordering::Release);
        wake(&self.positions().sleeping.0.for_bytes, bell)?;
        Ok(len)
    }

    /// Announces that this side sleeps for room. Whether it has to: not where there is room by now.
    pub(super) fn sleepy(&mut self) -> Result<bool, LinkError> {
        self.positions().sleeping.0.for_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.room(1)? == 0)
    }

    /// Takes the announcement back.
    pub(super) fn awake(&self) {
        self.positions().sleeping.0.for_room.store(0, Ordering::Relaxed);
    }

    /// How much room there is; the other side is asked only where less than `wanted` is known of.
    fn room(&mut self, wanted: usize) -> Result<usize, LinkError> {
        let capacity = self.region.capacity();
        let known = capacity - (self.sent - self.received) as usize;
        if known >= wanted {
            return Ok(known);
        }
        let received = self.positions().received.0.load(Ordering::Acquire);
        if received < self.received || received > self.sent {
            return Err(LinkError::Garbage); // R1
        }
        self.received = received;
        Ok(capacity - (self.sent - received) as usize)
    }

    fn positions(&self) -> &Positions {
        &self.region.header().rings[self.ring_idx]
    }
}

impl RingReceiver {
    /// The receiving side of a ring nothing went through yet. There must be no other.
    pub(super) fn new(region: Arc<Region>, ring_idx: usize) -> RingReceiver {
        RingReceiver { region, ring_idx, received: 0, sent: 0 }
    }

    /// Takes out what is there, at most one capacity, and wakes the sending side where it sleeps for room.
    pub(super) fn receive(&mut self, bytes: &mut [u8], bell: &Bell) -> Result<usize, LinkError> {
        let most = bytes.len().min(self.region.capacity());
        let mut done = 0;
        while done < most {
            let wanted = (most - done).min(PIECE);
            let len = self.available(wanted)?.min(wanted);
            if len == 0 {
                break;
            }
            self.region.read(self.ring_idx, self.received, &mut bytes[done..done + len]);
            self.received += len as u64;
            self.positions().received.0.store(self.received, Ordering::Release);
            wake(&self.positions().sleeping.0.for_room, bell)?;
            done += len;
        }
        Ok(done)
    }

    /// Takes out two slices one after the other, at once where all of both is there.
    pub(super) fn receive_both(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        bell: &Bell,
    ) -> Result<usize, LinkError> {
        let len = first.len() + second.len();
        if len > PIECE || self.available(len)? < len {
            let received = self.receive(first, bell)?;
            let rest = if received == first.len() { self.receive(second, bell)? } else { 0 };
            return Ok(received + rest);
        }
        self.region.read(self.ring_idx, self.received, first);
        self.region.read(self.ring_idx, self.received + first.len() as u64, second);
        self.received += len as u64;
        self.positions().received.0.store(self.received, Ordering::Release);
        wake(&self.positions().sleeping.0.for_room, bell)?;
        Ok(len)
    }

    /// Announces that this side sleeps for bytes. Whether it has to: not where there are some by now.
    pub(super) fn sleepy(&mut self) -> Result<bool, LinkError> {
        self.positions().sleeping.0.for_bytes.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.available(1)? == 0)
    }

    /// Takes the announcement back.
    pub(super) fn awake(&self) {
        self.positions().sleeping.0.for_bytes.store(0, Ordering::Relaxed);
    }

    /// How many bytes are there; the other side is asked only where fewer than `wanted` are known of.
    fn available(&mut self, wanted: usize) -> Result<usize, LinkError> {
        let known = (self.sent - self.received) as usize;
        if known >= wanted {
            return Ok(known);
        }
        let sent = self.positions().sent.0.load(Ordering::Acquire);
        if sent < self.sent || sent - self.received > self.region.capacity() as u64 {
            return Err(LinkError::Garbage); // R1
        }
        self.sent = sent;
        Ok((sent - self.received) as usize)
    }

    fn positions(&self) -> &Positions {
        &self.region.header().rings[self.ring_idx]
    }
}

/// Rings the bell where the other side sleeps, once per sleep.
fn wake(sleeps: &AtomicU32, bell: &Bell) -> Result<(), LinkError> {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        bell.ring()?;
    }
    Ok(())
}
