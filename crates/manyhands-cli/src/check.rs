//! `manyhands check`.

use manyhands::train::Planned;

use crate::arguments::Check;
use crate::exit::Failure;
use crate::figures::{count, counted};
use crate::library::{self, Plan};
use crate::output::{print, print_json};
use crate::progress::plan_as_json;

pub(crate) fn run(arguments: &Check) -> Result<(), Failure> {
    let Plan { planned, model, folder } = library::plan(&arguments.job, &arguments.overrides.set)?;
    if arguments.json {
        let mut object = plan_as_json(&planned);
        object["model"] = model.into();
        object["folder"] = folder.display().to_string().into();
        print_json(&object)
    } else {
        print(&format!("{}\nout    {}", describe(&planned, &model), folder.display()))
    }
}

fn describe(planned: &Planned, model: &str) -> String {
    let held_out = |n: usize, purpose: &str| match n {
        0 => format!("nothing to {purpose} on"),
        n => format!("{} to {purpose} on", count(n)),
    };
    let data = format!(
        "{} to train on, {}, {}",
        counted(planned.n_samples, "sample"),
        held_out(planned.n_validation, "validate"),
        held_out(planned.n_test, "test")
    );
    let steps = format!(
        "{} of {}, {} in all; {} a step, in grains of {}",
        counted(planned.n_epochs, "epoch"),
        counted(planned.steps_per_epoch, "step"),
        count(planned.n_steps),
        counted(planned.batch, "sample"),
        count(planned.grain)
    );
    let layers: String = model.trim_end().lines().map(|line| format!("\n  {line}")).collect();
    format!("data   {data}\nsteps  {steps}\nmodel{layers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_as_a_table() {
        let planned = Planned {
            n_samples: 1438,
            n_validation: 0,
            n_test: 359,
            n_weights: 4810,
            batch: 32,
            grain: 16,
            steps_per_epoch: 45,
            n_epochs: 20,
            n_steps: 900,
            first_step: 0,
        };
        let expected = "\
data   1,438 samples to train on, nothing to validate on, 359 to test on
steps  20 epochs of 45 steps, 900 in all; 32 samples a step, in grains of 16
model
  dense0  dense 64 relu  [64]
  dense1  dense 10       [10]";
        let model = "dense0  dense 64 relu  [64]\ndense1  dense 10       [10]\n";
        assert_eq!(describe(&planned, model), expected);
    }
}
