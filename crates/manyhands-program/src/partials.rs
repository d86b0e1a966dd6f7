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
    use super::*;

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

    #[test]
    fn aligned_lanes_have_one_partial_sum_each() {
        assert_eq!(partials(8, 4).partials.len(), 4);
        assert_eq!(partials(4, 1).partials.len(), 2);
        assert_eq!(partials(1, 1).partials.len(), 1);
    }
}
