//! What runs per grain: which operations lead to the loss, which follow from it, and in which chunk each is.

use std::collections::{BTreeMap, BTreeSet};

use super::error::CutError;
use super::graph::{Freely, Graph};
use crate::grains::GrainSplit;
use crate::op::{Op, Role};
use crate::partials::sum_name;
use crate::program::{Program, ValueId};
use crate::training::LOSS;

/// What a node of the grain half is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Made again wherever it is used.
    Free,
    /// On the way from parameters to the loss: what a cut divides.
    Spine,
    /// Needed for the loss but made from data alone: goes to its first user.
    Data,
    /// Statistics and measurements: not needed for the loss, and no gradient.
    Aside,
    /// Gradients.
    Backward,
}

impl Part {
    pub(super) fn is_forward(self) -> bool {
        matches!(self, Part::Spine | Part::Data | Part::Aside)
    }
}

/// The grain half, sorted.
pub(super) struct Grain<'a> {
    pub graph: Graph<'a>,
    /// By node.
    pub parts: Vec<Part>,
    /// The nodes of the spine in program order: a chunk is a run of them.
    pub spine: Vec<usize>,
    /// The value of each sum over grains.
    pub sums: Vec<ValueId>,
    /// By sum: the parameter whose gradient it is, where it is one.
    weight_of: BTreeMap<usize, String>,
    /// By node: the forward nodes that use it, if it is a parameter.
    uses: Vec<Vec<usize>>,
}

