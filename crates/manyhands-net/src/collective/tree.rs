//! The one tree over leaves that every sum follows: [a, b) splits at a + the largest power of two below b - a.

use std::ops::Range;

/// Where a range of leaves splits; it has two or more.
fn middle(range: &Range<usize>) -> usize {
    let n = range.len();
    range.start + n.next_power_of_two() / 2
}

/// One addition: slot `into` becomes itself and `from`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) into: usize,
    pub(super) from: usize,
}

/// The additions that make one sum of partial sums of complete subtrees, which end in the slot that is given with them.
/// `None` where the subtrees do not cover each of the `n_leaves` once, or one is no subtree.
pub(super) fn joins(n_leaves: usize, subtrees: &[Range<usize>]) -> Option<(Vec<Join>, usize)> {
    let mut order: Vec<usize> = (0..subtrees.len()).collect();
    order.sort_by_key(|&slot| subtrees[slot].start);
    let mut left = order.as_slice();
    let mut joins = Vec::with_capacity(subtrees.len().saturating_sub(1));
    let slot = join(&(0..n_leaves), subtrees, &mut left, &mut joins)?;
    left.is_empty().then_some((joins, slot))
}

fn join(
    range: &Range<usize>,
    subtrees: &[Range<usize>],
    left: &mut &[usize],
    joins: &mut Vec<Join>,
) -> Option<usize> {
    let (&slot, rest) = left.split_first()?;
    if subtrees[slot] == *range {
        *left = rest;
        return Some(slot);
    }
    if range.len() < 2 {
        return None;
    }
    let middle = middle(range);
    let into = join(&(range.start..middle), subtrees, left, joins)?;
    let from = join(&(middle..range.end), subtrees, left, joins)?;
    joins.push(Join { into, from });
    Some(into)
}

/// The largest complete subtrees of which some leaves consist.
pub fn subtrees(n_leaves: usize, leaves: &Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    cover(&(0..n_leaves), leaves, &mut found);
    found
}

fn cover(node: &Range<usize>, leaves: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if node.end <= leaves.start || leaves.end <= node.start {
        return;
    }
    if leaves.start <= node.start && node.end <= leaves.end {
        found.push(node.clone());
        return;
    }
    let middle = middle(node);
    cover(&(node.start..middle), leaves, found);
    cover(&(middle..node.end), leaves, found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(range: Range<usize>) -> String {
        match range.len() {
            1 => range.start.to_string(),
            _ => {
                let middle = middle(&range);
                format!("({}+{})", sum(range.start..middle), sum(middle..range.end))
            }
        }
    }

    proptest! {
        #[test]
        fn any_cutting_joins_to_the_same_tree(n in 1usize..40, cuts in prop::collection::vec(0usize..40, 0..6), turn in 0usize..8) {
            let mut edges: Vec<usize> = cuts.into_iter().map(|cut| cut.min(n)).chain([0, n]).collect();
            edges.sort_unstable();
            let ranges = edges.windows(2).map(|pair| pair[0]..pair[1]).filter(|range| !range.is_empty());
            let mut parts: Vec<Range<usize>> = ranges.flat_map(|range| subtrees(n, &range)).collect();
            let by = turn % parts.len();
            parts.rotate_left(by);
            let (joins, slot) = joins(n, &parts).unwrap();
            let mut texts: Vec<String> = parts.into_iter().map(sum).collect();
            for join in joins {
                texts[join.into] = format!("({}+{})", texts[join.into], texts[join.from]);
            }
            prop_assert_eq!(&texts[slot], &sum(0..n));
        }
    }

    #[test]
    fn what_does_not_cover_the_leaves_once_is_no_tree() {
        let half = 0..2;
        assert!(joins(4, &[half]).is_none());
        assert!(joins(4, &[0..2, 2..4, 2..4]).is_none());
        assert!(joins(4, &[0..1, 1..3, 3..4]).is_none());
        assert!(joins(0, &[]).is_none());
    }
}
