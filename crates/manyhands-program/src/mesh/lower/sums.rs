//! How one replica sums its grains: which slot each grain's sums go to, and which slots are merged after it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::grains::{GrainAction, maximal_subtrees_of, tree_schedule};
use crate::mesh::SumInto;

/// What becomes of the sums of one grain.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GrainSums {
    /// Where they go.
    pub(super) into: SumInto,
    /// The slots that are merged then: left and right.
    pub(super) merges: Vec<(usize, usize)>,
}

/// The complete subtrees that grains of one replica make.
pub(super) fn subtrees(grains: &[usize], n_grains: usize) -> Vec<Range<usize>> {
    let ranges: Vec<Range<usize>> = grains.iter().map(|&grain| grain..grain + 1).collect();
    maximal_subtrees_of(&ranges, n_grains)
}

/// How grains that come in rising order are summed, by grain: subtree `i` ends in slot `i`, and the slots above all subtrees are used while
/// one of them grows.
pub(super) fn summing(subtrees: &[Range<usize>]) -> BTreeMap<usize, GrainSums> {
    let mut sums: BTreeMap<usize, GrainSums> = BTreeMap::new();
    for (idx, subtree) in subtrees.iter().enumerate() {
        let slot_of = |slot: usize| if slot == 0 { idx } else { subtrees.len() + slot - 1 };
        let mut last = subtree.start;
        for action in tree_schedule(subtree.len()) {
            let (grain, into) = match action {
                GrainAction::Write { grain, slot } => (grain, SumInto::Write(slot_of(slot))),
                GrainAction::Accumulate { grain, slot } => {
                    (grain, SumInto::Accumulate(slot_of(slot)))
                }
                GrainAction::Merge { into, from } => {
                    if let Some(sums) = sums.get_mut(&last) {
                        sums.merges.push((slot_of(into), slot_of(from)));
                    }
                    continue;
                }
            };
            last = subtree.start + grain;
            sums.insert(last, GrainSums { into, merges: Vec::new() });
        }
    }
    sums
}
