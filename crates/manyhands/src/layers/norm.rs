//! Batch norm and layer norm.

use manyhands_program::{
    Builder, DType, Init, ProgramError, Role, RunningStatistics, TensorType, Value,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Mode, Site, only_numbers};

/// Added to variances unless said, as in PyTorch.
pub(super) const EPSILON: f64 = 1e-5;

/// Makes each channel (the last axis) mean 0 and deviation 1 over the samples of a grain, then scales and shifts it. Answers
/// use running statistics from training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchNorm {
    /// How far the running statistics move towards those of a step.
    pub momentum: f64,
    /// Added to the variance, against division by zero.
    pub epsilon: f64,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm { momentum: 0.1, epsilon: EPSILON }
    }
}

impl Layer for BatchNorm {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        check_axes(x)?;
        let (g, n_channels) = (site.builder, x.shape().last());
        let [scale, bias] = scale_and_bias(g, n_channels)?;
        let statistic = |name: &str, first: f64| {
            let ty = TensorType::new(DType::F32, [n_channels]);
            g.parameter(name, ty, Role::Statistic, Init::Constant(first))
        };
        let (mean, variance) = (statistic("mean", 0.0)?, statistic("variance", 1.0)?);
        if site.mode == Mode::Evaluating {
            return Ok(x.normalize(&mean, &variance, &scale, &bias, self.epsilon)?);
        }
        let [y, own_mean, own_variance] = x.batch_norm(&scale, &bias, self.epsilon)?;
        let n_samples = x.shape().n_elements() / n_channels.max(1);
        let running = RunningStatistics { momentum: self.momentum };
        running.add_updates(g, [&own_mean, &own_variance], [&mean, &variance], n_samples)?;
        Ok(y)
    }
}

/// Makes the numbers along the last axis mean 0 and deviation 1, for each sample by itself, then scales and shifts them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LayerNorm {
    /// Added to the variance, against division by zero.
    pub epsilon: f64,
}

impl Default for LayerNorm {
    fn default() -> LayerNorm {
        LayerNorm { epsilon: EPSILON }
    }
}

impl Layer for LayerNorm {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        check_axes(x)?;
        Ok(layer_norm(site.builder, x, self.epsilon)?)
    }
}

/// Layer norm with the weights `scale` and `bias` of the scope.
pub(super) fn layer_norm(g: &Builder, x: &Value, epsilon: f64) -> Result<Value, ProgramError> {
    let [scale, bias] = scale_and_bias(g, x.shape().last())?;
    x.layer_norm(&scale, &bias, epsilon)
}

fn scale_and_bias(g: &Builder, size: usize) -> Result<[Value; 2], ProgramError> {
    let scale = g.weight("scale", [size], Init::Constant(1.0))?;
    Ok([scale, g.weight("bias", [size], Init::Constant(0.0))?])
}

fn check_axes(x: &Value) -> Result<(), LayerError> {
    if x.shape().rank() >= 2 {
        return Ok(());
    }
    Err(LayerError::Input { expected: "several numbers per sample".to_string() })
}
