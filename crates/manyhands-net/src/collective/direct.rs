//! All-reduce by direct exchange: every rank owns a part of the elements, gets all partial sums of it, adds them in tree
//! order (N3), and gives the result to all.
//!
//! Elements go in blocks, so that the adding of one overlaps with the travel of the next and all of it stays in the caches. Between two
//! ranks frames have one order: the partial sums of block 0, those of block 1, the result of block 0, those of block 2, the
//! result of block 1, and so on. A result waits only for frames of earlier blocks, so the order cannot deadlock.
//!
//! Few elements go in one round: all send everything to all, and all add alike.

use std::ops::Range;

use super::call::{Call, Header};
use super::element::{Element, Reduction, fold, fold_into};
use super::error::CollectiveError;
use super::group::{Group, Pass};
use super::port::{Port, Trouble};
use super::tree::{Join, joins};
use crate::transport::wait::Interest;

/// Bytes of a block that one rank owns.
const PIECE_BYTES: usize = 128 << 10;
/// Pieces are whole cache lines.
const LINE: usize = 64;
/// Up to this many bytes of partial sums, all of them go to all.
const FLAT_BYTES: usize = 16 << 10;
/// How many blocks are in the scratch memory at a time.
const GENERATIONS: usize = 2;

/// The partial sums that a rank brings to an exchange.
#[derive(Debug)]
pub struct Brought<'a, T> {
    /// The leaves that each is the sum of: complete subtrees of the tree over all.
    pub subtrees: &'a [Range<usize>],
    /// The sums, all of the same length.
    pub sums: &'a [&'a [T]],
}

/// A partial sum: who brings it, and which of that rank's it is.
#[derive(Clone, Copy, Debug)]
struct Slot {
    rank: usize,
    idx: usize,
}

/// Who brings what, and how it is added: the same on all ranks.
pub(super) struct Exchange {
    slots: Vec<Slot>,
    joins: Vec<Join>,
    last: usize,
    n: usize,
    /// The elements that each rank owns.
    owned: Vec<Range<usize>>,
    /// Whether all get the result, or each its own part.
    gathers: bool,
    /// Elements of a piece.
    piece: usize,
    reduction: Reduction,
    /// What a mean is divided by.
    divisor: usize,
}

impl Exchange {
    /// An exchange of `n` elements in which rank r brings `brings[r]` of `n_leaves`, and all get the result.
    pub(super) fn new<T: Element>(
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        n: usize,
        reduction: Reduction,
    ) -> Result<Exchange, CollectiveError> {
        let each = |(rank, subtrees): (usize, &Vec<Range<usize>>)| {
            (0..subtrees.len()).map(move |idx| Slot { rank, idx }).collect::<Vec<_>>()
        };
        let slots: Vec<Slot> = brings.iter().enumerate().flat_map(each).collect();
        let subtrees: Vec<Range<usize>> = brings.iter().flatten().cloned().collect();
        let Some((joins, last)) = joins(n_leaves, &subtrees) else {
            let sentence = format!(
                "{subtrees:?} are not complete subtrees that cover each of {n_leaves} leaves once"
            );
            return Err(CollectiveError::Misuse(sentence));
        };
        let even = n.div_ceil(brings.len()).next_multiple_of(LINE / size_of::<T>());
        let edge = |rank: usize| (rank * even).min(n);
        let owned = (0..brings.len()).map(|rank| edge(rank)..edge(rank + 1)).collect();
        let divisor = brings.iter().filter(|subtrees| !subtrees.is_empty()).count();
        let piece = PIECE_BYTES / size_of::<T>();
        Ok(Exchange { slots, joins, last, n, owned, gathers: true, piece, reduction, divisor })
    }

    /// The same, but that each rank gets the result of its own elements only: these.
    pub(super) fn scattered(self, owned: Vec<Range<usize>>) -> Exchange {
        Exchange { owned, gathers: false, ..self }
    }

    fn n_blocks(&self) -> usize {
        let longest = self.owned.iter().map(Range::len).max().unwrap_or(0);
        longest.div_ceil(self.piece)
    }

    /// The elements of a block that a rank owns.
    fn owned(&self, block: usize, rank: usize) -> Range<usize> {
        let own = &self.owned[rank];
        let at = |piece: usize| (own.start + piece * self.piece).min(own.end);
        at(block)..at(block + 1)
    }
}

/// The memory of an exchange on one rank. The sums may be the result's own memory: see [`Run`].
pub(super) struct Buffers<T> {
    pub(super) sums: Vec<*const T>,
    pub(super) out: *mut T,
}

