//! Which operations form a group.

use super::draft::{self, Draft};
use crate::program::{Program, ValueId};

/// Who reads what once broadcasts, numbers and comparisons are looked through.
pub(super) struct Edges {
    /// By node: whether a result, or the signature, needs it.
    pub(super) needed: Vec<bool>,
    /// By node: the values that it reads.
    pub(super) reads: Vec<Vec<ValueId>>,
    /// By value: the needed nodes that read it.
    users: Vec<Vec<usize>>,
    /// By value: whether it is an output or an update.
    given: Vec<bool>,
    /// By node: whether it can be in a group.
    fits: Vec<bool>,
}

impl Edges {
    pub(super) fn of(program: &Program) -> Edges {
        let nodes = program.nodes();
        let fits: Vec<bool> = nodes.iter().map(|node| draft::fits(program, node)).collect();
        let reads: Vec<Vec<ValueId>> = nodes
            .iter()
            .zip(&fits)
            .map(
                |(node, &fits)| {
                    if fits { draft::reads(program, node) } else { node.operands.clone() }
                },
            )
            .collect();
        let mut given = vec![false; program.n_values()];
        let outputs = program.outputs().iter().map(|output| output.value);
        let updates = program.updates().iter().map(|update| update.value);
        outputs.chain(updates).for_each(|value| given[value.idx()] = true);
        let mut needed: Vec<bool> = nodes.iter().map(|node| node.op.is_argument()).collect();
        let mut users = vec![Vec::new(); program.n_values()];
        for (idx, node) in nodes.iter().enumerate().rev() {
            let used = |value: &ValueId| given[value.idx()] || !users[value.idx()].is_empty();
            needed[idx] |= node.results.iter().any(used);
            if needed[idx] {
                reads[idx].iter().for_each(|value| users[value.idx()].push(idx));
            }
        }
        Edges { needed, reads, users, given, fits }
    }

    /// Whether the result of a member is needed outside of its group.
    pub(super) fn leaves(&self, program: &Program, member: usize, group: &[usize]) -> bool {
        let value = program.nodes()[member].results[0];
        let outside = |user: &usize| group.binary_search(user).is_err();
        self.given[value.idx()] || self.users[value.idx()].iter().any(outside)
    }
}

/// The members of each group, in program order, at the index of its leader: its last operation.
pub(super) fn group(program: &Program, edges: &Edges) -> Vec<Vec<usize>> {
    let n_nodes = program.nodes().len();
    let mut groups = Groups {
        program,
        edges,
        leader: (0..n_nodes).collect(),
        members: vec![Vec::new(); n_nodes],
        seen: vec![0; n_nodes],
        stamp: 0,
    };
    // Users come before what they read, so that an operation is computed where it is used rather than kept.
    for idx in (0..n_nodes).rev().filter(|&idx| edges.needed[idx] && edges.fits[idx]) {
        groups.place(idx);
    }
    groups.members
}

struct Groups<'a> {
    program: &'a Program,
    edges: &'a Edges,
    leader: Vec<usize>,
    members: Vec<Vec<usize>>,
    /// By unit: the last search that visited it.
    seen: Vec<usize>,
    stamp: usize,
}

impl Groups<'_> {
    fn place(&mut self, idx: usize) {
        let value = self.program.nodes()[idx].results[0];
        let mut users = self.edges.users[value.idx()].clone();
        users.sort_unstable();
        let mut leaders: Vec<usize> = users.iter().map(|&user| self.leader[user]).collect();
        leaders.dedup();
        let joined = leaders.iter().copied().find(|&leader| self.joins(idx, leader, &leaders));
        let leader = joined.unwrap_or(idx);
        self.leader[idx] = leader;
        self.members[leader].insert(0, idx);
    }

    /// Whether an operation may join a group that reads it.
    fn joins(&mut self, idx: usize, leader: usize, leaders: &[usize]) -> bool {
        let ty = |idx: usize| self.program.ty(self.program.nodes()[idx].results[0]);
        if self.members[leader].is_empty() || ty(idx) != ty(leader) {
            return false;
        }
        let larger: Vec<usize> =
            std::iter::once(idx).chain(self.members[leader].iter().copied()).collect();
        let small = Draft::of(self.program, &larger, self.edges).is_small();
        small && !self.reaches(leaders.iter().copied().filter(|&other| other != leader), leader)
    }

    /// Whether there is a path from some units to another: they would have to run in the middle of the group.
    fn reaches(&mut self, from: impl Iterator<Item = usize>, to: usize) -> bool {
        self.stamp += 1;
        let mut open: Vec<usize> = from.collect();
        while let Some(unit) = open.pop() {
            if unit == to {
                return true;
            }
            if std::mem::replace(&mut self.seen[unit], self.stamp) == self.stamp {
                continue;
            }
            let own = [unit];
            let members = match &self.members[unit] {
                members if members.is_empty() => &own[..],
                members => &members[..],
            };
            for &member in members {
                let results = &self.program.nodes()[member].results;
                let users = results.iter().flat_map(|result| &self.edges.users[result.idx()]);
                open.extend(users.map(|&user| self.leader[user]).filter(|&user| user != unit));
            }
        }
        false
    }
}
