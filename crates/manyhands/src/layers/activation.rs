//! Activations: as the last word of a layer (`dense 512 relu`), and as layers of their own.

use manyhands_program::{ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Site, enter, only_numbers};
use crate::catalog::Catalog;

/// What a leaky relu multiplies numbers below zero by, unless said.
const SLOPE: f64 = 0.01;

/// A function that is applied to each output of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// None.
    #[default]
    Linear,
    /// max(x, 0)
    Relu,
    /// x times the normal distribution function of x.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// e^x, divided by the sum of those along the last axis.
    Softmax,
    /// x, or a hundredth of it below zero.
    LeakyRelu,
    /// x, or e^x - 1 below zero.
    Elu,
    /// x / (1 + e^-x)
    Silu,
    /// log(1 + e^x)
    Softplus,
}

impl Activation {
    /// Adds the operations.
    pub fn apply(self, x: &Value) -> Result<Value, ProgramError> {
        match self {
            Activation::Linear => Ok(x.clone()),
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => x.logistic(),
            Activation::Softmax => x.softmax(x.shape().rank().saturating_sub(1)),
            Activation::LeakyRelu => leaky_relu(x, SLOPE),
            Activation::Elu => elu(x, 1.0),
            Activation::Silu => x.silu(),
            Activation::Softplus => x.softplus(),
        }
    }
}

fn leaky_relu(x: &Value, slope: f64) -> Result<Value, ProgramError> {
    let zero = x.builder().scalar(x.dtype(), 0.0)?;
    x.greater(&zero)?.select(x, &(x * slope)?)
}

fn elu(x: &Value, alpha: f64) -> Result<Value, ProgramError> {
    let zero = x.builder().scalar(x.dtype(), 0.0)?;
    // Large numbers would make an infinity in the branch that is not taken, and a NaN of its gradient.
    let below = (x.minimum(&zero)?.expm1()? * alpha)?;
    x.greater(&zero)?.select(x, &below)
}

/// Declares activations without settings as layers.
macro_rules! layers {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {}

        impl Layer for $name {
            fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                Ok(Activation::$name.apply(only_numbers(inputs)?)?)
            }
        }
    )*};
}

layers! {
    /// max(x, 0) of each number.
    Relu
    /// x times the normal distribution function of x, of each number.
    Gelu
    /// The hyperbolic tangent of each number.
    Tanh
    /// 1 / (1 + e^-x) of each number.
    Sigmoid
    /// e^x of each number, divided by the sum of those along the last axis. Losses on classes take scores as they are: leave
    /// it out after the last layer.
    Softmax
    /// x / (1 + e^-x) of each number.
    Silu
    /// log(1 + e^x) of each number.
    Softplus
}

/// x of each number above zero, `slope` times x of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeakyRelu {
    /// What numbers below zero are multiplied by.
    pub slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> LeakyRelu {
        LeakyRelu { slope: SLOPE }
    }
}

impl Layer for LeakyRelu {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        Ok(leaky_relu(only_numbers(inputs)?, self.slope)?)
    }
}

/// x of each number above zero, `alpha` times (e^x - 1) of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Elu {
    /// How far below zero it goes.
    pub alpha: f64,
}

impl Default for Elu {
    fn default() -> Elu {
        Elu { alpha: 1.0 }
    }
}

impl Layer for Elu {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        Ok(elu(only_numbers(inputs)?, self.alpha)?)
    }
}

/// Enters the activations.
pub(super) fn add_built_in(catalog: &mut Catalog<dyn Layer>) {
    enter::<Relu>(catalog, "relu");
    enter::<Gelu>(catalog, "gelu");
    enter::<Tanh>(catalog, "tanh");
    enter::<Sigmoid>(catalog, "sigmoid");
    enter::<Softmax>(catalog, "softmax");
    enter::<LeakyRelu>(catalog, "leaky_relu");
    enter::<Elu>(catalog, "elu");
    enter::<Silu>(catalog, "silu");
    enter::<Softplus>(catalog, "softplus");
}