/// One kind of frame in the order between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// A partial sum of a block, for its owner.
    Sum { block: usize, slot: usize },
    /// The result of a block, from its owner.
    Result { block: usize },
}

/// The frames from one rank to another, in order. Empty ones are not sent.
fn frames(exchange: &Exchange, from: usize, to: usize) -> Vec<Frame> {
    let own = |slot: &usize| exchange.slots[*slot].rank == from;
    let slots: Vec<usize> = (0..exchange.slots.len()).filter(own).collect();
    let mut frames = Vec::new();
    let n_blocks = exchange.n_blocks();
    for block in 0..=n_blocks {
        if block < n_blocks && !exchange.owned(block, to).is_empty() {
            frames.extend(slots.iter().map(|&slot| Frame::Sum { block, slot }));
        }
        if exchange.gathers && block > 0 && !exchange.owned(block - 1, from).is_empty() {
            frames.push(Frame::Result { block: block - 1 });
        }
    }
    frames
}

/// An exchange under way on one rank.
///
/// In place, a partial sum is the result's memory. That is sound because of the order: a result overwrites elements of a partial sum only when its owner has
/// them, and an owner adds a block only when it has all of it.
struct Run<'a, T> {
    exchange: &'a Exchange,
    call: Call,
    rank: usize,
    buffers: &'a Buffers<T>,
    /// Room for the partial sums of others, by generation and slot.
    scratch: &'a mut [T],
    out_frames: Vec<Vec<Frame>>,
    in_frames: Vec<Vec<Frame>>,
    n_sent: Vec<usize>,
    n_got: Vec<usize>,
    /// Blocks that were added here.
    n_added: usize,
    /// By generation: partial sums that are still to come.
    n_missing: [usize; GENERATIONS],
}

