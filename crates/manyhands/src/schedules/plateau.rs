//! A schedule that waits until nothing gets better.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Position, Schedule, not_negative, positive, share};

/// The rate falls when the monitored value has not become better for a while (PyTorch's `ReduceLROnPlateau` with an absolute
/// threshold).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plateau {
    /// How many epochs without an improvement are let pass; one more, and the rate falls.
    pub patience: usize,
    /// What it is multiplied by.
    #[serde(deserialize_with = "positive")]
    pub factor: f64,
    /// How much better counts as an improvement.
    #[serde(deserialize_with = "not_negative")]
    pub least: f64,
    /// The share of the rate below which it does not fall.
    #[serde(deserialize_with = "share")]
    pub floor: f64,
}

impl Default for Plateau {
    fn default() -> Plateau {
        Plateau { patience: 10, factor: 0.1, least: 1e-4, floor: 0.0 }
    }
}

impl Schedule for Plateau {
    /// Follows the whole history each time: nothing is kept that a resumed run would have to restore.
    fn factor(&self, at: &Position) -> f64 {
        let (mut factor, mut best, mut n_bad) = (1.0_f64, f64::INFINITY, 0);
        for value in at.monitored {
            if *value < best - self.least {
                (best, n_bad) = (*value, 0);
            } else {
                n_bad += 1;
            }
            if n_bad > self.patience {
                (factor, n_bad) = ((factor * self.factor).max(self.floor), 0);
            }
        }
        factor
    }
}
