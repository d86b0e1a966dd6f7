//! An own metric: a struct with settings, three methods, one line to enter it.
//!
//!     cargo run --release -p manyhands --example own_metric

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::metrics::{Metric, Scored, Targets};
use manyhands::{Job, Registry};
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
        .train("houses.csv")
        .label("price")
        .layers(["dense 64 relu", "dense 1"])
        .loss("squared_error")
        .metrics(["rmse", "within 0.5"])
        .build()?;

    let scored = Scored {
        predictions: &[1.0, 2.25, 4.0, 2.0],
        width: 1,
        targets: Targets::Numbers(&[1.0, 2.0, 3.0, 2.5]),
        losses: &[],
    };
    for choice in &job.train.metrics {
        let mut metric = registry.metrics.make(choice)?;
        metric.add(&scored);
        println!("{choice}: {}", metric.value());
    }
    Ok(())
}
