//! The one tree over leaves that every sum follows: [a, b) splits at a + the largest power of two below b - a.

use std::ops::Range;

/// Where a range of leaves splits; it has two or more.
fn middle(range: &Range<usize>) -> usize {
    let n = range.len();
    range.start + n.next_power_of_two() / 2
}

/// What is added: what is in a slot, as it was brought or with something added already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) slot: usize,
    pub(crate) is_brought: bool,
}

/// One addition: slot `into` becomes itself and `from`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) into: Term,
    pub(crate) from: Term,
    /// The root that this completes, where it is the last addition of one.
    pub(crate) root: Option<usize>,
}

/// A sum that cannot grow without subtrees of others: the slot in which it ends, and the leaves that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) slot: usize,
    pub(crate) leaves: Range<usize>,
    /// Whether it is a subtree as it was brought.
    pub(crate) is_brought: bool,
}

/// The additions that make as few sums as the tree allows of partial sums of complete subtrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forest {
    pub(crate) joins: Vec<Join>,
    /// In the order of their leaves.
    pub(crate) roots: Vec<Root>,
}

impl Forest {
    /// `None` where a leaf is in two of the subtrees, or one is no subtree.
    pub(crate) fn new(n_leaves: usize, subtrees: &[Range<usize>]) -> Option<Forest> {
        let mut order: Vec<usize> = (0..subtrees.len()).collect();
        order.sort_by_key(|&slot| subtrees[slot].start);
        let mut growing = Growing { subtrees, left: &order, forest: Forest::default() };
        let all = 0..n_leaves;
        if let Some(slot) = growing.grow(&all)? {
            growing.push_root(slot, all);
        }
        let Growing { left, mut forest, .. } = growing;
        forest.roots.sort_by_key(|root| root.leaves.start);
        for (root_idx, root) in forest.roots.iter().enumerate() {
            let last = forest.joins.iter_mut().rev().find(|join| join.into.slot == root.slot);
            if let Some(join) = last {
                join.root = Some(root_idx);
            }
        }
        left.is_empty().then_some(forest)
    }

    /// Whether it is one sum over all of so many leaves.
    pub(crate) fn is_whole(&self, n_leaves: usize) -> bool {
        matches!(&self.roots[..], [root] if root.leaves == (0..n_leaves))
    }
}

/// A forest on the way, and the slots that are not in it yet, by their first leaves.
struct Growing<'a> {
    subtrees: &'a [Range<usize>],
    left: &'a [usize],
    forest: Forest,
}

impl Growing<'_> {
    /// Takes what there is of a node: the slot that has it, where it is complete. `None` where the subtrees cannot be.
    fn grow(&mut self, node: &Range<usize>) -> Option<Option<usize>> {
        let Some((&slot, rest)) = self.left.split_first() else { return Some(None) };
        if self.subtrees[slot].start >= node.end {
            return Some(None);
        }
        if self.subtrees[slot] == *node {
            self.left = rest;
            return Some(Some(slot));
        }
        if node.len() < 2 {
            return None;
        }
        let middle = middle(node);
        let (low, high) = (node.start..middle, middle..node.end);
        let (into, from) = (self.grow(&low)?, self.grow(&high)?);
        if let (Some(into), Some(from)) = (into, from) {
            let (into_term, from) = (self.term(into), self.term(from));
            self.forest.joins.push(Join { into: into_term, from, root: None });
            return Some(Some(into));
        }
        for (slot, leaves) in [(into, low), (from, high)] {
            slot.into_iter().for_each(|slot| self.push_root(slot, leaves.clone()));
        }
        Some(None)
    }

    fn push_root(&mut self, slot: usize, leaves: Range<usize>) {
        let Term { is_brought, .. } = self.term(slot);
        self.forest.roots.push(Root { slot, leaves, is_brought });
    }

    fn term(&self, slot: usize) -> Term {
        let is_brought = self.forest.joins.iter().all(|join| join.into.slot != slot);
        Term { slot, is_brought }
    }
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

    fn join_texts(texts: &mut [String], join: &Join) {
        let (into, from) = (join.into.slot, join.from.slot);
        texts[into] = format!("({}+{})", texts[into], texts[from]);
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
            let forest = Forest::new(n, &parts).unwrap();
            prop_assert!(forest.is_whole(n));
            let mut texts: Vec<String> = parts.into_iter().map(sum).collect();
            for join in &forest.joins {
                join_texts(&mut texts, join);
            }
            prop_assert_eq!(&texts[forest.roots[0].slot], &sum(0..n));
        }

        #[test]
        fn some_of_the_leaves_become_the_largest_subtrees_of_them(n in 1usize..40, has in prop::collection::vec(any::<bool>(), 40)) {
            let parts: Vec<Range<usize>> = (0..n).filter(|leaf| has[*leaf]).map(|leaf| leaf..leaf + 1).collect();
            let forest = Forest::new(n, &parts).unwrap();
            let mut texts: Vec<String> = parts.iter().cloned().map(sum).collect();
            for join in &forest.joins {
                join_texts(&mut texts, join);
            }
            let completed: Vec<usize> = forest.joins.iter().filter_map(|join| join.root).collect();
            let joined = (0..forest.roots.len()).filter(|root| forest.roots[*root].leaves.len() > 1);
            prop_assert_eq!(completed.len(), joined.count());
            let mut runs: Vec<Range<usize>> = Vec::new();
            for part in parts {
                match runs.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => runs.push(part),
                }
            }
            let largest: Vec<Range<usize>> = runs.iter().flat_map(|run| subtrees(n, run)).collect();
            let found: Vec<Range<usize>> = forest.roots.iter().map(|root| root.leaves.clone()).collect();
            prop_assert_eq!(found, largest);
            for root in &forest.roots {
                prop_assert_eq!(&texts[root.slot], &sum(root.leaves.clone()));
            }
        }
    }

    #[test]
    fn what_does_not_cover_the_leaves_once_is_no_tree() {
        let is_whole = |n, parts: &[Range<usize>]| Forest::new(n, parts).map(|it| it.is_whole(n));
        let half = 0..2;
        assert_eq!(is_whole(4, &[half]), Some(false));
        assert_eq!(is_whole(0, &[]), Some(false));
        assert_eq!(is_whole(4, &[0..2, 2..4, 2..4]), None);
        assert_eq!(is_whole(4, &[0..1, 1..3, 3..4]), None);
        assert_eq!(is_whole(4, &[0..4, 2..4]), None);
        assert_eq!(is_whole(2, &[0..2, 2..3]), None);
    }
}
