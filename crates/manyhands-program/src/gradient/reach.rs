//! Which values depend on which, along paths that gradients can take: from floats to floats.

use crate::program::{Program, ValueId};

fn marked(program: &Program, seeds: &[ValueId]) -> Vec<bool> {
    let mut marks = vec![false; program.n_values()];
    seeds.iter().for_each(|seed| marks[seed.idx()] = true);
    marks
}

/// Whether each value is one of the seeds or depends on one.
pub(super) fn forward(program: &Program, seeds: &[ValueId]) -> Vec<bool> {
    let mut depends = marked(program, seeds);
    let float = |value: &ValueId| program.ty(*value).dtype.is_float();
    for node in program.nodes() {
        if node.operands.iter().any(|operand| float(operand) && depends[operand.idx()]) {
            node.results.iter().filter(|r| float(r)).for_each(|r| depends[r.idx()] = true);
        }
    }
    depends
}

/// Whether each value is one of the seeds or one of them depends on it.
pub(super) fn backward(program: &Program, seeds: &[ValueId]) -> Vec<bool> {
    let mut feeds = marked(program, seeds);
    let float = |value: &ValueId| program.ty(*value).dtype.is_float();
    for node in program.nodes().iter().rev() {
        if node.results.iter().any(|result| float(result) && feeds[result.idx()]) {
            node.operands.iter().filter(|o| float(o)).for_each(|o| feeds[o.idx()] = true);
        }
    }
    feeds
}

/// Whether each value is computed from one of the seeds, whatever the types on the way.
pub(super) fn computed_from(program: &Program, seeds: &[ValueId]) -> Vec<bool> {
    let mut computed = marked(program, seeds);
    for node in program.nodes() {
        if node.operands.iter().any(|operand| computed[operand.idx()]) {
            node.results.iter().for_each(|result| computed[result.idx()] = true);
        }
    }
    computed
}

/// Whether each value is needed for the roots, when the values in `known` need not be computed.
pub(super) fn needed(
    program: &Program,
    roots: &[ValueId],
    known: &dyn Fn(ValueId) -> bool,
) -> Vec<bool> {
    let mut needed = marked(program, roots);
    for node in program.nodes().iter().rev() {
        if node.results.iter().any(|&result| needed[result.idx()] && !known(result)) {
            node.operands.iter().for_each(|operand| needed[operand.idx()] = true);
        }
    }
    needed
}
