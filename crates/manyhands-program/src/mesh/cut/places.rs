//! Where the way to the loss is cut: before layers that were named, or where chunks come out equal.

use super::balance::balance;
use super::error::CutError;
use super::grain::{Grain, Part};
use super::{Cutting, Places};
use crate::cost::Cost;
use crate::op::Op;
use crate::program::Program;

/// The cost of every node, in one unit.
pub(super) fn node_costs(grain: &Grain<'_>, cutting: &Cutting<'_>) -> Vec<f64> {
    let program = grain.graph.program;
    let counted = |node: usize| match cutting.cost {
        Some(cost) => cost(program, node),
        None => Cost::of_node(program, &program.nodes()[node]).weight() as f64,
    };
    (0..program.nodes().len())
        .map(|node| if grain.parts[node] == Part::Free { 0.0 } else { counted(node) })
        .collect()
}

/// By position on the spine: the bytes of the activations that a cut before it would send on.
pub(super) fn crossing_bytes(grain: &Grain<'_>) -> Vec<u64> {
    let n = grain.spine.len();
    let mut position = vec![None; grain.parts.len()];
    for (at, &node) in grain.spine.iter().enumerate() {
        position[node] = Some(at);
    }
    let mut changes = vec![0_i64; n + 1];
    for (at, &node) in grain.spine.iter().enumerate() {
        let users = grain.graph.users[node].iter().filter_map(|&user| position[user]);
        if let Some(last) = users.max().filter(|&last| last > at) {
            let bytes = grain.graph.n_bytes(node) as i64;
            changes[at + 1] += bytes;
            changes[last + 1] -= bytes;
        }
    }
    let mut alive = 0;
    changes[..n]
        .iter()
        .map(|change| {
            alive += change;
            alive.max(0) as u64
        })
        .collect()
}

/// The chunk of each position on the spine.
pub(super) fn chunks_of_spine(
    grain: &Grain<'_>,
    cutting: &Cutting<'_>,
) -> Result<Vec<usize>, CutError> {
    let (n_chunks, most) = (cutting.n_chunks, grain.spine.len());
    if n_chunks == 0 {
        return Err(CutError::NoChunks);
    }
    if n_chunks > most {
        return Err(CutError::TooManyChunks { n_chunks, most });
    }
    let cuts = match &cutting.places {
        Places::Balanced => return balanced(grain, cutting),
        Places::Before(names) => named(grain, names, n_chunks)?,
        Places::At(positions) => {
            let is_in_order = positions.is_sorted_by(|a, b| a < b);
            let fits = positions.iter().all(|&at| (1..most).contains(&at));
            if !is_in_order || !fits || positions.len() + 1 != n_chunks {
                return Err(CutError::Positions { positions: positions.clone(), n_chunks, most });
            }
            positions.clone()
        }
    };
    Ok((0..most).map(|at| cuts.iter().filter(|&&cut| cut <= at).count()).collect())
}

fn balanced(grain: &Grain<'_>, cutting: &Cutting<'_>) -> Result<Vec<usize>, CutError> {
    let (n_chunks, most) = (cutting.n_chunks, grain.spine.len());
    // As if each operation on the way to the loss were a chunk: so backward comes to where it will be.
    let alone: Vec<usize> = (0..most).collect();
    let placed = grain.place(&alone, most);
    let mut costs = vec![0.0; most];
    for (node, cost) in node_costs(grain, cutting).into_iter().enumerate() {
        if grain.parts[node] != Part::Free {
            costs[placed[node]] += cost;
        }
    }
    let crossing = crossing_bytes(grain).into_iter().zip(&grain.spine).map(|(bytes, &node)| {
        // What crosses forwards comes back as a gradient of the same size. What goes over elements one by one is done along with the operation that gives
        // them, unless a cut keeps them apart: then they are written and read once more.
        let n_times = if grain.graph.program.nodes()[node].op.is_elementwise() { 3 } else { 2 };
        (n_times * bytes) as f64 * cutting.crossing_weight
    });
    let crossing: Vec<f64> = crossing.collect();
    let runs =
        balance(&costs, &crossing, n_chunks).ok_or(CutError::TooManyChunks { n_chunks, most })?;
    Ok(runs.iter().enumerate().flat_map(|(chunk, run)| run.clone().map(move |_| chunk)).collect())
}

/// The positions of named layers, in order.
fn named(grain: &Grain<'_>, names: &[String], n_chunks: usize) -> Result<Vec<usize>, CutError> {
    if names.len() + 1 != n_chunks {
        return Err(CutError::PlaceCount { n_places: names.len(), n_chunks });
    }
    let program = grain.graph.program;
    let mut found: Vec<(usize, &String)> = Vec::new();
    for name in names {
        let scope = |node: &usize| &program.nodes()[*node].scope;
        let Some(at) = grain.spine.iter().position(|node| is_within(scope(node), name)) else {
            return Err(no_place(grain, name));
        };
        if at == 0 {
            return Err(CutError::AtTheBeginning { name: name.clone() });
        }
        if let Some((_, first)) = found.iter().find(|(other, _)| *other == at) {
            let (first, second) = (first.to_string(), name.clone());
            return Err(CutError::SamePlace { first, second });
        }
        found.push((at, name));
    }
    found.sort();
    Ok(found.into_iter().map(|(at, _)| at).collect())
}

/// Whether a scope is a named one or lies within it.
fn is_within(scope: &str, name: &str) -> bool {
    scope.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn no_place(grain: &Grain<'_>, name: &str) -> CutError {
    let program = grain.graph.program;
    for node in grain.spine.iter().map(|&node| &program.nodes()[node]) {
        let bodies: Vec<&Program> = match &node.op {
            Op::Scan(scan) => vec![&scan.body],
            Op::Cond(cond) => vec![&cond.then, &cond.otherwise],
            _ => continue,
        };
        let within = |inner: &str| {
            is_within(inner, name) || is_within(&format!("{}/{inner}", node.scope), name)
        };
        if bodies.iter().any(|body| body.nodes().iter().any(|inner| within(&inner.scope))) {
            let (name, around) = (name.to_string(), node.scope.clone());
            return CutError::InsideBody { name, op: node.op.name(), around };
        }
    }
    let mut scopes: Vec<&str> = Vec::new();
    for node in &grain.spine {
        let top = program.nodes()[*node].scope.split('/').next().unwrap_or_default();
        if !top.is_empty() && !scopes.contains(&top) {
            scopes.push(top);
        }
    }
    let known = match &scopes[..] {
        [] => "its layers have no names, so let chunks be balanced".to_string(),
        several => format!("there are {}", several.join(", ")),
    };
    CutError::NoPlace { name: name.to_string(), known }
}
