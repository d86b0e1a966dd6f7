//! The confusion matrix: how often each class was taken for each.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Metric, MetricError, Predicted, Scored, needs_classes};

/// Counts of every right class and predicted class.
#[derive(Debug, Default)]
pub(super) struct Counts {
    n_classes: usize,
    /// Rows are the right classes, columns the predicted ones.
    cells: Vec<u64>,
}

/// What is known of one class.
pub(super) struct ClassCounts {
    /// It was right and predicted.
    pub(super) n_hit: u64,
    /// It was predicted.
    pub(super) n_predicted: u64,
    /// It was right.
    pub(super) n_right: u64,
}

impl Counts {
    pub(super) fn add(&mut self, scored: &Scored) {
        if self.cells.is_empty() {
            self.n_classes = scored.n_classes();
            self.cells = vec![0; self.n_classes * self.n_classes];
        }
        for (row, class) in scored.classified() {
            self.cells[class * self.n_classes + row.best()] += 1;
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.cells.chunks_exact(self.n_classes.max(1))
    }

    pub(super) fn class(&self, class: usize) -> ClassCounts {
        ClassCounts {
            n_hit: self.cells[class * self.n_classes + class],
            n_predicted: self.rows().map(|row| row[class]).sum(),
            n_right: self.rows().nth(class).into_iter().flatten().sum(),
        }
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = ClassCounts> {
        (0..self.n_classes).map(|class| self.class(class))
    }

    pub(super) fn n_classes(&self) -> usize {
        self.n_classes
    }
}

/// The confusion matrix: a row for each right class, a column for each predicted one. As a number it is the accuracy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Confusion {
    #[serde(skip)]
    counts: Counts,
}

impl Metric for Confusion {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("confusion", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        self.counts.add(scored);
    }

    fn value(&self) -> f64 {
        let n_hit: u64 = self.counts.classes().map(|class| class.n_hit).sum();
        n_hit as f64 / self.counts.cells.iter().sum::<u64>() as f64
    }

    fn higher_is_better(&self) -> bool {
        true
    }

    fn detail(&self) -> Option<Value> {
        Some(self.counts.rows().map(Value::from).collect())
    }
}
