//! Common subexpressions: the same operation on the same operands is done once. Random operations with the same key and
//! context are the same by definition.

use std::collections::HashMap;

use super::rewrite::{Rewriter, Rewritten, in_bodies};
use crate::op::Op;
use crate::program::{Program, ValueId};
use crate::tensor::Tensor;

/// What makes two operations the same, together with their operands.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    /// Constants are compared by their bytes: writing large ones as text would be slow.
    Constant(Tensor),
    /// The text form.
    Text(String),
}

/// Computes equal expressions once.
pub fn subexpressions(program: &Program) -> Rewritten {
    let mut known: HashMap<(Key, Vec<ValueId>), Vec<ValueId>> = HashMap::new();
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        let op = in_bodies(&node.op, &mut subexpressions)?;
        let operands = rewriter.operands(node)?;
        let key = match &op {
            Op::Constant(tensor) => Some(Key::Constant(tensor.clone())),
            // An operation that has no text (a number that is not finite) is simply not shared.
            other => serde_json::to_string(other).ok().map(Key::Text),
        };
        let Some(key) = key.map(|key| (key, operands.clone())) else {
            rewriter.replace(node, op, &operands)?;
            continue;
        };
        if let Some(results) = known.get(&key) {
            node.results.iter().zip(results).for_each(|(&old, &new)| rewriter.set(old, new));
        } else {
            let results = rewriter.emit(op, &operands, &node.scope)?;
            node.results.iter().zip(&results).for_each(|(&old, &new)| rewriter.set(old, new));
            known.insert(key, results);
        }
    }
    rewriter.finish()
}
