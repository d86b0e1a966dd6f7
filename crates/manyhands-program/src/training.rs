//! A training step: from a loss per grain to updates of all parameters, in one program.
//!
//! Gradients and losses are sums per grain; each is summed over grains, and the divisor is applied once to the total. See
//! [`split_grains`](crate::split_grains) for how the program is then run.

use serde::{Deserialize, Serialize};

use crate::builder::{Builder, Value};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::Role;
use crate::optimizer::{Clip, Optimizer, RowsAt, UpdateRule, setting, update_rows};
use crate::program::{Program, ValueId};
use crate::shape::Shape;

mod rows;

use rows::Table;

/// The name of the input that carries the rate of a step.
pub const RATE: &str = "rate";
/// The name of the input that carries the number of a step, 1 at the first.
pub const STEP: &str = "step";
/// The name of the output that carries the mean loss of a step.
pub const LOSS: &str = "loss";

/// How a model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// How parameters follow their gradients.
    pub optimizer: Optimizer,
    /// How gradients are kept small, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
}

impl Training {
    /// As [`add_training_step`], with these settings.
    #[track_caller]
    pub fn add_step(
        &self,
        builder: &Builder,
        loss_sum: &Value,
        divisor: &Value,
    ) -> Result<(), ProgramError> {
        add_training_step(builder, &self.optimizer, self.clip, loss_sum, divisor)
    }
}

/// How large a step is at most. What runs once a step must not depend on the size of a batch, and rows of tables are kept grain
/// by grain until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSize {
    /// How many grains a step has at most.
    pub n_grains: usize,
    /// How many samples a grain has at most: the first axis of indices.
    pub n_samples: usize,
}

/// Adds a training step to a program: gradients of `loss_sum` with respect to every weight that it depends on, summed
/// over grains, divided by the total of `divisor` (a scalar: the samples, tokens or weights of a grain), clipped, and
/// turned into updates. The program gets the f32 inputs `rate` and `step` and the output `loss`.
#[track_caller]
pub fn add_training_step(
    builder: &Builder,
    rule: &dyn UpdateRule,
    clip: Option<Clip>,
    loss_sum: &Value,
    divisor: &Value,
) -> Result<(), ProgramError> {
    add_sized_training_step(builder, rule, clip, loss_sum, divisor, None)
}

/// As [`add_training_step`], of a step whose size is known: tables whose rows are taken ([`Op::TakeRows`](crate::Op::TakeRows)) can be
/// trained then. Their gradients are the rows that were taken, and the update touches no others.
#[track_caller]
pub fn add_sized_training_step(
    builder: &Builder,
    rule: &dyn UpdateRule,
    clip: Option<Clip>,
    loss_sum: &Value,
    divisor: &Value,
    size: Option<StepSize>,
) -> Result<(), ProgramError> {
    rule.check()?;
    let resolve = |value| builder.resolve(value);
    let foreign = |problem| builder.foreign("training step", problem);
    let loss = resolve(loss_sum).map_err(foreign)?;
    resolve(divisor).map_err(foreign)?;
    if divisor.shape().rank() != 0 {
        let (what, found) = ("the divisor of a loss", divisor.ty().to_string());
        return Err(ProgramError::Setting { what, expected: "a scalar", found });
    }
    let weights = builder.inspect(|program| weights_behind(program, loss));
    let (tables, weights) = rows::tables(builder, weights)?;
    let taken: Vec<&Value> = tables.iter().flat_map(Table::taken).collect();
    let (uses, of_taken) =
        builder.gradients_both(loss_sum, &weights.iter().collect::<Vec<_>>(), &taken)?;
    let total_loss = loss_sum.grain_sum()?;
    let total_divisor = divisor.grain_sum()?.cast(loss_sum.dtype())?;
    let inverse = (1.0 / &total_divisor)?;
    let mut gradients = Vec::with_capacity(weights.len());
    for (weight, uses) in weights.iter().zip(&uses) {
        gradients.push((summed(uses)? * inverse.cast(weight.dtype())?)?);
    }
    let merged = rows::merged(builder, &tables, of_taken, size)?;
    for (table, merged) in tables.iter().zip(&merged) {
        gradients.push((&merged.sums * inverse.cast(table.weight.dtype())?)?);
    }
    if let Some(clip) = clip {
        gradients = clip.apply(&gradients)?;
    }
    let rate = builder.input(RATE, DType::F32, Shape::scalar())?;
    let step = builder.input(STEP, DType::F32, Shape::scalar())?;
    for (weight, gradient) in weights.iter().zip(&gradients) {
        rule.update(builder, weight, gradient, &rate, &step)?;
    }
    for ((table, merged), gradient) in tables.iter().zip(&merged).zip(&gradients[weights.len()..]) {
        let at = RowsAt { table: &table.weight, rows: &merged.rows, gradient };
        update_rows(builder, rule, &at, &rate, &step)?;
    }
    builder.output(LOSS, &(total_loss / total_divisor)?)
}

