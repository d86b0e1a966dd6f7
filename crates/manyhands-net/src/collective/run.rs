//! An exchange under way on one rank: what moves at each look at the links.
//!
//! Elements go in pieces, so that the adding of one overlaps with the travel of the next and all of it stays in the caches; an owner adds whatever it has from
//! all. Between two ranks frames have one order ([`Stream`]), in which a result comes after sums of later pieces only. A result waits for sums
//! of its own elements, and sums wait for results of earlier ones, so the order cannot deadlock, whatever the sizes of pieces.
//!
//! Few elements go in one round: see [`super::flat`].

use std::ops::Range;

use super::call::{Call, Header};
use super::element::Element;
use super::exchange::{Exchange, Flow, Frame, Slot, Stream};
use super::group::Pass;
use super::pointers::Pointers;
use super::port::{Port, Trouble};
use crate::transport::wait::Interest;

/// How elements travel through a ring: pieces that fit the nearest caches, and enough of them to keep both sides busy.
/// Of pieces of 16 to 128 KiB and leads of 1 to 16 the fastest for 2 and 4 processes from some MiB on; `examples/collective_speed.rs` measures it.
const RING_FLOW: ByteFlow = ByteFlow { piece: 32 << 10, lead: 2 };
/// The same of up to [`SHORT`] of each owner, or where ranks look at it only now and then: as much as a ring holds beside what comes back. Who comes first
/// has all of it sent before it falls asleep. 5 to 10 % faster than a lead of 2 between 2 processes, from 0.25 to 2 MB in all.
const SHORT_RING_FLOW: ByteFlow = ByteFlow { piece: 32 << 10, lead: 15 };
const SHORT: usize = 1 << 20;
/// And through a socket, where a call of the system costs more than a piece of 32 KiB does, and more bytes on the way than the
/// caches hold cost twice: 1 MiB of lead takes a third longer than this.
const SOCKET_FLOW: ByteFlow = ByteFlow { piece: 256 << 10, lead: 1 };
/// What one rank owns goes through a socket as one piece up to this: there is nothing to overlap with that would pay for another call.
const ONE_SOCKET_PIECE: ByteFlow = ByteFlow { piece: 512 << 10, lead: 1 };
/// Bytes that are added at a time: sums on the way stay in the nearest cache.
pub(super) const ADDED: usize = 8 << 10;
/// Up to this many bytes of partial sums in all, all of them go to all. Of two they would not be fewer any other way, only later.
const FLAT_BYTES: usize = 64 << 10;
pub(super) const FLAT_BYTES_OF_TWO: usize = 256 << 10;

/// The memory of an exchange on one rank, as pointers to where its first element is or would be. The sums may be the result's own memory: see [`Run`].
pub(super) struct Buffers<T> {
    /// The partial sums that this rank brings.
    pub(super) sums: Pointers<T>,
    /// Where each root goes; the first is what all get where all get something.
    pub(super) outs: Pointers<T>,
}

impl<T> Buffers<T> {
    /// One sum, which becomes the result.
    pub(super) fn in_place(values: *mut T) -> Buffers<T> {
        Buffers { sums: Pointers::one(values), outs: Pointers::one(values) }
    }
}

/// A flow in bytes.
#[derive(Clone, Copy)]
struct ByteFlow {
    piece: usize,
    lead: usize,
}

/// How often ranks look at their links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Looks {
    /// All the time.
    #[default]
    Waited,
    /// Between other work.
    Pumped,
}

impl Looks {
    /// How the elements of an exchange travel through a port.
    fn of<T>(self, exchange: &Exchange, port: &Port) -> Flow {
        let longest = exchange.owned.iter().map(Range::len).max().unwrap_or(0);
        let flow = match longest * size_of::<T>() {
            n if port.is_ring() && (n <= SHORT || self == Looks::Pumped) => SHORT_RING_FLOW,
            _ if port.is_ring() => RING_FLOW,
            n if n <= ONE_SOCKET_PIECE.piece => ONE_SOCKET_PIECE,
            _ => SOCKET_FLOW,
        };
        Flow { piece: flow.piece / size_of::<T>(), lead: flow.lead }
    }