impl<T: Element> Run<'_, T> {
    fn header(&self, frame: usize, n: usize) -> Header {
        Header { call: self.call, frame: frame as u32, n_bytes: (n * size_of::<T>()) as u64 }
    }

    /// The scratch memory of a partial sum of another rank.
    fn scratch_range(&self, block: usize, slot: usize) -> Range<usize> {
        let n_slots = self.exchange.slots.len();
        let start = ((block % GENERATIONS) * n_slots + slot) * self.exchange.piece;
        start..start + self.exchange.owned(block, self.rank).len()
    }

    /// Partial sums of others that an owner waits for, a block.
    fn n_foreign(&self) -> usize {
        self.exchange.slots.iter().filter(|slot| slot.rank != self.rank).count()
    }

    fn pass(
        &mut self,
        ports: &mut [Option<Port>],
        interests: &mut [Interest],
    ) -> Result<Pass, (usize, Trouble)> {
        let mut moved = false;
        for rank in 0..ports.len() {
            let Some(port) = ports[rank].as_mut() else { continue };
            let trouble = |trouble| (rank, trouble);
            moved |= self.send_to(rank, port).map_err(trouble)?;
            moved |= self.receive_from(rank, port).map_err(trouble)?;
        }
        moved |= self.add_blocks();
        for (rank, interest) in interests.iter_mut().enumerate() {
            *interest = self.interest(rank);
        }
        let all_sent = self.n_sent.iter().zip(&self.out_frames).all(|(n, all)| *n == all.len());
        let all_got = self.n_got.iter().zip(&self.in_frames).all(|(n, all)| *n == all.len());
        Ok(match all_sent && all_got && self.n_added == self.exchange.n_blocks() {
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
    fn may_receive(&self, rank: usize) -> Option<Frame> {
        let frame = *self.in_frames[rank].get(self.n_got[rank])?;
        match frame {
            Frame::Sum { block, .. } if block >= self.n_added + GENERATIONS => None,
            _ => Some(frame),
        }
    }

    /// The next frame to a rank, unless it has to wait.
    fn may_send(&self, rank: usize) -> Option<Frame> {
        let frame = *self.out_frames[rank].get(self.n_sent[rank])?;
        match frame {
            Frame::Result { block } if block >= self.n_added => None,
            _ => Some(frame),
        }
    }

    fn send_to(&mut self, rank: usize, port: &mut Port) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(frame) = self.may_send(rank) {
            let (pointer, range) = match frame {
                Frame::Sum { block, slot } => {
                    let idx = self.exchange.slots[slot].idx;
                    (self.buffers.sums[idx], self.exchange.owned(block, rank))
                }
                Frame::Result { block } => {
                    (self.buffers.out.cast_const(), self.exchange.owned(block, self.rank))
                }
            };
            // SAFETY: the sums and the result have `n` elements, of which the range is a part; nobody writes there now:
            // results of others come after this frame, the own one was written before it.
            let body = unsafe { std::slice::from_raw_parts(pointer.add(range.start), range.len()) };
            let header = self.header(self.n_sent[rank], range.len());
            if !port.send(&header, bytemuck::cast_slice(body), &mut moved)? {
                break;
            }
            self.n_sent[rank] += 1;
        }
        Ok(moved)
    }

    fn receive_from(&mut self, rank: usize, port: &mut Port) -> Result<bool, Trouble> {
        let mut moved = false;
        while let Some(frame) = self.may_receive(rank) {
            let number = self.n_got[rank];
            let is_done = match frame {
                Frame::Sum { block, slot } => {
                    let range = self.scratch_range(block, slot);
                    let header = self.header(number, range.len());
                    let body = bytemuck::cast_slice_mut(&mut self.scratch[range]);
                    port.receive(&header, body, &mut moved)?
                }
                Frame::Result { block } => {
                    let range = self.exchange.owned(block, rank);
                    let header = self.header(number, range.len());
                    // SAFETY: the result has `n` elements, of which the range is a part; what was there was sent to its
                    // owner, or the result would not be coming.
                    let body = unsafe {
                        std::slice::from_raw_parts_mut(
                            self.buffers.out.add(range.start),
                            range.len(),
                        )
                    };
                    port.receive(&header, bytemuck::cast_slice_mut(body), &mut moved)?
                }
            };
            if !is_done {
                break;
            }
            self.n_got[rank] += 1;
            if let Frame::Sum { block, .. } = frame {
                self.n_missing[block % GENERATIONS] -= 1;
            }
        }
        Ok(moved)
    }

    /// Adds the blocks of which all partial sums are there.
    fn add_blocks(&mut self) -> bool {
        let mut moved = false;
        while self.n_added < self.exchange.n_blocks() {
            let block = self.n_added;
            let range = self.exchange.owned(block, self.rank);
            if !range.is_empty() {
                if self.n_missing[block % GENERATIONS] > 0 {
                    break;
                }
                self.add(block, range);
            }
            self.n_missing[block % GENERATIONS] = self.n_foreign();
            self.n_added += 1;
            moved = true;
        }
        moved
    }

    /// Adds the partial sums of a block along the tree, into the result.
    fn add(&mut self, block: usize, range: Range<usize>) {
        let n_slots = self.exchange.slots.len();
        let places: Vec<usize> =
            (0..n_slots).map(|slot| self.scratch_range(block, slot).start).collect();
        let slots = &self.exchange.slots;
        for (slot, &place) in
            places.iter().enumerate().filter(|(slot, _)| slots[*slot].rank == self.rank)
        {
            // SAFETY: sums have `n` elements; the result's elements of this range are written below only.
            let own = unsafe {
                std::slice::from_raw_parts(
                    self.buffers.sums[slots[slot].idx].add(range.start),
                    range.len(),
                )
            };
            // A sum that only one addition uses is read where it lies.
            self.scratch[place..place + range.len()].copy_from_slice(own);
        }
        // SAFETY: the result has `n` elements; sums of this range were copied above.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.buffers.out.add(range.start), range.len())
        };
        join_slots(self.exchange, self.scratch, &places, out);
    }
}

