//! The update of one parameter, cut to a run of its elements: what a server of a parameter table applies to the shard that it holds.
//!
//! The update is the job's own, taken from the step half of its training program, so there is one Adam and not two. Elementwise operations are cut
//! as they are and give the same bits for every run. What looks at more than an element (clipping by a norm, LAMB's norms) cannot be cut, and
//! [`Uncut`] says why: such a parameter stays with the workers.

use std::collections::BTreeSet;

use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::{Binary, Comparison, Init, Op, Role};
use crate::partials::is_sum;
use crate::passes::rewrite::Rewriter;
use crate::program::{Node, Program, ValueId};
use crate::row_tables::RowTable;
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// The name of the parameter in a [`ShardUpdate`].
pub const SHARD_VALUE: &str = "value";

/// The name of the scalar input of [`ShardUpdate::by_shares`].
pub const SHARE: &str = "share";

/// The update of a run of a parameter's elements.
///
/// Its program has the parameters `value` and `slot#0`, `slot#1`, ...; the inputs `sum#0`, ... for runs of sums over grains, and scalars under the names that
/// they have in the step half. Parameters with the same rule and runs of the same length have the same program.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardUpdate {
    /// Runs once for each update.
    pub program: Program,
    /// The sums over grains, in the step half, whose runs are the inputs `sum#0`, ...
    pub sums: Vec<String>,
    /// The scalar inputs: sums such as the divisor, the rate, the step.
    pub scalars: Vec<String>,
    /// The optimizer's parameters that become `slot#0`, ...
    pub slots: Vec<String>,
}

impl ShardUpdate {
    /// The same update for a run of another length.
    pub fn resized(program: &Program, n_elements: usize) -> Result<Program, ProgramError> {
        let run = Shape::from([n_elements]);
        let mut rewriter = Rewriter::new(program);
        for node in program.nodes() {
            let op = match node.op.clone() {
                Op::Input { name, dtype, shape } if shape.rank() == 1 => {
                    Op::Input { name, dtype, shape: run.clone() }
                }
                Op::Parameter { name, dtype, role, init, .. } => {
                    Op::Parameter { name, dtype, shape: run.clone(), role, init }
                }
                Op::Broadcast { axes, .. } => Op::Broadcast { shape: run.clone(), axes },
                Op::Constant(tensor) if tensor.shape().rank() == 1 => {
                    // Such a constant has one value only, or the update had not been cut.
                    let value = tensor.splat_value().unwrap_or_default();
                    let ty = TensorType { dtype: tensor.ty().dtype, shape: run.clone() };
                    Op::Constant(Tensor::filled(ty, value)?)
                }
                other => other,
            };
            let operands = rewriter.operands(node)?;
            rewriter.replace(node, op, &operands)?;
        }
        rewriter.finish()
    }

    /// The same update where each push is a share of a step, the scalar input `share`: values, and what the optimizer keeps of them, go their share of the way to where
    /// a whole step would lead.
    ///
    /// So the pushes of a step move the model, its momentum and its means as far as one push of the whole batch does. (A smaller rate alone would let the means forget at
    /// every push what they should forget at every step.) What the step puts at exactly 0 is 0, so that L1 keeps its zeros.
    pub fn by_shares(program: &Program) -> Result<Program, ProgramError> {
        let mut rewriter = Rewriter::new(program);
        for node in program.nodes() {
            rewriter.keep(node)?;
        }
        let (name, dtype, shape) = (SHARE.to_string(), DType::F32, Shape::scalar());
        let share = rewriter.emit_one(Op::Input { name, dtype, shape }, &[], "")?;
        let mut updates = Vec::new();
        for update in program.updates() {
            let ty = program.ty(update.parameter).clone();
            let (before, whole) = (rewriter.get(update.parameter)?, rewriter.get(update.value)?);
            let broadcast = Op::Broadcast { shape: ty.shape.clone(), axes: Vec::new() };
            let shares = rewriter.emit_one(broadcast, &[share], "")?;
            let way = rewriter.emit_one(Op::Binary(Binary::Sub), &[whole, before], "")?;
            let part = rewriter.emit_one(Op::Binary(Binary::Mul), &[shares, way], "")?;
            let moved = rewriter.emit_one(Op::Binary(Binary::Add), &[before, part], "")?;
            let zero = rewriter.emit_one(Op::Constant(Tensor::filled(ty, 0.0)?), &[], "")?;
            let is_zero = rewriter.emit_one(Op::Compare(Comparison::Eq), &[whole, zero], "")?;
            let value = rewriter.emit_one(Op::Select, &[is_zero, zero, moved], "")?;
            updates.push((before, value));
        }
        let mut program = rewriter.into_program();
        for (parameter, value) in updates {
            program.add_update(parameter, value)?;
        }
        Ok(program)
    }
}

