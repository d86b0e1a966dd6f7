//! Partial sums of a step: which subtrees of the grain tree are summed where, and how the partial sums are joined.
//!
//! The tree over grains is fixed (range [a, b) splits at a + the largest power of two below b - a). A lane that does a
//! range of grains sums the complete subtrees in it; the rest of the tree is joined where the update happens, in the same
//! pass over memory as the update itself.

use std::ops::Range;

use crate::error::ProgramError;
use crate::op::{Binary, Op};
use crate::program::{Program, ValueId};

/// Where a range of at least two grains splits: at the start plus the largest power of two below its length.
pub fn split_point(range: &Range<usize>) -> usize {
    range.start + (1 << (range.len() - 1).max(1).ilog2())
}

/// A tree over partial sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// The partial sum with this index.
    Partial(usize),
    /// The sum of the left and the right.
    Add(Box<Join>, Box<Join>),
}

/// One partial sum: a complete subtree, summed by one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Its grains.
    pub grains: Range<usize>,
    /// The lane that does them.
    pub lane: usize,
}

/// How the grains of a step are summed by lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partials {
    /// The partial sums, in grain order.
    pub partials: Vec<Partial>,
    /// How they are joined.
    pub join: Join,
}

/// Shares the grains out: contiguous blocks, cut where the tree is cut as far as the counts allow, and says which partial
/// sums that makes. One lane alone still leaves the topmost addition to the update, which is free there.
pub fn partials(n_grains: usize, n_lanes: usize) -> Partials {
    let n_lanes = n_lanes.clamp(1, n_grains.max(1));
    let lane_of = |grain: usize| grain * n_lanes / n_grains.max(1);
    let mut found = Vec::new();
    let join = descend(0..n_grains, &lane_of, true, &mut found);
    Partials { partials: found, join }
}

impl Partials {
    /// Partial sums of these subtrees, which come in grain order, joined along the tree over `whole`; `None` where they are not complete subtrees that cover it, each
    /// grain once.
    pub fn of_subtrees(whole: Range<usize>, subtrees: &[Range<usize>]) -> Option<Partials> {
        let mut joins: Vec<Option<Join>> =
            (0..subtrees.len()).map(|idx| Some(Join::Partial(idx))).collect();
        for Addition { into, from } in join_order(whole, subtrees)? {
            let (left, right) = (joins[into].take()?, joins[from].take()?);
            joins[into] = Some(Join::Add(Box::new(left), Box::new(right)));
        }
        let partials = subtrees.iter().map(|grains| Partial { grains: grains.clone(), lane: 0 });
        Some(Partials { partials: partials.collect(), join: joins.first_mut()?.take()? })
    }
}

fn descend(
    range: Range<usize>,
    lane_of: &dyn Fn(usize) -> usize,
    is_root: bool,
    found: &mut Vec<Partial>,
) -> Join {
    let lane = lane_of(range.start);
    let one_lane = range.len() <= 1 || lane_of(range.end - 1) == lane;
    if one_lane && (!is_root || range.len() <= 1) {
        found.push(Partial { grains: range, lane });
        return Join::Partial(found.len() - 1);
    }
    let middle = split_point(&range);
    let left = descend(range.start..middle, lane_of, false, found);
    let right = descend(middle..range.end, lane_of, false, found);
    Join::Add(Box::new(left), Box::new(right))
}

/// The once-a-step program whose sums over grains are replaced by their partial sums, joined.
pub fn joining(step: &Program, partials: &Partials) -> Result<Program, ProgramError> {
    if partials.partials.len() == 1 {
        return Ok(step.clone());
    }
    let mut joined = Program::new(step.name());
    let mut map: Vec<ValueId> = Vec::with_capacity(step.n_values());
    for node in step.nodes() {
        if let Op::Input { name, dtype, shape } = &node.op
            && is_sum(name)
        {
            let mut parts = Vec::new();
            for idx in 0..partials.partials.len() {
                let (name, dtype, shape) = (partial_sum_name(name, idx), *dtype, shape.clone());
                parts.push(joined.push(Op::Input { name, dtype, shape }, &[], &node.scope)?[0]);
            }
            map.push(add_up(&mut joined, &partials.join, &parts, &node.scope)?);
            continue;
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|v| map[v.idx()]).collect();
        map.extend(joined.push(node.op.clone(), &operands, &node.scope)?);
    }
    for output in step.outputs() {
        joined.add_output(output.name.clone(), map[output.value.idx()])?;
    }
    for update in step.updates() {
        joined.add_update(map[update.parameter.idx()], map[update.value.idx()])?;
    }
    Ok(joined)
}

