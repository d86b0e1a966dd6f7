//! The update of the rows of a table that a step touched, and of no others: any rule, on the rows put together.
//!
//! The rule is asked for its update of a parameter that has just these rows. Its operations then go into the program with the
//! rows of the table, and of the state beside it, taken before and put back after.

use std::collections::HashMap;

use super::UpdateRule;
use crate::builder::{Builder, Value};
use crate::error::ProgramError;
use crate::op::Op;
use crate::program::{Node, Program, ValueId};
use crate::shape::{Shape, TensorType};

const GRADIENT: &str = "gradient";
const RATE: &str = "rate";
const STEP: &str = "step";

/// Rows of a table that are about to be updated.
pub(crate) struct RowsAt<'a> {
    pub(crate) table: &'a Value,
    /// Which rows; none where below zero.
    pub(crate) rows: &'a Value,
    /// The gradient of each.
    pub(crate) gradient: &'a Value,
}

/// Adds the update of some rows.
pub(crate) fn update_rows(
    builder: &Builder,
    rule: &dyn UpdateRule,
    at: &RowsAt<'_>,
    rate: &Value,
    step: &Value,
) -> Result<(), ProgramError> {
    let named = builder.inspect(|program| match &program.definer(at.table.id()).op {
        Op::Parameter { name, role, init, .. } => Some((name.clone(), *role, *init)),
        _ => None,
    });
    let Some((name, role, init)) = named else {
        let target = builder.inspect(|program| program.describe(at.table.id()));
        return Err(ProgramError::NotAParameter { target });
    };
    let TensorType { dtype, shape } = at.gradient.ty();
    let own = Builder::new(name.clone());
    let parameter = Op::Parameter { name: name.clone(), dtype, shape: shape.clone(), role, init };
    let parameter = own.apply(parameter, &[])?;
    let gradient = own.input(GRADIENT, dtype, shape.clone())?;
    let own_rate = own.input(RATE, rate.dtype(), Shape::scalar())?;
    let own_step = own.input(STEP, step.dtype(), Shape::scalar())?;
    rule.update(&own, &parameter, &gradient, &own_rate, &own_step)?;
    let program = own.finish();
    let inputs = [(GRADIENT, at.gradient), (RATE, rate), (STEP, step)];
    let mut inlined =
        Inlined { builder, at, name: &name, inputs, known: HashMap::new(), tables: HashMap::new() };
    for node in program.nodes() {
        inlined.add(node)?;
    }
    inlined.finish(&program)
}

/// A rule's program on its way into another.
struct Inlined<'a> {
    builder: &'a Builder,
    at: &'a RowsAt<'a>,
    /// The name of the table.
    name: &'a str,
    inputs: [(&'static str, &'a Value); 3],
    known: HashMap<ValueId, Value>,
    /// By parameter of the rule's program: the whole table.
    tables: HashMap<ValueId, Value>,
}

impl Inlined<'_> {
    fn add(&mut self, node: &Node) -> Result<(), ProgramError> {
        let result = node.results[0];
        match &node.op {
            Op::Input { name, .. } => {
                let found = self.inputs.iter().find(|(own, _)| own == name);
                let Some((_, value)) = found else { return Err(not_by_element(&node.op)) };
                self.known.insert(result, (*value).clone());
            }
            Op::Parameter { name, .. } if name == self.name => {
                self.tables.insert(result, self.at.table.clone());
            }
            Op::Parameter { name, dtype, shape, role, init } => {
                if *shape != self.at.gradient.shape() {
                    return Err(not_by_element(&node.op));
                }
                let shape = self.at.table.shape();
                let (name, dtype, role, init) = (name.clone(), *dtype, *role, *init);
                let whole = Op::Parameter { name, dtype, shape, role, init };
                self.tables.insert(result, self.builder.apply(whole, &[])?);
            }
            op if op.is_elementwise() || matches!(op, Op::Constant(_) | Op::Broadcast { .. }) => {
                let operands =
                    node.operands.iter().map(|id| self.get(*id)).collect::<Result<Vec<_>, _>>()?;
                let value = self.builder.apply(op.clone(), &operands.iter().collect::<Vec<_>>())?;
                self.known.insert(result, value);
            }
            op => return Err(not_by_element(op)),
        }
        Ok(())
    }

    /// A value; of a parameter, its rows.
    fn get(&mut self, id: ValueId) -> Result<Value, ProgramError> {
        if let Some(value) = self.known.get(&id) {
            return Ok(value.clone());
        }
        let rows = self.tables[&id].take_rows(self.at.rows)?;
        self.known.insert(id, rows.clone());
        Ok(rows)
    }

    fn finish(mut self, program: &Program) -> Result<(), ProgramError> {
        for output in program.outputs() {
            let value = self.get(output.value)?;
            self.builder.output(&output.name, &value)?;
        }
        for update in program.updates() {
            let (table, next) = (self.tables[&update.parameter].clone(), self.get(update.value)?);
            let next = self.builder.apply(Op::PutRows, &[&table, self.at.rows, &next])?;
            self.builder.update(&table, &next)?;
        }
        Ok(())
    }
}

fn not_by_element(op: &Op) -> ProgramError {
    ProgramError::Setting {
        what: "the optimizer of a table whose rows are taken",
        expected: "one that treats each element by itself (not lamb)",
        found: format!("one with `{}`", op.name()),
    }
}
