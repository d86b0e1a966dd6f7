//! Layers around layers, and how layers in a list are named.

use std::collections::HashMap;

use manyhands_program::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Site, described};
use crate::choice::Choice;

/// The scopes of layers in a list: the kind with a number of its own (`dense0`, `conv0`, `conv1`, `dense1`).
pub(crate) fn scopes(layers: &[Choice]) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let scope = |layer| {
        let name = Choice::name(layer);
        // A person looks for `conv0`, whether it goes along one axis or two.
        let kind = name.strip_suffix("1d").or(name.strip_suffix("2d")).unwrap_or(name);
        let count = counts.entry(kind).or_default();
        *count += 1;
        format!("{kind}{}", *count - 1)
    };
    layers.iter().map(scope).collect()
}

/// Adds what goes in to what its layers make of it: `{ residual = { layers = ["dense 64 relu", "dense 64"] } }`. Both must
/// have the same shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// The layers, each fed by the one before.
    pub layers: Vec<Choice>,
}

impl Layer for Residual {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [start] = inputs else {
            return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
        };
        let mut x = start.clone();
        let scopes = scopes(&self.layers);
        for (idx, (choice, scope)) in self.layers.iter().zip(&scopes).enumerate() {
            let layer = site.layers.make(choice)?;
            let n_categories = site.n_categories.filter(|_| idx == 0);
            let built = site.builder.scope(scope, |builder| {
                layer.build(&Site { builder, n_categories, ..*site }, std::slice::from_ref(&x))
            });
            x = built.map_err(|error| LayerError::Inner {
                number: idx + 1,
                layer: choice.to_string(),
                gets: described(&x),
                error: Box::new(error),
            })?;
        }
        if x.ty() != start.ty() {
            return Err(LayerError::Residual { gives: described(&x) });
        }
        Ok((&x + start)?)
    }
}

/// Runs a recurrent layer in both directions and joins what comes out: `bidirectional "lstm 64"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bidirectional {
    /// The layer: `simple_rnn`, `gru` or `lstm`, with its settings. Each direction has its own weights.
    pub layer: Choice,
}

impl Layer for Bidirectional {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let layer = site.layers.make(&self.layer)?;
        let g = site.builder;
        let forward =
            g.scope("forward", |builder| layer.build(&Site { builder, ..*site }, inputs))?;
        let backward = g.scope("backward", |builder| {
            layer.build_backwards(&Site { builder, ..*site }, inputs)
        })?;
        let axis = forward.shape().rank().saturating_sub(1);
        Ok(g.concatenate(axis, &[&forward, &backward])?)
    }
}
