//! Layers along a sequence: simple, GRU and LSTM, with PyTorch's formulas, order of gates and first values.
//!
//! What the gates get from the sequence does not depend on the state, so it is one large product before the scan; only the
//! product with the state is left inside.

use manyhands_program::{Builder, Init, Iteration, ProgramError, TensorType, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Site, only_numbers, positive};

/// What a simple recurrent layer applies to its sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RnnActivation {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// max(x, 0)
    Relu,
}

/// Goes along a sequence `[length, width]` with a state: `tanh(weighted input + weighted state)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimpleRnn {
    /// How many numbers the state has.
    pub units: usize,
    /// Whether the state after every element comes out, instead of the last alone.
    #[serde(default)]
    pub sequences: bool,
    /// What is applied to the sum: `tanh` or `relu`.
    #[serde(default)]
    pub activation: RnnActivation,
}

/// Goes along a sequence `[length, width]` with a gated state: the gated recurrent unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gru {
    /// How many numbers the state has.
    pub units: usize,
    /// Whether the state after every element comes out, instead of the last alone.
    #[serde(default)]
    pub sequences: bool,
}

/// Goes along a sequence `[length, width]` with a state and a memory cell: long short-term memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lstm {
    /// How many numbers the state has.
    pub units: usize,
    /// Whether the state after every element comes out, instead of the last alone.
    #[serde(default)]
    pub sequences: bool,
}

/// Declares the two directions of a recurrent layer.
macro_rules! both_directions {
    ($($name:ident)*) => {$(
        impl Layer for $name {
            fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                self.along(site, inputs, false)
            }

            fn build_backwards(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                self.along(site, inputs, true)
            }
        }
    )*};
}

both_directions!(SimpleRnn Gru Lstm);

impl SimpleRnn {
    fn along(&self, site: &Site, inputs: &[Value], reverse: bool) -> Result<Value, LayerError> {
        let own = Weights::new(site.builder, inputs, self.units, 1)?;
        let items = own.gate_sums(&(&own.bias_input + &own.bias_state)?)?;
        own.scan(&items, 1, self.sequences, reverse, |carried, item| {
            let sum = (item + &carried[0].matmul(&own.weight_state)?)?;
            let state = match self.activation {
                RnnActivation::Tanh => sum.tanh()?,
                RnnActivation::Relu => sum.relu()?,
            };
            Ok(vec![state])
        })
    }
}

impl Gru {
    fn along(&self, site: &Site, inputs: &[Value], reverse: bool) -> Result<Value, LayerError> {
        let own = Weights::new(site.builder, inputs, self.units, 3)?;
        let items = own.gate_sums(&own.bias_input)?;
        own.scan(&items, 1, self.sequences, reverse, |carried, item| {
            let from_input = item.split(1, 3)?;
            let from_state = carried[0].matmul(&own.weight_state)?;
            let from_state = (from_state + &own.bias_state)?.split(1, 3)?;
            let reset = (&from_input[0] + &from_state[0])?.logistic()?;
            let keep = (&from_input[1] + &from_state[1])?.logistic()?;
            let new = (&from_input[2] + (reset * &from_state[2])?)?.tanh()?;
            Ok(vec![(&new + (keep * (&carried[0] - &new)?)?)?])
        })
    }
}

impl Lstm {
    fn along(&self, site: &Site, inputs: &[Value], reverse: bool) -> Result<Value, LayerError> {
        let own = Weights::new(site.builder, inputs, self.units, 4)?;
        let items = own.gate_sums(&(&own.bias_input + &own.bias_state)?)?;
        own.scan(&items, 2, self.sequences, reverse, |carried, item| {
            let gates = (item + &carried[0].matmul(&own.weight_state)?)?.split(1, 4)?;
            let (input, forget) = (gates[0].logistic()?, gates[1].logistic()?);
            let (new, output) = (gates[2].tanh()?, gates[3].logistic()?);
            let cell = ((forget * &carried[1])? + (input * new)?)?;
            Ok(vec![(output * cell.tanh()?)?, cell])
        })
    }
}

/// The weights of a recurrent layer, and the sequence with its first axis in front.
struct Weights<'a> {
    builder: &'a Builder,
    /// `[length, samples, width]`
    sequence: Value,
    units: usize,
    weight_input: Value,
    weight_state: Value,
    bias_input: Value,
    bias_state: Value,
}

impl Weights<'_> {
    fn new<'a>(
        builder: &'a Builder,
        inputs: &[Value],
        units: usize,
        n_gates: usize,
    ) -> Result<Weights<'a>, LayerError> {
        let x = only_numbers(inputs)?;
        positive("units", units)?;
        let shape = x.shape();
        let [_, length, width] = shape[..] else {
            let expected = "sequences of shape [length, width] per sample".to_string();
            return Err(LayerError::Input { expected });
        };
        if length == 0 {
            let expected = "sequences of at least one element".to_string();
            return Err(LayerError::Input { expected });
        }
        let init = Init::Uniform(1.0 / (units as f64).sqrt());
        let columns = n_gates * units;
        Ok(Weights {
            builder,
            sequence: x.transpose(&[1, 0, 2])?,
            units,
            weight_input: builder.weight("weight_input", [width, columns], init)?,
            weight_state: builder.weight("weight_state", [units, columns], init)?,
            bias_input: builder.weight("bias_input", [columns], init)?,
            bias_state: builder.weight("bias_state", [columns], init)?,
        })
    }

    /// What the gates get from each element of the sequence: `[length, samples, gates * units]`.
    fn gate_sums(&self, bias: &Value) -> Result<Value, ProgramError> {
        let shape = self.sequence.shape();
        let rows = self.sequence.reshape([shape[0] * shape[1], shape[2]])?;
        let sums = (rows.matmul(&self.weight_input)? + bias)?;
        sums.reshape([shape[0], shape[1], bias.shape().last()])
    }

    /// Carries states that start as zeros along the items. The first state is what comes out.
    fn scan(
        &self,
        items: &Value,
        n_states: usize,
        sequences: bool,
        reverse: bool,
        next: impl FnOnce(&[Value], &Value) -> Result<Vec<Value>, ProgramError>,
    ) -> Result<Value, LayerError> {
        let first = TensorType::new(items.dtype(), [items.shape()[1], self.units]);
        let first = self.builder.full(&first, 0.0)?;
        let carried = vec![&first; n_states];
        let body = |_: &Builder, carried: &[Value], item: &[Value]| -> Result<Iteration, _> {
            let states = next(carried, &item[0])?;
            let stacked = if sequences { vec![states[0].clone()] } else { Vec::new() };
            Ok((states, stacked))
        };
        let (last, stacked) = self.builder.scan(&carried, &[items], reverse, body)?;
        match stacked.first() {
            Some(all) => Ok(all.transpose(&[1, 0, 2])?),
            None => Ok(last[0].clone()),
        }
    }
}
