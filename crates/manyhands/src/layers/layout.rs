//! Layers that only change the shape.

use manyhands_program::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Site, described};

/// All numbers of a sample along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flatten {}

impl Layer for Flatten {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [x] = inputs else {
            return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
        };
        Ok(flattened(x)?)
    }
}

/// `[n, ..]` as `[n, all]`.
pub(crate) fn flattened(x: &Value) -> Result<Value, manyhands_program::ProgramError> {
    let shape = x.shape();
    let all = shape.get(1..).unwrap_or_default().iter().product::<usize>();
    x.reshape([shape.first().copied().unwrap_or(1), all])
}

/// The same numbers of a sample under another shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The shape of a sample, such as `[7, 7, 64]`; -1 once for what is left.
    pub shape: Vec<i64>,
}

impl Layer for Reshape {
    fn build(&self, _site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [x] = inputs else {
            return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
        };
        let shape = x.shape();
        let n: usize = shape.get(1..).unwrap_or_default().iter().product();
        let wrong = || LayerError::Setting {
            setting: "shape",
            expected: format!("sizes whose product is {n} (of {}), -1 at most once", described(x)),
            found: format!("{:?}", self.shape),
        };
        let left_open = self.shape.iter().filter(|&&size| size == -1).count();
        let known = self.shape.iter().filter(|&&size| size != -1);
        let known = known.map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
        let product = known.and_then(|known| {
            known.into_iter().try_fold(1usize, |product, size| product.checked_mul(size))
        });
        let product = product.filter(|&product| product > 0).ok_or_else(wrong)?;
        let fits = match left_open {
            0 => product == n,
            1 => n.is_multiple_of(product),
            _ => false,
        };
        if !fits {
            return Err(wrong());
        }
        let size = |&size: &i64| usize::try_from(size).unwrap_or(n / product);
        let sizes = self.shape.iter().map(size);
        let n_samples = shape.first().copied().unwrap_or(1);
        Ok(x.reshape([n_samples].into_iter().chain(sizes).collect::<Vec<_>>())?)
    }
}
