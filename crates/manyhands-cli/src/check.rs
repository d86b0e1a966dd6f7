//! `manyhands check`.

use crate::arguments::Check;
use crate::exit::Failure;
use crate::figures::{count, counted};
use crate::library::{self, Plan};
use crate::output::{print, print_json};

pub(crate) fn run(arguments: &Check) -> Result<(), Failure> {
    let plan = library::plan(&arguments.job, &arguments.overrides.set)?;
    if arguments.json { print_json(&plan) } else { print(&describe(&plan)) }
}

fn describe(plan: &Plan) -> String {
    let mut lines = vec![];
    let mut line = |term: &str, about: String| lines.push(format!("{term:<10}{about}"));
    line(
        "data",
        format!(
            "{} to train on, {} to validate on, {} to test on",
            counted(plan.samples, "sample"),
            count(plan.validation),
            count(plan.test)
        ),
    );
    line("inputs", plan.inputs.join(", "));
    if let Some(n_classes) = plan.classes {
        line("classes", count(n_classes));
    }
    line("model", counted(plan.weights, "weight"));
    let widths = widths(plan);
    for layer in &plan.layers {
        let (name, written, shape) = (&layer.name, &layer.layer, format!("{:?}", layer.shape));
        let weights = counted(layer.weights, "weight");
        line(
            "",
            format!(
                "{name:<0$}  {written:<1$}  {shape:<2$}  {weights}",
                widths[0], widths[1], widths[2]
            ),
        );
    }
    line(
        "steps",
        format!(
            "{} of {}: {} in all; {} a step, in grains of {}",
            counted(plan.epochs, "epoch"),
            count(plan.steps_per_epoch),
            count(plan.steps),
            counted(plan.batch, "sample"),
            count(plan.grain)
        ),
    );
    line("set-up", plan.set_up.clone());
    line("results", plan.folder.display().to_string());
    lines.join("\n")
}

/// How wide the names, layers and shapes are.
fn widths(plan: &Plan) -> [usize; 3] {
    let of = |width: &dyn Fn(&library::PlannedLayer) -> usize| {
        plan.layers.iter().map(width).max().unwrap_or(0)
    };
    [
        of(&|layer| layer.name.chars().count()),
        of(&|layer| layer.layer.chars().count()),
        of(&|layer| format!("{:?}", layer.shape).len()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::PlannedLayer;

    #[test]
    fn a_plan_reads_as_a_table() {
        let layer = |name: &str, layer: &str, shape: &[usize], weights| PlannedLayer {
            name: name.into(),
            layer: layer.into(),
            shape: shape.into(),
            weights,
        };
        let plan = Plan {
            samples: 1438,
            validation: 0,
            test: 359,
            inputs: vec!["features f32 [64]".into()],
            classes: Some(10),
            layers: vec![
                layer("dense0", "dense 64 relu", &[64], 4160),
                layer("dense1", "dense 10", &[10], 650),
            ],
            weights: 4810,
            batch: 32,
            grain: 16,
            steps_per_epoch: 45,
            epochs: 20,
            steps: 900,
            set_up: "measured during the first steps".into(),
            folder: "runs/digits".into(),
        };
        let expected = "\
data      1,438 samples to train on, 0 to validate on, 359 to test on
inputs    features f32 [64]
classes   10
model     4,810 weights
          dense0  dense 64 relu  [64]  4,160 weights
          dense1  dense 10       [10]  650 weights
steps     20 epochs of 45: 900 in all; 32 samples a step, in grains of 16
set-up    measured during the first steps
results   runs/digits";
        assert_eq!(describe(&plan), expected);
    }
}
