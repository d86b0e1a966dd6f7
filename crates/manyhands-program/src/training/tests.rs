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

/// Running statistics of two channels, from grains with so many elements per channel.
fn following(n_samples: usize, momentum: f64) -> Result<Program, ProgramError> {
    let g = Builder::new("t");
    let mean = g.input("mean", DType::F32, [2])?;
    let variance = g.input("variance", DType::F32, [2])?;
    let kept = |name: &str| {
        let ty = TensorType::new(DType::F32, [2]);
        g.parameter(name, ty, Role::Statistic, Init::Constant(0.0))
    };
    let running = [&kept("running_mean")?, &kept("running_variance")?];
    RunningStatistics { momentum }.add_updates(&g, [&mean, &variance], running, n_samples)?;
    Ok(g.finish())
}

#[test]
fn running_statistics_follow_the_mean_over_grains() {
    // A grain of 5 and a short one of 3.
    let grains = [(5, [1.0, -2.0], [1.5, 0.5]), (3, [2.0, 4.0], [3.0, 0.0])];
    let splits = grains.map(|(n, ..)| split_grains(&following(n, 0.1).unwrap()).unwrap());
    assert_eq!(splits[0].step, splits[1].step, "a step has grains of both sizes");
    let mut given = arguments(&[
        ("running_mean", tensor(&[2], &[10.0, 0.0])),
        ("running_variance", tensor(&[2], &[10.0, 0.0])),
    ]);
    let sums = grains.iter().zip(&splits).map(|((_, mean, variance), split)| {
        let (mean, variance) = (tensor(&[2], mean), tensor(&[2], variance));
        run(&split.grain, &arguments(&[("mean", mean), ("variance", variance)]))
    });
    let sums: Vec<_> = sums.collect();
    for ((name, left), (_, right)) in sums[0].iter().zip(&sums[1]) {
        let total = left.to_f64().into_iter().zip(right.to_f64()).map(|(a, b)| (a + b) as f32);
        let total = Tensor::new(left.shape(), &total.collect::<Vec<_>>()).unwrap();
        given.insert(name.clone(), total);
    }
    let results: Vec<Vec<f64>> =
        run(&splits[0].step, &given).into_iter().map(|(_, t)| t.to_f64()).collect();
    let near = |found: &[f64], expected: [f64; 2]| {
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    // Means over 8 elements; unbiased variances of 5 and of 3; a tenth of each is taken.
    let [first, second] = [(5.0 + 6.0) / 8.0, (-10.0 + 12.0) / 8.0];
    assert!(near(&results[0], [9.0 + 0.1 * first, 0.1 * second]), "{results:?}");
    let [first, second] = [(5.0 * 1.5 * 1.25 + 3.0 * 3.0 * 1.5) / 8.0, 5.0 * 0.5 * 1.25 / 8.0];
    assert!(near(&results[1], [9.0 + 0.1 * first, 0.1 * second]), "{results:?}");
    assert!(following(5, 1.5).is_err());
}
