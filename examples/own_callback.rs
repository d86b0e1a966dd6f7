//! An own callback: follows every step, and ends training when the loss is low enough.
//!
//!     cargo run --release -p manyhands --example own_callback

#![allow(clippy::print_stdout, reason = "an example shows its results")]

use manyhands::train::{Callback, Control, Event};
use manyhands::{Job, Trainer};

/// Ends training when the mean of the last losses is below a goal.
struct Goal {
    loss: f64,
    recent: f64,
}

impl Callback for Goal {
    fn on_event(&mut self, event: &Event) -> Control {
        match event {
            Event::Step(done) => {
                self.recent = 0.9 * self.recent + 0.1 * done.loss;
                if self.recent < self.loss { Control::Stop } else { Control::Continue }
            }
            Event::Stopped(reason) => {
                println!("stopped: {reason}");
                Control::Continue
            }
            _ => Control::Continue,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::builder()
        .train("digits.csv.gz")
        .test(0.2)
        .label("label")
        .layers(["dense 64 relu", "dense 10"])
        .metrics(["accuracy"])
        .epochs(100)
        .build()?;
    let out = std::env::temp_dir().join("manyhands-own-callback");
    let goal = Goal { loss: 0.1, recent: 3.0 };
    let report = Trainer::new(job, "examples/data").callback(goal).out(out).run()?;
    println!("{} steps, accuracy {:.3}", report.steps, report.metrics.test["accuracy"]);
    Ok(())
}
