//! Layers with several inputs, for models whose nodes name their inputs.

use manyhands_program::{ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Site, check_numbers, described};

/// Inputs that are combined number by number: at least two, all of one shape.
fn alike(inputs: &[Value]) -> Result<&[Value], LayerError> {
    let [first, _, ..] = inputs else {
        return Err(LayerError::InputCount { expected: "several inputs", found: inputs.len() });
    };
    inputs.iter().try_for_each(check_numbers)?;
    match inputs.iter().all(|input| input.shape() == first.shape()) {
        true => Ok(inputs),
        false => Err(LayerError::Input { expected: "inputs of one shape".to_string() }),
    }
}

fn folded(
    inputs: &[Value],
    combine: fn(&Value, &Value) -> Result<Value, ProgramError>,
) -> Result<Value, LayerError> {
    let inputs = alike(inputs)?;
    let mut result = inputs[0].clone();
    for input in &inputs[1..] {
        result = combine(&result, input)?;
    }
    Ok(result)
}

/// Declares a combination without settings.
macro_rules! combination {
    ($($(#[$meta:meta])* $name:ident = $combine:expr;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {}

        impl Layer for $name {
            fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                let combine: fn(&[Value]) -> Result<Value, LayerError> = $combine;
                combine(inputs)
            }
        }
    )*};
}

combination! {
    /// The sum of several inputs of one shape.
    Add = |inputs| folded(inputs, |a, b| a + b);
    /// The product of several inputs of one shape, number by number.
    Multiply = |inputs| folded(inputs, |a, b| a * b);
    /// The mean of several inputs of one shape, number by number.
    Average = |inputs| Ok((folded(inputs, |a, b| a + b)? / inputs.len() as f64)?);
}

/// Joins several inputs along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Concatenate {
    /// The axis of a sample: 0 for the first, -1 for the last.
    #[serde(default = "last")]
    pub axis: i64,
}

/// The default axis.
fn last() -> i64 {
    -1
}

impl Layer for Concatenate {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [first, _, ..] = inputs else {
            return Err(LayerError::InputCount { expected: "several inputs", found: inputs.len() });
        };
        let (shape, rank) = (first.shape(), first.shape().rank() as i64);
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis + 1 };
        if !(1..rank).contains(&axis) {
            let expected = format!("an axis of {}, or -1 for the last", described(first));
            let found = self.axis.to_string();
            return Err(LayerError::Setting { setting: "axis", expected, found });
        }
        let axis = axis as usize;
        let fits = |input: &Value| {
            input.dtype() == first.dtype()
                && input.shape().rank() == shape.rank()
                && input.shape().without(&[axis]) == shape.without(&[axis])
        };
        if !inputs.iter().all(fits) {
            let expected = format!("inputs that differ in axis {} of a sample alone", axis - 1);
            return Err(LayerError::Input { expected });
        }
        Ok(site.builder.concatenate(axis, &inputs.iter().collect::<Vec<_>>())?)
    }
}
