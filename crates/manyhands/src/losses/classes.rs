//! Losses on classes.

use manyhands_program::{Builder, DType, ProgramError, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Loss, Meaning, like_target};

/// For classes and tokens: minus the logarithm of the probability that the model gives to the right one. The last layer
/// gives one score per class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrossEntropy {
    /// Which part of the certainty is spread over all classes: at least 0 and below 1.
    pub smoothing: f64,
}

impl Loss for CrossEntropy {
    fn meaning(&self) -> Meaning {
        Meaning::Classes
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        if !(0.0..1.0).contains(&self.smoothing) {
            let (what, expected) = ("the smoothing of cross-entropy", "at least 0 and below 1");
            let found = self.smoothing.to_string();
            return Err(ProgramError::Setting { what, expected, found });
        }
        let plain = output.cross_entropy(target)?;
        if self.smoothing == 0.0 {
            return Ok(plain);
        }
        let classes = output.shape().rank() - 1;
        let spread = (-output.log_softmax(classes)?)?.mean(&[classes])?;
        (plain * (1.0 - self.smoothing))? + (spread * self.smoothing)?
    }
}

/// For two classes: minus the logarithm of the probability that the model gives to the right one. The last layer gives one
/// score, above zero for the second class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BinaryCrossEntropy {}

impl Loss for BinaryCrossEntropy {
    fn meaning(&self) -> Meaning {
        Meaning::Binary
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        like_target(output, target)?.binary_cross_entropy(&target.cast(DType::F32)?)
    }
}

/// For two classes: how far the score of the right one is from being above 1. The last layer gives one score, above zero for
/// the second class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hinge {}

impl Loss for Hinge {
    fn meaning(&self) -> Meaning {
        Meaning::Binary
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        let signs = ((target.cast(DType::F32)? * 2.0)? - 1.0)?;
        like_target(output, target)?.hinge(&signs)
    }
}
