//! Multi-head attention and the transformer block.

use manyhands_program::{ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::dense::linear;
use super::dropout::dropped;
use super::norm::{EPSILON, layer_norm};
use super::{
    Activation, Initializer, Layer, LayerError, Site, check_numbers, only_numbers, positive,
};

/// Attention with several heads: every element of a sequence `[length, width]` looks at all others. With two inputs the
/// first looks at the second; with three the second says where to look, and the third what is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// How many heads there are; the width divides into them.
    pub heads: usize,
    /// Whether elements look only at themselves and those before them.
    #[serde(default)]
    pub causal: bool,
}

impl Layer for Attention {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [queries, others @ ..] = inputs else {
            return Err(LayerError::InputCount { expected: "one to three inputs", found: 0 });
        };
        if others.len() > 2 {
            let (expected, found) = ("one to three inputs", inputs.len());
            return Err(LayerError::InputCount { expected, found });
        }
        inputs.iter().try_for_each(check_sequence)?;
        check_heads(queries, self.heads)?;
        let seen = match others {
            [] => self_attention(site, queries, self.heads, self.causal)?,
            [keys, rest @ ..] => {
                let values = rest.first().unwrap_or(keys);
                self.check_pairs(queries, keys, values)?;
                let width = queries.shape().last();
                let project =
                    |name, x| site.builder.scope(name, |g| linear(g, x, width, true, INIT));
                let (q, k) = (project("query", queries)?, project("key", keys)?);
                q.attention(&k, &project("value", values)?, self.heads, self.causal, None)?
            }
        };
        Ok(projected(site, &seen)?)
    }
}

/// Projections start as dense layers do.
const INIT: Initializer = Initializer::Default;

impl Attention {
    fn check_pairs(&self, q: &Value, k: &Value, v: &Value) -> Result<(), LayerError> {
        let (keys, values) = (k.shape()[1], v.shape()[1]);
        if keys != values {
            let expected = format!("as many values as keys, not {values} for {keys}");
            return Err(LayerError::Input { expected });
        }
        if self.causal && keys < q.shape()[1] {
            let expected = "false where there are fewer keys than queries".to_string();
            return Err(LayerError::Setting { setting: "causal", expected, found: "true".into() });
        }
        Ok(())
    }
}

fn check_sequence(x: &Value) -> Result<(), LayerError> {
    check_numbers(x)?;
    if x.shape().rank() == 3 {
        return Ok(());
    }
    let expected = "sequences of shape [length, width] per sample".to_string();
    Err(LayerError::Input { expected })
}

fn check_heads(x: &Value, heads: usize) -> Result<(), LayerError> {
    let width = x.shape().last();
    if heads > 0 && width.is_multiple_of(heads) {
        return Ok(());
    }
    let expected = format!("a divisor of the width, which is {width}");
    Err(LayerError::Setting { setting: "heads", expected, found: heads.to_string() })
}

fn self_attention(
    site: &Site,
    x: &Value,
    heads: usize,
    causal: bool,
) -> Result<Value, ProgramError> {
    let width = x.shape().last();
    let qkv = site.builder.scope("qkv", |g| linear(g, x, 3 * width, true, INIT))?.split(2, 3)?;
    qkv[0].attention(&qkv[1], &qkv[2], heads, causal, None)
}

fn projected(site: &Site, seen: &Value) -> Result<Value, ProgramError> {
    site.builder.scope("project", |g| linear(g, seen, seen.shape().last(), true, INIT))
}

/// A transformer block on sequences `[length, width]`: attention, then two dense layers, each after a layer norm and added
/// to what went in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transformer {
    /// How many heads the attention has; the width divides into them.
    pub heads: usize,
    /// How many units the first of the two dense layers has; four times the width unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<usize>,
    /// Whether elements look only at themselves and those before them, as a language model must.
    #[serde(default)]
    pub causal: bool,
    /// Which part of what is added becomes zero in training.
    #[serde(default)]
    pub dropout: f64,
    /// What is applied between the two dense layers.
    #[serde(default = "gelu")]
    pub activation: Activation,
}

fn gelu() -> Activation {
    Activation::Gelu
}

impl Layer for Transformer {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        check_sequence(x)?;
        check_heads(x, self.heads)?;
        let (g, width) = (site.builder, x.shape().last());
        let hidden = self.hidden.unwrap_or(4 * width);
        positive("hidden", hidden)?;
        let normed = g.scope("norm1", |g| layer_norm(g, x, EPSILON))?;
        let seen = self_attention(site, &normed, self.heads, self.causal)?;
        let x = (x + &dropped(site, &projected(site, &seen)?, "dropout", self.dropout)?)?;
        let normed = g.scope("norm2", |g| layer_norm(g, &x, EPSILON))?;
        let expanded = g.scope("expand", |g| linear(g, &normed, hidden, true, INIT))?;
        let expanded = self.activation.apply(&expanded)?;
        let contracted = g.scope("contract", |g| linear(g, &expanded, width, true, INIT))?;
        Ok((&x + &dropped(site, &contracted, "dropout", self.dropout)?)?)
    }
}