fn add_up(
    program: &mut Program,
    join: &Join,
    parts: &[ValueId],
    scope: &str,
) -> Result<ValueId, ProgramError> {
    match join {
        Join::Partial(idx) => Ok(parts[*idx]),
        Join::Add(left, right) => {
            let left = add_up(program, left, parts, scope)?;
            let right = add_up(program, right, parts, scope)?;
            Ok(program.push(Op::Binary(Binary::Add), &[left, right], scope)?[0])
        }
    }
}

/// A partial sum that is added to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The one on the left, which takes the sum.
    pub into: usize,
    /// The one on the right, which is not needed afterwards.
    pub from: usize,
}

/// How the partial sums of subtrees are joined along the tree over `whole`: additions over their indices, in order, after
/// which the first holds the sum of all. The subtrees come in grain order; `None` where they are not complete subtrees
/// that cover the whole, each grain once.
pub fn join_order(whole: Range<usize>, subtrees: &[Range<usize>]) -> Option<Vec<Addition>> {
    fn descend(
        node: Range<usize>,
        rest: &mut std::iter::Peekable<impl Iterator<Item = (usize, Range<usize>)>>,
        additions: &mut Vec<Addition>,
    ) -> Option<usize> {
        let (idx, subtree) = rest.peek()?.clone();
        if subtree == node {
            rest.next();
            return Some(idx);
        }
        if subtree.start != node.start || subtree.len() >= node.len() || subtree.is_empty() {
            return None;
        }
        let middle = split_point(&node);
        let into = descend(node.start..middle, rest, additions)?;
        let from = descend(middle..node.end, rest, additions)?;
        additions.push(Addition { into, from });
        Some(into)
    }
    let mut rest = subtrees.iter().cloned().enumerate().peekable();
    let mut additions = Vec::with_capacity(subtrees.len().saturating_sub(1));
    descend(whole, &mut rest, &mut additions)?;
    rest.next().is_none().then_some(additions)
}

/// A part of a subtree that a worker sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What is held already, by its index in the list of what is held.
    Held(usize),
    /// What is still to be summed.
    New(Partial),
}

/// The pieces of a complete subtree, in grain order, where `held` are complete subtrees that were summed before and
/// `lane_of` says which lane does a grain that is not among them. A piece is as large as one lane, or what is held, allows.
pub fn pieces(
    subtree: Range<usize>,
    held: &[Range<usize>],
    lane_of: &dyn Fn(usize) -> usize,
) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut waiting = vec![subtree];
    while let Some(node) = waiting.pop() {
        let lane = lane_of(node.start);
        if let Some(idx) = held.iter().position(|held| *held == node) {
            found.push(Piece::Held(idx));
        } else if node.len() <= 1 || is_new_to_one_lane(&node, held, lane_of) {
            found.push(Piece::New(Partial { grains: node, lane }));
        } else {
            let middle = split_point(&node);
            waiting.extend([middle..node.end, node.start..middle]);
        }
    }
    found
}

fn is_new_to_one_lane(
    node: &Range<usize>,
    held: &[Range<usize>],
    lane_of: &dyn Fn(usize) -> usize,
) -> bool {
    let overlaps = |held: &Range<usize>| held.start < node.end && node.start < held.end;
    !held.iter().any(overlaps) && lane_of(node.start) == lane_of(node.end - 1)
}

/// How the names of sums over grains begin; users' names may not.
pub(crate) const SUM: &str = "grain_sum#";

/// Whether a name is that of a sum over grains, or of one partial sum of it.
pub fn is_sum(name: &str) -> bool {
    name.starts_with(SUM)
}

/// The name of a sum over grains.
pub fn sum_name(idx: usize) -> String {
    format!("{SUM}{idx}")
}

/// The name of one partial sum of a sum over grains.
pub fn partial_sum_name(sum: &str, partial: usize) -> String {
    format!("{sum}.{partial}")
}

#[cfg(test)]
mod tests {
    // A list with one range in it is meant as such.
    #![allow(clippy::single_range_in_vec_init)]

    use proptest::prelude::*;

    use super::*;
    use crate::grains::maximal_subtrees_of;

    /// The tree as text, with partial sums opened.
    fn show(range: Range<usize>) -> String {
        if range.len() == 1 {
            return range.start.to_string();
        }
        let middle = split_point(&range);
        format!("({} {})", show(range.start..middle), show(middle..range.end))
    }

