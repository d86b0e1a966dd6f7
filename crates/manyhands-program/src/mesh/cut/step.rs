//! What runs once a step: each parameter is updated where it lives, and what chunks need of each other is made before.

use std::collections::BTreeMap;

use super::graph::Graph;
use super::pieces::{Pieces, Turn};
use crate::mesh::chunk::Phase;
use crate::op::{Op, Role};
use crate::partials::is_sum;
use crate::program::{Program, ValueId};
use crate::training::LOSS;

/// Where parameters live: by name, the chunk.
pub(super) type Homes = BTreeMap<String, usize>;

/// The homes of all parameters of a training program. `homes` has those that grains read already; `sums` says by name which chunk gives a sum
/// over grains.
pub(super) fn find_homes(
    program: &Program,
    step: &Graph<'_>,
    sums: &BTreeMap<String, usize>,
    mut homes: Homes,
) -> Homes {
    let mut before = 0;
    for (name, role, value) in program.parameters() {
        let home = match homes.get(name) {
            Some(&home) => home,
            None => {
                let of_weight =
                    if role == Role::Slot { home_of_weight(&homes, name) } else { None };
                let ty = program.ty(value);
                of_weight
                    .or_else(|| home_of_sum(step, sums, name, |own| own == ty))
                    .or_else(|| home_of_sum(step, sums, name, |_| true))
                    .unwrap_or(before)
            }
        };
        homes.insert(name.to_string(), home);
        before = home;
    }
    homes
}

/// A slot is named after its weight: `w/momentum`.
fn home_of_weight(homes: &Homes, slot: &str) -> Option<usize> {
    let owns = |name: &str| slot.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let owner = homes.iter().filter(|(name, _)| owns(name)).max_by_key(|(name, _)| name.len());
    owner.map(|(_, &home)| home)
}

/// The chunk that gives the first fitting sum that the update of a parameter follows from.
fn home_of_sum(
    step: &Graph<'_>,
    sums: &BTreeMap<String, usize>,
    parameter: &str,
    fits: impl Fn(&crate::shape::TensorType) -> bool,
) -> Option<usize> {
    let program = step.program;
    let update =
        program.updates().iter().find(|update| match &program.definer(update.parameter).op {
            Op::Parameter { name, .. } => name == parameter,
            _ => false,
        })?;
    let behind = step.behind([update.value].into_iter());
    let mut inputs = program.inputs().filter(|(name, value)| {
        is_sum(name) && behind[program.definer_idx(*value)] && fits(program.ty(*value))
    });
    sums.get(inputs.next()?.0).copied()
}

/// The chunk of every node of the step half: what becomes a parameter's next value, element by element, is with the parameter; the rest is where
/// most of what it takes is.
fn place(step: &Graph<'_>, sums: &BTreeMap<String, usize>, homes: &Homes) -> Vec<usize> {
    let program = step.program;
    let home = |node: usize| match &program.nodes()[node].op {
        Op::Parameter { name, .. } => homes.get(name).copied(),
        Op::Input { name, .. } => sums.get(name).copied(),
        _ => None,
    };
    let n = program.nodes().len();
    let mut chunks: Vec<Option<usize>> = vec![None; n];
    for update in program.updates() {
        let owner = home(program.definer_idx(update.parameter));
        let shape = &program.ty(update.parameter).shape;
        let mut waiting = vec![program.definer_idx(update.value)];
        while let Some(node) = waiting.pop() {
            let fits =
                program.nodes()[node].results.iter().any(|&own| program.ty(own).shape == *shape);
            if fits && !step.free[node] && chunks[node].is_none() {
                chunks[node] = owner;
                waiting.extend(&step.operands[node]);
            }
        }
    }
    for node in (0..n).filter(|&node| !step.free[node]) {
        if chunks[node].is_none() {
            let mut largest: Option<(usize, usize)> = None;
            for &value in &program.nodes()[node].operands {
                let operand = program.definer_idx(value);
                let n_bytes = program.ty(value).n_bytes();
                if let Some(chunk) = chunks[operand].or_else(|| home(operand))
                    && largest.is_none_or(|(most, _)| n_bytes > most)
                {
                    largest = Some((n_bytes, chunk));
                }
            }
            chunks[node] = Some(largest.map_or(0, |(_, chunk)| chunk));
        }
    }
    chunks.into_iter().map(|chunk| chunk.unwrap_or(0)).collect()
}

