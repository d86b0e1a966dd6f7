//! The update of a parameter that is cut into runs has the bits of the whole update, for every optimizer and every cut.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::collections::BTreeMap;

use manyhands_device::{CpuDevice, Device};
use manyhands_program::{
    Adagrad, Adam, AdamW, Builder, Clip, DType, Init, Op, Optimizer, Program, RmsProp, Role,
    RunningStatistics, SHARE, Sgd, ShardUpdate, Tensor, TensorType, Training, shard_update,
    split_grains,
};
use proptest::prelude::*;

const SHAPE: [usize; 2] = [9, 13];
const N: usize = 9 * 13;

/// The step half of a small training: a weight that is used twice, and running statistics.
fn step(optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let g = Builder::new("model");
    let x = g.input("x", DType::F32, [2, 9]).unwrap();
    let w = g.weight("w", SHAPE, Init::Normal(0.3)).unwrap();
    let (scale, bias) = (
        g.weight("scale", [13], Init::Constant(1.0)).unwrap(),
        g.weight("bias", [13], Init::Constant(0.0)).unwrap(),
    );
    let h = x.matmul(&w).unwrap();
    let [h, mean, variance] = h.batch_norm(&scale, &bias, 1e-5).unwrap();
    let ty = TensorType::new(DType::F32, [13]);
    let statistic =
        |name| g.parameter(name, ty.clone(), Role::Statistic, Init::Constant(0.0)).unwrap();
    let running = [&statistic("mean"), &statistic("variance")];
    RunningStatistics::default().add_updates(&g, [&mean, &variance], running, 2).unwrap();
    let again = (&w * &w).unwrap().sum_all().unwrap();
    let loss = (h.sum_all().unwrap() + again).unwrap();
    let divisor = g.scalar(DType::F32, 2.0).unwrap();
    Training { optimizer, clip }.add_step(&g, &loss, &divisor).unwrap();
    split_grains(&g.finish()).unwrap().step
}

fn optimizers() -> Vec<Optimizer> {
    let (momentum, weight_decay, rate) = (0.9, 0.01, 0.1);
    vec![
        Optimizer::Sgd(Sgd::default()),
        Optimizer::Sgd(Sgd { momentum, nesterov: true, weight_decay, rate }),
        Optimizer::Adagrad(Adagrad { rate_decay: 0.1, weight_decay, ..Adagrad::default() }),
        Optimizer::RmsProp(RmsProp { centered: true, momentum, ..RmsProp::default() }),
        Optimizer::Adam(Adam { weight_decay, ..Adam::default() }),
        Optimizer::AdamW(AdamW::default()),
    ]
}

/// What goes into a step by name: numbers that a seed gives.
fn arguments(step: &Program, seed: u64) -> BTreeMap<String, Tensor> {
    let mut state = seed | 1;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut found = BTreeMap::new();
    for node in step.nodes() {
        let (name, is_positive) = match &node.op {
            Op::Input { name, shape, .. } => (name, shape.rank() == 0),
            // A mean square is no negative number.
            Op::Parameter { name, role, .. } => (name, *role == Role::Slot),
            _ => continue,
        };
        let shape = step.ty(node.results[0]).shape.clone();
        let one = |number: f32| if is_positive { number.abs() + 0.25 } else { number };
        let values: Vec<f32> = (0..shape.n_elements()).map(|_| one(number())).collect();
        found.insert(name.clone(), Tensor::new(shape, &values).unwrap());
    }
    found.insert("step".to_string(), Tensor::scalar(DType::F32, 1.0 + (seed % 1000) as f64));
    found
}

fn run(
    device: &mut CpuDevice,
    program: &Program,
    of: impl Fn(&str) -> Tensor,
) -> BTreeMap<String, Tensor> {
    let inputs: Vec<Tensor> = program.inputs().map(|(name, _)| of(name)).collect();
    let parameters: Vec<Tensor> = program.parameters().map(|(name, ..)| of(name)).collect();
    let evaluated = device.evaluate(program, &inputs, &parameters).unwrap();
    let names = program.parameters().map(|(name, ..)| name.to_string());
    names.zip(evaluated.parameters).collect()
}

fn part(tensor: &Tensor, range: std::ops::Range<usize>) -> Tensor {
    let values = tensor.elements::<f32>().unwrap();
    Tensor::new([range.len()], &values[range]).unwrap()
}

/// Asserts that the parameter's update in two runs has the bits of the whole one.
fn assert_same(step: &Program, name: &str, n: usize, cut: usize, seed: u64) {
    let mut device = CpuDevice::new(1).unwrap();
    let arguments = arguments(step, seed);
    let whole = run(&mut device, step, |name| arguments[name].clone());
    for range in [0..cut, cut..n] {
        if range.is_empty() {
            continue;
        }
        let own = shard_update(step, name, range.len()).unwrap();
        let at = |list: &[String], own: &str, word: &str| {
            let idx = own.strip_prefix(word).map(|idx| idx.parse::<usize>().unwrap());
            idx.map(|idx| part(&arguments[&list[idx]], range.clone()))
        };
        let of = |one: &str| match one {
            "value" => part(&arguments[name], range.clone()),
            SHARE => Tensor::scalar(DType::F32, 0.25),
            one => at(&own.sums, one, "sum#")
                .or_else(|| at(&own.slots, one, "slot#"))
                .unwrap_or_else(|| arguments[one].clone()),
        };
        let updated = run(&mut device, &own.program, of);
        let by_shares = ShardUpdate::by_shares(&own.program).unwrap();
        for (one, moved) in run(&mut device, &by_shares, of) {
            let (before, whole) = (of(&one), &updated[&one]);
            let floats = |tensor: &Tensor| tensor.elements::<f32>().unwrap().to_vec();
            let pairs = floats(&before).into_iter().zip(floats(whole));
            let a_quarter = |(v, u): (f32, f32)| if u == 0.0 { 0.0 } else { v + 0.25 * (u - v) };
            let expected: Vec<u32> = pairs.map(a_quarter).map(f32::to_bits).collect();
            let moved: Vec<u32> = floats(&moved).into_iter().map(f32::to_bits).collect();
            assert_eq!(moved, expected, "{one} of {name} {range:?}");
        }
        let same = |cut: &Tensor, whole: &Tensor| {
            assert_eq!(cut.bytes(), part(whole, range.clone()).bytes(), "{name} {range:?}");
        };
        same(&updated["value"], &whole[name]);
        for (idx, slot) in own.slots.iter().enumerate() {
            same(&updated[&format!("slot#{idx}")], &whole[slot]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_cut_update_has_the_bits_of_the_whole(
        optimizer in 0..6_usize,
        is_clipped in any::<bool>(),
        cut in 0..=N,
        seed in any::<u64>(),
    ) {
        let clip = is_clipped.then_some(Clip::Value(0.01));
        let step = step(optimizers()[optimizer], clip);
        assert_same(&step, "w", N, cut, seed);
        assert_same(&step, "variance", 13, cut % 14, seed);
    }
}