/// Carries out the additions among slots that begin at `places`, the last into `out`, and divides a mean.
fn join_slots<T: Element>(exchange: &Exchange, scratch: &mut [T], places: &[usize], out: &mut [T]) {
    let n = out.len();
    let reduction = exchange.reduction;
    for (idx, join) in exchange.joins.iter().enumerate() {
        let (into, from) = (places[join.into], places[join.from]);
        if idx + 1 == exchange.joins.len() {
            fold_into(reduction, out, &scratch[into..into + n], &scratch[from..from + n]);
        } else if into < from {
            let (a, b) = scratch.split_at_mut(from);
            fold(reduction, &mut a[into..into + n], &b[..n]);
        } else {
            let (b, a) = scratch.split_at_mut(into);
            fold(reduction, &mut a[..n], &b[from..from + n]);
        }
    }
    if exchange.joins.is_empty() {
        let at = places[exchange.last];
        out.copy_from_slice(&scratch[at..at + n]);
    }
    if reduction == Reduction::Mean {
        for value in out {
            *value = value.divided(exchange.divisor).unwrap_or(*value);
        }
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
        buffers: &Buffers<T>,
    ) -> Result<(), CollectiveError> {
        let n_bytes = exchange.n * size_of::<T>() * exchange.slots.len();
        let is_flat = exchange.gathers && n_bytes <= FLAT_BYTES;
        let n_scratch = match is_flat {
            true => exchange.n * exchange.slots.len(),
            false => GENERATIONS * exchange.slots.len() * exchange.piece,
        };
        let mut words = std::mem::take(&mut self.scratch);
        let n_words = (n_scratch * size_of::<T>()).div_ceil(size_of::<u64>());
        if words.len() < n_words {
            words.resize(n_words, 0);
        }
        let scratch = &mut bytemuck::cast_slice_mut(&mut words)[..n_scratch];
        // SAFETY: the caller vouches for the buffers.
        let outcome = unsafe {
            match is_flat {
                true => self.exchange_flat(call, exchange, buffers, scratch),
                false => self.exchange_blocks(call, exchange, buffers, scratch),
            }
        };
        self.scratch = words;
        outcome
    }

    /// # Safety
    /// As [`Group::exchange`].
    unsafe fn exchange_blocks<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        scratch: &mut [T],
    ) -> Result<(), CollectiveError> {
        let (rank, n_ranks) = (self.rank, self.size());
        let others = |to: bool| {
            let pair = |other| if to { (rank, other) } else { (other, rank) };
            let frames = |other| match other == rank {
                true => Vec::new(),
                false => frames(exchange, pair(other).0, pair(other).1),
            };
            (0..n_ranks).map(frames).collect::<Vec<_>>()
        };
        let mut run = Run {
            exchange,
            call,
            rank,
            buffers,
            scratch,
            out_frames: others(true),
            in_frames: others(false),
            n_sent: vec![0; n_ranks],
            n_got: vec![0; n_ranks],
            n_added: 0,
            n_missing: [0; GENERATIONS],
        };
        run.n_missing = [run.n_foreign(); GENERATIONS];
        self.drive(call, |ports, interests| run.pass(ports, interests))
    }

    /// # Safety
    /// As [`Group::exchange`].
    unsafe fn exchange_flat<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<T>,
        scratch: &mut [T],
    ) -> Result<(), CollectiveError> {
        let (rank, n) = (self.rank, exchange.n);
        let places: Vec<usize> = (0..exchange.slots.len()).map(|slot| slot * n).collect();
        let is_own = |slot: &usize| exchange.slots[*slot].rank == rank;
        let own: Vec<usize> = (0..exchange.slots.len()).filter(is_own).collect();
        for &slot in &own {
            let sum = buffers.sums[exchange.slots[slot].idx];
            // SAFETY: every sum has `n` elements.
            let sum = unsafe { std::slice::from_raw_parts(sum, n) };
            scratch[slot * n..(slot + 1) * n].copy_from_slice(sum);
        }
        // A rank's slots lie side by side, so that each sends and gets one frame.
        let range = |rank: usize| {
            let first = exchange.slots.iter().position(|slot| slot.rank == rank).unwrap_or(0);
            let count = exchange.slots.iter().filter(|slot| slot.rank == rank).count();
            first * n..(first + count) * n
        };
        let header = |len: usize| Header { call, frame: 0, n_bytes: (len * size_of::<T>()) as u64 };
        let mut left: Vec<[bool; 2]> = (0..self.size()).map(|other| [other != rank; 2]).collect();
        self.drive(call, |ports, interests| {
            let mut moved = false;
            for other in 0..ports.len() {
                let Some(port) = ports[other].as_mut() else { continue };
                let trouble = |trouble| (other, trouble);
                if left[other][0] {
                    let body = bytemuck::cast_slice(&scratch[range(rank)]);
                    let header = header(range(rank).len());
                    left[other][0] = !port.send(&header, body, &mut moved).map_err(trouble)?;
                }
                if left[other][1] {
                    let range = range(other);
                    let header = header(range.len());
                    let body = bytemuck::cast_slice_mut(&mut scratch[range]);
                    left[other][1] = !port.receive(&header, body, &mut moved).map_err(trouble)?;
                }
                interests[other] = waits_for(left[other]);
            }
            Ok(match left.iter().flatten().any(|left| *left) {
                false => Pass::Done,
                true if moved => Pass::Moved,
                true => Pass::Stuck,
            })
        })?;
        // SAFETY: the result has `n` elements, and nobody reads the sums any more.
        let out = unsafe { std::slice::from_raw_parts_mut(buffers.out, n) };
        join_slots(exchange, scratch, &places, out);
        Ok(())
    }
}
