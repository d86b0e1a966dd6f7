//! Layers on features that come as pairs of an index and a value, of which a sample has few: tables of weights whose gradients are
//! the rows that were used.

use manyhands_program::{Init, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::initializer::Fan;
use super::{Activation, Initializer, Layer, LayerError, Site, positive, yes};

/// A weighted sum of the features that a sample has, for each output: a linear model, or a logistic regression, over libsvm
/// files or hashed columns (see `data.hash`). A step updates the weights of those features alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SparseLinear {
    /// How many outputs there are.
    pub units: usize,
    /// What is applied to the outputs: `linear` (nothing), `relu`, `gelu`, `tanh`, ...
    #[serde(default)]
    pub activation: Activation,
    /// Whether a bias is added.
    #[serde(default = "yes")]
    pub bias: bool,
    /// How many different features there are; as many as the data has unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<usize>,
    /// How weights start: `zeros` unless said, or as in `dense`. Biases start as zeros.
    #[serde(default = "zeros")]
    pub init: Initializer,
}

fn zeros() -> Initializer {
    Initializer::Zeros
}

impl Layer for SparseLinear {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        positive("units", self.units)?;
        let pairs = Pairs::of(inputs)?;
        let n_features = n_features(site, self.features)?;
        let init = self.init.weight(Fan { inputs: n_features, outputs: self.units });
        let mut sum = pairs.weighed(site, "weight", [n_features, self.units], init)?.sum(&[1])?;
        if self.bias {
            sum = (sum + &site.builder.weight("bias", [self.units], Init::Constant(0.0))?)?;
        }
        Ok(self.activation.apply(&sum)?)
    }
}

/// A factorization machine: a linear model of the features that a sample has, and of all pairs of them, where the weight of a pair
/// is the product of a learned vector of each. Gives one number a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FactorizationMachine {
    /// How many numbers the vector of a feature has.
    pub rank: usize,
    /// How many different features there are; as many as the data has unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<usize>,
    /// The deviation with which vectors start; linear weights start as zeros.
    #[serde(default = "deviation")]
    pub deviation: f64,
}

fn deviation() -> f64 {
    0.01
}

impl Layer for FactorizationMachine {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        positive("rank", self.rank)?;
        let pairs = Pairs::of(inputs)?;
        let n_features = n_features(site, self.features)?;
        let linear =
            pairs.weighed(site, "weight", [n_features, 1], Init::Constant(0.0))?.sum(&[1])?;
        let bias = site.builder.weight("bias", [1], Init::Constant(0.0))?;
        let vectors = pairs.weighed(
            site,
            "factors",
            [n_features, self.rank],
            Init::Normal(self.deviation),
        )?;
        // The sum over pairs is half of the square of the sum, less the squares.
        let all = vectors.sum(&[1])?;
        let twice = ((&all * &all)? - (&vectors * &vectors)?.sum(&[1])?)?.sum(&[1])?;
        let pairwise = (twice * 0.5)?.reshape([pairs.n_samples, 1])?;
        Ok(((linear + pairwise)? + bias)?)
    }
}

/// Features of samples: indices, below zero where there is none, and values.
struct Pairs<'a> {
    indices: &'a Value,
    /// Each is 1 unless they are given.
    values: Option<&'a Value>,
    n_samples: usize,
}

impl<'a> Pairs<'a> {
    fn of(inputs: &'a [Value]) -> Result<Pairs<'a>, LayerError> {
        let expected = || {
            LayerError::Input {
            expected: "indices and, beside them, their values, of shape [pairs] per sample: libsvm files, or `data.hash`"
                .to_string(),
        }
        };
        let (indices, values) = match inputs {
            [indices] => (indices, None),
            [indices, values] => (indices, Some(values)),
            _ => {
                let (expected, found) = ("indices and their values", inputs.len());
                return Err(LayerError::InputCount { expected, found });
            }
        };
        let shape = indices.shape();
        let is_odd = |values: &Value| !values.dtype().is_float() || values.shape() != shape;
        match shape[..] {
            [n_samples, _] if indices.dtype().is_index() && !values.is_some_and(is_odd) => {
                Ok(Pairs { indices, values, n_samples })
            }
            _ => Err(expected()),
        }
    }

    /// The rows of a new table at the indices, times the values: `[samples, pairs, width]`.
    fn weighed(
        &self,
        site: &Site,
        name: &str,
        shape: [usize; 2],
        init: Init,
    ) -> Result<Value, LayerError> {
        let rows = site.builder.weight(name, shape, init)?.take_rows(self.indices)?;
        match self.values {
            None => Ok(rows),
            Some(values) => {
                let [n_samples, n_pairs] = [values.shape()[0], values.shape()[1]];
                Ok((rows * values.reshape([n_samples, n_pairs, 1])?)?)
            }
        }
    }
}

/// How many features there are, by the layer or by the data.
fn n_features(site: &Site, said: Option<usize>) -> Result<usize, LayerError> {
    let n_features = said.or(site.n_categories).ok_or_else(|| LayerError::Setting {
        setting: "features",
        expected: "given here: the data does not say how many features there are".to_string(),
        found: "left out".to_string(),
    })?;
    positive("features", n_features)?;
    match site.n_categories.filter(|&known| known > n_features) {
        None => Ok(n_features),
        Some(known) => Err(LayerError::Setting {
            setting: "features",
            expected: format!("at least the {known} of the data"),
            found: n_features.to_string(),
        }),
    }
}
