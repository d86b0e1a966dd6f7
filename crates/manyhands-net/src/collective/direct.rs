//! All-reduce by direct exchange: every rank owns a part of the elements, gets all partial sums of it, adds them in tree
//! order (N3), and gives the result to all.
//!
//! Elements go in pieces, so that the adding of one overlaps with the travel of the next and all of it stays in the caches; an owner adds whatever it has from
//! all. Between two ranks frames have one order ([`Stream`]), in which a result comes after sums of later pieces only. A result waits for sums
//! of its own elements, and sums wait for results of earlier ones, so the order cannot deadlock, whatever the sizes of pieces.
//!
//! Few elements go in one round: all send everything to all, and all add alike.

use std::ops::Range;

use super::call::{Call, Header};
use super::element::Element;
use super::error::CollectiveError;
use super::exchange::{Exchange, Frame, Pace, Slot, Stream};
use super::group::{Group, Pass};
use super::port::{Port, Trouble};
use crate::transport::wait::Interest;

/// How elements travel through a ring: pieces that fit the nearest caches, and enough of them to keep both sides busy.
/// Of pieces of 16 to 128 KiB and leads of 1 to 16 the fastest for 2 and 4 processes from 1 MiB on; `examples/collective_speed.rs` measures it.
const RING_PACE: BytePace = BytePace { piece: 32 << 10, lead: 2 };
/// And through a socket, where a call of the system costs more than a piece of 32 KiB does, and more bytes on the way than the
/// caches hold cost twice: 1 MiB of lead takes a third longer than this.
const SOCKET_PACE: BytePace = BytePace { piece: 256 << 10, lead: 1 };
/// What one rank owns goes through a socket as one piece up to this: there is nothing to overlap with that would pay for another call.
const ONE_SOCKET_PIECE: BytePace = BytePace { piece: 512 << 10, lead: 1 };
/// Bytes that are added at a time: sums on the way stay in the nearest cache.
const ADDED: usize = 8 << 10;
/// Up to this many bytes of partial sums in all, all of them go to all. Of two they would not be fewer any other way, only later.
const FLAT_BYTES: usize = 64 << 10;
const FLAT_BYTES_OF_TWO: usize = 256 << 10;

/// The partial sums that a rank brings to an exchange.
#[derive(Debug)]
pub struct Brought<'a, T> {
    /// The leaves that each is the sum of: complete subtrees of the tree over all.
    pub subtrees: &'a [Range<usize>],
    /// The sums, all of the same length.
    pub sums: &'a [&'a [T]],
}

/// The memory of an exchange on one rank. The sums may be the result's own memory: see [`Run`].
pub(super) struct Buffers<'a, T> {
    pub(super) sums: &'a [*const T],
    pub(super) out: *mut T,
}

/// A pace in bytes.
#[derive(Clone, Copy)]
struct BytePace {
    piece: usize,
    lead: usize,
}

/// How the elements of an exchange travel through a port.
fn pace<T>(exchange: &Exchange, port: &Port) -> Pace {
    let longest = exchange.owned.iter().map(Range::len).max().unwrap_or(0);
    let pace = match longest * size_of::<T>() {
        _ if port.is_ring() => RING_PACE,
        n if n <= ONE_SOCKET_PIECE.piece => ONE_SOCKET_PIECE,
        _ => SOCKET_PACE,
    };
    Pace { piece: pace.piece / size_of::<T>(), lead: pace.lead }
}

/// An exchange under way on one rank.
///
/// In place, a partial sum is the result's memory. That is sound because of the order: a result overwrites elements of a partial sum only when its owner has
/// them, and an owner overwrites its own only when it has added them.
struct Run<'a, T> {
    exchange: &'a Exchange,
    call: Call,
    rank: usize,
    buffers: &'a Buffers<'a, T>,
    /// Room for the partial sums of others: `window` elements for each slot.
    scratch: *mut T,
    window: usize,
    outgoing: Vec<Option<Stream>>,
    incoming: Vec<Option<Stream>>,
    /// By slot: elements that are here of those that this rank owns.
    n_here: Vec<usize>,
    /// Elements that were added.
    n_added: usize,
}

