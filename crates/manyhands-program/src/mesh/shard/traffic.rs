//! What a step moves and what a worker holds from step to step, counted from its program.

use serde::{Deserialize, Serialize};

use super::super::{Action, Holding, Into, Place, SCATTERED, WorkerProgram};
use crate::partials::is_sum;

/// Bytes that one worker sends in a step, and that it holds from step to step.
///
/// With g grains a worker of D replicas, level 1 sends each gradient's other shards once and its shard of the weights to the others once; level 2 the gradients
/// g times; level 3 moreover gathers the weights up to 2 g times, for forward and backward, and not after the update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Sums over grains: totals and scatters.
    pub sums: usize,
    /// Shards that others gather.
    pub shards: usize,
    /// Values that other stages and parts take.
    pub values: usize,
    /// Parameters, from step to step.
    pub held: usize,
}

impl Traffic {
    /// All that is sent.
    pub fn sent(&self) -> usize {
        self.sums + self.shards + self.values
    }
}

/// What a worker's program moves and holds. Totals that all have afterwards, and all-reduces, count as a reduce-scatter and a gather: what no algorithm stays below.
pub fn traffic(worker: &WorkerProgram) -> Traffic {
    let held = worker.holdings.iter().map(Holding::n_bytes).sum();
    let mut traffic = Traffic { held, ..Traffic::default() };
    let types = worker.value_types();
    let value_bytes = |name: &str| types.get(&(name, false)).map_or(0, |ty| ty.n_bytes());
    let place_bytes = |place: &Place| match place {
        Place::Value(name) => value_bytes(name),
        Place::Parameter(name) => {
            let holding = worker.holdings.iter().find(|holding| holding.name == *name);
            holding.map_or(0, Holding::n_bytes)
        }
    };
    let output_bytes = |piece: usize, is_wanted: &dyn Fn(&str) -> bool| -> usize {
        let program = &worker.pieces[piece].program;
        let outputs = program.outputs().iter().filter(|output| is_wanted(&output.name));
        outputs.map(|output| program.ty(output.value).n_bytes()).sum()
    };
    for action in &worker.actions {
        match action {
            Action::Total { piece, sums, among, into, .. } => {
                let is_wanted = |name: &str| {
                    is_sum(name) && sums.as_ref().is_none_or(|s| s.iter().any(|n| n == name))
                };
                let n_exchanges = if *into == Into::Whole { 2 } else { 1 };
                let all = output_bytes(*piece, &is_wanted);
                traffic.sums += n_exchanges * others_share(all, among.len());
            }
            Action::Scatter { piece, among, grains } => {
                let at = among.iter().position(|&member| member == worker.worker);
                if at.and_then(|at| grains.get(at).copied().flatten()).is_some() {
                    let all = output_bytes(*piece, &|name| name.starts_with(SCATTERED));
                    traffic.sums += others_share(all, among.len());
                }
            }
            Action::Offer { shard, among } => {
                traffic.shards += place_bytes(shard) * among.len().saturating_sub(1);
            }
            Action::Send { what, .. } => {
                traffic.values += what.iter().map(place_bytes).sum::<usize>();
            }
            Action::AllReduce { values, among, .. } => {
                let all = values.iter().map(|name| value_bytes(name)).sum();
                traffic.values += 2 * others_share(all, among.len());
            }
            _ => {}
        }
    }
    traffic
}

/// What all but one of so many equal shards take.
fn others_share(n_bytes: usize, n_members: usize) -> usize {
    n_bytes / n_members.max(1) * n_members.saturating_sub(1)
}
