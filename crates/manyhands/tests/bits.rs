//! The bit contract on one machine: the trained parameters of every benchmark model are the same to the last bit for any
//! number of threads, lanes and any instruction set.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, Isa, StepExecutor};
use manyhands::initial_value;
use manyhands::program::{
    Builder, Clip, DType, Init, Lamb, Op, Optimizer, Program, ProgramError, Role,
    RunningStatistics, TensorType, Training,
};

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
    step.write_scalar("rate", 0.01).unwrap();
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
        if step.has_input("step") {
            step.write_scalar("step", number as f32).unwrap();
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
    // Without hardware vectors the large models take minutes; the small ones and the kernels' own tests cover it.
    let portable = matches!(case, Case::Tiny | Case::Mlp);
    let program = case.training_program(grain).unwrap();
    check_program(&program, case.n_classes(), n_grains, portable);
}

fn check_program(program: &Program, n_classes: usize, n_grains: usize, portable: bool) {
    let fast = Setup { isa: Isa::detect(), ..ALONE };
    let expected = train(program, n_classes, n_grains, fast);
    assert!(expected.iter().any(|&byte| byte != 0));
    let mut setups: Vec<Setup> =
        Isa::available().iter().map(|&isa| Setup { isa, ..ALONE }).collect();
    setups.retain(|setup| portable || setup.isa != Isa::Portable);
    for (n_lanes, threads_each) in [(1, 2), (1, 3), (2, 1), (3, 1), (2, 2)] {
        setups.push(Setup { n_lanes, threads_each, isa: Isa::detect() });
    }
    for setup in setups {
        let found = train(program, n_classes, n_grains, setup);
        assert!(found == expected, "{} with {setup:?} differs", program.name());
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

/// A model with all that could tell workers apart: randomness, batch statistics, loops, branches, masks, clipping, norms
/// over parameters, a weight used twice, and sizes that divide nothing.
fn everything(grain: usize) -> Result<Program, ProgramError> {
    let g = Builder::new("everything");
    let x = g.input("x", DType::F32, [grain, 5, 13])?;
    let shared = g.weight("shared", [13, 13], Init::Normal(0.3))?;
    let h = x.reshape([grain * 5, 13])?.matmul(&shared)?;
    let scale = g.weight("scale", [13], Init::Constant(1.0))?;
    let bias = g.weight("bias", [13], Init::Constant(0.1))?;
    let [h, mean, variance] = h.batch_norm(&scale, &bias, 1e-5)?;
    let statistic = |name: &str, value| {
        let ty = TensorType::new(DType::F32, [13]);
        g.parameter(name, ty, Role::Statistic, Init::Constant(value))
    };
    let (running_mean, running_variance) = (statistic("mean", 0.0)?, statistic("variance", 1.0)?);
    RunningStatistics::default().add_updates(
        &g,
        [&mean, &variance],
        [&running_mean, &running_variance],
        grain * 5,
    )?;
    let h = h.gelu()?.dropout(0.3)?.reshape([grain, 5, 13])?;
    let row = g.iota(DType::I32, [5, 5], 0)?;
    let mask = row.equal(&g.iota(DType::I32, [5, 5], 1)?)?.logical_not()?;
    let h = (&h + &h.attention(&h, &h, 1, false, Some(&mask))?)?;
    let steps = h.transpose(&[1, 0, 2])?;
    let start = g.full(&TensorType::new(DType::F32, [grain, 13]), 0.0)?;
    let (last, _) = g.scan(&[&start], &[&steps], true, |g, carried, items| {
        let sum = (items[0].matmul(&shared)? + &carried[0])?;
        let large = sum.sum_all()?.greater(&g.scalar(DType::F32, 0.0)?)?;
        let next =
            g.cond(&large, |_| Ok(vec![sum.tanh()?]), |_| Ok(vec![(&sum * 0.5)?.dropout(0.2)?]))?;
        Ok((next, vec![]))
    })?;
    let logits = last[0].matmul(&g.weight("head", [13, 7], Init::Normal(0.3))?)?;
    let labels = g.input("labels", DType::I32, [grain])?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    let divisor = g.scalar(DType::F32, grain as f64)?;
    let optimizer = Optimizer::Lamb(Lamb::default());
    Training { optimizer, clip: Some(Clip::GlobalNorm(0.5)) }.add_step(&g, &loss, &divisor)?;
    Ok(g.finish())
}

#[test]
fn a_model_with_everything_trains_to_the_same_bits_everywhere() {
    for n_grains in [1, 2, 3, 5, 8] {
        check_program(&everything(3).unwrap(), 7, n_grains, true);
    }
}
