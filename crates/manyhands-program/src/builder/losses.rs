//! Losses, one value per sample (per label for cross-entropy). Sum them, and give the count as the divisor.

use super::{Built, Value};
use crate::error::ProgramError;

impl Value {
    /// Minus the log-probability of each label under the softmax of these logits `[.., classes]`.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Value) -> Built {
        self.apply(crate::op::Op::CrossEntropy, &[labels])
    }

    /// Binary cross-entropy of these logits with targets between 0 and 1, per element.
    #[track_caller]
    pub fn binary_cross_entropy(&self, targets: &Value) -> Built {
        self.softplus()? - (self * targets)?
    }

    /// (x - target)^2 per element.
    #[track_caller]
    pub fn squared_error(&self, targets: &Value) -> Built {
        let difference = (self - targets)?;
        &difference * &difference
    }

    /// |x - target| per element.
    #[track_caller]
    pub fn absolute_error(&self, targets: &Value) -> Built {
        (self - targets)?.abs()
    }

    /// Huber's loss per element: squared within `delta` (halved), linear beyond.
    #[track_caller]
    pub fn huber(&self, targets: &Value, delta: f64) -> Built {
        if !(delta.is_finite() && delta > 0.0) {
            let (what, expected) = ("the delta of a Huber loss", "positive");
            return Err(ProgramError::Setting { what, expected, found: delta.to_string() });
        }
        let difference = (self - targets)?;
        let size = difference.abs()?;
        let bound = self.builder().branch().scalar(self.dtype(), delta)?;
        let near = ((&difference * &difference)? * 0.5)?;
        let far = ((&size - (0.5 * delta))? * delta)?;
        size.less_equal(&bound)?.select(&near, &far)
    }

    /// max(0, 1 - x * target) per element, with targets of -1 and 1.
    #[track_caller]
    pub fn hinge(&self, targets: &Value) -> Built {
        (1.0 - (self * targets)?)?.relu()
    }
}
