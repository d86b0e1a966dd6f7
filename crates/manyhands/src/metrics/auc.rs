//! The area under the ROC curve, exactly: the share of pairs, one sample of the class and one of another, that the scores put
//! in the right order, pairs of equal scores counting half. All scores are kept for it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Metric, MetricError, Predicted, Scored, needs_classes};

/// The area under the ROC curve. For more than two classes the mean of each class against the rest.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Auc {
    /// Scores of each class (of the second alone where there are two), one run per class.
    #[serde(skip)]
    scores: Vec<Vec<f32>>,
    #[serde(skip)]
    right: Vec<usize>,
}

impl Metric for Auc {
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        needs_classes("auc", predicted)
    }

    fn add(&mut self, scored: &Scored) {
        let classes = if scored.n_classes() == 2 { 1..2 } else { 0..scored.n_classes() };
        self.scores.resize(classes.len(), Vec::new());
        for (row, right) in scored.classified() {
            self.right.push(right);
            for (scores, class) in self.scores.iter_mut().zip(classes.clone()) {
                scores.push(row.probability(class));
            }
        }
    }

    fn value(&self) -> f64 {
        let first = if self.scores.len() == 1 { 1 } else { 0 };
        let areas = self.scores.iter().zip(first..);
        let areas = areas.filter_map(|(scores, class)| area(scores, &self.right, class));
        let (sum, n) = areas.fold((0.0, 0), |(sum, n), area| (sum + area, n + 1));
        sum / f64::from(n)
    }

    fn higher_is_better(&self) -> bool {
        true
    }
}

/// The area of one class against the rest; none where there are not samples of both.
fn area(scores: &[f32], right: &[usize], class: usize) -> Option<f64> {
    let mut order: Vec<(f32, bool)> =
        scores.iter().zip(right).map(|(score, right)| (*score, *right == class)).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    // Twice the number of pairs in the right order, as an integer: the result is rounded once.
    let (mut twice_in_order, mut n_own, mut n_rest) = (0_u128, 0_u64, 0_u64);
    for equal in order.chunk_by(|a, b| a.0 == b.0) {
        let n_equal_own = equal.iter().filter(|(_, is_own)| *is_own).count() as u64;
        let n_equal_rest = equal.len() as u64 - n_equal_own;
        twice_in_order += u128::from(n_equal_own) * u128::from(2 * n_rest + n_equal_rest);
        n_own += n_equal_own;
        n_rest += n_equal_rest;
    }
    let n_pairs = u128::from(n_own) * u128::from(n_rest);
    (n_pairs > 0).then(|| twice_in_order as f64 / (2 * n_pairs) as f64)
}
