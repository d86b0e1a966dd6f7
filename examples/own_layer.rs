//! A layer of your own: `highway`, which learns how much of its input to let through unchanged.
//!
//!     cargo run --release -p manyhands --example own_layer

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::layers::{Activation, Layer, LayerError, Site};
use manyhands::program::{Init, Value};
use manyhands::{Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

/// Lets part of what goes in through unchanged: `gate * activation(x w) + (1 - gate) * x`.
#[derive(Deserialize, JsonSchema)]
struct Highway {
    /// What is applied to the part that changes.
    #[serde(default)]
    activation: Activation,
}

impl Layer for Highway {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let [x] = inputs else {
            return Err(LayerError::InputCount { expected: "one input", found: inputs.len() });
        };
        let (g, width) = (site.builder, x.shape().last());
        let start = Init::Uniform(1.0 / (width as f64).sqrt());
        let weight = g.weight("weight", [width, width], start)?;
        let gate = g.weight("gate", [width, width], start)?;
        // Closed at first: the layer starts as if it were not there.
        let gate_bias = g.weight("gate_bias", [width], Init::Constant(-2.0))?;
        let gate = (x.matmul(&gate)? + &gate_bias)?.logistic()?;
        let changed = self.activation.apply(&x.matmul(&weight)?)?;
        Ok((x + (gate * (changed - x)?)?)?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.layers.add("highway", |own: Highway| Box::new(own));

    // From here on a job can name it like any other, in TOML as in Rust.
    let job = Job::builder()
        .train("digits.csv.gz")
        .test(0.2)
        .label("label")
        .layers(["dense 32 relu", "highway relu", "highway activation=tanh", "dense 10"])
        .metrics(["accuracy"])
        .epochs(20)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-layer");
    let report = Trainer::new(job, "examples/data").registry(registry).out(out).run()?;
    println!("accuracy on the test data: {:.3}", report.metrics.test["accuracy"]);
    Ok(())
}