    /// Elements that a slot has room for: a multiple of all pieces, and enough for each lead.
    fn window<T>(self, exchange: &Exchange, rank: usize, ports: &[Option<Port>]) -> usize {
        let n_own = exchange.owned[rank].len();
        let members = ports.iter().enumerate().filter(|(other, _)| exchange.has_member(*other));
        let flows = members.filter_map(|(_, port)| Some(self.of::<T>(exchange, port.as_ref()?)));
        // Also a rank on its own adds in pieces.
        let alone = Flow { piece: RING_FLOW.piece / size_of::<T>(), lead: 0 };
        let longest = |a: Flow, b: Flow| Flow {
            piece: a.piece.max(b.piece),
            lead: (a.piece * (a.lead + 1)).max(b.piece * (b.lead + 1)) / a.piece.max(b.piece) - 1,
        };
        let flow = flows.fold(alone, longest);
        n_own.clamp(1, flow.piece * (flow.lead + 1)).next_multiple_of(flow.piece)
    }
}

/// How far an exchange is on one rank. The group keeps it for its memory.
#[derive(Default)]
pub(super) struct Progress {
    /// Whether all goes to all in one round.
    is_flat: bool,
    /// Room for the partial sums of others: `window` elements for each slot.
    pub(super) scratch: Vec<u64>,
    window: usize,
    outgoing: Vec<Option<Stream>>,
    incoming: Vec<Option<Stream>>,
    /// By slot: elements that are here of those that this rank owns.
    n_here: Vec<usize>,
    /// Elements that were added.
    pub(super) n_added: usize,
    /// In one round, by rank: whether there is something left to send and to receive.
    pub(super) left: Vec<[bool; 2]>,
    /// And whether the sums of this rank were brought together.
    pub(super) is_packed: bool,
}

impl Progress {
    /// Forgets the exchange before, and begins one.
    pub(super) fn begin<T: Element>(
        &mut self,
        exchange: &Exchange,
        rank: usize,
        ports: &[Option<Port>],
        looks: Looks,
    ) {
        let n_slots = exchange.slots.len();
        let n_bytes = exchange.n * size_of::<T>() * n_slots;
        let most = if n_slots == 2 { FLAT_BYTES_OF_TWO } else { FLAT_BYTES };
        let is_whole = exchange.gathers && exchange.members.is_none() && n_slots > 0;
        self.is_flat = is_whole && n_bytes <= most;
        self.window = match self.is_flat {
            true => exchange.n,
            false => looks.window::<T>(exchange, rank, ports),
        };
        let n_words = (self.window * n_slots * size_of::<T>()).div_ceil(size_of::<u64>());
        if self.scratch.len() < n_words {
            self.scratch.resize(n_words, 0);
        }
        self.is_packed = false;
        self.left.clear();
        self.left.extend((0..ports.len()).map(|other| [other != rank; 2]));
        let n_own = exchange.owned[rank].len();
        // What nothing is added to is the result already.
        self.n_added = if n_slots == 0 { n_own } else { 0 };
        self.n_here.clear();
        let here = |slot: &Slot| if slot.rank == rank { n_own } else { 0 };
        self.n_here.extend(exchange.slots.iter().map(here));
        for (streams, is_outgoing) in [(&mut self.outgoing, true), (&mut self.incoming, false)] {
            let stream = |(other, port): (usize, &Option<Port>)| {
                let port = port.as_ref().filter(|_| exchange.has_member(other))?;
                let (from, to) = if is_outgoing { (rank, other) } else { (other, rank) };
                Some(Stream::new(exchange, from, to, looks.of::<T>(exchange, port)))
            };
            streams.clear();
            streams.extend(ports.iter().enumerate().map(stream));
        }
    }
}

/// An exchange under way on one rank.
///
/// In place, a partial sum is the result's memory. That is sound because of the order: a result overwrites elements of a partial sum only when its owner has
/// them, and an owner overwrites its own only when it has added them.
pub(super) struct Run<'a, T> {
    pub(super) exchange: &'a Exchange,
    pub(super) call: Call,
    pub(super) rank: usize,
    pub(super) buffers: &'a Buffers<T>,
    pub(super) progress: &'a mut Progress,
}

