//! Recomputation: a cheap value that is needed again much later is computed again there instead of being kept.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::rewrite::{Rewriter, Rewritten};
use crate::cost::Timeline;
use crate::op::{Op, Unary};
use crate::program::{Program, ValueId};

/// What may be computed again to save memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: every value is kept until its last use.
    #[default]
    None,
    /// What costs about as much as reading it back: elementwise operations, broadcasts, casts, softmax.
    Cheap,
}

/// How many values are moved at most, which bounds the time that the search takes.
const MAX_MOVES: usize = 128;
/// How many candidates are tried for each.
const MAX_TRIALS: usize = 8;

/// Computes cheap values again near late uses while that lowers the estimated peak of live memory, until it is no more
/// than `limit` bytes. To be run last: sharing common subexpressions undoes it.
pub fn recompute(program: &Program, policy: Recompute, limit: usize) -> Rewritten {
    if policy == Recompute::None {
        return Ok(program.clone());
    }
    let mut search = Search::of(program);
    for _ in 0..MAX_MOVES {
        if search.peak().1 <= limit || !search.improve() {
            break;
        }
    }
    search.rewrite()
}

struct Search<'a> {
    program: &'a Program,
    timeline: Timeline,
    /// By buffer beyond the program's values: the value of which it is a copy.
    copied: Vec<usize>,
}

impl<'a> Search<'a> {
    fn of(program: &'a Program) -> Search<'a> {
        Search { program, timeline: Timeline::of(program), copied: Vec::new() }
    }

    /// Where most memory is alive, how much, and the sum over all steps to tell ties apart.
    fn peak(&self) -> (usize, usize, usize) {
        let alive = self.timeline.alive();
        let at = (0..alive.len()).rev().max_by_key(|&at| alive[at]).unwrap_or(0);
        (at, alive.get(at).copied().unwrap_or(0), alive.iter().sum())
    }

    /// Moves the value whose absence helps most; false if none does.
    fn improve(&mut self) -> bool {
        let (at, peak, total) = self.peak();
        for step in self.candidates(at).into_iter().take(MAX_TRIALS) {
            let before = (self.timeline.clone(), self.copied.len());
            self.move_late_uses(step, at);
            let (_, new_peak, new_total) = self.peak();
            if (new_peak, new_total) < (peak, total) {
                return true;
            }
            self.timeline = before.0;
            self.copied.truncate(before.1);
        }
        false
    }

    /// The steps whose results lie unused over the peak, those that free most first.
    fn candidates(&self, at: usize) -> Vec<usize> {
        let last = self.timeline.last_uses();
        let steps = &self.timeline.steps;
        let mut found: Vec<(usize, usize)> = Vec::new();
        for (idx, step) in steps[..at].iter().enumerate() {
            let [made] = step.makes[..] else { continue };
            let idle =
                last[made] > at && last[made] < steps.len() && !steps[at].reads.contains(&made);
            if !idle || !is_cheap(self.program, step.node) {
                continue;
            }
            // Operands that would otherwise be gone at the peak have to stay for the copy.
            let prolonged = step.reads.iter().filter(|&&read| last[read] <= at);
            let prolonged: usize = prolonged.map(|&read| self.timeline.bytes[read]).sum();
            let gain = self.timeline.bytes[made].saturating_sub(prolonged);
            if gain > 0 {
                found.push((gain, idx));
            }
        }
        found.sort_by_key(|&(gain, idx)| (std::cmp::Reverse(gain), idx));
        found.into_iter().map(|(_, idx)| idx).collect()
    }

    /// Puts a copy of a step before the first use of its result after the peak.
    fn move_late_uses(&mut self, step: usize, at: usize) {
        let timeline = &mut self.timeline;
        let made = timeline.steps[step].makes[0];
        let copy = timeline.bytes.len();
        timeline.bytes.push(timeline.bytes[made]);
        timeline.stays.push(false);
        let n_values = self.program.n_values();
        self.copied.push(if made < n_values { made } else { self.copied[made - n_values] });
        let mut first = None;
        for (idx, later) in timeline.steps.iter_mut().enumerate().skip(at + 1) {
            for read in later.reads.iter_mut().filter(|read| **read == made) {
                *read = copy;
                first.get_or_insert(idx);
            }
        }
        let mut again = timeline.steps[step].clone();
        again.makes = vec![copy];
        timeline.steps.insert(first.unwrap_or(at + 1), again);
        timeline.place_updates();
    }

    /// The program that runs the steps.
    fn rewrite(&self) -> Rewritten {
        let mut rewriter = Rewriter::new(self.program);
        let n_values = self.program.n_values();
        let mut copies: HashMap<usize, ValueId> = HashMap::new();
        for step in &self.timeline.steps {
            let node = &self.program.nodes()[step.node];
            // Which copy of an operand the step reads.
            let read = |value: ValueId| {
                let of = |buffer: usize| self.copied[buffer - n_values] == self.buffer(value);
                step.reads.iter().find(|&&buffer| buffer >= n_values && of(buffer)).copied()
            };
            let mut operands = Vec::with_capacity(node.operands.len());
            for &value in &node.operands {
                operands.push(match read(value).and_then(|buffer| copies.get(&buffer)) {
                    Some(&copy) => self.viewed(&mut rewriter, value, copy, &node.scope)?,
                    None => rewriter.get(value)?,
                });
            }
            let results = rewriter.emit(node.op.clone(), &operands, &node.scope)?;
            match step.makes[..] {
                [buffer] if buffer >= n_values => {
                    copies.insert(buffer, results[0]);
                }
                _ => {
                    node.results.iter().zip(results).for_each(|(&old, new)| rewriter.set(old, new))
                }
            }
        }
        rewriter.finish()
    }

    /// The value whose buffer a value has.
    fn buffer(&self, value: ValueId) -> usize {
        let node = self.program.definer(value);
        if crate::cost::is_view(&node.op) { self.buffer(node.operands[0]) } else { value.idx() }
    }

    /// A copy under the type in which an operand sees it.
    fn viewed(
        &self,
        rewriter: &mut Rewriter<'_>,
        value: ValueId,
        copy: ValueId,
        scope: &str,
    ) -> Result<ValueId, crate::error::ProgramError> {
        let ty = self.program.ty(value);
        if rewriter.program().ty(copy) == ty {
            return Ok(copy);
        }
        rewriter.emit_one(Op::Reshape { shape: ty.shape.clone() }, &[copy], scope)
    }
}

/// Whether computing a value again costs about as much as reading it back.
fn is_cheap(program: &Program, node: usize) -> bool {
    let node = &program.nodes()[node];
    match &node.op {
        Op::Unary(unary) => *unary != Unary::Erf,
        Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Iota { .. }
        | Op::Transpose { .. }
        | Op::Softmax
        | Op::Fused(_) => true,
        _ => false,
    }
}
