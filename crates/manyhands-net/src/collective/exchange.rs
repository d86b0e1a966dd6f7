//! What an exchange of partial sums is: who brings what, who owns which elements, in which order frames go, and how a range is added.

use std::ops::Range;

use super::element::{Element, Reduction, fold, fold_into, fold_left};
use super::error::CollectiveError;
use super::tree::{Forest, Term};

/// What ranks own begins on a cache line.
const LINE: usize = 64;

/// A partial sum: who brings it, and which of that rank's it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) rank: usize,
    pub(super) idx: usize,
}

/// Who brings what, and how it is added: the same on all ranks.
pub(super) struct Exchange {
    /// The slots of one rank lie side by side.
    pub(super) slots: Vec<Slot>,
    /// How they are added. One sum over all, but for some ranks of many.
    pub(super) forest: Forest,
    pub(super) n: usize,
    /// The elements that each rank owns.
    pub(super) owned: Vec<Range<usize>>,
    /// Whether all get the result, or each its own part.
    pub(super) gathers: bool,
    reduction: Reduction,
    /// What a mean is divided by.
    divisor: usize,
    /// Who takes part, where not all do.
    pub(super) members: Option<Vec<bool>>,
}

impl Exchange {
    /// An exchange of `n` elements in which rank r brings `brings[r]` of `n_leaves`, and all get the result.
    pub(super) fn new<T: Element>(
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        n: usize,
        reduction: Reduction,
    ) -> Result<Exchange, CollectiveError> {
        let exchange = Exchange::partial::<T>(n_leaves, brings, n, reduction)?;
        match exchange.forest.is_whole(n_leaves) {
            true => Ok(exchange),
            false => Err(no_subtrees(n_leaves, brings)),
        }
    }

    /// The same, of leaves that need not be all: there may be several sums in the end, or none.
    pub(super) fn partial<T: Element>(
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
        let forest =
            Forest::new(n_leaves, &subtrees).ok_or_else(|| no_subtrees(n_leaves, brings))?;
        let owned = shares::<T>(&(0..n), brings.len());
        let divisor = brings.iter().filter(|subtrees| !subtrees.is_empty()).count();
        Ok(Exchange { slots, forest, n, owned, gathers: true, reduction, divisor, members: None })
    }

    /// All get the elements that each owns, to which nothing is added.
    pub(super) fn gather(n: usize, owned: Vec<Range<usize>>) -> Exchange {
        let (slots, forest, reduction) = (Vec::new(), Forest::default(), Reduction::Sum);
        let (gathers, divisor, members) = (true, 1, None);
        Exchange { slots, forest, n, owned, gathers, reduction, divisor, members }
    }

    /// The same, but that each rank gets the result of its own elements only: these.
    pub(super) fn scattered(self, owned: Vec<Range<usize>>) -> Exchange {
        Exchange { owned, gathers: false, ..self }
    }

    /// The same among these ranks only.
    pub(super) fn among(self, members: Vec<bool>) -> Exchange {
        Exchange { members: Some(members), ..self }
    }

    /// The same, but that ranks own these elements, which need not be all.
    pub(super) fn owning(self, owned: Vec<Range<usize>>) -> Exchange {
        Exchange { owned, ..self }
    }

    pub(super) fn has_member(&self, rank: usize) -> bool {
        self.members.as_ref().is_none_or(|members| members[rank])
    }

    /// The same, but that a mean is divided by this.
    pub(super) fn divided_by(self, divisor: usize) -> Exchange {
        Exchange { divisor, ..self }
    }

    /// The slots of a rank.
    pub(super) fn slots_of(&self, rank: usize) -> Range<usize> {
        let first = self.slots.partition_point(|slot| slot.rank < rank);
        first..self.slots.partition_point(|slot| slot.rank <= rank)
    }

    /// Adds `n` elements along the tree, from where each slot has them, into where each root goes, and divides a mean. Sums on the way
    /// go to `room`, by slot.
    ///
    /// # Safety
    /// `place` gives, for every slot, `n` elements to read. `room` gives, where there are more than two slots, as many to write for any slot; they
    /// may be those that the slot was read from, and are apart from all others, as are those that `out` gives for every root, which may be those of one
    /// slot of that root.
    pub(super) unsafe fn add<T: Element>(
        &self,
        n: usize,
        place: impl Fn(usize) -> *const T,
        room: impl Fn(usize) -> *mut T,
        out: impl Fn(usize) -> *mut T,
    ) {
        let at = |term: Term| match term.is_brought {
            true => place(term.slot),
            false => room(term.slot).cast_const(),
        };
        for join in &self.forest.joins {
            let to = join.root.map_or_else(|| room(join.into.slot), &out);
            // SAFETY: the caller vouches for the memory of slots, of the room and of the results.
            unsafe { join_two(self.reduction, n, to, at(join.into), at(join.from)) };
        }
        for (root_idx, root) in self.forest.roots.iter().enumerate() {
            let to = out(root_idx);
            if root.is_brought && place(root.slot) != to.cast_const() {
                // SAFETY: a sum that nothing was added to has `n` elements, as has the result, and they are apart.
                unsafe { std::ptr::copy_nonoverlapping(place(root.slot), to, n) };
            }
            if self.reduction == Reduction::Mean {
                // SAFETY: the result has `n` elements, and nothing else is borrowed now.
                for value in unsafe { std::slice::from_raw_parts_mut(to, n) } {
                    *value = value.divided(self.divisor).unwrap_or(*value);
                }
            }
        }
    }
}

