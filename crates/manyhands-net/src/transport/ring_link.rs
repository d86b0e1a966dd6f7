//! A link made of two rings, one for each direction, and a bell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bell::Bell;
use super::lending::{Lending, Lent};
use super::region::Region;
use super::ring::{RingReceiver, RingSender};
use super::showing::{Keeper, Seen, ShownAt, Shows};
use super::{Link, LinkError};

/// How many fruitless tries go by before the bell is asked whether the other side is still there: it costs a call of the
/// system, and a process that was killed can say so in no other way.
const TRIES_PER_LISTEN: u32 = 1024;

/// A link through memory that both sides see: see [`super::in_process`] and [`super::shared_memory`].
pub struct RingLink {
    region: Arc<Region>,
    /// 0 or 1: the ring that this side sends into, and its entry among the closed.
    side_idx: usize,
    sender: RingSender,
    receiver: RingReceiver,
    bell: Bell,
    fruitless_tries: u32,
    has_hung_up: bool,
    kind: &'static str,
    lending: Option<Arc<Lending>>,
    lent: Option<Arc<Lent>>,
    shows: Shows,
}

impl RingLink {
    /// One side of a link. There must be no other of this index on this region.
    pub(super) fn new(
        region: Arc<Region>,
        side_idx: usize,
        bell: UnixStream,
        kind: &'static str,
    ) -> io::Result<RingLink> {
        Ok(RingLink {
            shows: Shows::new(region.clone(), side_idx),
            sender: RingSender::new(region.clone(), side_idx),
            receiver: RingReceiver::new(region.clone(), 1 - side_idx),
            region,
            side_idx,
            bell: Bell::new(bell)?,
            fruitless_tries: 0,
            has_hung_up: false,
            kind,
            lending: None,
            lent: None,
        })
    }

    /// Whether the other side closed the link or was heard to be dead.
    fn other_is_gone(&self) -> bool {
        let closed = &self.region.header().closed.0[1 - self.side_idx];
        self.has_hung_up || closed.load(Ordering::Acquire) != 0
    }

    /// Takes in the memory that the other side lends, once word of it has come.
    fn take_lent(&mut self) -> io::Result<()> {
        let Some([file, held]) = self.bell.take_brought() else { return Ok(()) };
        self.lent = Some(Arc::new(Lent::new(&file, held)?));
        self.region.header().sees.0[self.side_idx].store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a try that moved nothing, and asks the bell now and then.
    fn count_fruitless(&mut self) {
        self.fruitless_tries += 1;
        if self.fruitless_tries >= TRIES_PER_LISTEN {
            self.fruitless_tries = 0;
            self.has_hung_up |= !self.bell.listen();
        }
    }
}

impl Link for RingLink {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        self.try_send_both(bytes, &[])
    }

    fn try_send_both(&mut self, first: &[u8], second: &[u8]) -> Result<usize, LinkError> {
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        if self.other_is_gone() {
            return Err(LinkError::Closed);
        }
        let n = self.sender.send_both(first, second, &self.bell)?;
        if n == 0 {
            self.count_fruitless();
        }
        Ok(n)
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        self.try_receive_both(bytes, &mut [])
    }

    fn try_receive_both(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Result<usize, LinkError> {
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        let n = self.receiver.receive_both(first, second, &self.bell)?;
        if n > 0 {
            return Ok(n);
        }
        self.count_fruitless();
        if !self.other_is_gone() {
            return Ok(0);
        }
        // It may have sent between the look at the ring and the look at whether it is there.
        match self.receiver.receive_both(first, second, &self.bell)? {
            0 => Err(LinkError::Closed),
            n => Ok(n),
        }
    }

    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        let nothing_came = self.receiver.sleepy()?;
        let no_room = !wants_room || self.sender.sleepy()?;
        Ok(nothing_came && no_room && !self.other_is_gone())
    }

    fn awake(&mut self) {
        self.receiver.awake();
        self.sender.awake();
        self.has_hung_up |= !self.bell.listen();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn room_is_writable(&self) -> bool {
        false
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn lend(&mut self, memory: &Arc<Lending>) -> Result<(), LinkError> {
        let (hangs_up, held) = io::pipe()?;
        self.bell.ring_with([memory.file(), held.as_fd()])?;
        self.shows.until(hangs_up.into());
        self.lending = Some(Arc::clone(memory));
        Ok(())
    }

    fn lending(&self) -> Option<&Arc<Lending>> {
        self.lending.as_ref()
    }

    fn lent(&mut self) -> Result<Option<&Arc<Lent>>, LinkError> {
        if self.lent.is_none() {
            self.has_hung_up |= !self.bell.listen();
            self.take_lent()?;
        }
        Ok(self.lent.as_ref())
    }

    fn show(&mut self, bytes: &[u8], keeper: &dyn Fn() -> Keeper) -> Option<ShownAt> {
        let sees = &self.region.header().sees.0[1 - self.side_idx];
        let lending = self.lending.as_ref().filter(|_| sees.load(Ordering::Relaxed) != 0)?;
        self.shows.show(lending, bytes, keeper)
    }

    fn look_at_shown(&mut self) {
        self.shows.look();
        // Who cannot have the memory of the other side is sent everything.
        let _ = self.take_lent();
    }

    fn see(&mut self, at: ShownAt, len: usize) -> Result<Seen, LinkError> {
        let other_idx = 1 - self.side_idx;
        let lent = self.lent()?.ok_or(LinkError::Garbage)?.clone();
        Seen::new(lent, at, len, (&self.region, other_idx)).ok_or(LinkError::Garbage)
    }

    fn kind(&self) -> &'static str {
        self.kind
    }
}

impl Drop for RingLink {
    fn drop(&mut self) {
        // Everything sent is published by now. The bell hangs up next and wakes the other side.
        self.region.header().closed.0[self.side_idx].store(1, Ordering::Release);
    }
}
