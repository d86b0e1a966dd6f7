//! Metrics: what is measured on data that is not trained on. A user's own implements [`Metric`] and is entered into the
//! registry. Sums are f64 and counts integers, taken in the order of the samples: the same for any number of workers.

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

/// A measure of how good predictions are.
pub trait Metric: Send {
    /// Takes in more predictions.
    fn add(&mut self, scored: &Scored);

    /// The measure over all that was taken in.
    fn value(&self) -> f64;

    /// Whether more is better.
    fn higher_is_better(&self) -> bool;

    /// More than a number, where there is more to say: the confusion matrix as JSON.
    fn detail(&self) -> Option<serde_json::Value> {
        None
    }
}
