//! A loss of your own: `quantile`, for a model that should be above the truth in so many of all cases.
//!
//!     cargo run --release -p manyhands --example own_loss

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::losses::{Loss, Meaning};
use manyhands::program::{Builder, ProgramError, Value};
use manyhands::{Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

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

    // From here on a job can name it like any other, in TOML as in Rust.
    let job = Job::builder()
        .train("diabetes.csv.gz")
        .test(0.2)
        .label("target")
        .layers(["dense 32 relu", "dense 1"])
        .loss("quantile 0.9")
        .metrics(["mae"])
        .epochs(40)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-loss");
    let report = Trainer::new(job, "examples/data").registry(registry).out(out).run()?;
    println!("mean absolute error on the test data: {:.1}", report.metrics.test["mae"]);
    Ok(())
}
