//! Losses: what training makes small. A user's own loss implements [`Loss`] and is entered into the registry.

mod classes;
mod fit;
mod numbers;

pub use classes::{BinaryCrossEntropy, CrossEntropy, Hinge};
pub use fit::{Misfit, TargetSpec};
pub use numbers::{AbsoluteError, Huber, SquaredError};

use manyhands_program::{Builder, ProgramError, Value};

use crate::catalog::Catalog;

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

    /// Whether outputs of such a shape (of one sample) fit the target; says what would be right. By the meaning, unless
    /// said otherwise.
    fn check(&self, output: &[usize], target: &TargetSpec) -> Result<(), Misfit> {
        fit::check(self.meaning(), output, target)
    }

    /// Adds the loss of each sample or token. `output` is `[n, .., width]`, `target` `[n, ..]`.
    fn build(
        &self,
        builder: &Builder,
        output: &Value,
        target: &Value,
    ) -> Result<Value, ProgramError>;
}

/// Enters the losses that the crate brings.
pub fn add_built_in(catalog: &mut Catalog<dyn Loss>) {
    catalog.add("cross_entropy", |own: CrossEntropy| Box::new(own));
    catalog.add("binary_cross_entropy", |own: BinaryCrossEntropy| Box::new(own));
    catalog.add("hinge", |own: Hinge| Box::new(own));
    catalog.add("squared_error", |own: SquaredError| Box::new(own));
    catalog.add("absolute_error", |own: AbsoluteError| Box::new(own));
    catalog.add("huber", |own: Huber| Box::new(own));
}

/// An output with one number for each of the target, in the target's shape: `[n, .., 1]` loses its last axis.
fn like_target(output: &Value, target: &Value) -> Result<Value, ProgramError> {
    let shape = output.shape();
    if shape.rank() == target.shape().rank() + 1 && shape.last() == 1 {
        return output.reshape(&shape[..shape.rank() - 1]);
    }
    Ok(output.clone())
}
