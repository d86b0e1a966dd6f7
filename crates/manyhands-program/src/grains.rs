//! A training program in two halves: what runs per grain, and what runs once a step on the sums over grains.
//!
//! [`Op::GrainSum`] is where it is cut. Around the cut lie the schedule that adds grains up along the fixed tree while they
//! stream in, and the small programs that do the adding.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::builder::RANDOM_CONTEXT;
use crate::error::ProgramError;
use crate::op::{Binary, Init, Op, Role};
use crate::partials::{is_sum, split_point, sum_name};
use crate::passes::rewrite::Rewriter;
use crate::program::{Program, ValueId};
use crate::shape::TensorType;

/// A training program, cut at its sums over grains.
#[derive(Clone, Debug, PartialEq)]
pub struct GrainSplit {
    /// Runs per grain. Its outputs `grain_sum#0`, `grain_sum#1`, ... are summed over grains; the others are as they were.
    pub grain: Program,
    /// Runs once a step: takes the totals as inputs of the same names, and holds the updates.
    pub step: Program,
    /// How many sums there are.
    pub n_sums: usize,
}

/// On which side of the sums over grains a value lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The same for all grains of a step, so either half may compute it.
    Both,
    /// Differs from grain to grain.
    Grain,
    /// Known once the sums are.
    Step,
}

/// Cuts a program at its sums over grains. Parameters, constants and scalar inputs (a rate, say) are the same for all
/// grains of a step; other inputs, and the random context, differ from grain to grain.
pub fn split_grains(program: &Program) -> Result<GrainSplit, ProgramError> {
    let inputs = program.inputs().map(|(name, _)| name);
    let parameters = program.parameters().map(|(name, ..)| name);
    let outputs = program.outputs().iter().map(|output| output.name.as_str());
    if let Some(name) = inputs.chain(parameters).chain(outputs).find(|name| is_sum(name)) {
        return Err(ProgramError::ReservedName { name: name.to_string() });
    }
    let sides = sides(program)?;
    let side = |value: ValueId| sides[value.idx()];
    let sums: Vec<ValueId> = program
        .nodes()
        .iter()
        .filter(|node| node.op == Op::GrainSum)
        .map(|node| node.results[0])
        .collect();
    if let Some(update) = program.updates().iter().find(|update| side(update.value) == Side::Grain)
    {
        return Err(ProgramError::GrainValueInStep { name: program.describe(update.value) });
    }
    Ok(GrainSplit {
        grain: grain_half(program, &sums, &side)?,
        step: step_half(program, &sums, &side)?,
        n_sums: sums.len(),
    })
}

/// The side of each value.
fn sides(program: &Program) -> Result<Vec<Side>, ProgramError> {
    let feeds_sum = feeding_sums(program);
    let mut sides = vec![Side::Both; program.n_values()];
    for (idx, node) in program.nodes().iter().enumerate() {
        let on = |side: Side| node.operands.iter().find(|operand| sides[operand.idx()] == side);
        let is_sum = node.op == Op::GrainSum;
        let side = match (&node.op, on(Side::Grain), on(Side::Step)) {
            (Op::Input { name, shape, .. }, ..) => {
                if shape.rank() > 0 || name == RANDOM_CONTEXT {
                    Side::Grain
                } else {
                    Side::Both
                }
            }
            (_, grain, Some(&step)) if is_sum || (grain.is_some() && feeds_sum[idx]) => {
                let used_by = format!("`{}`", node.op.name());
                return Err(ProgramError::StepValueInGrain {
                    name: program.describe(step),
                    used_by,
                });
            }
            (_, Some(&grain), Some(_)) => {
                return Err(ProgramError::GrainValueInStep { name: program.describe(grain) });
            }
            (_, _, Some(_)) => Side::Step,
            _ if is_sum => Side::Step,
            (_, Some(_), None) => Side::Grain,
            (_, None, None) => Side::Both,
        };
        node.results.iter().for_each(|result| sides[result.idx()] = side);
    }
    Ok(sides)
}

/// By node: whether a sum over grains depends on it.
fn feeding_sums(program: &Program) -> Vec<bool> {
    let mut feeds = vec![false; program.nodes().len()];
    for (idx, node) in program.nodes().iter().enumerate().rev() {
        if feeds[idx] || node.op == Op::GrainSum {
            for &operand in &node.operands {
                feeds[program.definer_idx(operand)] = true;
            }
        }
    }
    feeds
}