impl<'a> Grain<'a> {
    pub(super) fn of(split: &'a GrainSplit) -> Result<Grain<'a>, CutError> {
        let program = &split.grain;
        let graph = Graph::of(program, Freely::Grain);
        let sums: Vec<ValueId> =
            (0..split.n_sums).filter_map(|sum| program.output(&sum_name(sum))).collect();
        let (of_loss, of_weights) = sums_behind(&split.step, split.n_sums)?;
        let parts = parts(&graph, &sums, &of_loss, &of_weights);
        let spine: Vec<usize> =
            (0..parts.len()).filter(|&node| parts[node] == Part::Spine).collect();
        let mut uses = vec![Vec::new(); parts.len()];
        for node in (0..parts.len()).filter(|&node| parts[node].is_forward()) {
            graph.parameters[node].iter().for_each(|&parameter| uses[parameter].push(node));
        }
        let mut weight_of = weights_of_sums(&split.step);
        weight_of.retain(|sum, _| of_weights.contains(sum));
        Ok(Grain { graph, parts, spine, sums, weight_of, uses })
    }

    /// The chunk of every node, where `of_spine` says those of the spine, in order. Nodes that are free have none.
    pub(super) fn place(&self, of_spine: &[usize], n_chunks: usize) -> Vec<usize> {
        let mut chunks = vec![0; self.parts.len()];
        for (&node, &chunk) in self.spine.iter().zip(of_spine) {
            chunks[node] = chunk;
        }
        let last = n_chunks.saturating_sub(1);
        for node in (0..chunks.len()).rev().filter(|&node| self.parts[node] == Part::Data) {
            let users = self.graph.users[node].iter();
            let on_the_way =
                users.filter(|&&user| matches!(self.parts[user], Part::Spine | Part::Data));
            chunks[node] = on_the_way.map(|&user| chunks[user]).min().unwrap_or(last);
        }
        for node in (0..chunks.len()).filter(|&node| self.parts[node] == Part::Aside) {
            let operands = self.graph.operands[node].iter();
            let parameters = self.graph.parameters[node].iter().filter_map(|&parameter| {
                self.uses[parameter].iter().find(|&&user| self.parts[user] == Part::Spine)
            });
            chunks[node] =
                operands.chain(parameters).map(|&operand| chunks[operand]).max().unwrap_or(0);
        }
        self.place_backward(&mut chunks, last);
        chunks
    }

    /// Gradients flow from the last chunk to the first: a node's chunk is not above those of the gradients that it takes, nor below those of its
    /// users. Within that it goes to the chunk of what it takes of the forward half, and a weight's gradient to the weight.
    fn place_backward(&self, chunks: &mut [usize], last: usize) {
        let pins = self.pins(chunks);
        let mut lowest = vec![0; chunks.len()];
        for node in (0..chunks.len()).rev().filter(|&node| self.parts[node] == Part::Backward) {
            let users = self.graph.users[node].iter().map(|&user| lowest[user]);
            lowest[node] = users.chain(pins.get(&node).copied()).max().unwrap_or(0);
        }
        for node in (0..chunks.len()).filter(|&node| self.parts[node] == Part::Backward) {
            let operands = &self.graph.operands[node];
            let is_backward = |operand: &&usize| self.parts[**operand] == Part::Backward;
            let gradients = operands.iter().filter(is_backward);
            let highest = gradients.map(|&operand| chunks[operand]).min().unwrap_or(last);
            let forward = operands.iter().filter(|operand| !is_backward(operand));
            let forward = forward.map(|&operand| chunks[operand]);
            let of_parameter = self.graph.parameters[node].iter().filter_map(|&parameter| {
                let uses = self.uses[parameter].iter().map(|&user| chunks[user]);
                uses.filter(|&chunk| chunk <= highest).max()
            });
            let wanted = match pins.get(&node) {
                Some(&pin) => pin,
                None => forward.chain(of_parameter).max().unwrap_or(highest),
            };
            chunks[node] = wanted.min(highest).max(lowest[node]);
        }
    }

    /// Where gradients of weights belong, by the nodes that make them: to the chunk of that use of the weight.
    fn pins(&self, chunks: &[usize]) -> BTreeMap<usize, usize> {
        let program = self.graph.program;
        let mut of_weight: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (&sum, weight) in &self.weight_of {
            of_weight.entry(weight).or_default().push(sum);
        }
        let mut pins = BTreeMap::new();
        for (weight, sums) in of_weight {
            let found = program.parameters().find(|(name, ..)| *name == weight);
            let Some((_, _, parameter)) = found else { continue };
            let uses: Vec<usize> = self.uses[program.definer_idx(parameter)]
                .iter()
                .filter(|&&user| self.parts[user] == Part::Spine)
                .map(|&user| chunks[user])
                .collect();
            for (idx, &sum) in sums.iter().enumerate() {
                // Gradients that were added up per grain belong where all of them can come to: to the first use.
                let one_each = uses.len() == sums.len();
                let Some(&chunk) = uses.get(if one_each { idx } else { 0 }) else { continue };
                let node = program.definer_idx(self.sums[sum]);
                let pin = pins.entry(node).or_insert(chunk);
                *pin = chunk.max(*pin);
            }
        }
        pins
    }
}

/// The sums that the loss of a step follows from, and the others that weights follow from.
fn sums_behind(
    step: &Program,
    n_sums: usize,
) -> Result<(BTreeSet<usize>, BTreeSet<usize>), CutError> {
    let Some(loss) = step.output(LOSS) else {
        return Err(CutError::NoTraining {
            missing: "it has no output `loss` that is known once a step",
        });
    };
    let graph = Graph::of(step, Freely::Step);
    let sums: Vec<(usize, usize)> = (0..n_sums)
        .filter_map(|sum| {
            let name = sum_name(sum);
            let input = step.inputs().find(|(own, _)| *own == name)?;
            Some((sum, step.definer_idx(input.1)))
        })
        .collect();
    let among = |behind: Vec<bool>| -> BTreeSet<usize> {
        sums.iter().filter(|(_, node)| behind[*node]).map(|(sum, _)| *sum).collect()
    };
    let of_loss = among(graph.behind([loss].into_iter()));
    let is_weight = |parameter: ValueId| {
        matches!(step.definer(parameter).op, Op::Parameter { role: Role::Weight, .. })
    };
    let weights = step.updates().iter().filter(|update| is_weight(update.parameter));
    let of_weights = &among(graph.behind(weights.map(|update| update.value))) - &of_loss;
    if of_loss.is_empty() {
        return Err(CutError::NoTraining { missing: "its loss is not a sum over grains" });
    }
    if of_weights.is_empty() {
        return Err(CutError::NoTraining { missing: "it updates no weight from gradients" });
    }
    Ok((of_loss, of_weights))
}

fn parts(
    graph: &Graph<'_>,
    sums: &[ValueId],
    of_loss: &BTreeSet<usize>,
    of_weights: &BTreeSet<usize>,
) -> Vec<Part> {
    let values = |chosen: &BTreeSet<usize>| chosen.iter().map(|&sum| sums[sum]).collect::<Vec<_>>();
    let to_loss = graph.behind(values(of_loss).into_iter());
    let to_weights = graph.behind(values(of_weights).into_iter());
    let n = graph.free.len();
    let mut parts = vec![Part::Free; n];
    let mut reads_parameters = vec![false; n];
    for node in (0..n).filter(|&node| !graph.free[node]) {
        let mut operands = graph.operands[node].iter();
        reads_parameters[node] = !graph.parameters[node].is_empty()
            || graph.operands[node].iter().any(|&operand| reads_parameters[operand]);
        parts[node] = match (to_loss[node], to_weights[node]) {
            (true, _) if reads_parameters[node] => Part::Spine,
            (true, _) => Part::Data,
            (false, true) => Part::Backward,
            (false, false) if operands.any(|&operand| parts[operand] == Part::Backward) => {
                Part::Backward
            }
            (false, false) => Part::Aside,
        };
    }
    parts
}

/// By sum over grains: the weight whose gradient it is, as updates show that follow from it element by element.
fn weights_of_sums(step: &Program) -> BTreeMap<usize, String> {
    let n_sums = step.inputs().count();
    let sum_of: BTreeMap<String, usize> = (0..n_sums).map(|sum| (sum_name(sum), sum)).collect();
    let mut behind: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); step.n_values()];
    for node in step.nodes() {
        let mut own = BTreeSet::new();
        match &node.op {
            Op::Input { name, .. } => own.extend(sum_of.get(name)),
            op if op.is_elementwise() || matches!(op, Op::MergeRows { .. } | Op::PutRows) => {
                for operand in &node.operands {
                    own.extend(behind[operand.idx()].iter().copied());
                }
            }
            _ => {}
        }
        node.results.iter().for_each(|result| behind[result.idx()] = own.clone());
    }
    let mut found = BTreeMap::new();
    for update in step.updates() {
        if let Op::Parameter { name, role: Role::Weight, .. } = &step.definer(update.parameter).op {
            for &sum in &behind[update.value.idx()] {
                found.entry(sum).or_insert_with(|| name.clone());
            }
        }
    }
    found
}