/// Each use of a weight is summed over grains by itself; the totals are added in program order.
fn summed(uses: &[Value]) -> Result<Value, ProgramError> {
    let mut total: Option<Value> = None;
    for part in uses {
        let sum = part.grain_sum()?;
        total = Some(match total {
            Some(before) => (before + sum)?,
            None => sum,
        });
    }
    Ok(total.expect("a weight that the loss depends on has a use"))
}

/// The weights that a value depends on, in program order.
fn weights_behind(program: &Program, value: ValueId) -> Vec<ValueId> {
    let mut needed = vec![false; program.nodes().len()];
    needed[program.definer_idx(value)] = true;
    for (idx, node) in program.nodes().iter().enumerate().rev() {
        if needed[idx] {
            node.operands.iter().for_each(|&operand| needed[program.definer_idx(operand)] = true);
        }
    }
    program
        .parameters()
        .filter(|(_, role, id)| *role == Role::Weight && needed[program.definer_idx(*id)])
        .filter(|(_, _, id)| program.ty(*id).dtype.is_float())
        .map(|(_, _, id)| id)
        .collect()
}

/// Running statistics of a batch norm, as updates: `running += momentum * (mean over grains - running)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunningStatistics {
    /// How far the running statistics move towards those of a step.
    pub momentum: f64,
}

impl Default for RunningStatistics {
    fn default() -> RunningStatistics {
        RunningStatistics { momentum: 0.1 }
    }
}

impl RunningStatistics {
    /// Updates the running mean and variance (parameters with [`Role::Statistic`]) from those of each grain, averaged over
    /// grains by how many elements per channel (`n_samples`) each has; the running variance is the unbiased one. What runs
    /// once a step does not depend on the size of a grain, so that an epoch's short last grain adds to the same sums.
    #[track_caller]
    pub fn add_updates(
        &self,
        builder: &Builder,
        [mean, variance]: [&Value; 2],
        [running_mean, running_variance]: [&Value; 2],
        n_samples: usize,
    ) -> Result<(), ProgramError> {
        let holds = (0.0..=1.0).contains(&self.momentum);
        setting("the momentum of running statistics", "between 0 and 1", self.momentum, holds)?;
        let n = n_samples as f64;
        let unbiased = n * n / n_samples.saturating_sub(1).max(1) as f64;
        let total = builder.scalar(mean.dtype(), n)?.grain_sum()?;
        self.follow(builder, mean, running_mean, n, &total)?;
        self.follow(builder, variance, running_variance, unbiased, &total)
    }

    fn follow(
        &self,
        builder: &Builder,
        now: &Value,
        running: &Value,
        factor: f64,
        total: &Value,
    ) -> Result<(), ProgramError> {
        let average = ((now * factor)?.grain_sum()? / total)?;
        let kept = (running * (1.0 - self.momentum))?;
        let next = (kept + (average * self.momentum)?)?;
        builder.update(running, &next)
    }
}

#[cfg(test)]
mod tests;
