//! How the first values of weights are drawn, from how many inputs and outputs a unit has.

use manyhands_program::Init;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the first values of weights are drawn. Biases follow where it is `default`, and start as zeros otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Initializer {
    /// Uniform within 1 / sqrt(inputs), weights and biases alike, as PyTorch does; embeddings: normal with deviation 1.
    #[default]
    Default,
    /// Uniform within sqrt(6 / (inputs + outputs)): for tanh and sigmoid.
    GlorotUniform,
    /// Normal with deviation sqrt(2 / (inputs + outputs)).
    GlorotNormal,
    /// Uniform within sqrt(6 / inputs): for relu.
    HeUniform,
    /// Normal with deviation sqrt(2 / inputs).
    HeNormal,
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform between minus and plus the bound.
    Uniform(f64),
    /// Normal with the given deviation.
    Normal(f64),
}

/// How many inputs and outputs a unit has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fan {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Initializer {
    /// How a weight starts.
    pub(super) fn weight(self, fan: Fan) -> Init {
        let (inputs, both) = (fan.inputs.max(1) as f64, (fan.inputs + fan.outputs).max(1) as f64);
        match self {
            Initializer::Default => Init::Uniform(1.0 / inputs.sqrt()),
            Initializer::GlorotUniform => Init::Uniform((6.0 / both).sqrt()),
            Initializer::GlorotNormal => Init::Normal((2.0 / both).sqrt()),
            Initializer::HeUniform => Init::Uniform((6.0 / inputs).sqrt()),
            Initializer::HeNormal => Init::Normal((2.0 / inputs).sqrt()),
            Initializer::Zeros => Init::Constant(0.0),
            Initializer::Ones => Init::Constant(1.0),
            Initializer::Uniform(bound) => Init::Uniform(bound),
            Initializer::Normal(deviation) => Init::Normal(deviation),
        }
    }

    /// How a bias beside the weight starts.
    pub(super) fn bias(self, fan: Fan) -> Init {
        match self {
            Initializer::Default => self.weight(fan),
            _ => Init::Constant(0.0),
        }
    }

    /// How a table of embeddings starts.
    pub(super) fn table(self, fan: Fan) -> Init {
        match self {
            Initializer::Default => Init::Normal(1.0),
            other => other.weight(fan),
        }
    }
}
