//! Losses on numbers.

use manyhands_program::{Builder, ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Loss, Meaning, like_target};

/// For numbers: the square of the difference. Large errors count much more than small ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SquaredError {}

impl Loss for SquaredError {
    fn meaning(&self) -> Meaning {
        Meaning::Numbers
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        like_target(output, target)?.squared_error(target)
    }
}

/// For numbers: the difference without its sign. Outliers count as much as their distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AbsoluteError {}

impl Loss for AbsoluteError {
    fn meaning(&self) -> Meaning {
        Meaning::Numbers
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        like_target(output, target)?.absolute_error(target)
    }
}

/// For numbers: half the square of small differences, growing only linearly beyond `delta`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Huber {
    /// Where the square ends, in units of the (scaled) label.
    pub delta: f64,
}

impl Default for Huber {
    fn default() -> Huber {
        Huber { delta: 1.0 }
    }
}

impl Loss for Huber {
    fn meaning(&self) -> Meaning {
        Meaning::Numbers
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        like_target(output, target)?.huber(target, self.delta)
    }
}