/// By node: whether one of the roots depends on it, not looking behind sums over grains.
fn needed(program: &Program, roots: impl Iterator<Item = ValueId>) -> Vec<bool> {
    let mut needed = vec![false; program.nodes().len()];
    roots.for_each(|root| needed[program.definer_idx(root)] = true);
    for (idx, node) in program.nodes().iter().enumerate().rev() {
        if needed[idx] && node.op != Op::GrainSum {
            for &operand in &node.operands {
                needed[program.definer_idx(operand)] = true;
            }
        }
    }
    needed
}

fn grain_half(
    program: &Program,
    sums: &[ValueId],
    side: &dyn Fn(ValueId) -> Side,
) -> Result<Program, ProgramError> {
    let summed: Vec<ValueId> = sums.iter().map(|&sum| program.definer(sum).operands[0]).collect();
    let own = program.outputs().iter().filter(|output| side(output.value) == Side::Grain);
    let roots = summed.iter().copied().chain(own.clone().map(|output| output.value));
    let needed = needed(program, roots);
    let mut rewriter = Rewriter::new(program);
    for (_, node) in program.nodes().iter().enumerate().filter(|(idx, _)| needed[*idx]) {
        rewriter.keep(node)?;
    }
    let mut outputs = Vec::new();
    for (idx, &value) in summed.iter().enumerate() {
        outputs.push((sum_name(idx), rewriter.get(value)?));
    }
    for output in own {
        outputs.push((output.name.clone(), rewriter.get(output.value)?));
    }
    let mut grain = rewriter.into_program();
    for (name, value) in outputs {
        grain.add_output(name, value)?;
    }
    Ok(grain)
}

fn step_half(
    program: &Program,
    sums: &[ValueId],
    side: &dyn Fn(ValueId) -> Side,
) -> Result<Program, ProgramError> {
    let outputs = program.outputs().iter().filter(|output| side(output.value) != Side::Grain);
    let updates = program.updates();
    let updated = updates.iter().flat_map(|update| [update.parameter, update.value]);
    // All sums are inputs, used or not: whoever runs the halves hands them all over.
    let roots =
        outputs.clone().map(|output| output.value).chain(updated).chain(sums.iter().copied());
    let needed = needed(program, roots);
    let mut rewriter = Rewriter::new(program);
    for (_, node) in program.nodes().iter().enumerate().filter(|(idx, _)| needed[*idx]) {
        if let Some(idx) = sums.iter().position(|&sum| sum == node.results[0]) {
            let TensorType { dtype, shape } = program.ty(node.results[0]).clone();
            rewriter.replace(node, Op::Input { name: sum_name(idx), dtype, shape }, &[])?;
        } else {
            rewriter.keep(node)?;
        }
    }
    let mut named = Vec::new();
    for output in outputs {
        named.push((output.name.clone(), rewriter.get(output.value)?));
    }
    let mut replaced = Vec::new();
    for update in updates {
        replaced.push((rewriter.get(update.parameter)?, rewriter.get(update.value)?));
    }
    let mut step = rewriter.into_program();
    for (name, value) in named {
        step.add_output(name, value)?;
    }
    for (parameter, value) in replaced {
        step.add_update(parameter, value)?;
    }
    Ok(step)
}

/// The parameter that holds a sum over grains while it grows.
fn sum_parameter(name: &str, ty: &TensorType) -> Op {
    Op::Parameter {
        name: name.to_string(),
        dtype: ty.dtype,
        shape: ty.shape.clone(),
        role: Role::Slot,
        init: Init::Constant(0.0),
    }
}

/// The per-grain half that adds to sums instead of giving them: each sum becomes a parameter that is updated with
/// parameter + value.
pub fn accumulating(grain: &Program) -> Result<Program, ProgramError> {
    let mut rewriter = Rewriter::new(grain);
    let mut updates = Vec::new();
    for node in grain.nodes() {
        rewriter.keep(node)?;
        // Added at once, so that a gradient does not outlive the operation that makes it.
        for output in grain.outputs().iter().filter(|output| is_sum(&output.name)) {
            if node.results.contains(&output.value) {
                let ty = grain.ty(output.value);
                let sum = rewriter.emit_one(sum_parameter(&output.name, ty), &[], &node.scope)?;
                let value = rewriter.get(output.value)?;
                // What a grain puts beside those of others changes nothing of them, so it is put into the sum itself.
                let next = match (&node.op, &node.operands[..]) {
                    (Op::PutGrain { .. }, &[context, value]) => {
                        let operands = [rewriter.get(context)?, rewriter.get(value)?, sum];
                        rewriter.emit_one(node.op.clone(), &operands, &node.scope)?
                    }
                    _ => rewriter.emit_one(Op::Binary(Binary::Add), &[sum, value], &node.scope)?,
                };
                updates.push((sum, next));
            }
        }
    }
    let mut outputs = Vec::new();
    for output in grain.outputs().iter().filter(|output| !is_sum(&output.name)) {
        outputs.push((output.name.clone(), rewriter.get(output.value)?));
    }
    let mut accumulating = rewriter.into_program();
    for (name, value) in outputs {
        accumulating.add_output(name, value)?;
    }
    for (parameter, value) in updates {
        accumulating.add_update(parameter, value)?;
    }
    Ok(accumulating)
}

