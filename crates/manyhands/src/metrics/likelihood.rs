//! How probable the right classes were found.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Metric, MetricError, Predicted, Scored, needs_classes};

/// A mean, summed in the order of the samples.
#[derive(Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    n: u64,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1;
    }

    pub(super) fn value(&self) -> f64 {
        self.sum / self.n as f64
    }
}

/// The mean of minus the logarithm of the probability of the right class, which is kept away from 0 and 1 by the precision
/// of a probability (as scikit-learn does).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLoss {
    #[serde(skip)]
    mean: Mean,
}

impl Metric for LogLoss {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("log_loss", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        let least = f64::from(f32::EPSILON);
        for (row, class) in scored.classified() {
            let probability = f64::from(row.probability(class)).clamp(least, 1.0 - least);
            self.mean.add(-libm::log(probability));
        }
    }

    fn value(&self) -> f64 {
        self.mean.value()
    }

    fn higher_is_better(&self) -> bool {
        false
    }
}

/// The exponential of the mean loss: among how many equally probable tokens the model is left in doubt.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    #[serde(skip)]
    mean: Mean,
}

impl Metric for Perplexity {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("perplexity", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        scored.losses.iter().for_each(|loss| self.mean.add(f64::from(*loss)));
    }

    fn value(&self) -> f64 {
        libm::exp(self.mean.value())
    }

    fn higher_is_better(&self) -> bool {
        false
    }
}
