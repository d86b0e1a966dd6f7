//! Convolutions, and how windows lie over sequences and images.

use manyhands_program::{Value, Window};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::initializer::Fan;
use super::{Activation, Initializer, Layer, LayerError, Site, only_numbers, positive, yes};

/// One number for every axis, or one for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Extent {
    /// The same along every axis.
    Every(usize),
    /// One per axis.
    Each(Vec<usize>),
}

impl Extent {
    /// One number per axis, none of them zero.
    pub(super) fn along(
        &self,
        setting: &'static str,
        n_axes: usize,
    ) -> Result<Vec<usize>, LayerError> {
        let sizes = match self {
            Extent::Every(size) => vec![*size; n_axes],
            Extent::Each(sizes) => sizes.clone(),
        };
        if sizes.len() == n_axes && sizes.iter().all(|&size| size > 0) {
            return Ok(sizes);
        }
        let found = match self {
            Extent::Every(size) => size.to_string(),
            Extent::Each(sizes) => format!("{sizes:?}"),
        };
        let expected = match n_axes {
            1 => "a number of at least 1".to_string(),
            n => format!("a number of at least 1, or {n} of them"),
        };
        Err(LayerError::Setting { setting, expected, found })
    }
}

/// The default of strides and dilations.
fn one() -> Extent {
    Extent::Every(1)
}

fn one_group() -> usize {
    1
}

/// What happens at the edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Windows lie inside, so the result is smaller.
    #[default]
    Valid,
    /// As much is added at the edges as makes the result as large as what goes in, divided by the stride.
    Same,
}

impl Padding {
    /// What is added before and after an axis.
    pub(super) fn along(self, size: usize, stride: usize, window: usize) -> (usize, usize) {
        match self {
            Padding::Valid => (0, 0),
            Padding::Same => {
                let covered = (size.div_ceil(stride).saturating_sub(1)) * stride + window;
                let total = covered.saturating_sub(size);
                (total / 2, total - total / 2)
            }
        }
    }
}

/// A window must fit into what it moves over.
pub(super) fn check_window(
    sizes: &[usize],
    spans: &[usize],
    spatial: &[usize],
    padding: &[(usize, usize)],
) -> Result<(), LayerError> {
    let fits = |axis: usize| spans[axis] <= spatial[axis] + padding[axis].0 + padding[axis].1;
    if (0..spans.len()).all(fits) {
        return Ok(());
    }
    let expected = format!(
        "such that a window, which spans {spans:?}, fits into {spatial:?} (or `padding=same`)"
    );
    Err(LayerError::Setting { setting: "size", expected, found: format!("{sizes:?}") })
}

/// Declares a convolution over so many axes.
macro_rules! convolution {
    ($(#[$meta:meta])* $name:ident, $n_axes:literal, $(#[$size:meta])*) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// How many filters there are; each gives one channel.
            pub filters: usize,
            $(#[$size])*
            pub size: Extent,
            /// What is applied to the outputs: `linear` (nothing), `relu`, `gelu`, `tanh`, ...
            #[serde(default)]
            pub activation: Activation,
            /// How far the window moves.
            #[serde(default = "one")]
            pub stride: Extent,
            /// What happens at the edges: `valid` or `same`.
            #[serde(default)]
            pub padding: Padding,
            /// How far apart the elements are that a window looks at.
            #[serde(default = "one")]
            pub dilation: Extent,
            /// Channels and filters are cut into so many groups that do not see each other.
            #[serde(default = "one_group")]
            pub groups: usize,
            /// Whether a bias is added.
            #[serde(default = "yes")]
            pub bias: bool,
            /// How weights start, as in `dense`.
            #[serde(default)]
            pub init: Initializer,
        }

        impl Layer for $name {
            fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
                let x = with_channels(only_numbers(inputs)?, $n_axes)?;
                positive("filters", self.filters)?;
                let sizes = self.size.along("size", $n_axes)?;
                let stride = self.stride.along("stride", $n_axes)?;
                let dilation = self.dilation.along("dilation", $n_axes)?;
                let (groups, bias) = (self.groups, self.bias);
                let spatial = x.shape()[1..=$n_axes].to_vec();
                let spans = sizes.iter().zip(&dilation).map(|(size, by)| (size - 1) * by + 1);
                let spans: Vec<usize> = spans.collect();
                let taken = |axis| self.padding.along(spatial[axis], stride[axis], spans[axis]);
                let padding: Vec<_> = (0..$n_axes).map(taken).collect();
                check_window(&sizes, &spans, &spatial, &padding)?;
                let window = Window { stride, padding, dilation, groups };
                let sum = convolve(site, &x, self.filters, &sizes, window, bias, self.init)?;
                Ok(self.activation.apply(&sum)?)
            }
        }
    };
}

convolution! {
    /// A convolution along sequences `[length, channels]`: filters that look at a window of neighbouring elements.
    Conv1d, 1,
    /// How many elements a window has.
}

convolution! {
    /// A convolution over images `[height, width, channels]` (or `[height, width]`: one channel): filters that look at a
    /// window of pixels.
    Conv2d, 2,
    /// How many pixels a window has along each side: a number, or `[high, wide]`.
}

/// Numbers with an axis of channels after the spatial ones; images without one get it.
fn with_channels(x: &Value, n_axes: usize) -> Result<Value, LayerError> {
    let shape = x.shape();
    match (n_axes, shape.rank()) {
        (2, 3) => Ok(x.reshape([shape[0], shape[1], shape[2], 1])?),
        (n, rank) if rank == n + 2 => Ok(x.clone()),
        _ => {
            let expected = match n_axes {
                1 => "sequences of shape [length, channels] per sample",
                _ => "images of shape [height, width] or [height, width, channels] per sample",
            };
            Err(LayerError::Input { expected: expected.to_string() })
        }
    }
}

fn convolve(
    site: &Site,
    x: &Value,
    filters: usize,
    sizes: &[usize],
    window: Window,
    bias: bool,
    init: Initializer,
) -> Result<Value, LayerError> {
    let (g, channels, groups) = (site.builder, x.shape().last(), window.groups);
    let divides = |n: usize| groups > 0 && n.is_multiple_of(groups);
    if !(divides(channels) && divides(filters)) {
        let expected =
            format!("a divisor of the {channels} channels that come in and the {filters} filters");
        let found = groups.to_string();
        return Err(LayerError::Setting { setting: "groups", expected, found });
    }
    let taps: usize = sizes.iter().product();
    let fan = Fan { inputs: taps * (channels / groups), outputs: taps * (filters / groups) };
    let shape: Vec<usize> = sizes.iter().copied().chain([channels / groups, filters]).collect();
    let kernel = g.weight("kernel", shape, init.weight(fan))?;
    let sum = x.convolution(&kernel, window)?;
    if !bias {
        return Ok(sum);
    }
    Ok((sum + &g.weight("bias", [filters], init.bias(fan))?)?)
}
