//! An own schedule: a struct with settings and a function from where training stands to a factor on the rate.
//!
//!     cargo run --release -p manyhands --example own_schedule

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::schedules::{Position, Schedule, warm_up};
use manyhands::{Job, Registry};
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
        .train("houses.csv")
        .label("price")
        .layers(["dense 64 relu", "dense 1"])
        .loss("squared_error")
        .schedule("saw 2")
        .warm_up(2)
        .build()?;

    let schedule = registry.schedules.make(&job.train.schedule)?;
    for step in 0..10 {
        let at = Position { step, n_steps: 10, steps_per_epoch: 5, monitored: &[] };
        println!("step {step}: {:.2}", warm_up(job.train.warm_up, step) * schedule.factor(&at));
    }
    Ok(())
}