/// The program that joins two sets of sums: each sum is a parameter, updated with sum + the input `right/` sum.
pub fn merging(grain: &Program) -> Result<Program, ProgramError> {
    let mut merging = Program::new(format!("{}_merging", grain.name()));
    for output in grain.outputs().iter().filter(|output| is_sum(&output.name)) {
        let ty = grain.ty(output.value);
        let left = merging.push(sum_parameter(&output.name, ty), &[], "")?[0];
        let TensorType { dtype, shape } = ty.clone();
        let name = format!("right/{}", output.name);
        let right = merging.push(Op::Input { name, dtype, shape }, &[], "")?[0];
        let sum = merging.push(Op::Binary(Binary::Add), &[left, right], "")?[0];
        merging.add_update(left, sum)?;
    }
    Ok(merging)
}

/// One thing to do while grains are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrainAction {
    /// Runs a grain and writes its sums to a slot.
    Write {
        /// The grain.
        grain: usize,
        /// The slot.
        slot: usize,
    },
    /// Runs a grain and adds its sums to those in a slot.
    Accumulate {
        /// The grain.
        grain: usize,
        /// The slot.
        slot: usize,
    },
    /// Adds the sums of one slot to those of another.
    Merge {
        /// The slot on the left, which takes the sum.
        into: usize,
        /// The slot on the right, which is free afterwards.
        from: usize,
    },
}

/// How to sum so many grains along the fixed tree, in grain order: the total ends in slot 0, and about log2 of the grains
/// in slots is enough. A grain that is the right half of its range is added where it is made.
pub fn tree_schedule(n_grains: usize) -> Vec<GrainAction> {
    let mut actions = Vec::new();
    // The complete subtrees so far, by their sizes, largest first; each has the slot of its place.
    let mut sizes: Vec<usize> = Vec::new();
    for grain in 0..n_grains {
        let is_right_half = grain % 2 == 1 || (grain + 1 == n_grains && grain > 0);
        match sizes.last_mut() {
            Some(size) if is_right_half => {
                *size += 1;
                actions.push(GrainAction::Accumulate { grain, slot: sizes.len() - 1 });
            }
            _ => {
                actions.push(GrainAction::Write { grain, slot: sizes.len() });
                sizes.push(1);
            }
        }
        while let [.., left, right] = sizes[..]
            && (left == right || grain + 1 == n_grains)
        {
            let (into, from) = (sizes.len() - 2, sizes.len() - 1);
            actions.push(GrainAction::Merge { into, from });
            sizes.truncate(from);
            sizes[into] = left + right;
        }
    }
    actions
}

/// The maximal complete subtrees of the tree over `n_grains` grains that lie in a range of them, in grain order.
pub fn maximal_subtrees(range: Range<usize>, n_grains: usize) -> Vec<Range<usize>> {
    fn descend(node: Range<usize>, range: &Range<usize>, found: &mut Vec<Range<usize>>) {
        if node.is_empty() || node.end <= range.start || range.end <= node.start {
            return;
        }
        if range.start <= node.start && node.end <= range.end {
            found.push(node);
            return;
        }
        let middle = split_point(&node);
        descend(node.start..middle, range, found);
        descend(middle..node.end, range, found);
    }
    let mut found = Vec::new();
    descend(0..n_grains, &range, &mut found);
    found
}

/// As [`maximal_subtrees`], for several ranges in any order; ranges that touch or overlap count as one.
pub fn maximal_subtrees_of(ranges: &[Range<usize>], n_grains: usize) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.to_vec();
    sorted.retain(|range| !range.is_empty());
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined.into_iter().flat_map(|range| maximal_subtrees(range, n_grains)).collect()
}

#[cfg(test)]
mod tests;
