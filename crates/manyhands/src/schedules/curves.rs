//! Schedules that follow a curve over all steps of training.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Position, Schedule, positive, share};

/// How much of training is done, from 0 to 1.
fn progress(at: &Position) -> f64 {
    (at.step as f64 / at.n_steps.max(1) as f64).min(1.0)
}

/// From one number to another along half a cosine, as `progress` goes from 0 to 1.
fn along_cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + libm::cos(PI * progress))
}

/// The rate falls along a straight line (PyTorch's `LinearLR` from 1 to `floor` over all steps).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The share of the rate that is left at the end.
    #[serde(default, deserialize_with = "share")]
    pub floor: f64,
}

impl Schedule for Linear {
    fn factor(&self, at: &Position) -> f64 {
        1.0 + (self.floor - 1.0) * progress(at)
    }
}

/// The rate falls along half a cosine (PyTorch's `CosineAnnealingLR` over all steps).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cosine {
    /// The share of the rate that is left at the end.
    #[serde(default, deserialize_with = "share")]
    pub floor: f64,
}

impl Schedule for Cosine {
    fn factor(&self, at: &Position) -> f64 {
        along_cosine(1.0, self.floor, progress(at))
    }
}

/// The rate rises from a part of itself and falls to nearly nothing, both along half a cosine (PyTorch's `OneCycleLR`, whose
/// largest rate is the rate of the optimizer).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OneCycle {
    /// The share of the steps in which it rises.
    #[serde(deserialize_with = "share")]
    pub rise: f64,
    /// What the rate is divided by at the first step.
    #[serde(deserialize_with = "positive")]
    pub first_divisor: f64,
    /// What the first rate is divided by at the last step.
    #[serde(deserialize_with = "positive")]
    pub last_divisor: f64,
}

impl Default for OneCycle {
    fn default() -> OneCycle {
        OneCycle { rise: 0.3, first_divisor: 25.0, last_divisor: 1e4 }
    }
}

impl Schedule for OneCycle {
    fn factor(&self, at: &Position) -> f64 {
        let first = 1.0 / self.first_divisor;
        let last = first / self.last_divisor;
        let (step, end) = (at.step as f64, at.n_steps as f64 - 1.0);
        let top = self.rise * at.n_steps as f64 - 1.0;
        if step <= top && top > 0.0 {
            along_cosine(first, 1.0, step / top)
        } else if end > top {
            along_cosine(1.0, last, ((step - top) / (end - top)).clamp(0.0, 1.0))
        } else {
            last
        }
    }
}