/// Why the update of a parameter cannot be cut.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Uncut {
    /// There is no such parameter.
    #[error("there is no parameter `{name}`")]
    NoParameter {
        /// Its name.
        name: String,
    },
    /// It never changes.
    #[error("`{name}` is not updated")]
    NoUpdate {
        /// Its name.
        name: String,
    },
    /// It is a single number.
    #[error("`{name}` is a single number")]
    SingleNumber {
        /// Its name.
        name: String,
    },
    /// Servers hold 32-bit floats.
    #[error("the update of `{name}` has {dtype} elements, and servers hold f32")]
    ElementType {
        /// The parameter.
        name: String,
        /// The other element type.
        dtype: DType,
    },
    /// It needs the norm of a gradient or of a parameter.
    #[error(
        "the update of `{name}` looks at more than one element at a time: it takes a norm, as `clip` by norm and the optimizer `lamb` do; clipping by value and other optimizers do not"
    )]
    TakesNorm {
        /// The parameter.
        name: String,
    },
    /// An operation looks at more than one element.
    #[error("the update of `{name}` looks at more than one element at a time (`{op}`)")]
    LooksAtMore {
        /// The parameter.
        name: String,
        /// The operation.
        op: &'static str,
    },
    /// It is updated together with another.
    #[error("`{name}` and `{other}` are updated together")]
    Together {
        /// The parameter.
        name: String,
        /// The other.
        other: String,
    },
    /// The program cannot be written.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// The update of `n_elements` of a parameter, from the step half of a training program.
pub fn shard_update(
    step: &Program,
    parameter: &str,
    n_elements: usize,
) -> Result<ShardUpdate, Uncut> {
    let name = parameter.to_string();
    let found = step.parameters().find(|(own, ..)| *own == parameter);
    let Some((_, _, value)) = found else { return Err(Uncut::NoParameter { name }) };
    let TensorType { dtype, shape } = step.ty(value).clone();
    if !step.updates().iter().any(|update| update.parameter == value) {
        return Err(Uncut::NoUpdate { name });
    }
    if shape.rank() == 0 {
        return Err(Uncut::SingleNumber { name });
    }
    if dtype != DType::F32 {
        return Err(Uncut::ElementType { name, dtype });
    }
    let group = updated_together(step, parameter, value)?;
    takes_no_norm(step, parameter, &group)?;
    Cutting::new(step, parameter, (shape, n_elements)).cut(value, &group)
}

/// The update of `n_elements` of the rows of a table, any of them one after the other: `sum#0` are their gradients, merged over grains.
pub fn row_update(
    step: &Program,
    table: &RowTable,
    n_elements: usize,
) -> Result<ShardUpdate, Uncut> {
    let weight = step.parameters().find(|(name, role, _)| {
        *role == Role::Weight && table.parameters.iter().any(|own| own == name)
    });
    let Some((name, _, value)) = weight else {
        let name = table.parameters.first().cloned().unwrap_or_default();
        return Err(Uncut::NoParameter { name });
    };
    let group = updated_together(step, name, value)?;
    takes_no_norm(step, name, &group)?;
    let rows = Shape::from([table.most, table.width]);
    let mut cutting = Cutting::new(step, name, (rows, n_elements));
    cutting.table = Some(step.ty(value).shape.clone());
    cutting.cut(value, &group)
}

/// Whether the updates of some parameters need no norm.
fn takes_no_norm(step: &Program, name: &str, group: &BTreeSet<ValueId>) -> Result<(), Uncut> {
    let own = step.updates().iter().filter(|update| group.contains(&update.parameter));
    let takes = |update: &crate::program::Update| {
        nodes_behind(step, update.value)
            .into_iter()
            .any(|idx| matches!(step.nodes()[idx].op, Op::BlockSquareSums))
    };
    match own.into_iter().any(takes) {
        true => Err(Uncut::TakesNorm { name: name.to_string() }),
        false => Ok(()),
    }
}

