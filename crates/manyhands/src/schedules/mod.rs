//! Schedules: how the rate changes over the steps. A user's own implements [`Schedule`] and is entered into the registry.

//!
//! Formulas are those of PyTorch's schedulers, stepped once a step, with a factor on the rate where PyTorch has the rate
//! itself. Cosines and powers come from the `libm` crate, whose bits are the same on every machine.

mod curves;
mod plateau;
mod stairs;

pub use curves::{Cosine, Linear, OneCycle};
pub use plateau::Plateau;
pub use stairs::{Constant, Exponential, Stairs, Unit};

use serde::de::{Deserialize, Deserializer, Error, Unexpected};

use crate::catalog::Catalog;

/// Enters the schedules that the crate brings.
pub fn add_built_in(catalog: &mut Catalog<dyn Schedule>) {
    catalog
        .add("constant", |own: Constant| Box::new(own))
        .add("step", |own: Stairs| Box::new(own))
        .add("exponential", |own: Exponential| Box::new(own))
        .add("linear", |own: Linear| Box::new(own))
        .add("cosine", |own: Cosine| Box::new(own))
        .add("one_cycle", |own: OneCycle| Box::new(own))
        .add("plateau", |own: Plateau| Box::new(own));
}

/// The factor of the first `n` steps, which rises to 1 in equal parts: 1/n at the first step, 1 at step n - 1 and from then
/// on. It multiplies that of the schedule.
pub fn warm_up(n: usize, step: usize) -> f64 {
    if step.saturating_add(1) >= n { 1.0 } else { (step + 1) as f64 / n as f64 }
}

/// Where training stands.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// The step about to be done, 0 at the first.
    pub step: usize,
    /// How many steps there will be in all, if training does not end early.
    pub n_steps: usize,
    /// Steps per epoch.
    pub steps_per_epoch: usize,
    /// The monitored value (smaller is better; metrics where more is better come negated) after each epoch so far.
    pub monitored: &'a [f64],
}

/// A schedule: a pure function from where training stands to a factor on the rate.
pub trait Schedule: Send + Sync {
    /// What the rate is multiplied by.
    fn factor(&self, at: &Position) -> f64;
}

/// A factor on a rate: above 0, finite.
fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    bounded(deserializer, "a number above 0", |number| number > 0.0)
}

/// A share: from 0 to 1.
fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    bounded(deserializer, "a number from 0 to 1", |number| (0.0..=1.0).contains(&number))
}

/// A number that is not negative.
fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    bounded(deserializer, "a number of at least 0", |number| number >= 0.0)
}

fn bounded<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
    holds: fn(f64) -> bool,
) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number.is_finite() && holds(number) {
        return Ok(number);
    }
    Err(D::Error::invalid_value(Unexpected::Float(number), &expected))
}

#[cfg(test)]
mod tests;
