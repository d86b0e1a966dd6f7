//! An exchange between two ranks that see each other's sums: each adds all of them from where they lie. Nothing is sent but word of where that is, and
//! that it was read.
//!
//! Sent through a ring, a sum is written once more and read once more. Two ranks have as much to read from each other either way.

use std::sync::Arc;
use std::time::Instant;

use super::call::Call;
use super::element::Element;
use super::error::CollectiveError;
use super::exchange::Exchange;
use super::group::Group;
use super::port::Trouble;
use super::run::{ADDED, Buffers, FLAT_BYTES_OF_TWO};
use super::transfer::{Incoming, Outgoing};
use crate::transport::lending::Lending;

/// The stage of a call in which ranks tell each other where sums are; no [`super::plan::Stage`] has this number.
const STAGE: usize = 8;
/// Said of a sum that the other rank does not see.
const NOWHERE: u64 = u64::MAX;

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

    /// Carries out an exchange where each of two ranks sees the other's sums. Whether they do: nothing has happened where one does not.
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
        let told = self.places(exchange, buffers, lending.as_ref());
        let outcome = self.tell_and_add(call, exchange, buffers, &told);
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
        told: &[u64],
    ) -> Result<bool, CollectiveError> {
        let (other, start) = (1 - self.rank, Instant::now());
        let mut heard = vec![NOWHERE; 1 + exchange.slots_of(other).len()];
        let outgoing = Outgoing { to: other, bytes: bytemuck::cast_slice(told) };
        let incoming = Incoming { from: other, bytes: bytemuck::cast_slice_mut(&mut heard) };
        self.transfer(call, 0, &[outgoing], &mut [incoming])?;
        if told.contains(&NOWHERE) || heard.contains(&NOWHERE) {
            return Ok(false);
        }
        if let Err(trouble) = self.add_seen(exchange, buffers, &heard) {
            return Err(self.failure(call, start, Some((other, trouble))));
        }
        let (outgoing, incoming) =
            (Outgoing { to: other, bytes: &[] }, Incoming { from: other, bytes: &mut [] });
        self.transfer(call, 1, &[outgoing], &mut [incoming])?;
        Ok(true)
    }

    /// What the other rank is told: how often sums were withdrawn, and where each of this rank's is.
    fn places<T: Element>(
        &self,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        lending: Option<&Arc<Lending>>,
    ) -> Vec<u64> {
        let n_bytes = exchange.n * size_of::<T>();
        let out = buffers.outs.at(0).cast_const().cast::<u8>();
        let place = |idx: usize| {
            let sum = buffers.sums.at(idx).cast_const().cast::<u8>();
            // Where the result takes the place of a sum, the other would read some of both.
            let is_apart = (out as usize).abs_diff(sum as usize) >= n_bytes;
            let place = lending.filter(|_| is_apart).and_then(|own| own.place_of(sum, n_bytes));
            place.unwrap_or(NOWHERE)
        };
        let n_withdrawn = lending.map_or(0, |lending| lending.n_withdrawn());
        let n_sums = exchange.slots_of(self.rank).len();
        [n_withdrawn].into_iter().chain((0..n_sums).map(place)).collect()
    }

    /// Adds all sums: this rank's, and the other's from the places it named.
    fn add_seen<T: Element>(
        &mut self,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        heard: &[u64],
    ) -> Result<(), Trouble> {
        let (other, n_bytes) = (1 - self.rank, exchange.n * size_of::<T>());
        let theirs = exchange.slots_of(other);
        let port = self.ports[other].as_mut().ok_or(Trouble::Malformed)?;
        let lent = port.lent()?;
        let Some((&n_withdrawn, places)) = heard.split_first() else {
            return Err(Trouble::Malformed);
        };
        // Who brings nothing need not lend.
        let seen = places.iter().map(|place| lent?.at(*place, n_bytes));
        let seen: Vec<_> = seen.collect::<Option<_>>().ok_or(Trouble::Malformed)?;
        let piece = ADDED / size_of::<T>();
        let n_words = (piece * exchange.slots.len() * size_of::<T>()).div_ceil(size_of::<u64>());
        let scratch = &mut self.progress.scratch;
        if scratch.len() < n_words {
            scratch.resize(n_words, 0);
        }
        let scratch: *mut T = scratch.as_mut_ptr().cast();
        for first in (0..exchange.n).step_by(piece) {
            let place = |slot: usize| match slot.checked_sub(theirs.start) {
                Some(idx) if slot < theirs.end => seen[idx].as_ptr().cast_const().cast::<T>(),
                _ => buffers.sums.at(exchange.slots[slot].idx).cast_const(),
            };
            let place = |slot: usize| place(slot).wrapping_add(first);
            let room = |slot: usize| scratch.wrapping_add(slot * piece);
            let out = |root: usize| buffers.outs.at(root).wrapping_add(first);
            let n = piece.min(exchange.n - first);
            // SAFETY: the own sums and the result have `exchange.n` elements and are apart (`places` says NOWHERE otherwise), the scratch memory a
            // piece for every slot. What is lent has as many bytes, at a cache line, as long as the link lives. An honest other side does not write there before
            // it hears that it was read, or says so; a dishonest one makes us add other numbers.
            unsafe { exchange.add(n, place, room, out) };
        }
        match lent.is_none_or(|lent| lent.is_still_lent(n_withdrawn)) {
            true => Ok(()),
            false => Err(Trouble::Refused("it gave up while its sums were read".to_string())),
        }
    }
}
