//! A small training loop on made-up numbers, `y = sin(a) * b`, for the examples beside it.

use manyhands::device::{CpuDevice, StepExecutor};
use manyhands::job::ModelSpec;
use manyhands::model::{InputSpec, Model, TargetSpec};
use manyhands::program::{DType, LOSS, Op, RATE, STEP};
use manyhands::{Choice, Registry, initial_value};

const GRAIN: usize = 32;
const N_GRAINS: usize = 4;
const N_STEPS: usize = 300;
const SEED: u64 = 1;

/// Trains a model and prints its loss now and then.
pub(crate) fn train(
    registry: &Registry,
    model: &ModelSpec,
    loss: &str,
    optimizer: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let features = InputSpec {
        name: "features".into(),
        dtype: DType::F32,
        shape: vec![2],
        n_categories: None,
        is_image: false,
    };
    let target = TargetSpec { dtype: DType::F32, shape: vec![], n_classes: None };
    let model = Model::new(model, registry, &[features], target)?;
    println!("{}", model.describe());

    let loss = registry.losses.make(&Choice::from(loss))?;
    let rule = registry.optimizers.make(&Choice::from(optimizer))?;
    let program = model.training_program(GRAIN, loss.as_ref(), rule.as_ref(), None, None)?;
    let mut step = StepExecutor::new(Box::new(CpuDevice::new(1)?), &program, N_GRAINS, 1)?;
    for node in program.nodes() {
        if let Op::Parameter { name, init, .. } = &node.op {
            let ty = program.ty(node.results[0]);
            let value = initial_value(step.device_mut(), SEED, name, ty, *init)?;
            step.set_parameter(name, &value)?;
        }
    }
    for number in 1..=N_STEPS {
        for grain in 0..N_GRAINS {
            let (features, labels) = samples(number * N_GRAINS + grain);
            step.write_grain_input(grain, "features", &bytes(&features))?;
            step.write_grain_input(grain, "label", &bytes(&labels))?;
        }
        step.write_scalar(RATE, rule.rate() as f32)?;
        if step.has_input(STEP) {
            step.write_scalar(STEP, number as f32)?;
        }
        step.set_random_context(SEED, number as u64)?;
        step.run()?;
        if number == 1 || number % 100 == 0 {
            println!("step {number}: loss {:.5}", step.step_output(LOSS)?.to_f64()[0]);
        }
    }
    Ok(())
}

/// Points that cover the square from -2 to 2 evenly, other ones in every grain.
fn samples(grain: usize) -> (Vec<f32>, Vec<f32>) {
    let place = |idx: usize, step: f64| ((idx as f64 * step).fract() * 4.0 - 2.0) as f32;
    let idxs = grain * GRAIN..(grain + 1) * GRAIN;
    let points = idxs.map(|idx| (place(idx, 0.754_877_666), place(idx, 0.569_840_291)));
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    for (a, b) in points {
        features.extend([a, b]);
        labels.push(a.sin() * b);
    }
    (features, labels)
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
