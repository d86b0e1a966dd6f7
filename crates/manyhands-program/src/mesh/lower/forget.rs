//! Where values end: a [`Action::Forget`] after the last action that uses them.

use std::collections::{BTreeMap, BTreeSet};

use crate::mesh::{Action, Piece, Place};

/// A value, of a grain if it has one.
type Key = (String, Option<usize>);

/// Adds what is not used again after each action. Values that nobody takes, such as the outputs of the whole program, are left to whoever
/// runs the step.
pub(super) fn add_forgets(actions: Vec<Action>, pieces: &[Piece]) -> Vec<Action> {
    let mut there: BTreeSet<Key> = BTreeSet::new();
    let mut last_use: BTreeMap<Key, usize> = BTreeMap::new();
    for (at, action) in actions.iter().enumerate() {
        there.extend(given(action, pieces));
        for key in used(action, pieces).into_iter().filter(|key| there.contains(key)) {
            last_use.insert(key, at);
        }
    }
    let mut ends: BTreeMap<usize, BTreeMap<Option<usize>, Vec<String>>> = BTreeMap::new();
    for ((name, grain), at) in last_use {
        ends.entry(at).or_default().entry(grain).or_default().push(name);
    }
    let mut all = Vec::with_capacity(actions.len() + ends.len());
    for (at, action) in actions.into_iter().enumerate() {
        all.push(action);
        let forgotten = ends.remove(&at).into_iter().flatten();
        all.extend(forgotten.map(|(grain, values)| Action::Forget { values, grain }));
    }
    all
}

/// The values that are there after an action.
fn given(action: &Action, pieces: &[Piece]) -> Vec<Key> {
    let outputs = |piece: usize| pieces[piece].program.outputs().iter().map(|one| one.name.clone());
    match action {
        // Names of sums are values after their total only, and no piece takes them before.
        Action::Run { piece, grain, .. } => outputs(*piece).map(|name| (name, *grain)).collect(),
        Action::Total { piece, .. } | Action::Scatter { piece, .. } => {
            outputs(*piece).map(|name| (name, None)).collect()
        }
        Action::Receive { what, grain, .. } => values(what, *grain),
        Action::Copy { into, grain, .. } => vec![(into.clone(), *grain)],
        Action::Gather { into, .. } => values(std::slice::from_ref(into), None),
        _ => Vec::new(),
    }
}

/// The values that an action needs.
fn used(action: &Action, pieces: &[Piece]) -> Vec<Key> {
    match action {
        Action::Run { piece, grain, .. } => {
            let inputs = pieces[*piece].program.inputs();
            inputs.map(|(name, _)| (name.to_string(), *grain)).collect()
        }
        Action::Send { what, grain, .. } => values(what, *grain),
        Action::Offer { shard, .. } => values(std::slice::from_ref(shard), None),
        // A sum over members is for somebody: it ends with its last taker.
        _ => Vec::new(),
    }
}

fn values(what: &[Place], grain: Option<usize>) -> Vec<Key> {
    what.iter()
        .filter_map(|place| match place {
            Place::Value(name) => Some((name.clone(), grain)),
            Place::Parameter(_) => None,
        })
        .collect()
}
