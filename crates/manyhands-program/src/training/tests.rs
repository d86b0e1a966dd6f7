//! Training steps, cut into grains.

use std::collections::HashMap;

use super::*;
use crate::passes::interpreter::run;
use crate::{Init, Sgd, Tensor, TensorType, split_grains};

fn sgd(rate: f64) -> Training {
    Training { optimizer: Optimizer::Sgd(Sgd { rate, ..Sgd::default() }), clip: None }
}

/// A weight that is used twice: loss = sum (x w + w)^2 over a grain of two samples.
fn shared_weight(n_samples: usize) -> Program {
    let g = Builder::new("shared");
    let x = g.input("x", DType::F32, [n_samples]).unwrap();
    let w = g.weight("w", [], Init::Constant(1.0)).unwrap();
    g.weight("unused", [3], Init::Constant(1.0)).unwrap();
    let y = ((&x * &w).unwrap() + &w).unwrap();
    let loss = (&y * &y).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, n_samples as f64).unwrap();
    sgd(0.1).add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(shape, values).unwrap()
}

fn arguments(named: &[(&str, Tensor)]) -> HashMap<String, Tensor> {
    let scalars = [("rate", 0.1), ("step", 1.0)];
    let scalars = scalars.map(|(name, v)| (name.to_string(), Tensor::scalar(DType::F32, v)));
    named.iter().map(|(name, t)| (name.to_string(), t.clone())).chain(scalars).collect()
}

#[test]
fn a_weight_used_twice_has_one_sum_over_grains_per_use() {
    let split = split_grains(&shared_weight(2)).unwrap();
    // Two uses of the weight, the loss, the divisor.
    assert_eq!(split.n_sums, 4);
}

#[test]
fn weights_that_the_loss_does_not_see_are_not_updated() {
    let program = shared_weight(2);
    let updated: Vec<String> =
        program.updates().iter().map(|update| program.describe(update.parameter)).collect();
    assert_eq!(updated, ["parameter \"w\""]);
}

#[test]
fn grains_give_the_step_of_the_whole_batch() {
    let samples = [0.5f32, -1.0, 2.0, 0.25];
    let given = arguments(&[("x", tensor(&[4], &samples)), ("w", tensor(&[], &[1.5]))]);
    let whole: HashMap<String, Tensor> = run(&shared_weight(4), &given).into_iter().collect();

    let split = split_grains(&shared_weight(2)).unwrap();
    let grain = |x: &[f32]| {
        run(&split.grain, &arguments(&[("x", tensor(&[2], x)), ("w", tensor(&[], &[1.5]))]))
    };
    let mut given = arguments(&[("w", tensor(&[], &[1.5]))]);
    for ((name, left), (_, right)) in grain(&samples[..2]).into_iter().zip(grain(&samples[2..])) {
        given.insert(name, Tensor::scalar(DType::F32, left.to_f64()[0] + right.to_f64()[0]));
    }
    let parts: HashMap<String, Tensor> = run(&split.step, &given).into_iter().collect();
    assert_eq!(parts.len(), 2);
    for (name, expected) in whole {
        let (found, expected) = (parts[&name].to_f64()[0], expected.to_f64()[0]);
        assert!((found - expected).abs() < 1e-6, "{name}: {found} is not {expected}");
    }
}

#[test]
fn running_statistics_follow_the_mean_over_grains() {
    let g = Builder::new("t");
    let mean = g.input("mean", DType::F32, [2]).unwrap();
    let variance = g.input("variance", DType::F32, [2]).unwrap();
    let kept = |name: &str| {
        let ty = TensorType::new(DType::F32, [2]);
        g.parameter(name, ty, Role::Statistic, Init::Constant(0.0)).unwrap()
    };
    let running = [&kept("running_mean"), &kept("running_variance")];
    let statistics = RunningStatistics::default();
    statistics.add_updates(&g, [&mean, &variance], running, 5).unwrap();
    let split = split_grains(&g.finish()).unwrap();
    // Two grains whose statistics add up to 2 and 4: the average is 1 and 2, of which a tenth is taken.
    let mut given = arguments(&[
        ("running_mean", tensor(&[2], &[10.0, 0.0])),
        ("running_variance", tensor(&[2], &[10.0, 0.0])),
    ]);
    for (name, id) in split.step.inputs() {
        let is_count = split.step.ty(id).shape.rank() == 0;
        let total = if is_count { tensor(&[], &[2.0]) } else { tensor(&[2], &[2.0, 4.0]) };
        given.insert(name.to_string(), total);
    }
    let results: Vec<Vec<f64>> =
        run(&split.step, &given).into_iter().map(|(_, t)| t.to_f64()).collect();
    let near = |found: &[f64], expected: [f64; 2]| {
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    assert!(near(&results[0], [9.1, 0.2]), "{results:?}");
    assert!(near(&results[1], [9.0 + 0.1 * 1.25, 0.2 * 1.25]), "{results:?}");
    let wrong = RunningStatistics { momentum: 1.5 };
    assert!(wrong.add_updates(&Builder::new("t"), [&mean, &mean], running, 5).is_err());
}
