//! An own schedule: a struct with settings and a function from where training stands to a factor on the rate.
//!
//!     cargo run --release -p manyhands --example own_schedule

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::schedules::{Position, Schedule};
use manyhands::{Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

/// The rate falls in a straight line and springs back, several times.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Saw {
    /// How many teeth there are.
    teeth: usize,
}

impl Schedule for Saw {
    fn factor(&self, at: &Position) -> f64 {
        let length = (at.n_steps / self.teeth.max(1)).max(1);
        1.0 - (at.step % length) as f64 / length as f64
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.schedules.add("saw", |own: Saw| Box::new(own));

    // From here on a job can name it like any other, in TOML as in Rust.
    let job = Job::builder()
        .train("digits.csv.gz")
        .test(0.2)
        .label("label")
        .layers(["dense 64 relu", "dense 10"])
        .schedule("saw 3")
        .warm_up(10)
        .metrics(["accuracy"])
        .epochs(20)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-schedule");
    let report = Trainer::new(job, "examples/data").registry(registry).out(out).run()?;
    println!("accuracy on the test data: {:.3}", report.metrics.test["accuracy"]);
    Ok(())
}
