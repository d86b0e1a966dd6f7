//! Row-sparse gradients: tables of which a step uses few rows.
//!
//! What a grain has of the gradient are the rows that it took, with their indices. They cannot be summed as they are, for each
//! grain has others; so every grain puts its rows into a place of its own (`put_grain`), what is summed over grains is all of the
//! places, and once a step the rows are merged (`merge_rows`): along the one tree, with what is not there skipped. The sum over
//! grains changes no bit of a place: elsewhere lies -0.0, and `x + -0.0` is `x` for every `x`, also for 0.0 and -0.0. So it does not
//! matter who did which grain, and everything that moves sums moves these.

use super::StepSize;
use crate::builder::{Builder, Value};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::Op;
use crate::program::{Program, ValueId};
use crate::shape::Shape;

/// A table whose rows are taken.
pub(super) struct Table {
    pub(super) weight: Value,
    /// Where rows are taken, in program order.
    uses: Vec<Taken>,
}

struct Taken {
    indices: Value,
    rows: Value,
}

impl Table {
    /// The rows that were taken, use by use.
    pub(super) fn taken(&self) -> impl Iterator<Item = &Value> {
        self.uses.iter().map(|taken| &taken.rows)
    }
}

/// The gradient of a table.
pub(super) struct Merged {
    /// The rows, then -1.
    pub(super) rows: Value,
    /// The sum over grains of each.
    pub(super) sums: Value,
}

/// The tables among the weights whose rows are taken, and the other weights.
pub(super) fn tables(
    builder: &Builder,
    weights: Vec<ValueId>,
) -> Result<(Vec<Table>, Vec<Value>), ProgramError> {
    let (mut tables, mut others) = (Vec::new(), Vec::new());
    for id in weights {
        let weight = builder.value(id);
        let taken = builder.inspect(|program| taken(program, id))?;
        let uses = taken.into_iter().map(|[indices, rows]| Taken {
            indices: builder.value(indices),
            rows: builder.value(rows),
        });
        let uses: Vec<Taken> = uses.collect();
        match uses.is_empty() {
            true => others.push(weight),
            false => tables.push(Table { weight, uses }),
        }
    }
    Ok((tables, others))
}

/// Where rows of a weight are taken: indices and rows.
fn taken(program: &Program, weight: ValueId) -> Result<Vec<[ValueId; 2]>, ProgramError> {
    let users = program.nodes().iter().filter(|node| node.operands.contains(&weight));
    let (takes, others): (Vec<_>, Vec<_>) = users.partition(|node| node.op == Op::TakeRows);
    match (takes.is_empty(), others.first()) {
        (false, Some(other)) => Err(ProgramError::NotOnlyRows {
            name: program.describe(weight),
            op: other.op.name().to_string(),
        }),
        _ => Ok(takes.iter().map(|node| [node.operands[1], node.results[0]]).collect()),
    }
}

/// The gradients of tables, of the gradients of the rows that were taken.
pub(super) fn merged(
    builder: &Builder,
    tables: &[Table],
    of_taken: Vec<Value>,
    size: Option<StepSize>,
) -> Result<Vec<Merged>, ProgramError> {
    let mut of_taken = of_taken.into_iter();
    let mut merged = Vec::with_capacity(tables.len());
    for table in tables {
        let name = || builder.inspect(|program| program.describe(table.weight.id()));
        let size = size.ok_or_else(|| ProgramError::NoStepSize { name: name() })?;
        let mut operands = Vec::new();
        for (taken, gradient) in table.uses.iter().zip(&mut of_taken) {
            operands.extend(kept(builder, taken, &gradient, size)?);
        }
        let n_rows: usize =
            operands.iter().step_by(2).map(|codes| codes.shape().n_elements()).sum();
        let most = n_rows.min(table.weight.shape()[0]);
        let operands: Vec<&Value> = operands.iter().collect();
        let results = builder.apply_all(Op::MergeRows { most }, &operands)?;
        let [rows, sums] = &results[..] else { continue };
        merged.push(Merged { rows: rows.clone(), sums: sums.clone() });
    }
    Ok(merged)
}

/// Codes and gradients of the rows that all grains took at one place of the program.
fn kept(
    builder: &Builder,
    taken: &Taken,
    gradient: &Value,
    size: StepSize,
) -> Result<[Value; 2], ProgramError> {
    let shape = taken.indices.shape();
    let n = shape.n_elements();
    let per_sample = n / shape.first().copied().unwrap_or(1).max(1);
    let room = (per_sample * size.n_samples).max(1);
    if n > room {
        let (what, expected) =
            ("the samples of a grain", "as many as the step's size says, or fewer");
        return Err(ProgramError::Setting { what, expected, found: format!("{n} indices") });
    }
    let width = gradient.shape().last();
    let context = builder.random_context()?;
    let codes = (taken.indices.cast(DType::I32)?.reshape([n])? + 1.0)?;
    let values = gradient.reshape(Shape::from([n, width]))?;
    let put = |value: &Value| -> Result<Value, ProgramError> {
        let rank = value.shape().rank();
        let mut high = vec![0; rank];
        high[0] = room - n;
        let value = match room == n {
            true => value.clone(),
            false => {
                let filling = builder.scalar(value.dtype(), 0.0)?;
                value.pad(&filling, &vec![0; rank], &high, &vec![0; rank])?
            }
        };
        builder.apply(Op::PutGrain { n_grains: size.n_grains }, &[&context, &value])?.grain_sum()
    };
    Ok([put(&codes)?, put(&values)?])
}
