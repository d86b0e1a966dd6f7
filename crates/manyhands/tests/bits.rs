//! The bit contract on one machine: the trained parameters of every benchmark model are the same to the last bit for any
//! number of threads, lanes and any instruction set.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, Isa, StepExecutor};
use manyhands::initial_value;
use manyhands::program::{
    Builder, Clip, DType, Init, Lamb, Op, Optimizer, Program, ProgramError, Role,
    RunningStatistics, Tensor, TensorType, Training,
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
    train_with(program, None, n_classes, n_grains, setup)
}

/// As [`train`], with another program for the last grain of a step.
fn train_with(
    program: &Program,
    last: Option<&Program>,
    n_classes: usize,
    n_grains: usize,
    setup: Setup,
) -> Vec<u8> {
    let device = CpuDevice::with_lanes(setup.n_lanes, setup.threads_each, setup.isa).unwrap();
    let mut step = StepExecutor::new(Box::new(device), setup.n_lanes);
    let plan = step.add_plan(program, n_grains, last).unwrap();
    let names: Vec<String> = program.parameters().map(|(name, ..)| name.to_string()).collect();
    for node in program.nodes() {
        if let Op::Parameter { name, init, .. } = &node.op {
            let ty = program.ty(node.results[0]);
            let value = initial_value(step.device_mut(), 7, name, ty, *init).unwrap();
            step.set_parameter(name, &value).unwrap();
        }
    }
    step.write_scalar(plan, "rate", 0.01).unwrap();
    for number in 1..=3u64 {
        for grain in 0..n_grains {
            let program = last.filter(|_| grain + 1 == n_grains).unwrap_or(program);
            for (name, value) in
                program.inputs().filter(|(name, _)| *name == "x" || *name == "labels")
            {
                let ty = program.ty(value);
                let bytes = batch(&mut step, ty, n_classes, &format!("{name}/{number}/{grain}"));
                step.write_grain_input(plan, grain, name, &bytes).unwrap();
            }
        }
        if step.has_input(plan, "step") {
            step.write_scalar(plan, "step", number as f32).unwrap();
        }
        step.set_random_context(plan, 3, number).unwrap();
        step.run(plan).unwrap();
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

/// The last batch of an epoch has fewer grains, and its last grain is shorter.
fn check_short(full: &Program, short: &Program, n_classes: usize) {
    let fast = Setup { isa: Isa::detect(), ..ALONE };
    for n_grains in 1..=7 {
        let expected = train_with(full, Some(short), n_classes, n_grains, fast);
        for (n_lanes, threads_each) in [(1, 2), (2, 1), (3, 1), (5, 1)] {
            let setup = Setup { n_lanes, threads_each, isa: Isa::detect() };
            let found = train_with(full, Some(short), n_classes, n_grains, setup);
            assert!(found == expected, "{} in {n_grains} grains with {setup:?}", full.name());
        }
    }
}

#[test]
fn a_short_last_grain_trains_to_the_same_bits_everywhere() {
    let program = |grain| Case::Tiny.training_program(grain).unwrap();
    check_short(&program(16), &program(5), 10);
    check_short(&everything(4).unwrap(), &everything(3).unwrap(), 7);
}

#[test]
fn one_short_grain_is_the_same_as_a_step_of_that_size() {
    let fast = Setup { isa: Isa::detect(), ..ALONE };
    let program = |grain| Case::Tiny.training_program(grain).unwrap();
    let alone = train(&program(5), 10, 1, fast);
    assert!(train_with(&program(16), Some(&program(5)), 10, 1, fast) == alone);
}

#[test]
fn plans_of_one_executor_share_parameters() {
    let device = CpuDevice::with_lanes(2, 1, Isa::detect()).unwrap();
    let mut step = StepExecutor::new(Box::new(device), 2);
    let train = step.add_plan(&Case::Tiny.training_program(4).unwrap(), 3, None).unwrap();
    let g = Builder::new("evaluation");
    let weight = g.weight("dense0/weight", [10, 64], Init::Constant(0.0)).unwrap();
    let x = g.input("x", DType::F32, [4, 10]).unwrap();
    g.output("seen", &x.matmul(&weight).unwrap()).unwrap();
    let evaluate = step.add_plan(&g.finish(), 3, None).unwrap();
    let ty = TensorType::new(DType::F32, [10, 64]);
    let ones = Tensor::filled(ty, 1.0).unwrap();
    step.set_parameter("dense0/weight", &ones).unwrap();
    for grain in 0..3 {
        let x = [1.0f32 + grain as f32; 40].map(f32::to_le_bytes);
        step.write_grain_input(evaluate, grain, "x", x.as_flattened()).unwrap();
    }
    step.run(evaluate).unwrap();
    for grain in 0..3 {
        let seen = step.grain_output(evaluate, grain, "seen").unwrap().to_f64();
        assert_eq!(seen, vec![10.0 * (1.0 + grain as f64); 4 * 64]);
    }
    assert!(step.has_input(train, "rate") && !step.has_input(evaluate, "rate"));
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