/// A training program without the updates of some parameters, which are updated elsewhere. The sums over grains stay.
pub fn without_updates(program: &Program, of: &BTreeSet<String>) -> Result<Program, ProgramError> {
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        rewriter.keep(node)?;
    }
    let mut kept = Vec::new();
    for update in program.updates() {
        let is_elsewhere = matches!(
            &program.definer(update.parameter).op,
            Op::Parameter { name, .. } if of.contains(name)
        );
        if !is_elsewhere {
            kept.push((rewriter.get(update.parameter)?, rewriter.get(update.value)?));
        }
    }
    let outputs = program.outputs().iter();
    let outputs = outputs.map(|output| Ok((output.name.clone(), rewriter.get(output.value)?)));
    let outputs = outputs.collect::<Result<Vec<_>, ProgramError>>()?;
    let mut rest = rewriter.into_program();
    for (name, value) in outputs {
        rest.add_output(name, value)?;
    }
    for (parameter, value) in kept {
        rest.add_update(parameter, value)?;
    }
    Ok(rest)
}

/// The parameter with the optimizer's own that are updated with it.
fn updated_together(
    step: &Program,
    name: &str,
    parameter: ValueId,
) -> Result<BTreeSet<ValueId>, Uncut> {
    let read: Vec<(ValueId, BTreeSet<ValueId>)> = step
        .updates()
        .iter()
        .map(|update| (update.parameter, parameters_behind(step, update.value)))
        .collect();
    let mut group = BTreeSet::from([parameter]);
    loop {
        let mut more = BTreeSet::new();
        for (updated, read) in &read {
            let touches = group.contains(updated) || read.iter().any(|one| group.contains(one));
            if touches {
                more.extend(read.iter().copied().chain([*updated]));
            }
        }
        let n_before = group.len();
        group.extend(more);
        if group.len() == n_before {
            break;
        }
    }
    for &one in group.iter().filter(|&&one| one != parameter) {
        if let Op::Parameter { name: other, role, .. } = &step.definer(one).op
            && *role != Role::Slot
        {
            return Err(Uncut::Together { name: name.to_string(), other: other.clone() });
        }
    }
    Ok(group)
}

/// The parameters that a value depends on.
fn parameters_behind(program: &Program, value: ValueId) -> BTreeSet<ValueId> {
    let nodes = nodes_behind(program, value).into_iter().map(|idx| &program.nodes()[idx]);
    let parameters = nodes.filter(|node| matches!(node.op, Op::Parameter { .. }));
    parameters.map(|node| node.results[0]).collect()
}

/// The nodes that a value depends on, its own included.
fn nodes_behind(program: &Program, value: ValueId) -> BTreeSet<usize> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![value]);
    while let Some(value) = open.pop() {
        if seen.insert(program.definer_idx(value)) {
            open.extend(&program.definer(value).operands);
        }
    }
    seen
}

/// A shard's program under construction.
struct Cutting<'a> {
    step: &'a Program,
    name: &'a str,
    /// The shape of the parameter, and what it becomes.
    whole: Shape,
    run: Shape,
    /// The shape of the table, where the parameter is one whose rows are updated: `whole` is that of the rows then.
    table: Option<Shape>,
    rewriter: Rewriter<'a>,
    sums: Vec<String>,
    scalars: Vec<String>,
    slots: Vec<String>,
}