impl<T: Element> Run<'_, T> {
    fn own(&self) -> Range<usize> {
        self.exchange.owned[self.rank].clone()
    }

    fn pass(
        &mut self,
        ports: &mut [Option<Port>],
        interests: &mut [Interest],
    ) -> Result<Pass, (usize, Trouble)> {
        let mut moved = false;
        for (rank, port) in ports.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            let trouble = |trouble| (rank, trouble);
            moved |= self.send_to(rank, port).map_err(trouble)?;
            moved |= self.receive_from(rank, port).map_err(trouble)?;
        }
        moved |= self.add_ready();
        let mut is_done = self.n_added == self.own().len();
        for (rank, interest) in interests.iter_mut().enumerate() {
            *interest = self.interest(rank);
            let ended = |stream: &Option<Stream>| stream.as_ref().is_none_or(|s| s.frame.is_none());
            is_done &= ended(&self.outgoing[rank]) && ended(&self.incoming[rank]);
        }
        Ok(match is_done {
            true => Pass::Done,
            false if moved => Pass::Moved,
            false => Pass::Stuck,
        })
    }

    /// What can be waited for from a rank: not what there is no memory for, nor room for what is not there yet.
    fn interest(&self, rank: usize) -> Interest {
        match (self.may_receive(rank), self.may_send(rank)) {
            (_, Some(_)) => Interest::ReceiveOrRoom,
            (Some(_), None) => Interest::Receive,
            (None, None) => Interest::Nothing,
        }
    }

    /// The next frame from a rank, unless the memory for it is still in use.
    fn may_receive(&self, rank: usize) -> Option<&Frame> {
        let frame = self.incoming[rank].as_ref()?.frame.as_ref()?;
        let has_room = match frame {
            Frame::Sum { range, .. } => range.end <= self.own().start + self.n_added + self.window,
            Frame::Result { .. } => true,
        };
        has_room.then_some(frame)
    }

    /// The next frame to a rank, unless it has to wait.
    fn may_send(&self, rank: usize) -> Option<&Frame> {
        let frame = self.outgoing[rank].as_ref()?.frame.as_ref()?;
        let is_there = match frame {
            Frame::Result { range } => range.end <= self.own().start + self.n_added,
            Frame::Sum { .. } => true,
        };
        is_there.then_some(frame)
    }

    fn send_to(&mut self, rank: usize, port: &mut Port) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(frame) = self.may_send(rank) {
            let (pointer, range) = match frame {
                Frame::Sum { slot, range } => {
                    (self.buffers.sums[self.exchange.slots[*slot].idx], range)
                }
                Frame::Result { range } => (self.buffers.out.cast_const(), range),
            };
            // SAFETY: the sums and the result have `n` elements, of which the range is a part; nobody writes there now:
            // results of others come after this frame, the own one was written before it.
            let body = unsafe { std::slice::from_raw_parts(pointer.add(range.start), range.len()) };
            let Some(stream) = &mut self.outgoing[rank] else { break };
            let header = Header {
                call: self.call,
                frame: stream.number as u32,
                n_bytes: size_of_val(body) as u64,
            };
            if !port.send(&header, bytemuck::cast_slice(body), &mut moved)? {
                break;
            }
            stream.advance();
        }
        Ok(moved)
    }

    fn receive_from(&mut self, rank: usize, port: &mut Port) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(frame) = self.may_receive(rank).cloned() {
            let (pointer, n) = match &frame {
                Frame::Sum { slot, range } => {
                    let offset = range.start - self.own().start;
                    (self.place(*slot, offset), range.len())
                }
                Frame::Result { range } => {
                    (self.buffers.out.wrapping_add(range.start), range.len())
                }
            };
            // SAFETY: a result's range is a part of the result, and what was there was sent to its owner, or the result would not be coming. Of a partial
            // sum, the window has room for the range in one piece, since it is a multiple of all pieces, and what was there is added.
            let body = unsafe { std::slice::from_raw_parts_mut(pointer, n) };
            let Some(stream) = &mut self.incoming[rank] else { break };
            let header = Header {
                call: self.call,
                frame: stream.number as u32,
                n_bytes: size_of_val(body) as u64,
            };
            let is_done = port.receive(&header, bytemuck::cast_slice_mut(body), &mut moved)?;
            if is_done {
                stream.advance();
            }
            if let Frame::Sum { slot, range } = frame {
                let n = if is_done { n } else { port.n_body_bytes() / size_of::<T>() };
                self.n_here[slot] = range.start - self.own().start + n;
            }
            if !is_done {
                break;
            }
        }
        Ok(moved)
    }

    /// Where a partial sum of another rank lies, from an element of this rank's on.
    fn place(&self, slot: usize, offset: usize) -> *mut T {
        self.scratch.wrapping_add(slot * self.window + offset % self.window)
    }

    /// Adds what is here from all.
    fn add_ready(&mut self) -> bool {
        let own = self.own();
        let ready = self.n_here.iter().copied().min().unwrap_or(0);
        let most = ADDED / size_of::<T>();
        let moved = self.n_added < ready;
        while self.n_added < ready {
            let offset = self.n_added;
            let n = (ready - offset).min(self.window - offset % self.window).min(most);
            let first = own.start + offset;
            let place = |slot: usize| {
                let Slot { rank, idx } = self.exchange.slots[slot];
                match rank == self.rank {
                    true => self.buffers.sums[idx].wrapping_add(first),
                    false => self.place(slot, offset).cast_const(),
                }
            };
            let room = |slot: usize| self.place(slot, offset);
            // SAFETY: sums and result have these elements; so has the window, without its end between them, for every slot; slots lie apart.
            unsafe { self.exchange.add(n, place, room, self.buffers.out.wrapping_add(first)) };
            self.n_added += n;
        }
        moved
    }
}

