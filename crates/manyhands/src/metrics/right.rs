//! How often the right class was predicted: exactly, or among the first few.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Metric, MetricError, Predicted, Scored, needs_classes};

/// The share of samples whose most probable class is the right one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    #[serde(skip)]
    tally: Tally,
}

/// The share of samples whose right class is among the `k` most probable.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// How many classes are looked at.
    #[serde(default = "default_k")]
    pub k: NonZeroUsize,
    #[serde(skip)]
    tally: Tally,
}

fn default_k() -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(4)
}

/// How many of how many.
#[derive(Debug, Default)]
struct Tally {
    n_right: u64,
    n: u64,
}

impl Tally {
    fn add(&mut self, scored: &Scored, k: usize) {
        for (row, class) in scored.classified() {
            self.n += 1;
            self.n_right += u64::from(row.rank(class) < k);
        }
    }

    fn share(&self) -> f64 {
        self.n_right as f64 / self.n as f64
    }
}

impl Metric for Accuracy {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("accuracy", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        self.tally.add(scored, 1);
    }

    fn value(&self) -> f64 {
        self.tally.share()
    }

    fn higher_is_better(&self) -> bool {
        true
    }
}

impl Metric for TopK {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("top_k", predicted)?;
        match predicted {
            Predicted::Classes(n_classes) if n_classes <= self.k.get() => {
                Err(MetricError::AllClasses { k: self.k.get(), n_classes })
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, scored: &Scored) {
        self.tally.add(scored, self.k.get());
    }

    fn value(&self) -> f64 {
        self.tally.share()
    }

    fn higher_is_better(&self) -> bool {
        true
    }
}
