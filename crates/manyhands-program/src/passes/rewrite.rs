//! The one tool of all passes: a walk over a program that emits another, keeping which new value stands for which old one.

use crate::error::{Problem, ProgramError};
use crate::op::{CondSpec, Op, ScanSpec};
use crate::program::{Node, Program, ValueId};

/// A pass: a program with the same meaning and the same bits.
pub(super) type Rewritten = Result<Program, ProgramError>;

/// A new program under construction, and the new values that stand for old ones.
pub(crate) struct Rewriter<'a> {
    old: &'a Program,
    new: Program,
    map: Vec<Option<ValueId>>,
}

impl<'a> Rewriter<'a> {
    pub(crate) fn new(old: &'a Program) -> Rewriter<'a> {
        Rewriter { old, new: Program::new(old.name()), map: vec![None; old.n_values()] }
    }

    /// The program so far.
    pub(crate) fn program(&self) -> &Program {
        &self.new
    }

    /// The new value that stands for an old one.
    pub(crate) fn get(&self, old: ValueId) -> Result<ValueId, ProgramError> {
        self.map[old.idx()].ok_or_else(|| ProgramError::Operation {
            op: self.old.definer(old).op.name().to_string(),
            operands: Vec::new(),
            problem: Box::new(Problem::Undefined { value: old.to_string() }),
            at: None,
        })
    }

    /// The new operands of an old node.
    pub(crate) fn operands(&self, node: &Node) -> Result<Vec<ValueId>, ProgramError> {
        node.operands.iter().map(|&value| self.get(value)).collect()
    }

    /// Lets a new value stand for an old one.
    pub(crate) fn set(&mut self, old: ValueId, new: ValueId) {
        self.map[old.idx()] = Some(new);
    }

    /// Emits an operation on new values.
    pub(crate) fn emit(
        &mut self,
        op: Op,
        operands: &[ValueId],
        scope: &str,
    ) -> Result<Vec<ValueId>, ProgramError> {
        self.new.push(op, operands, scope)
    }

    /// Emits an operation with one result.
    pub(crate) fn emit_one(
        &mut self,
        op: Op,
        operands: &[ValueId],
        scope: &str,
    ) -> Result<ValueId, ProgramError> {
        Ok(self.emit(op, operands, scope)?[0])
    }

    /// Emits an operation in place of an old node: its results stand for the node's.
    pub(crate) fn replace(
        &mut self,
        node: &Node,
        op: Op,
        operands: &[ValueId],
    ) -> Result<(), ProgramError> {
        let results = self.emit(op, operands, &node.scope)?;
        node.results.iter().zip(results).for_each(|(&old, new)| self.set(old, new));
        Ok(())
    }

    /// Emits an old node as it is.
    pub(crate) fn keep(&mut self, node: &Node) -> Result<(), ProgramError> {
        let operands = self.operands(node)?;
        self.replace(node, node.op.clone(), &operands)
    }

    /// The new program with the outputs and updates of the old one.
    pub(crate) fn finish(mut self) -> Rewritten {
        for output in self.old.outputs() {
            let value = self.get(output.value)?;
            self.new.add_output(output.name.clone(), value)?;
        }
        for update in self.old.updates() {
            let (parameter, value) = (self.get(update.parameter)?, self.get(update.value)?);
            self.new.add_update(parameter, value)?;
        }
        Ok(self.new)
    }

    /// The new program without outputs and updates, for passes that choose them.
    pub(crate) fn into_program(self) -> Program {
        self.new
    }
}

/// The operation with a pass applied to its bodies, if it has any.
pub(super) fn in_bodies(
    op: &Op,
    pass: &mut dyn FnMut(&Program) -> Rewritten,
) -> Result<Op, ProgramError> {
    Ok(match op {
        Op::Scan(scan) => {
            Op::Scan(Box::new(ScanSpec { body: pass(&scan.body)?, ..scan.as_ref().clone() }))
        }
        Op::Cond(cond) => {
            let (then, otherwise) = (pass(&cond.then)?, pass(&cond.otherwise)?);
            Op::Cond(Box::new(CondSpec { then, otherwise }))
        }
        other => other.clone(),
    })
}

/// The splat value of a constant, also through broadcasts and reshapes.
pub(super) fn splat(program: &Program, value: ValueId) -> Option<f64> {
    let node = program.definer(value);
    match &node.op {
        Op::Constant(tensor) => tensor.splat_value(),
        Op::Broadcast { .. } | Op::Reshape { .. } => splat(program, node.operands[0]),
        _ => None,
    }
}
