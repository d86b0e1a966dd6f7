//! Layers: settings that build operations. A user's own layer implements [`Layer`] and is entered into the registry.

use manyhands_program::{Builder, ProgramError, Value};

/// Whether a program trains or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm looks at the grain and updates its running statistics.
    Training,
    /// Dropout does nothing, batch norm uses its running statistics.
    Evaluating,
}

/// Where a layer is being built.
pub struct Site<'a> {
    /// The program, inside the scope of the layer: a weight "weight" of the first dense layer is `dense0/weight`.
    pub builder: &'a Builder,
    /// Whether the program trains or answers.
    pub mode: Mode,
    /// For layers on indices (embeddings): how many different ones the data has, where it is known.
    pub n_categories: Option<usize>,
}

/// A layer: a function from values to a value. The first axis of every value is the samples of a grain.
pub trait Layer: Send + Sync {
    /// Adds the operations of the layer.
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, ProgramError>;
}