fn no_subtrees(n_leaves: usize, brings: &[Vec<Range<usize>>]) -> CollectiveError {
    let subtrees: Vec<_> = brings.iter().flatten().collect();
    let sentence =
        format!("{subtrees:?} are not complete subtrees that cover each of {n_leaves} leaves once");
    CollectiveError::Misuse(sentence)
}

/// `to = a (op) b`, where `to` may be one of them.
///
/// # Safety
/// All three have `n` elements; `to` is one of the others or apart from both.
unsafe fn join_two<T: Element>(
    reduction: Reduction,
    n: usize,
    to: *mut T,
    a: *const T,
    b: *const T,
) {
    // SAFETY: of `n` elements each, by the caller; no two of the slices that exist at the same time overlap where one of them is written.
    unsafe {
        let slice = |from: *const T| std::slice::from_raw_parts(from, n);
        if to.cast_const() == a {
            fold(reduction, std::slice::from_raw_parts_mut(to, n), slice(b));
        } else if to.cast_const() == b {
            fold_left(reduction, std::slice::from_raw_parts_mut(to, n), slice(a));
        } else {
            fold_into(reduction, std::slice::from_raw_parts_mut(to, n), slice(a), slice(b));
        }
    }
}

/// Some elements, cut into as many even parts as there are ranks: whole cache lines, as far as there are any.
pub(super) fn shares<T>(elements: &Range<usize>, n_ranks: usize) -> Vec<Range<usize>> {
    let even = elements.len().div_ceil(n_ranks).next_multiple_of(LINE / size_of::<T>());
    let edge = |rank: usize| (elements.start + rank * even).min(elements.end);
    (0..n_ranks).map(|rank| edge(rank)..edge(rank + 1)).collect()
}

/// One frame in the order between two ranks; ranges are elements of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A partial sum of a piece, for its owner.
    Sum { slot: usize, range: Range<usize> },
    /// The result of a piece, from its owner.
    Result { range: Range<usize> },
}

/// How elements travel between two ranks: what both sides must know alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Elements of a piece.
    pub(super) piece: usize,
    /// How many pieces of partial sums go before the first result.
    pub(super) lead: usize,
}

/// The frames from one rank to another, in order, and where in it they are: sums of piece 0, of 1, ... of `lead`, the result of piece 0, the sums of `lead + 1`, the result
/// of 1, and so on. Empty ones are left out.
pub(super) struct Stream {
    theirs: Range<usize>,
    own: Range<usize>,
    slots: Range<usize>,
    flow: Flow,
    /// The piece of sums that comes next, and which of its slots; after the last slot, the result that goes with it.
    piece: usize,
    slot: usize,
    n_pieces: usize,
    /// The frame at hand, and how many went before it.
    pub(super) frame: Option<Frame>,
    pub(super) number: usize,
}

impl Stream {
    pub(super) fn new(exchange: &Exchange, from: usize, to: usize, flow: Flow) -> Stream {
        let theirs = exchange.owned[to].clone();
        let own = if exchange.gathers { exchange.owned[from].clone() } else { 0..0 };
        let slots = exchange.slots_of(from);
        // Who brings nothing and is of no use to others still gets results; who owns nothing gets no sums.
        let n_sums = theirs.len().div_ceil(flow.piece);
        let n_pieces = match own.len().div_ceil(flow.piece) {
            0 => n_sums,
            n_results => n_sums.max(n_results + flow.lead),
        };
        let slot = slots.start;
        let mut stream =
            Stream { theirs, own, slots, flow, piece: 0, slot, n_pieces, frame: None, number: 0 };
        stream.find();
        stream
    }

    /// Goes to the next frame.
    pub(super) fn advance(&mut self) {
        self.number += 1;
        self.find();
    }

    fn find(&mut self) {
        self.frame = None;
        while self.frame.is_none() && self.piece < self.n_pieces {
            if self.slot < self.slots.end {
                let range = piece_of(&self.theirs, self.piece, self.flow.piece);
                self.frame = (!range.is_empty()).then_some(Frame::Sum { slot: self.slot, range });
                self.slot += 1;
            } else {
                let behind = self.piece.checked_sub(self.flow.lead);
                let range = behind.map(|piece| piece_of(&self.own, piece, self.flow.piece));
                let range = range.filter(|range| !range.is_empty());
                self.frame = range.map(|range| Frame::Result { range });
                self.piece += 1;
                self.slot = self.slots.start;
            }
        }
    }
}

fn piece_of(whole: &Range<usize>, piece: usize, len: usize) -> Range<usize> {
    let at = |piece: usize| (whole.start + piece * len).min(whole.end);
    at(piece)..at(piece + 1)
}
