//! An own metric: a struct with settings, three methods, one line to enter it.
//!
//!     cargo run --release -p manyhands --example own_metric

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::metrics::{Metric, Scored};
use manyhands::{Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

/// The share of predictions that are within a tolerance of the right number.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Within {
    /// How far a prediction may be off.
    tolerance: f64,
    #[serde(skip)]
    n_within: u64,
    #[serde(skip)]
    n: u64,
}

impl Metric for Within {
    fn add(&mut self, scored: &Scored) {
        for (found, right) in scored.numbers() {
            self.n_within += u64::from((found - right).abs() <= self.tolerance);
            self.n += 1;
        }
    }

    fn value(&self) -> f64 {
        self.n_within as f64 / self.n as f64
    }

    fn higher_is_better(&self) -> bool {
        true
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.metrics.add("within", |own: Within| Box::new(own));

    // From here on a job can name it like any other, in TOML as in Rust.
    let job = Job::builder()
        .train("diabetes.csv.gz")
        .test(0.2)
        .label("target")
        .layers(["dense 32 relu", "dense 1"])
        .loss("squared_error")
        .metrics(["rmse", "within 50"])
        .epochs(40)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-metric");
    let report = Trainer::new(job, "examples/data").registry(registry).out(out).run()?;
    println!("predictions within 50 of the truth: {:.2}", report.metrics.test["within"]);
    Ok(())
}
