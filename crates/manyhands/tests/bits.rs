//! The bit contract on one machine: the trained parameters of every benchmark model are the same to the last bit for any
//! number of threads, lanes and any instruction set.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, Isa, StepExecutor};
use manyhands::initial_value;
use manyhands::program::{DType, Init, Op, Program, TensorType};

/// How a step is run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    n_lanes: usize,
    threads_each: usize,
    isa: Isa,
}

const ALONE: Setup = Setup { n_lanes: 1, threads_each: 1, isa: Isa::Portable };

/// The bytes of all parameters after three steps.
fn train(program: &Program, n_classes: usize, n_grains: usize, setup: Setup) -> Vec<u8> {
    let device = CpuDevice::with_lanes(setup.n_lanes, setup.threads_each, setup.isa).unwrap();
    let mut step = StepExecutor::new(Box::new(device), program, n_grains, setup.n_lanes).unwrap();
    let names: Vec<String> = program.parameters().map(|(name, ..)| name.to_string()).collect();
    for node in program.nodes() {
        if let Op::Parameter { name, init, .. } = &node.op {
            let ty = program.ty(node.results[0]);
            let value = initial_value(step.device_mut(), 7, name, ty, *init).unwrap();
            step.set_parameter(name, &value).unwrap();
        }
    }
    step.write_step_scalar("rate", 0.01).unwrap();
    for number in 1..=3u64 {
        for grain in 0..n_grains {
            for (name, value) in
                program.inputs().filter(|(name, _)| *name == "x" || *name == "labels")
            {
                let ty = program.ty(value);
                let bytes = batch(&mut step, ty, n_classes, &format!("{name}/{number}/{grain}"));
                step.write_grain_input(grain, name, &bytes).unwrap();
            }
        }
        if step.has_step_input("step") {
            step.write_step_scalar("step", number as f32).unwrap();
        }
        step.set_random_context(3, number).unwrap();
        step.run().unwrap();
    }
    names.iter().flat_map(|name| step.parameter(name).unwrap().bytes().to_vec()).collect()
}

fn batch(step: &mut StepExecutor, ty: &TensorType, n_classes: usize, name: &str) -> Vec<u8> {
    let floats = TensorType::new(DType::F32, ty.shape.clone());
    let raw = initial_value(step.device_mut(), 5, name, &floats, Init::Uniform(1.0)).unwrap();
    if ty.dtype == DType::F32 {
        return raw.bytes().to_vec();
    }
    let label = |x: f64| (((x + 1.0) / 2.0 * n_classes as f64) as i32).min(n_classes as i32 - 1);
    raw.to_f64().into_iter().flat_map(|x| label(x).to_le_bytes()).collect()
}

fn check(case: Case, grain: usize, n_grains: usize) {
    let program = case.training_program(grain).unwrap();
    let fast = Setup { isa: Isa::detect(), ..ALONE };
    let expected = train(&program, case.n_classes(), n_grains, fast);
    assert!(expected.iter().any(|&byte| byte != 0));
    let mut setups: Vec<Setup> =
        Isa::available().iter().map(|&isa| Setup { isa, ..ALONE }).collect();
    if !matches!(case, Case::Tiny | Case::Mlp) {
        // Without hardware vectors the large models take minutes; the small ones and the kernels' own tests cover it.
        setups.retain(|setup| setup.isa != Isa::Portable);
    }
    for (n_lanes, threads_each) in [(1, 2), (1, 3), (2, 1), (3, 1), (2, 2)] {
        setups.push(Setup { n_lanes, threads_each, isa: Isa::detect() });
    }
    for setup in setups {
        let found = train(&program, case.n_classes(), n_grains, setup);
        assert!(found == expected, "{} with {setup:?} differs", case.name());
    }
}

#[test]
fn a_tiny_network_trains_to_the_same_bits_everywhere() {
    check(Case::Tiny, 16, 5);
}

#[test]
fn a_dense_network_trains_to_the_same_bits_everywhere() {
    check(Case::Mlp, 8, 3);
}

#[test]
fn a_convolutional_network_trains_to_the_same_bits_everywhere() {
    check(Case::Cnn, 4, 3);
}

#[test]
fn a_transformer_trains_to_the_same_bits_everywhere() {
    check(Case::Lm, 1, 3);
}
