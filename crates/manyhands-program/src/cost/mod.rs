//! What a program costs: floating-point operations, bytes moved, memory alive at once. Estimates for planners and passes,
//! computed from shapes alone.

mod liveness;
mod operations;

pub use liveness::{LiveMemory, live_memory};
pub(crate) use liveness::{Timeline, is_view};

use std::ops::{Add, AddAssign, Mul};

use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::program::{Node, Program, ValueId};

/// The cost of one run of an operation or of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Floating-point operations: a multiply-add counts two, a transcendental function [`TRANSCENDENTAL`].
    pub operations: u64,
    /// Bytes read from operands.
    pub read: u64,
    /// Bytes written to results.
    pub written: u64,
}

/// What an exponential, logarithm, tanh, ... counts: about that many multiplications and additions are in one.
pub const TRANSCENDENTAL: u64 = 8;

impl Cost {
    /// The cost of one operation of a program. Bodies count as often as they run; of a cond the dearer body counts.
    pub fn of_node(program: &Program, node: &Node) -> Cost {
        let own = Cost { operations: operations::operations(program, node), ..Cost::default() };
        match &node.op {
            Op::Scan(scan) => Cost::of(&scan.body) * scan.length as u64,
            Op::Cond(cond) => {
                let (then, otherwise) = (Cost::of(&cond.then), Cost::of(&cond.otherwise));
                if then.weight() >= otherwise.weight() { then } else { otherwise }
            }
            // Nothing happens: the value is already there, or is the same memory seen otherwise.
            op if op.is_argument() || is_view(op) || matches!(op, Op::Constant(_)) => own,
            _ => {
                let (read, written) = moved(program, node);
                Cost { read, written, ..own }
            }
        }
    }

    /// The cost of all operations of a program.
    pub fn of(program: &Program) -> Cost {
        program.nodes().iter().fold(Cost::default(), |sum, node| sum + Cost::of_node(program, node))
    }

    /// One number to compare by: on most machines a byte costs about as much as a few operations.
    pub(crate) fn weight(&self) -> u64 {
        self.operations.saturating_add(self.read).saturating_add(self.written)
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            operations: self.operations.saturating_add(other.operations),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Mul<u64> for Cost {
    type Output = Cost;

    fn mul(self, times: u64) -> Cost {
        Cost {
            operations: self.operations.saturating_mul(times),
            read: self.read.saturating_mul(times),
            written: self.written.saturating_mul(times),
        }
    }
}

/// Bytes read and written. Every operand is read once, but where only a part is looked at.
fn moved(program: &Program, node: &Node) -> (u64, u64) {
    let bytes = |values: &[ValueId]| -> u64 {
        values.iter().fold(0, |sum, &value| sum + program.ty(value).n_bytes() as u64)
    };
    let written = bytes(&node.results);
    match node.op {
        Op::Slice { .. } => (written, written),
        Op::Gather { .. } => (written + bytes(&node.operands[1..]), written),
        Op::TakeRows => (written + bytes(&node.operands[1..]), written),
        // The table stays where it is.
        Op::PutRows => (bytes(&node.operands[1..]), bytes(&node.operands[2..])),
        // The total so far is read and written again.
        Op::GrainSum | Op::AllReduce => (2 * written, written),
        _ => (bytes(&node.operands), written),
    }
}

#[cfg(test)]
mod tests;
