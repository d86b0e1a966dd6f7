//! Dropout.

use manyhands_program::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layer, LayerError, Mode, Site, only_numbers};

/// In training, makes a random part of the numbers zero and scales the others up; does nothing in answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// Which part becomes zero: at least 0 and below 1.
    pub rate: f64,
}

impl Layer for Dropout {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        dropped(site, only_numbers(inputs)?, "rate", self.rate)
    }
}

/// Drops numbers in training.
pub(super) fn dropped(
    site: &Site,
    x: &Value,
    setting: &'static str,
    rate: f64,
) -> Result<Value, LayerError> {
    if !(0.0..1.0).contains(&rate) {
        let (expected, found) = ("at least 0 and below 1".to_string(), rate.to_string());
        return Err(LayerError::Setting { setting, expected, found });
    }
    match site.mode {
        Mode::Training if rate > 0.0 => Ok(x.dropout(rate)?),
        _ => Ok(x.clone()),
    }
}