    fn show_join(join: &Join, partials: &[Partial]) -> String {
        match join {
            Join::Partial(idx) => show(partials[*idx].grains.clone()),
            Join::Add(l, r) => format!("({} {})", show_join(l, partials), show_join(r, partials)),
        }
    }

    #[test]
    fn any_sharing_joins_to_the_one_tree() {
        for n_grains in 1..70 {
            for n_lanes in 1..12 {
                let shared = partials(n_grains, n_lanes);
                assert_eq!(show_join(&shared.join, &shared.partials), show(0..n_grains));
                let lanes: Vec<usize> = shared.partials.iter().map(|p| p.lane).collect();
                assert!(lanes.is_sorted() && lanes.iter().all(|&lane| lane < n_lanes));
            }
        }
    }

    /// What the first subtree holds after the additions, as text; all others must have been used up.
    fn show_joined(whole: Range<usize>, subtrees: &[Range<usize>]) -> String {
        let mut sums: Vec<Option<String>> = subtrees.iter().cloned().map(show).map(Some).collect();
        for Addition { into, from } in join_order(whole, subtrees).unwrap() {
            let (left, right) = (sums[into].take().unwrap(), sums[from].take().unwrap());
            sums[into] = Some(format!("({left} {right})"));
        }
        assert!(sums[1..].iter().all(Option::is_none));
        sums[0].take().unwrap()
    }

    proptest! {
        #[test]
        fn partial_sums_of_any_workers_join_to_the_one_tree(
            workers in proptest::collection::vec(0..5usize, 1..70),
        ) {
            let n_grains = workers.len();
            let mut subtrees: Vec<Range<usize>> = (0..5)
                .flat_map(|worker| {
                    let own = (0..n_grains).filter(|&grain| workers[grain] == worker);
                    let own: Vec<Range<usize>> = own.map(|grain| grain..grain + 1).collect();
                    maximal_subtrees_of(&own, n_grains)
                })
                .collect();
            subtrees.sort_by_key(|subtree| subtree.start);
            prop_assert_eq!(show_joined(0..n_grains, &subtrees), show(0..n_grains));
            // With one subtree too few, too many, or out of place there is nothing to join.
            let mut broken = subtrees.clone();
            let removed = broken.remove(n_grains % broken.len());
            prop_assert_eq!(join_order(0..n_grains, &broken), None);
            broken.extend([removed.clone(), removed]);
            prop_assert_eq!(join_order(0..n_grains, &broken), None);
        }

        #[test]
        fn pieces_join_to_their_subtree(
            n_grains in 1..40usize,
            n_lanes in 1..5usize,
            was_held in proptest::collection::vec(proptest::bool::ANY, 40),
        ) {
            let held = (0..n_grains).filter(|&grain| was_held[grain]);
            let held: Vec<Range<usize>> = held.map(|grain| grain..grain + 1).collect();
            let held = maximal_subtrees_of(&held, n_grains);
            let lane_of = |grain: usize| grain * n_lanes / n_grains;
            let found = pieces(0..n_grains, &held, &lane_of);
            let subtrees: Vec<Range<usize>> = found
                .iter()
                .map(|piece| match piece {
                    Piece::Held(idx) => held[*idx].clone(),
                    Piece::New(partial) => {
                        assert!(partial.grains.clone().all(|grain| lane_of(grain) == partial.lane));
                        assert!(partial.grains.clone().all(|grain| !was_held[grain]));
                        partial.grains.clone()
                    }
                })
                .collect();
            prop_assert_eq!(show_joined(0..n_grains, &subtrees), show(0..n_grains));
            let n_held = found.iter().filter(|piece| matches!(piece, Piece::Held(_))).count();
            prop_assert_eq!(n_held, held.len());
        }
    }

    #[test]
    fn what_is_not_the_whole_tree_is_not_joined() {
        assert_eq!(join_order(0..1, &[0..1]), Some(vec![]));
        assert_eq!(join_order(4..6, &[4..5, 5..6]), Some(vec![Addition { into: 0, from: 1 }]));
        for wrong in [&[][..], &[0..1], &[1..2, 0..1], &[0..2, 1..4], &[0..1, 1..3, 3..4], &[0..0]]
        {
            assert_eq!(join_order(0..4, wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn aligned_lanes_have_one_partial_sum_each() {
        assert_eq!(partials(8, 4).partials.len(), 4);
        assert_eq!(partials(4, 1).partials.len(), 2);
        assert_eq!(partials(1, 1).partials.len(), 1);
    }
}
