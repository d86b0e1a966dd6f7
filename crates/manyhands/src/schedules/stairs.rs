//! Schedules that stay, or fall in equal ratios.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Position, Schedule, positive};

/// What a schedule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Epochs.
    #[default]
    Epochs,
    /// Steps.
    Steps,
}

impl Unit {
    /// How many are done.
    fn done(self, at: &Position) -> usize {
        match self {
            Unit::Epochs => at.step / at.steps_per_epoch.max(1),
            Unit::Steps => at.step,
        }
    }
}

/// The rate stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constant {}

impl Schedule for Constant {
    fn factor(&self, _: &Position) -> f64 {
        1.0
    }
}

/// The rate falls by a factor every so many epochs or steps (PyTorch's `StepLR`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stairs {
    /// After how many epochs or steps it falls.
    pub every: NonZeroUsize,
    /// What it is multiplied by.
    #[serde(default = "default_factor", deserialize_with = "positive")]
    pub factor: f64,
    /// What `every` counts: `epochs` or `steps`.
    #[serde(default)]
    pub unit: Unit,
}

fn default_factor() -> f64 {
    0.1
}

impl Schedule for Stairs {
    fn factor(&self, at: &Position) -> f64 {
        libm::pow(self.factor, (self.unit.done(at) / self.every) as f64)
    }
}

/// The rate falls by the same factor after every epoch or step (PyTorch's `ExponentialLR`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exponential {
    /// What it is multiplied by.
    #[serde(deserialize_with = "positive")]
    pub decay: f64,
    /// After what: `epochs` or `steps`.
    #[serde(default)]
    pub unit: Unit,
}

impl Schedule for Exponential {
    fn factor(&self, at: &Position) -> f64 {
        libm::pow(self.decay, self.unit.done(at) as f64)
    }
}
