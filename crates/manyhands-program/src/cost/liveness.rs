//! Memory alive at once when the operations of a program run in order.

use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::program::{Program, ValueId};

/// The memory that a run needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveMemory {
    /// Bytes of inputs, parameters and constants, which are there all the time.
    pub arguments: usize,
    /// The most bytes of other values that are alive at once.
    pub peak: usize,
    /// The operation, by index, at which they are.
    pub peak_at: usize,
}

/// The memory that running a program's operations in order needs. A value lives from the operation that makes it to the
/// last that uses it; outputs live to the end. Elementwise operations may overwrite an operand that they are the last to
/// use, and an update the parameter that it replaces.
pub fn live_memory(program: &Program) -> LiveMemory {
    let timeline = Timeline::of(program);
    let alive = timeline.alive();
    let peak_at = (0..alive.len()).rev().max_by_key(|&at| alive[at]).unwrap_or(0);
    let fixed = |op: &Op| op.is_argument() || matches!(op, Op::Constant(_));
    let arguments = program.nodes().iter().filter(|node| fixed(&node.op));
    LiveMemory {
        arguments: arguments.map(|node| program.ty(node.results[0]).n_bytes()).sum(),
        peak: alive.get(peak_at).copied().unwrap_or(0),
        peak_at,
    }
}

/// Whether the operation gives the memory of its operand under another type.
pub(crate) fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. })
}

/// What runs when, reduced to which buffers are made and read: cheap to change and to measure again.
#[derive(Clone)]
pub(crate) struct Timeline {
    pub(crate) steps: Vec<Step>,
    /// By buffer: its bytes; 0 for what is there all the time.
    pub(crate) bytes: Vec<usize>,
    /// By buffer: whether it stays to the end.
    pub(crate) stays: Vec<bool>,
    updates: Vec<Update>,
}

/// A buffer that becomes a parameter.
#[derive(Clone)]
struct Update {
    parameter: usize,
    made: usize,
    /// Its bytes where it cannot take the parameter's place, and whether it stays even if it does.
    bytes: usize,
    stays: bool,
}

/// One operation.
#[derive(Clone)]
pub(crate) struct Step {
    /// Which operation of the program it is.
    pub(crate) node: usize,
    /// The buffers that it reads.
    pub(crate) reads: Vec<usize>,
    /// The buffers that it makes.
    pub(crate) makes: Vec<usize>,
    /// Whether results may take the place of operands.
    overwrites: bool,
    /// Bytes that it needs for itself while it runs.
    inside: usize,
}

impl Timeline {
    /// The buffers of a program, numbered as the values; a view has the buffer of what it views.
    pub(crate) fn of(program: &Program) -> Timeline {
        let mut buffer: Vec<usize> = (0..program.n_values()).collect();
        let mut bytes: Vec<usize> =
            (0..program.n_values()).map(|idx| program.ty(ValueId::at(idx)).n_bytes()).collect();
        let mut steps = Vec::with_capacity(program.nodes().len());
        for (node_idx, node) in program.nodes().iter().enumerate() {
            if is_view(&node.op) {
                buffer[node.results[0].idx()] = buffer[node.operands[0].idx()];
            }
            if node.op.is_argument() || matches!(node.op, Op::Constant(_)) {
                bytes[node.results[0].idx()] = 0;
            }
            let mut reads: Vec<usize> = node.operands.iter().map(|v| buffer[v.idx()]).collect();
            reads.sort_unstable();
            reads.dedup();
            let makes = match is_view(&node.op) {
                true => Vec::new(),
                false => node.results.iter().map(|result| result.idx()).collect(),
            };
            let overwrites = node.op.is_elementwise() || matches!(node.op, Op::Fused(_));
            let inside = match &node.op {
                Op::Scan(scan) => live_memory(&scan.body).peak,
                Op::Cond(cond) => {
                    live_memory(&cond.then).peak.max(live_memory(&cond.otherwise).peak)
                }
                _ => 0,
            };
            steps.push(Step { node: node_idx, reads, makes, overwrites, inside });
        }
        let mut stays = vec![false; program.n_values()];
        program.outputs().iter().for_each(|output| stays[buffer[output.value.idx()]] = true);
        let place = |update: &crate::program::Update| {
            let (parameter, made) = (buffer[update.parameter.idx()], buffer[update.value.idx()]);
            Update { parameter, made, bytes: bytes[made], stays: stays[made] }
        };
        let updates = program.updates().iter().map(place).collect();
        let mut timeline = Timeline { steps, bytes, stays, updates };
        timeline.place_updates();
        timeline
    }

    /// Finds out which updates take the place of their parameters: those after which nothing reads the old value. To be called when steps have changed.
    pub(crate) fn place_updates(&mut self) {
        let (mut made, mut read) = (vec![0; self.bytes.len()], vec![0; self.bytes.len()]);
        for (at, step) in self.steps.iter().enumerate() {
            step.makes.iter().for_each(|&buffer| made[buffer] = at);
            step.reads.iter().for_each(|&buffer| read[buffer] = at);
        }
        for update in &self.updates {
            let is_in_place = read[update.parameter] <= made[update.made];
            self.bytes[update.made] = if is_in_place { 0 } else { update.bytes };
            self.stays[update.made] = update.stays || !is_in_place;
        }
    }

    /// By buffer: the last step that makes or reads it; past the end for what stays.
    pub(crate) fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.bytes.len()];
        for (at, step) in self.steps.iter().enumerate() {
            step.makes.iter().chain(&step.reads).for_each(|&buffer| last[buffer] = at);
        }
        for (buffer, _) in self.stays.iter().enumerate().filter(|(_, stays)| **stays) {
            last[buffer] = self.steps.len();
        }
        last
    }

    /// The bytes alive during each step.
    pub(crate) fn alive(&self) -> Vec<usize> {
        let last = self.last_uses();
        let mut now = 0;
        let mut alive = Vec::with_capacity(self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            let ends = |buffer: &&usize| last[**buffer] == at;
            let sum = |buffers: &[usize], keep: &dyn Fn(&&usize) -> bool| -> usize {
                buffers.iter().filter(keep).map(|&buffer| self.bytes[buffer]).sum()
            };
            let (made, freed) = (sum(&step.makes, &|_| true), sum(&step.reads, &ends));
            let during = match step.overwrites {
                true => now.max(now + made - freed.min(made)),
                false => now + made + step.inside,
            };
            alive.push(during);
            now = now + made - freed - sum(&step.makes, &ends);
        }
        alive
    }
}
