//! Which forward values a scan keeps for its gradient, and which the gradient computes anew.
//!
//! A value is kept where computing it anew would need keeping at least as many bytes. So results of products are kept,
//! sums of kept ones with something small are not, and of `tanh(a + b)` only the result is kept.

use std::collections::HashSet;

use crate::op::Op;
use crate::program::{Program, ValueId};

/// The values to keep, in program order, so that the needed ones can be had. `free` values need not be kept.
pub(super) fn kept_values(
    program: &Program,
    needed: &[ValueId],
    free: &HashSet<ValueId>,
) -> Vec<ValueId> {
    let mut kept: HashSet<ValueId> = HashSet::new();
    let mut needed = needed.to_vec();
    needed.sort_unstable();
    for value in needed {
        let mut missing = Vec::new();
        find_missing(
            program,
            value,
            &|value| free.contains(&value) || kept.contains(&value),
            &mut missing,
        );
        let bytes = |value: &ValueId| program.ty(*value).n_bytes();
        if !missing.is_empty() && missing.iter().map(bytes).sum::<usize>() >= bytes(&value) {
            kept.insert(value);
        } else {
            kept.extend(missing);
        }
    }
    let mut kept: Vec<ValueId> = kept.into_iter().collect();
    kept.sort_unstable();
    kept
}

/// Collects what would have to be kept so that `value` can be computed anew from cheap operations.
fn find_missing(
    program: &Program,
    value: ValueId,
    there: &dyn Fn(ValueId) -> bool,
    missing: &mut Vec<ValueId>,
) {
    let mut seen = HashSet::new();
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        if there(value) || !seen.insert(value) {
            continue;
        }
        let node = program.definer(value);
        if is_cheap(&node.op) {
            open.extend(&node.operands);
        } else {
            missing.push(value);
        }
    }
}

/// Whether an operation is cheap beside writing its result to memory and reading it back.
fn is_cheap(op: &Op) -> bool {
    op.is_elementwise()
        || matches!(
            op,
            Op::Constant(_)
                | Op::Iota { .. }
                | Op::Random { .. }
                | Op::Dropout { .. }
                | Op::Broadcast { .. }
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Pad { .. }
                | Op::Concatenate { .. }
        )
}
