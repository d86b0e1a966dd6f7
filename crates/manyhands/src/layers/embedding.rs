//! Embeddings: vectors for indices, and for places in a sequence.

use manyhands_program::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::initializer::Fan;
use super::{Initializer, Layer, LayerError, Site, only_numbers, positive};

/// A learned vector for each category, token or other index.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// How many numbers a vector has.
    pub width: usize,
    /// How many different indices there are; as many as the data has unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub categories: Option<usize>,
    /// How vectors start: `default` (normal with deviation 1), or as in `dense`.
    #[serde(default)]
    pub init: Initializer,
    /// Whether a step updates only the vectors that it used, which is faster where there are many. State of the optimizer
    /// then stands still too where a vector was not used, and an index below zero gives zeros.
    #[serde(default)]
    pub sparse: bool,
}

impl Layer for Embedding {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [indices] = inputs else {
            return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
        };
        if indices.dtype().is_float() {
            let expected = "indices (tokens, or categories that are not one-hot)".to_string();
            return Err(LayerError::Input { expected });
        }
        positive("width", self.width)?;
        let n_categories = self.categories.or(site.n_categories).ok_or_else(|| {
            let expected = "given here: the data does not say how many indices there are";
            let (expected, found) = (expected.to_string(), "left out".to_string());
            LayerError::Setting { setting: "categories", expected, found }
        })?;
        positive("categories", n_categories)?;
        if let Some(known) = site.n_categories.filter(|&known| known > n_categories) {
            let (expected, found) = (format!("at least the {known} of the data"), n_categories);
            let found = found.to_string();
            return Err(LayerError::Setting { setting: "categories", expected, found });
        }
        let init = self.init.table(Fan { inputs: n_categories, outputs: self.width });
        let table = site.builder.weight("table", [n_categories, self.width], init)?;
        match self.sparse {
            true => Ok(table.take_rows(indices)?),
            false => Ok(table.gather(0, indices)?),
        }
    }
}

/// Adds a learned vector for each place in a sequence `[length, width]`, so that what follows knows the order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PositionEmbedding {
    /// How vectors start: `default` (normal with deviation 1), or as in `dense`.
    #[serde(default)]
    pub init: Initializer,
}

impl Layer for PositionEmbedding {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        let shape = x.shape();
        let [_, length, width] = shape[..] else {
            let expected = "sequences of shape [length, width] per sample".to_string();
            return Err(LayerError::Input { expected });
        };
        let init = self.init.table(Fan { inputs: length, outputs: width });
        Ok((x + &site.builder.weight("table", [length, width], init)?)?)
    }
}
