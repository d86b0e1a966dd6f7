//! Optimizers: settings as plain data, and the operations that update parameters from gradients.
//!
//! Formulas and defaults are PyTorch's. State lives in parameters of its own (`w/momentum` beside `w`), so checkpoints and
//! strategies see it like any other parameter. The rate and the step are values of the program: schedules change them
//! without another program.

mod clip;
mod rows;
mod rules;

pub use clip::Clip;
pub(crate) use rows::{RowsAt, update_rows};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::builder::{Builder, Value};
use crate::error::ProgramError;

/// How one parameter follows its gradient: what an optimizer is to a training step. Implement it for an own optimizer.
pub trait UpdateRule: Send + Sync {
    /// The rate, unless a schedule says otherwise.
    fn rate(&self) -> f64;

    /// Checks the settings.
    fn check(&self) -> Result<(), ProgramError>;

    /// Adds the update of one parameter. `rate` and `step` are f32 scalars; the first step is 1. State is kept in
    /// parameters with [`Role::Slot`](crate::Role::Slot) named after the parameter, such as `w/momentum`.
    fn update(
        &self,
        builder: &Builder,
        parameter: &Value,
        gradient: &Value,
        rate: &Value,
        step: &Value,
    ) -> Result<(), ProgramError>;
}

/// Declares the settings of an optimizer with the default of each beside it.
macro_rules! settings {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty = $default:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default),* }
            }
        }
    };
}

