//! An optimizer of your own: `lion`, which follows the sign of a running mean of the gradient.
//!
//!     cargo run --release -p manyhands --example own_optimizer

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::program::{Builder, Init, ProgramError, Role, UpdateRule, Value};
use manyhands::{Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

/// Follows the sign of a running mean of the gradient (Chen et al. 2023).
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
struct Lion {
    /// The rate, unless a schedule says otherwise.
    rate: f64,
    /// How much of the last mean is kept for the step.
    beta1: f64,
    /// How much of the last mean is kept for the next.
    beta2: f64,
}

impl Default for Lion {
    fn default() -> Lion {
        Lion { rate: 1e-4, beta1: 0.9, beta2: 0.99 }
    }
}

impl UpdateRule for Lion {
    fn rate(&self) -> f64 {
        self.rate
    }

    fn check(&self) -> Result<(), ProgramError> {
        if [self.beta1, self.beta2].iter().all(|beta| (0.0..1.0).contains(beta)) {
            return Ok(());
        }
        let (what, expected) = ("the betas of lion", "at least 0 and below 1");
        let found = format!("{} and {}", self.beta1, self.beta2);
        Err(ProgramError::Setting { what, expected, found })
    }

    fn update(
        &self,
        builder: &Builder,
        weight: &Value,
        gradient: &Value,
        rate: &Value,
        _step: &Value,
    ) -> Result<(), ProgramError> {
        // State is a parameter of its own, beside the weight, so checkpoints hold it.
        let name = builder.inspect(|program| {
            let own = program.parameters().find(|(_, _, id)| *id == weight.id());
            own.map(|(name, ..)| format!("{name}/mean")).unwrap_or_default()
        });
        let mean = builder.parameter(&name, weight.ty(), Role::Slot, Init::Constant(0.0))?;
        let mixed = |beta: f64| (&mean * beta)? + (gradient * (1.0 - beta))?;
        builder.update(weight, &(weight - (mixed(self.beta1)?.sign()? * rate)?)?)?;
        builder.update(&mean, &mixed(self.beta2)?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.optimizers.add("lion", |own: Lion| Box::new(own));

    // From here on a job can name it like any other, in TOML as in Rust.
    let job = Job::builder()
        .train("digits.csv.gz")
        .test(0.2)
        .label("label")
        .layers(["dense 64 relu", "dense 10"])
        .optimizer("lion 0.001")
        .metrics(["accuracy"])
        .epochs(20)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-optimizer");
    let report = Trainer::new(job, "examples/data").registry(registry).out(out).run()?;
    println!("accuracy on the test data: {:.3}", report.metrics.test["accuracy"]);
    Ok(())
}