impl<'a> Cutting<'a> {
    fn new(step: &'a Program, name: &'a str, (whole, n_elements): (Shape, usize)) -> Cutting<'a> {
        let (run, rewriter) = (Shape::from([n_elements]), Rewriter::new(step));
        let (sums, scalars, slots) = (Vec::new(), Vec::new(), Vec::new());
        Cutting { step, name, whole, run, table: None, rewriter, sums, scalars, slots }
    }

    fn cut(mut self, parameter: ValueId, group: &BTreeSet<ValueId>) -> Result<ShardUpdate, Uncut> {
        let updates = self.step.updates().iter().filter(|update| group.contains(&update.parameter));
        let updates: Vec<_> = updates.collect();
        let mut needed = vec![false; self.step.nodes().len()];
        for root in updates.iter().flat_map(|update| [update.parameter, update.value]) {
            needed[self.step.definer_idx(root)] = true;
        }
        for (idx, node) in self.step.nodes().iter().enumerate().rev() {
            // Rows that were merged are given.
            let is_given = self.table.is_some() && matches!(node.op, Op::MergeRows { .. });
            if needed[idx] && !is_given {
                node.operands.iter().for_each(|one| needed[self.step.definer_idx(*one)] = true);
            }
        }
        // First in the program, whatever it reads before.
        self.take(self.step.definer(parameter), parameter)?;
        for (idx, node) in self.step.nodes().iter().enumerate() {
            if needed[idx] && node.results[0] != parameter {
                self.take(node, parameter)?;
            }
        }
        let mut kept = Vec::new();
        for update in updates {
            kept.push((self.rewriter.get(update.parameter)?, self.rewriter.get(update.value)?));
        }
        let Cutting { rewriter, sums, scalars, slots, .. } = self;
        let mut program = rewriter.into_program();
        for (parameter, value) in kept {
            program.add_update(parameter, value)?;
        }
        Ok(ShardUpdate { program, sums, scalars, slots })
    }

    /// Takes over one node of the step half.
    fn take(&mut self, node: &Node, parameter: ValueId) -> Result<(), Uncut> {
        if self.table.is_some() && self.take_rows(node, parameter)? {
            return Ok(());
        }
        let ty = self.step.ty(node.results[0]).clone();
        let (is_whole, is_scalar) = (ty.shape == self.whole, ty.shape.rank() == 0);
        let more = Uncut::LooksAtMore { name: self.name.to_string(), op: node.op.name() };
        if node.results.len() != 1 || !(is_whole || is_scalar) {
            return Err(more);
        }
        let operands = self.rewriter.operands(node)?;
        let is_whole_operand = |value: &ValueId| self.step.ty(*value).shape == self.whole;
        let op = match &node.op {
            Op::Parameter { .. } | Op::Input { .. } if is_whole => {
                self.argument(node, &ty, parameter)?
            }
            Op::Input { name, .. } => {
                self.scalars.push(name.clone());
                node.op.clone()
            }
            Op::Parameter { .. } => return Err(more),
            Op::Constant(tensor) if is_whole => match tensor.splat_value() {
                Some(value) => Op::Constant(self.filled(ty.dtype, value)?),
                None => return Err(more),
            },
            Op::Broadcast { axes, .. } if is_whole && axes.is_empty() => {
                Op::Broadcast { shape: self.run.clone(), axes: Vec::new() }
            }
            op if is_whole && op.is_elementwise() => op.clone(),
            op if is_scalar && !node.operands.iter().any(is_whole_operand) => op.clone(),
            _ => return Err(more),
        };
        let result = self.rewriter.emit_one(op, &operands, "")?;
        self.rewriter.set(node.results[0], result);
        Ok(())
    }

    /// Takes over a node that is about the rows of a table; whether it is. What is left of a table are the rows at hand.
    fn take_rows(&mut self, node: &Node, parameter: ValueId) -> Result<bool, Uncut> {
        let value = match &node.op {
            Op::MergeRows { .. } => {
                let (name, dtype, shape) = ("sum#0".to_string(), DType::F32, self.run.clone());
                let sum = self.rewriter.emit_one(Op::Input { name, dtype, shape }, &[], "")?;
                self.rewriter.set(node.results[1], sum);
                return Ok(true);
            }
            Op::Parameter { shape, .. } if self.table.as_ref() == Some(shape) => {
                let ty = self.step.ty(node.results[0]).clone();
                let op = self.argument(node, &ty, parameter)?;
                self.rewriter.emit_one(op, &[], "")?
            }
            Op::TakeRows => self.rewriter.get(node.operands[0])?,
            Op::PutRows => self.rewriter.get(node.operands[2])?,
            _ => return Ok(false),
        };
        self.rewriter.set(node.results[0], value);
        Ok(true)
    }

    /// An input or a parameter of the parameter's shape.
    fn argument(&mut self, node: &Node, ty: &TensorType, parameter: ValueId) -> Result<Op, Uncut> {
        let dtype = ty.dtype;
        if dtype != DType::F32 {
            return Err(Uncut::ElementType { name: self.name.to_string(), dtype });
        }
        let shape = self.run.clone();
        Ok(match &node.op {
            Op::Parameter { name, role, .. } => {
                let own = if node.results[0] == parameter {
                    SHARD_VALUE.to_string()
                } else {
                    self.slots.push(name.clone());
                    format!("slot#{}", self.slots.len() - 1)
                };
                // Who runs it hands it its values: the first is made elsewhere.
                let init = Init::Constant(0.0);
                Op::Parameter { name: own, dtype, shape, role: *role, init }
            }
            Op::Input { name, .. } if is_sum(name) => {
                self.sums.push(name.clone());
                Op::Input { name: format!("sum#{}", self.sums.len() - 1), dtype, shape }
            }
            other => {
                let (name, op) = (self.name.to_string(), other.name());
                return Err(Uncut::LooksAtMore { name, op });
            }
        })
    }

    fn filled(&self, dtype: DType, value: f64) -> Result<Tensor, Uncut> {
        let filled = Tensor::filled(TensorType { dtype, shape: self.run.clone() }, value);
        filled.map_err(|_| Uncut::LooksAtMore { name: self.name.to_string(), op: "constant" })
    }
}

#[cfg(test)]
mod tests;
