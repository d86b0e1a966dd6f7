//! How far predicted numbers are from the right ones, in the units of the label.

use schemars::JsonSchema;
use serde::Deserialize;

use super::likelihood::Mean;
use super::{Metric, MetricError, Predicted, Scored};

fn needs_numbers(metric: &'static str, predicted: Predicted) -> Result<(), MetricError> {
    match predicted {
        Predicted::Numbers => Ok(()),
        Predicted::Classes(_) => Err(MetricError::NeedsNumbers { metric }),
    }
}

/// The root of the mean squared error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RootMeanSquareError {
    #[serde(skip)]
    squares: Mean,
}

impl Metric for RootMeanSquareError {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_numbers("rmse", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        scored
            .numbers()
            .for_each(|(found, right)| self.squares.add((found - right) * (found - right)));
    }

    fn value(&self) -> f64 {
        self.squares.value().sqrt()
    }

    fn higher_is_better(&self) -> bool {
        false
    }
}

/// The mean of the absolute errors.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeanAbsoluteError {
    #[serde(skip)]
    errors: Mean,
}

impl Metric for MeanAbsoluteError {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_numbers("mae", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        scored.numbers().for_each(|(found, right)| self.errors.add((found - right).abs()));
    }

    fn value(&self) -> f64 {
        self.errors.value()
    }

    fn higher_is_better(&self) -> bool {
        false
    }
}

/// The share of the label's variance that the predictions explain: 1 is all of it, 0 no more than the mean would.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct R2 {
    #[serde(skip)]
    n: u64,
    #[serde(skip)]
    mean: f64,
    /// The sum of squared distances from the mean, carried along with it (Welford): large labels lose no digits.
    #[serde(skip)]
    spread: f64,
    #[serde(skip)]
    residual: f64,
}

impl Metric for R2 {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_numbers("r2", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        for (found, right) in scored.numbers() {
            self.n += 1;
            let distance = right - self.mean;
            self.mean += distance / self.n as f64;
            self.spread += distance * (right - self.mean);
            self.residual += (found - right) * (found - right);
        }
    }

    /// Of a label that never changes it is 1 where all predictions are right and else 0, as in scikit-learn.
    fn value(&self) -> f64 {
        match (self.n, self.spread == 0.0) {
            (0 | 1, _) => f64::NAN,
            (_, true) => f64::from(u8::from(self.residual == 0.0)),
            (_, false) => 1.0 - self.residual / self.spread,
        }
    }

    fn higher_is_better(&self) -> bool {
        true
    }
}
