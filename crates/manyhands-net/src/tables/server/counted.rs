//! Which grains a shard has counted, where workers take turns: what is done again, by the same worker or by another, counts once.
//!
//! Turns of a step lie one in the other or apart: what a worker did not end is given out again as it was, or in pieces. So a push that overlaps what is
//! there is either covered by it, or was taken back from its worker, and the rest of it is on its way from others. Either way it is dropped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tables::message::TurnOf;

/// How many steps are remembered of which some grains are missing. Turns are given out of far fewer at a time, so what is older is over.
const MOST_OPEN: usize = 1024;
/// A step of which nothing is missing, however many grains it had.
const WHOLE: [[usize; 2]; 1] = [[0, usize::MAX]];

/// The grains that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counted {
    /// All steps before this one are over.
    n_over: u64,
    /// Of steps from there on the grains that are there, in order and apart; all that could be where none is missing.
    open: BTreeMap<u64, Vec<[usize; 2]>>,
}

impl Counted {
    /// So many steps are behind it.
    pub(super) fn after(n_over: u64) -> Counted {
        Counted { n_over, open: BTreeMap::new() }
    }

    /// Steps of which some grains are there and others are not, and those before them of which none is.
    pub(super) fn n_begun(&self) -> u64 {
        let n_whole = self.open.values().filter(|there| there[..] == WHOLE).count() as u64;
        let end =
            self.open.last_key_value().map_or(self.n_over, |(last, _)| last.saturating_add(1));
        end - self.n_over - n_whole
    }

    /// Counts a turn. Whether it is new: else it must not be applied.
    pub(super) fn count(&mut self, turn: TurnOf) -> bool {
        let TurnOf { step, grains: [start, end], n_grains } = turn;
        if step < self.n_over {
            return false;
        }
        let there = self.open.entry(step).or_default();
        let place = there.partition_point(|[_, before]| *before <= start);
        if there.get(place).is_some_and(|[next, _]| *next < end) {
            return false;
        }
        there.insert(place, [start, end]);
        there.dedup_by(|next, one| {
            let touches = one[1] == next[0];
            if touches {
                one[1] = next[1];
            }
            touches
        });
        if there[..] == [[0, n_grains]] {
            *there = WHOLE.to_vec();
        }
        if self.open.len() > MOST_OPEN
            && let Some((oldest, _)) = self.open.pop_first()
        {
            self.n_over = oldest.saturating_add(1);
        }
        while self.open.get(&self.n_over).is_some_and(|there| there[..] == WHOLE) {
            self.open.remove(&self.n_over);
            self.n_over += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turn(step: u64, start: usize, end: usize) -> TurnOf {
        TurnOf { step, grains: [start, end], n_grains: 8 }
    }

    #[test]
    fn what_is_done_again_whole_or_in_pieces_counts_once() {
        let mut counted = Counted::default();
        assert!(counted.count(turn(0, 2, 6)));
        assert!(!counted.count(turn(0, 2, 6)));
        assert!(!counted.count(turn(0, 2, 4)) && !counted.count(turn(0, 4, 6)));
        // One that was taken back and comes late: the rest of it comes from others.
        assert!(!counted.count(turn(0, 0, 6)));
        assert!(counted.count(turn(0, 0, 2)) && counted.count(turn(0, 6, 8)));
        assert_eq!(counted, Counted::after(1));
        assert!(!counted.count(turn(0, 0, 8)));
    }

    #[test]
    fn steps_may_end_in_any_order() {
        let mut counted = Counted::after(5);
        assert!(!counted.count(turn(4, 0, 8)));
        // The last step of an epoch may have fewer grains.
        assert!(counted.count(TurnOf { n_grains: 3, ..turn(6, 0, 3) }));
        assert_eq!(counted.n_begun(), 1, "nothing of the fifth is there");
        assert!(counted.count(turn(5, 0, 4)));
        assert_eq!(counted.n_begun(), 1);
        assert!(counted.count(turn(5, 4, 8)));
        assert_eq!(counted.n_begun(), 0);
        assert_eq!(counted, Counted::after(7));
        assert!(!counted.count(turn(6, 0, 4)));
    }

    #[test]
    fn steps_that_never_end_take_bounded_memory() {
        let mut counted = Counted::default();
        for step in 0..10_000 {
            assert!(counted.count(turn(step, 0, 1)));
        }
        assert!(counted.open.len() <= MOST_OPEN);
        assert!(!counted.count(turn(0, 1, 2)) && counted.count(turn(9_999, 1, 2)));
    }

    proptest! {
        /// Turns as a dispatcher gives them out: cut, taken back, cut again, pushed at any time or never.
        #[test]
        fn every_grain_counts_once_in_any_order(cuts in prop::collection::vec((0usize..16, 1usize..16, any::<bool>()), 0..40)) {
            let mut counted = Counted::default();
            let mut n_counted = [0; 16];
            let mut count = |start: usize, end: usize| {
                if counted.count(TurnOf { step: 3, grains: [start, end], n_grains: 16 }) {
                    n_counted[start..end].iter_mut().for_each(|n| *n += 1);
                }
            };
            let mut out = vec![(0, 16)];
            for (which, size, is_late) in cuts {
                let (start, end) = out[which % out.len()];
                if !is_late {
                    count(start, end);
                }
                let middle = (start + size).min(end);
                if middle < end {
                    out.extend([(start, middle), (middle, end)]);
                }
            }
            // In the end somebody brings each grain.
            (0..16).for_each(|grain| count(grain, grain + 1));
            prop_assert_eq!(n_counted, [1; 16]);
        }
    }
}