impl<T: Element> Run<'_, T> {
    fn own(&self) -> Range<usize> {
        self.exchange.owned[self.rank].clone()
    }

    /// Moves what can be moved now, and says what to wait for from each rank.
    ///
    /// # Safety
    /// The progress was begun for this exchange, on these ports, and since then the buffers were the same ones: the sums are as many as this rank
    /// brings; they have the exchange's number of elements, the results at least those that this rank gets; a sum is the
    /// memory of the result of its own root or apart from all results, which are apart from each other.
    pub(super) unsafe fn pass(
        &mut self,
        ports: &mut [Option<Port>],
        interests: &mut [Interest],
    ) -> Result<Pass, (usize, Trouble)> {
        match self.progress.is_flat {
            // SAFETY: the caller vouches for the same.
            true => unsafe { self.pass_flat(ports, interests) },
            false => self.pass_pieces(ports, interests),
        }
    }

    fn pass_pieces(
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
        let mut is_done = self.progress.n_added == self.own().len();
        for (rank, interest) in interests.iter_mut().enumerate() {
            *interest = self.interest(rank);
            let ended = |stream: &Option<Stream>| stream.as_ref().is_none_or(|s| s.frame.is_none());
            is_done &= ended(&self.progress.outgoing[rank]) && ended(&self.progress.incoming[rank]);
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
        let frame = self.progress.incoming[rank].as_ref()?.frame.as_ref()?;
        let has_room = match frame {
            Frame::Sum { range, .. } => {
                range.end <= self.own().start + self.progress.n_added + self.progress.window
            }
            Frame::Result { .. } => true,
        };
        has_room.then_some(frame)
    }

    /// The next frame to a rank, unless it has to wait.
    fn may_send(&self, rank: usize) -> Option<&Frame> {
        let frame = self.progress.outgoing[rank].as_ref()?.frame.as_ref()?;
        let is_there = match frame {
            Frame::Result { range } => range.end <= self.own().start + self.progress.n_added,
            Frame::Sum { .. } => true,
        };
        is_there.then_some(frame)
    }

    fn send_to(&mut self, rank: usize, port: &mut Port) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(frame) = self.may_send(rank) {
            let (pointer, range) = match frame {
                Frame::Sum { slot, range } => {
                    (self.buffers.sums.at(self.exchange.slots[*slot].idx), range)
                }
                Frame::Result { range } => (self.buffers.outs.at(0), range),
            };
            // SAFETY: the sums and the result have `n` elements, of which the range is a part; nobody writes there now:
            // results of others come after this frame, the own one was written before it.
            let body = unsafe {
                std::slice::from_raw_parts(pointer.add(range.start).cast_const(), range.len())
            };
            let Some(stream) = &mut self.progress.outgoing[rank] else { break };
            let header = Header::new(self.call, stream.number, size_of_val(body));
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
                    (self.buffers.outs.at(0).wrapping_add(range.start), range.len())
                }
            };
            // SAFETY: a result's range is a part of the result, and what was there was sent to its owner, or the result would not be coming. Of a partial
            // sum, the window has room for the range in one piece, since it is a multiple of all pieces, and what was there is added.
            let body = unsafe { std::slice::from_raw_parts_mut(pointer, n) };
            let Some(stream) = &mut self.progress.incoming[rank] else { break };
            let header = Header::new(self.call, stream.number, size_of_val(body));
            let is_done = port.receive(&header, bytemuck::cast_slice_mut(body), &mut moved)?;
            if is_done {
                stream.advance();
            }
            if let Frame::Sum { slot, range } = frame {
                let n = if is_done { n } else { port.n_body_bytes() / size_of::<T>() };
                self.progress.n_here[slot] = range.start - self.own().start + n;
            }
            if !is_done {
                break;
            }
        }
        Ok(moved)
    }

    /// Where a partial sum of another rank lies, from an element of this rank's on.
    fn place(&mut self, slot: usize, offset: usize) -> *mut T {
        let window = self.progress.window;
        self.scratch().wrapping_add(slot * window + offset % window)
    }

    pub(super) fn scratch(&mut self) -> *mut T {
        self.progress.scratch.as_mut_ptr().cast()
    }

    /// Adds what is here from all.
    fn add_ready(&mut self) -> bool {
        let own = self.own();
        let ready = self.progress.n_here.iter().copied().min().unwrap_or(0);
        let most = ADDED / size_of::<T>();
        let moved = self.progress.n_added < ready;
        let (scratch, window) = (self.scratch(), self.progress.window);
        while self.progress.n_added < ready {
            let offset = self.progress.n_added;
            let n = (ready - offset).min(window - offset % window).min(most);
            let first = own.start + offset;
            let room = |slot: usize| scratch.wrapping_add(slot * window + offset % window);
            let place = |slot: usize| {
                let Slot { rank, idx } = self.exchange.slots[slot];
                match rank == self.rank {
                    true => self.buffers.sums.at(idx).wrapping_add(first).cast_const(),
                    false => room(slot).cast_const(),
                }
            };
            let out = |root: usize| self.buffers.outs.at(root).wrapping_add(first);
            // SAFETY: sums and results have these elements; so has the window, without its end between them, for every slot; slots lie apart.
            unsafe { self.exchange.add(n, place, room, out) };
            self.progress.n_added += n;
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
