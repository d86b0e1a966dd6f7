//! Metrics: what is measured on data that is not trained on. A user's own implements [`Metric`] and is entered into the
//! registry. Sums are f64 and counts integers, taken in the order of the samples: the same for any number of workers.

mod auc;
mod averages;
mod likelihood;
mod numbers;
mod right;
mod table;

pub use auc::Auc;
pub use averages::{Average, F1, Precision, Recall};
pub use likelihood::{LogLoss, Perplexity};
pub use numbers::{MeanAbsoluteError, R2, RootMeanSquareError};
pub use right::{Accuracy, TopK};
pub use table::Confusion;

use crate::catalog::Catalog;

/// Enters the metrics that the crate brings.
pub fn add_built_in(catalog: &mut Catalog<dyn Metric>) {
    catalog
        .add("accuracy", |own: Accuracy| Box::new(own))
        .add("top_k", |own: TopK| Box::new(own))
        .add("precision", |own: Precision| Box::new(own))
        .add("recall", |own: Recall| Box::new(own))
        .add("f1", |own: F1| Box::new(own))
        .add("auc", |own: Auc| Box::new(own))
        .add("confusion", |own: Confusion| Box::new(own))
        .add("log_loss", |own: LogLoss| Box::new(own))
        .add("perplexity", |own: Perplexity| Box::new(own))
        .add("rmse", |own: RootMeanSquareError| Box::new(own))
        .add("mae", |own: MeanAbsoluteError| Box::new(own))
        .add("r2", |own: R2| Box::new(own));
}

/// Predictions with what was right.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// Probabilities of classes (`width` per sample or token), the probability of the second class (width 1), or numbers
    /// in the units of the label.
    pub predictions: &'a [f32],
    /// How many predictions a sample or token has.
    pub width: usize,
    /// What was right.
    pub targets: Targets<'a>,
    /// The loss of each sample or token, unweighted.
    pub losses: &'a [f32],
}

/// What was right.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// Indices of classes or tokens.
    Classes(&'a [i32]),
    /// Numbers, in the units of the label.
    Numbers(&'a [f32]),
}

impl<'a> Scored<'a> {
    /// How many classes the predictions choose between: one probability chooses between two.
    pub fn n_classes(&self) -> usize {
        if self.width == 1 { 2 } else { self.width }
    }

    /// The predictions of each sample or token with the class that was right. Nothing where numbers are predicted; targets
    /// that are no class are passed over.
    pub fn classified(&self) -> impl Iterator<Item = (Row<'a>, usize)> + use<'a> {
        let targets = match self.targets {
            Targets::Classes(targets) => targets,
            Targets::Numbers(_) => &[],
        };
        let n_classes = self.n_classes();
        let rows = self.predictions.chunks_exact(self.width.max(1)).map(Row);
        rows.zip(targets).filter_map(move |(row, target)| {
            usize::try_from(*target)
                .ok()
                .filter(|class| *class < n_classes)
                .map(|class| (row, class))
        })
    }

    /// Each predicted number with the right one. Nothing where classes are predicted.
    pub fn numbers(&self) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let targets = match self.targets {
            Targets::Numbers(targets) => targets,
            Targets::Classes(_) => &[],
        };
        self.predictions
            .iter()
            .zip(targets)
            .map(|(found, right)| (f64::from(*found), f64::from(*right)))
    }
}

/// The predictions of one sample or token: the probability of each class, or of the second of two.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a>(&'a [f32]);

impl Row<'_> {
    /// The probability of a class.
    pub fn probability(&self, class: usize) -> f32 {
        match (self.0, class) {
            ([second], 0) => 1.0 - second,
            ([second], _) => *second,
            (all, class) => all[class],
        }
    }

    /// The most probable class, the first of equals.
    pub fn best(&self) -> usize {
        if let [second] = self.0 {
            return usize::from(*second > 0.5);
        }
        let mut best = 0;
        for (class, probability) in self.0.iter().enumerate() {
            if *probability > self.0[best] {
                best = class;
            }
        }
        best
    }

    /// How many classes are placed before this one: those more probable, and the earlier of equals.
    pub fn rank(&self, class: usize) -> usize {
        if let [second] = self.0 {
            let is_wrong = second.is_nan() || self.best() != class;
            return usize::from(is_wrong);
        }
        let own = self.0[class];
        let before = |(other, probability): &(usize, &f32)| {
            **probability > own || (**probability == own && *other < class) || own.is_nan()
        };
        self.0.iter().enumerate().filter(before).count()
    }
}

/// What a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicted {
    /// One of so many classes or tokens.
    Classes(usize),
    /// Numbers.
    Numbers,
}

/// Why a metric cannot measure a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// It counts classes.
    #[error(
        "the metric `{metric}` is about classes, and the model predicts numbers; try rmse, mae or r2"
    )]
    NeedsClasses {
        /// The metric.
        metric: &'static str,
    },
    /// It compares numbers.
    #[error(
        "the metric `{metric}` is about numbers, and the model predicts classes; try accuracy, f1 or auc"
    )]
    NeedsNumbers {
        /// The metric.
        metric: &'static str,
    },
    /// There is no "the" class to count.
    #[error(
        "the metric `{metric}` with average = \"binary\" is about two classes, and there are {n_classes}; use \"macro\", \"micro\" or \"weighted\""
    )]
    NeedsTwo {
        /// The metric.
        metric: &'static str,
        /// How many classes there are.
        n_classes: usize,
    },
    /// It could not be wrong.
    #[error(
        "the metric `top_k` with k = {k} cannot be wrong among {n_classes} classes; k must be below that"
    )]
    AllClasses {
        /// How many are looked at.
        k: usize,
        /// How many classes there are.
        n_classes: usize,
    },
}

/// Passes where classes are predicted.
fn needs_classes(metric: &'static str, predicted: Predicted) -> Result<(), MetricError> {
    match predicted {
        Predicted::Classes(_) => Ok(()),
        Predicted::Numbers => Err(MetricError::NeedsClasses { metric }),
    }
}

/// A measure of how good predictions are.
pub trait Metric: Send {
    /// Whether it can measure what a model predicts; asked before training starts.
    fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
        let _ = predicted;
        Ok(())
    }

    /// Takes in more predictions.
    fn add(&mut self, scored: &Scored);

    /// The measure over all that was taken in; NaN where that says nothing, such as no samples at all.
    fn value(&self) -> f64;

    /// Whether more is better.
    fn higher_is_better(&self) -> bool;

    /// More than a number, where there is more to say: the confusion matrix as JSON.
    fn detail(&self) -> Option<serde_json::Value> {
        None
    }
}

#[cfg(test)]
mod tests;
