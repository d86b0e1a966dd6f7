//! A loss of your own: `quantile`, for a model that should be above the truth in so many of all cases.
//!
//!     cargo run --release -p manyhands --example own_loss

#![allow(clippy::print_stdout)] // an example talks

use manyhands::job::ModelSpec;
use manyhands::losses::{Loss, Meaning};
use manyhands::program::{Builder, ProgramError, Value};
use manyhands::{Choice, Registry};
use schemars::JsonSchema;
use serde::Deserialize;

mod synthetic;

/// Makes the model answer the level that the truth stays below in a given part of all cases.
#[derive(Deserialize, JsonSchema)]
struct Quantile {
    /// Which part of all cases.
    part: f64,
}

impl Loss for Quantile {
    fn meaning(&self) -> Meaning {
        Meaning::Numbers
    }

    /// One loss per sample: `output` is `[n, 1]`, `target` `[n]`.
    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        let below = (target - output.reshape(target.shape())?)?;
        (&below * self.part)?.maximum(&(&below * (self.part - 1.0))?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.losses.add("quantile", |own: Quantile| Box::new(own));

    let layers = ["dense 32 relu", "dense 1"].into_iter().map(Choice::from).collect();
    let model = ModelSpec { layers, ..ModelSpec::default() };
    synthetic::train(&registry, &model, "quantile 0.9", "adam rate=0.01")
}
