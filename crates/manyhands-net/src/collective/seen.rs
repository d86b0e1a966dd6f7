//! An exchange between two ranks that see each other's sums: each adds all of them from where they lie. Nothing is sent but word of where that is, and
//! that it was read.
//!
//! Sent through a ring, a sum is written once more and read once more. Two ranks have as much to read from each other either way.

use std::time::Instant;

use super::call::{Call, Header};
use super::element::Element;
use super::error::CollectiveError;
use super::exchange::Exchange;
use super::group::{Group, Pass};
use super::port::Trouble;
use super::run::{ADDED, Buffers, FLAT_BYTES_OF_TWO, waits_for};
use crate::transport::LinkError;
use crate::transport::lending::Lending;

/// The stage of a call in which ranks tell each other where sums are; no [`super::plan::Stage`] has this number.
const STAGE: usize = 8;
/// Said of a sum that the other rank does not see.
const NOWHERE: u64 = u64::MAX;

/// What two ranks told each other of an exchange. The group keeps it for its memory.
#[derive(Default)]
pub(super) struct Seen {
    /// How often sums of this rank were withdrawn, and where each is.
    told: Vec<u64>,
    /// The same of the other rank.
    heard: Vec<u64>,
}

impl Group {
    /// Whether two ranks ask each other where their sums are. It is the same on both.
    pub(super) fn may_see<T: Element>(&self, exchange: &Exchange) -> bool {
        let n_bytes = exchange.n * size_of::<T>() * exchange.slots.len();
        self.size() == 2
            && exchange.gathers
            && exchange.members.is_none()
            && n_bytes > FLAT_BYTES_OF_TWO
            && self.ports.iter().flatten().all(|port| port.can_lend())
    }

