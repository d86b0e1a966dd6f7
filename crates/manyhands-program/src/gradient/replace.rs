//! Putting operations in the place of others: a scan that keeps what its gradient needs takes the place of the plain one.

use std::collections::HashMap;

use crate::op::Op;
use crate::program::{Program, ValueId};

/// An operation that another stands in for, by their results.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    /// The results of the operation that goes.
    pub(crate) old: Vec<ValueId>,
    /// The results of the operation that comes: the old ones first, then more.
    pub(crate) new: Vec<ValueId>,
}

/// The program with each replaced operation gone and what stands in for it in its place. Values get new ids.
pub(crate) fn put_in_place(program: &Program, replaced: &[Replacement]) -> Program {
    let mut stand_ins: HashMap<usize, Vec<usize>> = HashMap::new();
    let definer = |results: &[ValueId]| results.first().map(|&first| program.definer_idx(first));
    for Replacement { old, new } in replaced {
        if let (Some(old), Some(new)) = (definer(old), definer(new)) {
            stand_ins.entry(old).or_default().push(new);
        }
    }
    let moved: Vec<usize> = stand_ins.values().flatten().copied().collect();
    let mut rewrite = Rewrite {
        from: program,
        to: Program::new(program.name()),
        stand_ins,
        ids: vec![ValueId::at(0); program.n_values()],
    };
    for idx in (0..program.nodes().len()).filter(|idx| !moved.contains(idx)) {
        rewrite.emit(idx);
    }
    let Rewrite { mut to, ids, .. } = rewrite;
    const SAME: &str = "the names and types are those of a sound program";
    for output in program.outputs() {
        to.add_output(output.name.clone(), ids[output.value.idx()]).expect(SAME);
    }
    for update in program.updates() {
        to.add_update(ids[update.parameter.idx()], ids[update.value.idx()]).expect(SAME);
    }
    to
}

struct Rewrite<'a> {
    from: &'a Program,
    to: Program,
    /// Operations, and what stands in for each. More than one where gradients went through it more than once.
    stand_ins: HashMap<usize, Vec<usize>>,
    /// The new id of each value.
    ids: Vec<ValueId>,
}

impl Rewrite<'_> {
    /// Adds an operation, or what stands in for it.
    fn emit(&mut self, idx: usize) {
        let node = &self.from.nodes()[idx];
        if let Some(stand_ins) = self.stand_ins.get(&idx).cloned() {
            for stand_in in stand_ins {
                self.emit(stand_in);
                for (old, new) in node.results.iter().zip(&self.from.nodes()[stand_in].results) {
                    self.ids[old.idx()] = self.ids[new.idx()];
                }
            }
            return;
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|v| self.ids[v.idx()]).collect();
        let results = self
            .to
            .push(node.op.clone(), &operands, &node.scope)
            .expect("an operation that fitted fits the same types");
        node.results.iter().zip(results).for_each(|(old, new)| self.ids[old.idx()] = new);
    }
}

/// A body that takes the given inputs of `program`, in that order, and gives the given outputs.
pub(super) fn body_of(program: &Program, inputs: &[ValueId], outputs: &[ValueId]) -> Program {
    let needed = super::reach::needed(program, outputs, &|_| false);
    let mut rewrite = Rewrite {
        from: program,
        to: Program::new(program.name()),
        stand_ins: HashMap::new(),
        ids: vec![ValueId::at(0); program.n_values()],
    };
    inputs.iter().for_each(|&input| rewrite.emit(program.definer_idx(input)));
    for (idx, node) in program.nodes().iter().enumerate() {
        let wanted = node.results.iter().any(|result| needed[result.idx()]);
        if wanted && !matches!(node.op, Op::Input { .. }) {
            rewrite.emit(idx);
        }
    }
    let Rewrite { mut to, ids, .. } = rewrite;
    for (idx, value) in outputs.iter().enumerate() {
        to.add_output(format!("out{idx}"), ids[value.idx()]).expect("the names differ");
    }
    to
}
