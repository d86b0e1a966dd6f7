//! Losses: what training makes small. A user's own loss implements [`Loss`] and is entered into the registry.

use manyhands_program::{Builder, ProgramError, Value};

/// What the outputs of a model mean, which follows from its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Scores of classes along the last axis; softmax makes them probabilities.
    Classes,
    /// One score per sample; the logistic function makes it the probability of the second class.
    Binary,
    /// Numbers as they are.
    Numbers,
}

/// A loss: a function from the output of a model and the target to one loss per sample (or per token).
pub trait Loss: Send + Sync {
    /// What the outputs mean, and with it what the target is: class indices (i32) or numbers (f32).
    fn meaning(&self) -> Meaning;

    /// Adds the loss of each sample or token. `output` is `[n, .., width]`, `target` `[n, ..]`.
    fn build(
        &self,
        builder: &Builder,
        output: &Value,
        target: &Value,
    ) -> Result<Value, ProgramError>;
}