    /// Carries out an exchange where each of two ranks sees the other's sums. Whether they do: nothing counts of what happened where one does not.
    ///
    /// # Safety
    /// As [`super::run::Run::pass`] asks of the buffers, which stay where they are.
    pub(super) unsafe fn exchange_seen<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<T>,
    ) -> Result<bool, CollectiveError> {
        let (call, other) = (call.stage(STAGE), 1 - self.rank);
        let lending = self.ports[other].as_ref().and_then(|port| port.lending().cloned());
        let mut seen = std::mem::take(&mut self.seen);
        seen.tell(exchange, self.rank, buffers, lending.as_deref());
        let outcome = self.tell_and_add(call, exchange, buffers, &mut seen);
        self.seen = seen;
        if let (Err(_), Some(lending)) = (&outcome, lending) {
            // The other may be reading, and this rank goes its own way.
            lending.withdraw();
        }
        outcome
    }

    fn tell_and_add<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        seen: &mut Seen,
    ) -> Result<bool, CollectiveError> {
        let (other, start) = (1 - self.rank, Instant::now());
        seen.heard.clear();
        seen.heard.resize(1 + exchange.slots_of(other).len(), NOWHERE);
        let (told, heard) = (&seen.told[..], &mut seen.heard[..]);
        self.swap(call, 0, bytemuck::cast_slice(told), bytemuck::cast_slice_mut(heard))?;
        if told.contains(&NOWHERE) || heard.contains(&NOWHERE) {
            return Ok(false);
        }
        let could = self.add_seen(exchange, buffers, heard);
        let could = could.map_err(|trouble| self.failure(call, start, Some((other, trouble))))?;
        let mut others_could = [0];
        self.swap(call, 1, &[u8::from(could)], &mut others_could)?;
        Ok(could && others_could == [1])
    }

    /// Gives the other of two ranks some bytes for as many of its own.
    fn swap(
        &mut self,
        call: Call,
        round: usize,
        own: &[u8],
        theirs: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let other = 1 - self.rank;
        let (mut is_sent, mut is_there) = (false, false);
        let (own_header, their_header) =
            (Header::new(call, round, own.len()), Header::new(call, round, theirs.len()));
        self.drive(call, |ports, interests| {
            let Some(port) = ports[other].as_mut() else { return Err((other, Trouble::Malformed)) };
            let mut moved = false;
            let trouble = |trouble| (other, trouble);
            if !is_sent {
                is_sent = port.send(&own_header, own, &mut moved).map_err(trouble)?;
            }
            if !is_there {
                is_there = port.receive(&their_header, theirs, &mut moved).map_err(trouble)?;
            }
            interests[other] = waits_for([!is_sent, !is_there]);
            Ok(match is_sent && is_there {
                true => Pass::Done,
                false if moved => Pass::Moved,
                false => Pass::Stuck,
            })
        })
    }

    /// Adds all sums: this rank's, and the other's from the places it named. Whether it sees them: this process may get no memory to see others' with, which is a fault of
    /// nobody else's.
    fn add_seen<T: Element>(
        &mut self,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        heard: &[u64],
    ) -> Result<bool, Trouble> {
        let (other, n_bytes) = (1 - self.rank, exchange.n * size_of::<T>());
        let theirs = exchange.slots_of(other);
        let port = self.ports[other].as_mut().ok_or(Trouble::Malformed)?;
        let Some((&n_withdrawn, places)) = heard.split_first() else {
            return Err(Trouble::Malformed);
        };
        let lent = match port.lent() {
            Ok(lent) => lent,
            Err(LinkError::Io(_)) => None,
            Err(error) => return Err(error.into()),
        };
        // Who brings nothing need not lend.
        if lent.is_none() && !places.is_empty() {
            return Ok(false);
        }
        let at = |place: u64| lent.and_then(|lent| lent.at(place, n_bytes));
        if places.iter().any(|place| at(*place).is_none()) {
            return Err(Trouble::Malformed);
        }
        let piece = ADDED / size_of::<T>();
        let n_words = (piece * exchange.slots.len() * size_of::<T>()).div_ceil(size_of::<u64>());
        let scratch = &mut self.progress.scratch;
        if scratch.len() < n_words {
            scratch.resize(n_words, 0);
        }
        let scratch: *mut T = scratch.as_mut_ptr().cast();
        for first in (0..exchange.n).step_by(piece) {
            let place = |slot: usize| {
                let seen = slot.checked_sub(theirs.start).and_then(|idx| at(*places.get(idx)?));
                let start = match seen {
                    Some(seen) => seen.as_ptr().cast_const().cast::<T>(),
                    None => buffers.sums.at(exchange.slots[slot].idx).cast_const(),
                };
                start.wrapping_add(first)
            };
            let room = |slot: usize| scratch.wrapping_add(slot * piece);
            let out = |root: usize| buffers.outs.at(root).wrapping_add(first);
            let n = piece.min(exchange.n - first);
            // SAFETY: the own sums and the result have `exchange.n` elements and are apart (`Seen::tell` says NOWHERE otherwise), the scratch memory a
            // piece for every slot. What is lent has as many bytes, at a cache line, as long as the link lives. An honest other side does not write there before
            // it hears that it was read, or says so; a dishonest one makes us add other numbers.
            unsafe { exchange.add(n, place, room, out) };
        }
        match lent.is_none_or(|lent| lent.is_still_lent(n_withdrawn)) {
            true => Ok(true),
            false => Err(Trouble::Refused("it gave up while its sums were read".to_string())),
        }
    }
}

impl Seen {
    /// Writes what the other rank is told.
    fn tell<T: Element>(
        &mut self,
        exchange: &Exchange,
        rank: usize,
        buffers: &Buffers<T>,
        lending: Option<&Lending>,
    ) {
        let n_bytes = exchange.n * size_of::<T>();
        let out = buffers.outs.at(0).cast_const().cast::<u8>();
        let place = |idx: usize| {
            let sum = buffers.sums.at(idx).cast_const().cast::<u8>();
            // Where the result takes the place of a sum, the other would read some of both.
            let is_apart = (out as usize).abs_diff(sum as usize) >= n_bytes;
            let place = lending.filter(|_| is_apart).and_then(|own| own.place_of(sum, n_bytes));
            place.unwrap_or(NOWHERE)
        };
        self.told.clear();
        self.told.push(lending.map_or(0, Lending::n_withdrawn));
        self.told.extend((0..exchange.slots_of(rank).len()).map(place));
    }
}
