//! What is cut and what is not; that the bits are the same is shown on the device, in its tests.

use super::*;
use crate::{
    Adam, Builder, Clip, LOSS, Lamb, Optimizer, RunningStatistics, Sgd, Training, split_grains,
};

/// The step half of a training of two weights, one of them used twice, and running statistics.
fn step(optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let g = Builder::new("model");
    let x = g.input("x", DType::F32, [4, 3]).unwrap();
    let w = g.weight("w", [3, 3], Init::Normal(0.3)).unwrap();
    let (scale, bias) = (
        g.weight("scale", [3], Init::Constant(1.0)).unwrap(),
        g.weight("bias", [3], Init::Constant(0.0)).unwrap(),
    );
    let [h, mean, variance] = x.matmul(&w).unwrap().batch_norm(&scale, &bias, 1e-5).unwrap();
    let statistic = |name: &str| {
        let ty = TensorType::new(DType::F32, [3]);
        g.parameter(name, ty, Role::Statistic, Init::Constant(0.0)).unwrap()
    };
    let running = [&statistic("mean"), &statistic("variance")];
    RunningStatistics::default().add_updates(&g, [&mean, &variance], running, 4).unwrap();
    let loss = h.matmul(&w).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 4.0).unwrap();
    Training { optimizer, clip }.add_step(&g, &loss, &divisor).unwrap();
    split_grains(&g.finish()).unwrap().step
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam::default())
}

#[test]
fn the_update_of_adam_reads_its_slots_and_the_divisor() {
    let step = step(adam(), None);
    let cut = shard_update(&step, "w", 5).unwrap();
    assert_eq!(cut.slots, ["w/mean", "w/mean_square"]);
    assert_eq!(cut.sums.len(), 2, "one for each use");
    assert!(cut.scalars.iter().any(|name| name == crate::RATE));
    assert!(cut.scalars.iter().any(|name| name == crate::STEP));
    assert_eq!(cut.scalars.iter().filter(|name| is_sum(name)).count(), 1, "the divisor");
    assert_eq!(cut.program.updates().len(), 3);
    let names: Vec<&str> = cut.program.parameters().map(|(name, ..)| name).collect();
    assert_eq!(names, ["value", "slot#0", "slot#1"]);
}

#[test]
fn parameters_of_one_rule_share_a_program() {
    let step = step(adam(), Some(Clip::Value(0.5)));
    let (scale, bias) = (shard_update(&step, "scale", 2), shard_update(&step, "bias", 2));
    assert_eq!(scale.unwrap().program, bias.unwrap().program);
}

#[test]
fn running_statistics_are_cut_as_weights_are() {
    let step = step(Optimizer::Sgd(Sgd::default()), None);
    let cut = shard_update(&step, "variance", 2).unwrap();
    assert!(cut.slots.is_empty() && cut.sums.len() == 1);
}

/// Asserts why a parameter's update cannot be cut.
fn refused(optimizer: Optimizer, clip: Option<Clip>, name: &str, sentence: &str) {
    let error = shard_update(&step(optimizer, clip), name, 2).unwrap_err();
    assert_eq!(error.to_string(), sentence);
}

#[test]
fn norms_look_at_more_than_an_element() {
    let sentence = |name: &str| {
        format!(
            "the update of `{name}` looks at more than one element at a time: it takes a norm, as `clip` by norm and the optimizer `lamb` do; clipping by value and other optimizers do not"
        )
    };
    refused(Optimizer::Lamb(Lamb::default()), None, "w", &sentence("w"));
    refused(adam(), Some(Clip::GlobalNorm(1.0)), "bias", &sentence("bias"));
}

#[test]
fn what_is_no_parameter_is_named() {
    refused(adam(), None, "v", "there is no parameter `v`");
}

#[test]
fn slots_go_with_their_parameter() {
    refused(adam(), None, "w/mean", "`w/mean` and `w` are updated together");
}

#[test]
fn the_rest_of_a_program_keeps_its_sums_and_its_loss() {
    let g = Builder::new("model");
    let w = g.weight("w", [3], Init::Constant(1.0)).unwrap();
    let v = g.weight("v", [3], Init::Constant(1.0)).unwrap();
    let x = g.input("x", DType::F32, [3]).unwrap();
    let loss = ((&w * &x).unwrap() * &v).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 1.0).unwrap();
    Training { optimizer: adam(), clip: None }.add_step(&g, &loss, &divisor).unwrap();
    let program = g.finish();
    let of = ["w", "w/mean", "w/mean_square"].map(String::from).into();
    let rest = without_updates(&program, &of).unwrap();
    assert_eq!(rest.updates().len(), 3);
    let (whole, split) = (split_grains(&program).unwrap(), split_grains(&rest).unwrap());
    assert_eq!((whole.n_sums, whole.grain), (split.n_sums, split.grain));
    assert!(split.step.output(LOSS).is_some());
}

#[test]
fn an_update_that_is_resized_is_that_of_the_other_length() {
    let step = step(adam(), Some(Clip::Value(0.5)));
    let [short, long] = [2, 7].map(|n| shard_update(&step, "w", n).unwrap().program);
    assert_eq!(ShardUpdate::resized(&short, 7).unwrap(), long);
}

/// The step half of a training of a table whose rows are taken.
fn step_of_rows(optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let g = Builder::new("model");
    let table = g.weight("table", [9, 2], Init::Constant(1.0)).unwrap();
    let indices = g.input("indices", DType::I32, [4, 3]).unwrap();
    let loss = table.take_rows(&indices).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 4.0).unwrap();
    let size = Some(crate::StepSize { n_grains: 2, n_samples: 4 });
    crate::add_sized_training_step(&g, &optimizer, clip, &loss, &divisor, size).unwrap();
    split_grains(&g.finish()).unwrap().step
}

#[test]
fn the_update_of_rows_is_that_of_any_run_of_elements() {
    let step = step_of_rows(adam(), Some(Clip::Value(0.5)));
    let tables = crate::row_tables(&step);
    let cut = row_update(&step, &tables[0], 5).unwrap();
    assert_eq!(cut.slots, ["table/mean", "table/mean_square"]);
    assert_eq!(cut.program.updates().len(), 3);
    assert_eq!(cut.scalars.iter().filter(|name| is_sum(name)).count(), 1, "the divisor");
    let names: Vec<&str> = cut.program.parameters().map(|(name, ..)| name).collect();
    assert_eq!(names, ["value", "slot#0", "slot#1"]);
    let resized = ShardUpdate::resized(&cut.program, 7).unwrap();
    assert_eq!(resized, row_update(&step, &tables[0], 7).unwrap().program);
}

#[test]
fn a_norm_is_told_from_other_reasons() {
    let step = step_of_rows(adam(), Some(Clip::GlobalNorm(1.0)));
    let refused = row_update(&step, &crate::row_tables(&step)[0], 5).unwrap_err();
    assert_eq!(refused, Uncut::TakesNorm { name: "table".to_string() });
}
