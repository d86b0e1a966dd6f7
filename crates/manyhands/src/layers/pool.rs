//! Pooling: windows, or whole images and sequences, made one number per channel.

use manyhands_program::{Pooling, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::convolution::check_window;
use super::{Extent, Layer, LayerError, Padding, Site, only_numbers};

/// The default size of a window.
fn two() -> Extent {
    Extent::Every(2)
}

/// Declares a pooling of windows.
macro_rules! pooling {
    ($(#[$meta:meta])* $name:ident, $method:ident) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// How many elements a window has along each axis: a number, or one per axis.
            #[serde(default = "two")]
            pub size: Extent,
            /// How far the window moves; its size unless said.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stride: Option<Extent>,
            /// What happens at the edges: `valid` or `same`. What is added never counts.
            #[serde(default)]
            pub padding: Padding,
        }

        impl Layer for $name {
            fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                let x = only_numbers(inputs)?;
                let windows = windows(x, &self.size, self.stride.as_ref(), self.padding)?;
                Ok(x.$method(windows)?)
            }
        }
    };
}

pooling! {
    /// The largest number of each window of sequences `[length, channels]` or images `[height, width, channels]`.
    MaxPool, max_pool
}

pooling! {
    /// The mean of each window of sequences `[length, channels]` or images `[height, width, channels]`.
    AveragePool, average_pool
}

fn windows(
    x: &Value,
    size: &Extent,
    stride: Option<&Extent>,
    padding: Padding,
) -> Result<Pooling, LayerError> {
    let shape = x.shape();
    let n_axes = n_spatial(x)?;
    if n_axes > 2 {
        return Err(LayerError::Input { expected: SPATIAL.to_string() });
    }
    let window = size.along("size", n_axes)?;
    let stride = stride.unwrap_or(size).along("stride", n_axes)?;
    let taken = |axis: usize| padding.along(shape[axis + 1], stride[axis], window[axis]);
    let padding: Vec<_> = (0..n_axes).map(taken).collect();
    check_window(&window, &window, &shape[1..=n_axes], &padding)?;
    Ok(Pooling { window, stride, padding, count_padding: false })
}

const SPATIAL: &str =
    "sequences of shape [length, channels] or images of shape [height, width, channels] per sample";

/// The axes between samples and channels.
fn n_spatial(x: &Value) -> Result<usize, LayerError> {
    match x.shape().rank() {
        rank @ 3.. => Ok(rank - 2),
        _ => Err(LayerError::Input { expected: SPATIAL.to_string() }),
    }
}

/// The largest number of each channel of a sequence `[length, channels]` or an image `[height, width, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlobalMaxPool {}

impl Layer for GlobalMaxPool {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        let axes: Vec<usize> = (1..=n_spatial(x)?).collect();
        Ok(x.max(&axes)?)
    }
}

/// The mean of each channel of a sequence `[length, channels]` or an image `[height, width, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlobalAveragePool {}

impl Layer for GlobalAveragePool {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let x = only_numbers(inputs)?;
        let axes: Vec<usize> = (1..=n_spatial(x)?).collect();
        Ok(x.mean(&axes)?)
    }
}
