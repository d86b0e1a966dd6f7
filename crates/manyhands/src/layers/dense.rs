//! The dense layer.

use manyhands_program::{Builder, ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::initializer::Fan;
use super::{Activation, Initializer, Layer, LayerError, Site, only_numbers, positive, yes};

/// A dense layer: each output is a weighted sum of all inputs. It works on the last axis, the same for all others. As the
/// first layer of a list on images it takes the whole image, as if `flatten` stood before it; nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// How many outputs there are.
    pub units: usize,
    /// What is applied to the outputs: `linear` (nothing), `relu`, `gelu`, `tanh`, ...
    #[serde(default)]
    pub activation: Activation,
    /// Whether a bias is added.
    #[serde(default = "yes")]
    pub bias: bool,
    /// How weights start: `default`, `glorot_uniform`, `glorot_normal`, `he_uniform`, `he_normal`, `zeros`, `ones`,
    /// `{ uniform = bound }` or `{ normal = deviation }`.
    #[serde(default)]
    pub init: Initializer,
}

impl Layer for Dense {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        positive("units", self.units)?;
        if x.shape().rank() < 2 {
            // One number per sample: an axis of one.
            let x = x.reshape([x.shape().last(), 1])?;
            return self.build(site, &[x]);
        }
        let sum = linear(site.builder, x, self.units, self.bias, self.init)?;
        Ok(self.activation.apply(&sum)?)
    }
}

/// Weighted sums along the last axis, with the weights `weight` and `bias` of the scope.
pub(super) fn linear(
    g: &Builder,
    x: &Value,
    units: usize,
    bias: bool,
    init: Initializer,
) -> Result<Value, ProgramError> {
    let fan = Fan { inputs: x.shape().last(), outputs: units };
    let weight = g.weight("weight", [fan.inputs, units], init.weight(fan))?;
    let product = x.matmul(&weight)?;
    if !bias {
        return Ok(product);
    }
    product + &g.weight("bias", [units], init.bias(fan))?
}
