//! Clipping: gradients that are too large are cut or scaled down before the update sees them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::setting;
use crate::builder::Value;
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::Op;

/// How gradients are kept small.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Clip {
    /// Each element lies between minus and plus the value.
    Value(f64),
    /// All gradients together are scaled down to this norm if theirs is larger.
    GlobalNorm(f64),
}

/// Added to the norm before dividing by it, as PyTorch does.
const NORM_EPSILON: f64 = 1e-6;

impl Clip {
    /// Checks the setting.
    pub fn check(&self) -> Result<(), ProgramError> {
        let (Clip::Value(bound) | Clip::GlobalNorm(bound)) = *self;
        setting(
            "the clipping bound",
            "positive and finite",
            bound,
            bound > 0.0 && bound.is_finite(),
        )
    }

    /// The gradients of all parameters, in parameter order, clipped.
    pub fn apply(&self, gradients: &[Value]) -> Result<Vec<Value>, ProgramError> {
        self.check()?;
        match *self {
            Clip::Value(bound) => gradients.iter().map(|gradient| cut(gradient, bound)).collect(),
            Clip::GlobalNorm(bound) => scaled_down(gradients, bound),
        }
    }
}

fn cut(gradient: &Value, bound: f64) -> Result<Value, ProgramError> {
    let number = |value: f64| gradient.builder().scalar(gradient.dtype(), value);
    gradient.maximum(&number(-bound)?)?.minimum(&number(bound)?)
}

/// Squares are summed in fixed blocks within a parameter, the blocks of a parameter next, then the parameters in order:
/// one order for every way to hold them.
fn scaled_down(gradients: &[Value], bound: f64) -> Result<Vec<Value>, ProgramError> {
    let mut total: Option<Value> = None;
    for gradient in gradients {
        let own = square_sum(gradient)?.cast(DType::F32)?;
        total = Some(match total {
            Some(sum) => (sum + own)?,
            None => own,
        });
    }
    let Some(total) = total else { return Ok(Vec::new()) };
    let builder = total.builder();
    let norm = total.sqrt()?;
    let factor = (builder.scalar(DType::F32, bound)? / (norm + NORM_EPSILON)?)?;
    let factor = factor.minimum(&builder.scalar(DType::F32, 1.0)?)?;
    gradients.iter().map(|gradient| gradient * factor.cast(gradient.dtype())?).collect()
}

/// The sum of the squares of all elements.
pub(super) fn square_sum(value: &Value) -> Result<Value, ProgramError> {
    value.builder().apply(Op::BlockSquareSums, &[value])?.sum_all()
}
