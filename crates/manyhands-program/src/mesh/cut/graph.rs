//! A program as the cut sees it: what is free to be made anywhere, who uses what, and which parameters are behind an operation.

use std::collections::BTreeSet;

use crate::op::Op;
use crate::program::{Program, ValueId};

/// What is known of each node of a program, by its index.
pub(super) struct Graph<'a> {
    pub program: &'a Program,
    /// Whether it is made again wherever it is used, and never sent.
    pub free: Vec<bool>,
    /// The operands that are not free, by the nodes that give them.
    pub operands: Vec<Vec<usize>>,
    /// The nodes that are not free and use it.
    pub users: Vec<Vec<usize>>,
    /// The parameters that it reads: its own operands and what is free behind them.
    pub parameters: Vec<BTreeSet<usize>>,
}

/// What may be made again wherever it is used, besides constants and arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Freely {
    /// What follows from constants, and parameters seen otherwise.
    Grain,
    /// What follows from constants and the scalars of a step.
    Step,
}

impl<'a> Graph<'a> {
    pub(super) fn of(program: &'a Program, freely: Freely) -> Graph<'a> {
        let n = program.nodes().len();
        let mut graph = Graph {
            program,
            free: vec![false; n],
            operands: vec![Vec::new(); n],
            users: vec![Vec::new(); n],
            parameters: vec![BTreeSet::new(); n],
        };
        // Whether an input is behind a free node.
        let mut given = vec![false; n];
        for (idx, node) in program.nodes().iter().enumerate() {
            let behind: Vec<usize> =
                node.operands.iter().map(|&value| program.definer_idx(value)).collect();
            for &operand in &behind {
                if graph.free[operand] {
                    let parameters = graph.parameters[operand].clone();
                    graph.parameters[idx].extend(parameters);
                } else if !graph.operands[idx].contains(&operand) {
                    graph.operands[idx].push(operand);
                    graph.users[operand].push(idx);
                }
            }
            let all_free = behind.iter().all(|&operand| graph.free[operand]);
            let from_inputs = behind.iter().any(|&operand| given[operand]);
            let reads_parameters = !graph.parameters[idx].is_empty();
            graph.free[idx] = match (&node.op, freely) {
                (Op::Input { name, .. }, freely) => {
                    given[idx] = freely == Freely::Grain || crate::partials::is_sum(name);
                    true
                }
                (Op::Parameter { .. }, _) => {
                    graph.parameters[idx].insert(idx);
                    true
                }
                _ if !all_free || from_inputs || node.op == Op::AllReduce => false,
                (op, Freely::Grain) => !reads_parameters || is_seen_otherwise(op),
                (_, Freely::Step) => !reads_parameters,
            };
        }
        graph
    }

    /// The values that a node takes and that are not free, each once.
    pub(super) fn taken(&self, node: usize) -> impl Iterator<Item = ValueId> {
        let values = self.program.nodes()[node].operands.iter().copied();
        values.filter(|&value| !self.free[self.program.definer_idx(value)])
    }

    /// By node: whether one of the roots follows from it.
    pub(super) fn behind(&self, roots: impl Iterator<Item = ValueId>) -> Vec<bool> {
        let mut behind = vec![false; self.program.nodes().len()];
        roots.for_each(|root| behind[self.program.definer_idx(root)] = true);
        for (idx, node) in self.program.nodes().iter().enumerate().rev() {
            if behind[idx] {
                node.operands
                    .iter()
                    .for_each(|&operand| behind[self.program.definer_idx(operand)] = true);
            }
        }
        behind
    }

    /// The bytes of a node's results.
    pub(super) fn n_bytes(&self, node: usize) -> usize {
        let results = &self.program.nodes()[node].results;
        results.iter().map(|&value| self.program.ty(value).n_bytes()).sum()
    }
}

/// Whether an operation only shows its operand in another way.
fn is_seen_otherwise(op: &Op) -> bool {
    matches!(op, Op::Cast { .. } | Op::Reshape { .. } | Op::Broadcast { .. } | Op::Transpose { .. })
}
