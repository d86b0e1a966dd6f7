//! Links: two-way streams of bytes between two ranks.

pub mod wait;

pub mod in_process;
pub mod lending;
pub mod shared_memory;
pub mod tcp;

mod bell;
mod copies;
pub(crate) mod patience;
mod region;
mod ring;
mod ring_link;

pub mod showing;

pub use region::{LARGEST_CAPACITY, SMALLEST_CAPACITY};
pub use ring_link::RingLink;
pub use tcp::TcpLink;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lending::{Lending, Lent};
use showing::{Keeper, Seen, ShownAt};

/// Two slices of up to this many bytes in all go to a link as one, where it cannot take two.
const TOGETHER: usize = 8 << 10;

/// A two-way stream of bytes between two ranks that never blocks. Bytes arrive whole and in order, or the link fails.
pub trait Link: Send {
    /// Takes as many of the bytes as there is room for: 0 where there is none now.
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError>;

    /// Fills the front of `bytes` with what has arrived: 0 where nothing has.
    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError>;

    /// As [`Link::try_send`], of two slices one after the other: both at once where the link can.
    fn try_send_both(&mut self, first: &[u8], second: &[u8]) -> Result<usize, LinkError> {
        let n = first.len() + second.len();
        if n <= TOGETHER {
            let mut together = [0; TOGETHER];
            together[..first.len()].copy_from_slice(first);
            together[first.len()..n].copy_from_slice(second);
            return self.try_send(&together[..n]);
        }
        let sent = self.try_send(first)?;
        if sent < first.len() {
            return Ok(sent);
        }
        // A failure shows again at the next call: what was taken before it counts.
        Ok(sent + self.try_send(second).unwrap_or(0))
    }

    /// As [`Link::try_receive`], into two slices one after the other: both at once where the link can.
    fn try_receive_both(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
    ) -> Result<usize, LinkError> {
        let n = self.try_receive(first)?;
        if n < first.len() {
            return Ok(n);
        }
        // As above.
        Ok(n + self.try_receive(second).unwrap_or(0))
    }

    /// Sends on what was taken and is still here, as with encryption. Whether nothing is left.
    fn try_flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    /// Says that this side is about to sleep until there is something to receive, and, where asked for, room to send.
    /// Whether it may: false where that is so already. Always followed by [`Link::awake`].
    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError>;

    /// Says that this side does not sleep any more.
    fn awake(&mut self);

    /// What becomes readable when the other side rings.
    fn bell(&self) -> BorrowedFd<'_>;

    /// Whether room to send shows as the bell being writable, as with sockets, or as a ring.
    fn room_is_writable(&self) -> bool;

    /// Whether the two sides may read memory of each other: the same on both.
    fn can_lend(&self) -> bool {
        false
    }

    /// Lets the other side read memory of this one, where links can do that.
    fn lend(&mut self, _memory: &Arc<Lending>) -> Result<(), LinkError> {
        Ok(())
    }

    /// What the other side may read.
    fn lending(&self) -> Option<&Arc<Lending>> {
        None
    }

    /// What this side may read: memory that was lent before anything that has been received was sent.
    fn lent(&mut self) -> Result<Option<&Arc<Lent>>, LinkError> {
        Ok(None)
    }

    /// Has the other side read bytes where they lie, in memory that was lent to it: they are kept as they are, by what `keeper` gives, until it has done so. Gives what the other side
    /// is to be told; nothing where they must be sent, as before the other side has taken that memory in.
    fn show(&mut self, _bytes: &[u8], _keeper: &dyn Fn() -> Keeper) -> Option<ShownAt> {
        None
    }

    /// Lets go of what was shown and the other side has done with, and takes in what it lends: to be called now and then.
    fn look_at_shown(&mut self) {}

    /// Bytes that the other side shows, as it told.
    fn see(&mut self, _at: ShownAt, _len: usize) -> Result<Seen, LinkError> {
        Err(LinkError::Garbage)
    }

    /// Asks that no more bytes are on the way than caches hold, where the other side is on this machine: for one who sends much at once. Rings are short anyway.
    fn keep_near(&mut self) {}

    /// What kind of link it is, for people: `in-process`, `shared memory`, `tcp`, `tcp, encrypted`.
    fn kind(&self) -> &'static str;
}

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side closed it, or its process ended.
    #[error("the other side closed the connection")]
    Closed,
    /// The system reported an error.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// Positions in shared memory, or a place of shown bytes, that no working program tells of.
    #[error(
        "the other side wrote positions that cannot be into the shared memory, or shows what is not there"
    )]
    Garbage,
    /// Bytes that do not decrypt: changed on the way, or from another key.
    #[error("what arrived does not decrypt")]
    Forged,
    /// Somebody asked to give up before there was a link.
    #[error("it was given up")]
    Aborted,
}