settings! {
    /// Stochastic gradient descent: `w -= rate * g`, with momentum `v = momentum * v + g` in place of `g`.
    Sgd {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-3,
        /// How much of the last velocity is kept; 0 for plain descent.
        momentum: f64 = 0.0,
        /// Looks ahead along the velocity.
        nesterov: bool = false,
        /// Adds so much of the weight to its gradient.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Adagrad: rates that fall with the sum of squared gradients.
    Adagrad {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-2,
        /// The rate is divided by 1 + (step - 1) * decay.
        rate_decay: f64 = 0.0,
        /// Adds so much of the weight to its gradient.
        weight_decay: f64 = 0.0,
        /// Added to the root, against division by zero.
        epsilon: f64 = 1e-10,
    }
}

settings! {
    /// RMSProp: gradients divided by a running root of their mean square.
    RmsProp {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-2,
        /// How much of the last mean square is kept.
        alpha: f64 = 0.99,
        /// How much of the last velocity is kept; 0 for none.
        momentum: f64 = 0.0,
        /// Divides by the variance instead of the mean square.
        centered: bool = false,
        /// Adds so much of the weight to its gradient.
        weight_decay: f64 = 0.0,
        /// Added to the root, against division by zero.
        epsilon: f64 = 1e-8,
    }
}

settings! {
    /// Adam: running means of the gradient and of its square, freed from their bias towards zero.
    Adam {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-3,
        /// How much of the last mean is kept.
        beta1: f64 = 0.9,
        /// How much of the last mean square is kept.
        beta2: f64 = 0.999,
        /// Added to the root, against division by zero.
        epsilon: f64 = 1e-8,
        /// Adds so much of the weight to its gradient.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Adam with weights that decay by themselves, not through the gradient.
    AdamW {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-3,
        /// How much of the last mean is kept.
        beta1: f64 = 0.9,
        /// How much of the last mean square is kept.
        beta2: f64 = 0.999,
        /// Added to the root, against division by zero.
        epsilon: f64 = 1e-8,
        /// The weight loses so much of itself, times the rate, a step.
        weight_decay: f64 = 1e-2,
    }
}

settings! {
    /// LAMB: Adam's step, scaled per parameter to the norm of the weights; for large batches.
    Lamb {
        /// The rate, unless a schedule says otherwise.
        rate: f64 = 1e-3,
        /// How much of the last mean is kept.
        beta1: f64 = 0.9,
        /// How much of the last mean square is kept.
        beta2: f64 = 0.999,
        /// Added to the root, against division by zero.
        epsilon: f64 = 1e-6,
        /// Adds so much of the weight to the step.
        weight_decay: f64 = 1e-2,
    }
}

settings! {
    /// FTRL-Proximal: follows the regularized leader, with a rate of its own for each weight. Weights that do not earn
    /// their `l1` are zero; for sparse linear models.
    Ftrl {
        /// The rate (the papers' alpha), unless a schedule says otherwise.
        rate: f64 = 0.1,
        /// Added to the root of the sum of squares: larger for smaller first steps.
        beta: f64 = 1.0,
        /// How much the sum of a weight's gradients (means over the batch), over the steps, must outweigh for it not to be zero.
        l1: f64 = 0.0,
        /// Shrinks weights.
        l2: f64 = 0.0,
    }
}

/// How parameters follow their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Optimizer {
    Sgd(Sgd),
    Adagrad(Adagrad),
    RmsProp(RmsProp),
    Adam(Adam),
    AdamW(AdamW),
    Lamb(Lamb),
    Ftrl(Ftrl),
}

impl Optimizer {
    /// The rate, unless a schedule says otherwise.
    pub fn rate(&self) -> f64 {
        match self {
            Optimizer::Sgd(own) => own.rate,
            Optimizer::Adagrad(own) => own.rate,
            Optimizer::RmsProp(own) => own.rate,
            Optimizer::Adam(own) => own.rate,
            Optimizer::AdamW(own) => own.rate,
            Optimizer::Lamb(own) => own.rate,
            Optimizer::Ftrl(own) => own.rate,
        }
    }

    /// Checks the settings.
    pub fn check(&self) -> Result<(), ProgramError> {
        let not_negative = |what: &'static str, value: f64| {
            setting(what, "at least 0 and finite", value, value >= 0.0 && value.is_finite())
        };
        let kept = |what: &'static str, value: f64| {
            setting(what, "at least 0 and below 1", value, (0.0..1.0).contains(&value))
        };
        not_negative("the rate", self.rate())?;
        match *self {
            Optimizer::Sgd(Sgd { momentum, nesterov, weight_decay, .. }) => {
                not_negative("the weight decay", weight_decay)?;
                kept("the momentum", momentum)?;
                let positive = "positive where there is Nesterov's look-ahead";
                setting("the momentum", positive, momentum, !nesterov || momentum > 0.0)
            }
            Optimizer::Adagrad(Adagrad { rate_decay, weight_decay, epsilon, .. }) => {
                not_negative("the rate decay", rate_decay)?;
                not_negative("the weight decay", weight_decay)?;
                not_negative("epsilon", epsilon)
            }
            Optimizer::RmsProp(RmsProp { alpha, momentum, weight_decay, epsilon, .. }) => {
                kept("alpha", alpha)?;
                kept("the momentum", momentum)?;
                not_negative("the weight decay", weight_decay)?;
                not_negative("epsilon", epsilon)
            }
            Optimizer::Adam(Adam { beta1, beta2, epsilon, weight_decay, .. })
            | Optimizer::AdamW(AdamW { beta1, beta2, epsilon, weight_decay, .. })
            | Optimizer::Lamb(Lamb { beta1, beta2, epsilon, weight_decay, .. }) => {
                kept("beta1", beta1)?;
                kept("beta2", beta2)?;
                not_negative("epsilon", epsilon)?;
                not_negative("the weight decay", weight_decay)
            }
            Optimizer::Ftrl(Ftrl { rate, beta, l1, l2 }) => {
                setting("the rate of ftrl", "above 0", rate, rate > 0.0)?;
                not_negative("beta", beta)?;
                not_negative("l1", l1)?;
                not_negative("l2", l2)
            }
        }
    }

    /// Adds the update of one parameter. `rate` and `step` are f32 scalars; the first step is 1. State is kept in
    /// parameters named after the parameter, such as `w/momentum`, that start as zeros.
    pub fn update(
        &self,
        builder: &Builder,
        parameter: &Value,
        gradient: &Value,
        rate: &Value,
        step: &Value,
    ) -> Result<(), ProgramError> {
        self.check()?;
        let target = rules::Target::of(builder, parameter, gradient, rate, step)?;
        let next = match self {
            Optimizer::Sgd(own) => target.sgd(own)?,
            Optimizer::Adagrad(own) => target.adagrad(own)?,
            Optimizer::RmsProp(own) => target.rms_prop(own)?,
            Optimizer::Adam(own) => target.adam(own)?,
            Optimizer::AdamW(own) => target.adam_w(own)?,
            Optimizer::Lamb(own) => target.lamb(own)?,
            Optimizer::Ftrl(own) => target.ftrl(own)?,
        };
        builder.update(parameter, &next)
    }
}

impl UpdateRule for Optimizer {
    fn rate(&self) -> f64 {
        Optimizer::rate(self)
    }

    fn check(&self) -> Result<(), ProgramError> {
        Optimizer::check(self)
    }

    fn update(
        &self,
        builder: &Builder,
        parameter: &Value,
        gradient: &Value,
        rate: &Value,
        step: &Value,
    ) -> Result<(), ProgramError> {
        Optimizer::update(self, builder, parameter, gradient, rate, step)
    }
}

pub(crate) fn setting(
    what: &'static str,
    expected: &'static str,
    found: f64,
    holds: bool,
) -> Result<(), ProgramError> {
    if holds {
        return Ok(());
    }
    Err(ProgramError::Setting { what, expected, found: found.to_string() })
}

#[cfg(test)]
mod tests;