/// What is waited for where something is left to send, or to receive.
pub(super) fn waits_for([sends, receives]: [bool; 2]) -> Interest {
    match (sends, receives) {
        (true, _) => Interest::ReceiveOrRoom,
        (false, true) => Interest::Receive,
        (false, false) => Interest::Nothing,
    }
}

impl Group {
    /// Carries out an exchange.
    ///
    /// # Safety
    /// The sums are as many as this rank brings; they have the exchange's number of elements, the result has at least those that this rank gets; all stay
    /// where they are; a sum is the result's own memory or apart from it.
    pub(super) unsafe fn exchange<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<'_, T>,
    ) -> Result<(), CollectiveError> {
        let n_bytes = exchange.n * size_of::<T>() * exchange.slots.len();
        let most = if exchange.slots.len() == 2 { FLAT_BYTES_OF_TWO } else { FLAT_BYTES };
        let is_flat = exchange.gathers && exchange.members.is_none() && n_bytes <= most;
        let window = match is_flat {
            true => exchange.n,
            false => self.window::<T>(exchange),
        };
        let mut words = std::mem::take(&mut self.scratch);
        let n_words = (window * exchange.slots.len() * size_of::<T>()).div_ceil(size_of::<u64>());
        if words.len() < n_words {
            words.resize(n_words, 0);
        }
        let scratch = words.as_mut_ptr().cast::<T>();
        // SAFETY: the caller vouches for the buffers; the scratch memory has a window for each slot.
        let outcome = unsafe {
            match is_flat {
                true => self.exchange_flat(call, exchange, buffers, scratch),
                false => self.exchange_pieces(call, exchange, buffers, scratch, window),
            }
        };
        self.scratch = words;
        outcome
    }

    /// Elements that a slot has room for: a multiple of all pieces.
    fn window<T: Element>(&self, exchange: &Exchange) -> usize {
        let n_own = exchange.owned[self.rank].len();
        let paces = self.ports.iter().flatten().map(|port| pace::<T>(exchange, port));
        // Also a rank on its own adds in pieces.
        let alone = Pace { piece: RING_PACE.piece / size_of::<T>(), lead: 0 };
        let pace = paces.max_by_key(|pace| pace.piece).unwrap_or(alone);
        n_own.clamp(1, pace.piece * (pace.lead + 1)).next_multiple_of(pace.piece)
    }

    /// # Safety
    /// As [`Group::exchange`]; `scratch` has `window` elements for each slot.
    unsafe fn exchange_pieces<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<'_, T>,
        scratch: *mut T,
        window: usize,
    ) -> Result<(), CollectiveError> {
        let rank = self.rank;
        let n_own = exchange.owned[rank].len();
        let streams = |ports: &[Option<Port>], is_outgoing: bool| {
            let stream = |(other, port): (usize, &Option<Port>)| {
                let pace =
                    pace::<T>(exchange, port.as_ref().filter(|_| exchange.has_member(other))?);
                let (from, to) = if is_outgoing { (rank, other) } else { (other, rank) };
                Some(Stream::new(exchange, from, to, pace))
            };
            ports.iter().enumerate().map(stream).collect::<Vec<_>>()
        };
        let here = |slot: &Slot| if slot.rank == rank { n_own } else { 0 };
        let mut run = Run {
            exchange,
            call,
            rank,
            buffers,
            scratch,
            window,
            outgoing: streams(&self.ports, true),
            incoming: streams(&self.ports, false),
            n_here: exchange.slots.iter().map(here).collect(),
            n_added: 0,
        };
        self.drive(call, |ports, interests| run.pass(ports, interests))
    }

    /// # Safety
    /// As [`Group::exchange`]; `scratch` has as many elements as the exchange, for each slot.
    unsafe fn exchange_flat<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<'_, T>,
        scratch: *mut T,
    ) -> Result<(), CollectiveError> {
        let (rank, n) = (self.rank, exchange.n);
        let own = exchange.slots_of(rank);
        let place = |slot: usize| match own.contains(&slot) {
            true => buffers.sums[slot - own.start],
            false => scratch.wrapping_add(slot * n).cast_const(),
        };
        // A rank's slots go side by side in one frame: several are brought together first.
        if own.len() > 1 {
            for slot in own.clone() {
                // SAFETY: every sum has `n` elements, and so has the scratch memory of each slot.
                unsafe { scratch.add(slot * n).copy_from_nonoverlapping(place(slot), n) };
            }
        }
        let first =
            if own.len() == 1 { place(own.start) } else { scratch.wrapping_add(own.start * n) };
        // SAFETY: as above; nobody writes there before the frames have left.
        let body = unsafe { std::slice::from_raw_parts(first, own.len() * n) };
        let header = |len: usize| Header { call, frame: 0, n_bytes: (len * size_of::<T>()) as u64 };
        let mut left = std::mem::take(&mut self.left);
        left.clear();
        left.extend((0..self.size()).map(|other| [other != rank; 2]));
        let outcome = self.drive(call, |ports, interests| {
            let mut moved = false;
            for (other, port) in ports.iter_mut().enumerate() {
                let Some(port) = port else { continue };
                let trouble = |trouble| (other, trouble);
                let left = &mut left[other];
                if left[0] {
                    let (header, body) = (header(body.len()), bytemuck::cast_slice(body));
                    left[0] = !port.send(&header, body, &mut moved).map_err(trouble)?;
                }
                if left[1] {
                    let slots = exchange.slots_of(other);
                    // SAFETY: the scratch memory has `n` elements for each slot, and those of others are apart from the own ones.
                    let body = unsafe {
                        std::slice::from_raw_parts_mut(
                            scratch.add(slots.start * n),
                            slots.len() * n,
                        )
                    };
                    let (header, body) = (header(body.len()), bytemuck::cast_slice_mut(body));
                    left[1] = !port.receive(&header, body, &mut moved).map_err(trouble)?;
                }
                interests[other] = waits_for(*left);
            }
            Ok(match left.iter().flatten().any(|left| *left) {
                false => Pass::Done,
                true if moved => Pass::Moved,
                true => Pass::Stuck,
            })
        });
        self.left = left;
        outcome?;
        let room = |slot: usize| scratch.wrapping_add(slot * n);
        // SAFETY: sums, scratch memory and result have `n` elements; all was sent, so the result may be written.
        unsafe { exchange.add(n, place, room, buffers.out) };
        Ok(())
    }
}
