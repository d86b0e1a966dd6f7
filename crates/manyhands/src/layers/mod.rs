//! Layers: settings that build operations. A user's own layer implements [`Layer`] and is entered into the registry.

mod activation;
mod attention;
mod combine;
mod convolution;
mod dense;
mod dropout;
mod embedding;
mod initializer;
mod layout;
mod nested;
mod norm;
mod pool;
mod recurrent;
mod sparse;

pub use activation::{
    Activation, Elu, Gelu, LeakyRelu, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh,
};
pub use attention::{Attention, Transformer};
pub use combine::{Add, Average, Concatenate, Multiply};
pub use convolution::{Conv1d, Conv2d, Extent, Padding};
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::{Embedding, PositionEmbedding};
pub use initializer::Initializer;
pub use layout::{Flatten, Reshape};
pub use nested::{Bidirectional, Residual};
pub use norm::{BatchNorm, LayerNorm};
pub use pool::{AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool};
pub use recurrent::{Gru, Lstm, RnnActivation, SimpleRnn};
pub use sparse::{FactorizationMachine, SparseLinear};

pub(crate) use layout::flattened;
pub(crate) use nested::scopes;

use manyhands_program::{Builder, ProgramError, Value};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::catalog::{Catalog, ChoiceError};

/// Whether a program trains or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm looks at the grain and updates its running statistics.
    Training,
    /// Dropout does nothing, batch norm uses its running statistics.
    Evaluating,
}

/// Where a layer is being built.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The program, inside the scope of the layer: a weight "weight" of the first dense layer is `dense0/weight`.
    pub builder: &'a Builder,
    /// Whether the program trains or answers.
    pub mode: Mode,
    /// For layers on indices (embeddings): how many different ones the data has, where it is known.
    pub n_categories: Option<usize>,
    /// What layers that hold others can name.
    pub layers: &'a Catalog<dyn Layer>,
}

/// A layer: a function from values to a value. The first axis of every value is the samples of a grain.
pub trait Layer: Send + Sync {
    /// Adds the operations of the layer.
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError>;

    /// As [`Layer::build`], reading sequences from the last element to the first; a result for each element stays at the
    /// element's place. For layers that go along a sequence, so that `bidirectional` can hold them.
    fn build_backwards(&self, _site: &Site, _inputs: &[Value]) -> Result<Value, LayerError> {
        Err(LayerError::NotRecurrent)
    }
}

/// Why a layer cannot be built. Reads as the end of a sentence that starts with the layer and what it gets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayerError {
    /// Too few or too many inputs.
    #[error("it takes {expected}, not {found}")]
    InputCount {
        /// What it takes.
        expected: &'static str,
        /// How many it got.
        found: usize,
    },
    /// An input that it cannot work on.
    #[error("it takes {expected}")]
    Input {
        /// What it takes.
        expected: String,
    },
    /// A setting that makes no sense here.
    #[error("`{setting}` must be {expected}, not {found}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What would be right.
        expected: String,
        /// What was written.
        found: String,
    },
    /// A layer around others whose result does not fit what went in.
    #[error(
        "its layers give {gives}, which cannot be added to what went in; both must have the same shape (no projection is \
         put in): give the last layer as many outputs as the first has inputs, and convolutions `padding=same` and stride 1"
    )]
    Residual {
        /// What the layers inside give.
        gives: String,
    },
    /// A layer that does not go along a sequence, where one is needed.
    #[error("only layers that go along a sequence (simple_rnn, gru, lstm) run backwards")]
    NotRecurrent,
    /// A layer inside this one was not understood.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// A layer inside this one does not fit.
    #[error("its layer {number}, `{layer}`, gets {gets}: {error}")]
    Inner {
        /// Its number, 1 for the first.
        number: usize,
        /// The layer as written.
        layer: String,
        /// What it gets.
        gets: String,
        /// Why it does not fit.
        error: Box<LayerError>,
    },
    /// An operation does not fit.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// What a value is, for a person: without the axis of samples.
pub(crate) fn described(value: &Value) -> String {
    let shape = value.shape();
    let (one, many) =
        if value.dtype().is_float() { ("number", "numbers") } else { ("index", "indices") };
    match shape.get(1..).unwrap_or_default() {
        [] => format!("one {one} per sample"),
        sizes => format!("{many} of shape {sizes:?} per sample"),
    }
}

/// The only input of a layer, which must be numbers.
fn only_numbers(inputs: &[Value]) -> Result<&Value, LayerError> {
    let [x] = inputs else {
        return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
    };
    check_numbers(x)?;
    Ok(x)
}

fn check_numbers(x: &Value) -> Result<(), LayerError> {
    if x.dtype().is_float() {
        return Ok(());
    }
    let expected = "numbers; put `embedding WIDTH` between it and the indices".to_string();
    Err(LayerError::Input { expected })
}

/// A size that cannot be zero.
fn positive(setting: &'static str, value: usize) -> Result<(), LayerError> {
    if value > 0 {
        return Ok(());
    }
    let (expected, found) = ("at least 1".to_string(), value.to_string());
    Err(LayerError::Setting { setting, expected, found })
}

/// The default of settings that are on unless said.
fn yes() -> bool {
    true
}

/// Enters a layer whose settings are the layer.
fn enter<L>(catalog: &mut Catalog<dyn Layer>, name: &str)
where
    L: Layer + DeserializeOwned + JsonSchema + 'static,
{
    catalog.add(name, |own: L| Box::new(own));
}

/// Enters the layers that the crate brings.
pub fn add_built_in(catalog: &mut Catalog<dyn Layer>) {
    enter::<Dense>(catalog, "dense");
    enter::<Conv1d>(catalog, "conv1d");
    enter::<Conv2d>(catalog, "conv2d");
    enter::<MaxPool>(catalog, "max_pool");
    enter::<AveragePool>(catalog, "average_pool");
    enter::<GlobalMaxPool>(catalog, "global_max_pool");
    enter::<GlobalAveragePool>(catalog, "global_average_pool");
    enter::<BatchNorm>(catalog, "batch_norm");
    enter::<LayerNorm>(catalog, "layer_norm");
    enter::<Dropout>(catalog, "dropout");
    enter::<Embedding>(catalog, "embedding");
    enter::<PositionEmbedding>(catalog, "position_embedding");
    enter::<SparseLinear>(catalog, "sparse_linear");
    enter::<FactorizationMachine>(catalog, "factorization_machine");
    enter::<Flatten>(catalog, "flatten");
    enter::<Reshape>(catalog, "reshape");
    enter::<SimpleRnn>(catalog, "simple_rnn");
    enter::<Gru>(catalog, "gru");
    enter::<Lstm>(catalog, "lstm");
    enter::<Bidirectional>(catalog, "bidirectional");
    enter::<Attention>(catalog, "attention");
    enter::<Transformer>(catalog, "transformer");
    enter::<Residual>(catalog, "residual");
    enter::<Add>(catalog, "add");
    enter::<Multiply>(catalog, "multiply");
    enter::<Average>(catalog, "average");
    enter::<Concatenate>(catalog, "concatenate");
    activation::add_built_in(catalog);
}