/// Cuts the step half.
pub(super) fn step_pieces<'a>(
    step: &'a Graph<'a>,
    sums: &BTreeMap<String, usize>,
    homes: &Homes,
    prefix: String,
) -> Pieces<'a> {
    let program = step.program;
    let chunks = place(step, sums, homes);
    let n = chunks.len();
    let is_reduced = |node: usize| program.nodes()[node].op == Op::AllReduce;
    let is_spread = |node: usize| is_spread_scalar(program, node);
    let mut prepared = vec![false; n];
    for update in program.updates() {
        let (node, parameter) =
            (program.definer_idx(update.value), program.definer(update.parameter));
        if let Op::Parameter { name, .. } = &parameter.op {
            prepared[node] = homes.get(name).is_some_and(|&home| home != chunks[node]);
        }
    }
    // The loss is known before the commit, where all hear of it: it is not lost with the worker that knows it first.
    if let Some(loss) = program.output(LOSS) {
        prepared[program.definer_idx(loss)] = true;
    }
    for node in (0..n).rev().filter(|&node| !step.free[node] && !is_spread(node)) {
        let elsewhere = |&user: &usize| chunks[user] != chunks[node] || prepared[user];
        // Who uses a scalar that was spread to a shape spreads it by itself.
        let is_used_elsewhere = |user: &usize| match is_spread(*user) {
            true => step.users[*user].iter().any(elsewhere),
            false => elsewhere(user),
        };
        prepared[node] |= is_reduced(node) || step.users[node].iter().any(is_used_elsewhere);
    }
    let mut pieces = Pieces::new(step, prefix);
    let mut levels = vec![0; n];
    let update = |chunk: usize| Turn { group: 1, level: 0, chunk, phase: Phase::Update };
    for node in (0..n).filter(|&node| !step.free[node]) {
        let waits = |operand: usize| {
            levels[operand] + usize::from(chunks[operand] != chunks[node] || is_reduced(operand))
        };
        levels[node] = step.operands[node].iter().map(|&operand| waits(operand)).max().unwrap_or(0);
        let chunk = chunks[node];
        let turn = match prepared[node] {
            true => Turn { group: 0, level: levels[node], chunk, phase: Phase::Prepare },
            false => update(chunk),
        };
        pieces.put(node, turn);
    }
    let own_chunk = |value: ValueId| match &program.definer(value).op {
        Op::Parameter { name, .. } => homes.get(name).copied().unwrap_or(0),
        Op::Input { name, .. } => sums.get(name).copied().unwrap_or(0),
        _ => 0,
    };
    for output in program.outputs() {
        pieces.name(output.name.clone(), output.value, update(own_chunk(output.value)));
    }
    for (idx, one) in program.updates().iter().enumerate() {
        let turn = update(own_chunk(one.parameter));
        pieces.contents.entry(turn).or_default().updates.push(idx);
    }
    // Gradients as large as their parameters are made again from the totals, not kept from the norm to the update. A scalar travels as what it is, not in the
    // shape of the weights that it is multiplied with.
    pieces.compute_again(&|node, made, turn| {
        if is_spread(node) {
            return true;
        }
        let node = &program.nodes()[node];
        let is_large = program.ty(node.results[0]).shape.rank() > 0;
        let is_cheap = node.op.is_elementwise()
            || matches!(node.op, Op::Broadcast { .. } | Op::Reshape { .. });
        made.chunk == turn.chunk && is_large && is_cheap
    });
    pieces.bind();
    pieces
}

/// Whether a node repeats one number in a larger shape.
fn is_spread_scalar(program: &Program, node: usize) -> bool {
    let node = &program.nodes()[node];
    let is_one = |value: &ValueId| program.ty(*value).shape.rank() == 0;
    matches!(node.op, Op::Broadcast { .. })
        && node.operands.iter().all(is_one)
        && program.ty(node.results[0]).shape.rank() > 0
}
