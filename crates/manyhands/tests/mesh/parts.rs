//! Tensor splits in real training: a step of a model whose layers are split over workers, over links and devices, against a step of one worker. Sums over parts
//! have another order, so the last bits differ; the loss, every gradient and every new weight agree to 1e-5 of their norm.

use manyhands::Registry;
use manyhands::losses::CrossEntropy;
use manyhands::model::{InputSpec, Model, TargetSpec};
use manyhands::program::mesh::{Along, Annotations, TensorParts, check, shard, split};
use manyhands::program::{Sgd, Tensor};
use serde_json::json;

use super::*;

const TOLERANCE: f64 = 1e-5;
const N_CLASSES: usize = 8;
const GRAIN: usize = 4;
const N_GRAINS: usize = 3;

/// A model of layers as a job names them, with momentum: after one step what is kept of a weight's velocity is its gradient.
fn program(layers: &[&str], input: InputSpec, of_tokens: bool) -> Program {
    let spec = serde_json::from_value(json!({ "layers": layers })).unwrap();
    let shape = if of_tokens { input.shape.clone() } else { vec![] };
    let target = TargetSpec { dtype: DType::I32, shape, n_classes: Some(N_CLASSES) };
    let model = Model::new(&spec, &Registry::default(), &[input], target).unwrap();
    let optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    model.training_program(GRAIN, &CrossEntropy::default(), &optimizer, None, None).unwrap()
}

fn numbers(shape: &[usize]) -> InputSpec {
    InputSpec {
        name: "x".to_string(),
        dtype: DType::F32,
        shape: shape.to_vec(),
        n_categories: None,
        is_image: shape.len() == 3,
    }
}

fn dense() -> Program {
    let layers = ["dense 32 relu", "dense 48 tanh", "dropout 0.2", "dense 16 gelu", "dense 8"];
    program(&layers, numbers(&[12]), false)
}

fn attention() -> Program {
    let layers = [
        "dense 16",
        "attention 4 causal=true",
        "layer_norm",
        "transformer 4 hidden=32",
        "global_average_pool",
        "dense 8",
    ];
    program(&layers, numbers(&[5, 6]), false)
}

fn language_model() -> Program {
    let tokens = InputSpec { dtype: DType::I32, n_categories: Some(N_CLASSES), ..numbers(&[6]) };
    let layers = ["embedding 16", "position_embedding", "transformer 4 causal=true", "dense 8"];
    program(&layers, tokens, true)
}

fn convolutions() -> Program {
    let layers = [
        "conv2d 8 3 relu padding=same",
        "conv2d 12 3 relu padding=same",
        "batch_norm",
        "max_pool 2",
        "conv2d 8 3 relu",
        "flatten",
        "dense 16 relu",
        "dense 8",
    ];
    program(&layers, numbers(&[8, 8, 3]), false)
}

/// What every worker does. Holdings are told what they are of the whole parameters, where each part's program knows only its own.
fn workers(whole: &Program, mesh: Mesh, level: Option<u8>) -> (Vec<WorkerProgram>, TensorParts) {
    let parts = split(whole, mesh.tensor, &Annotations::default()).unwrap();
    let cutting = Cutting::balanced(mesh.pipeline);
    let chunked = parts.programs.iter().map(|part| cut(part, None, &cutting).unwrap());
    let chunked: Vec<_> = chunked.collect();
    let schedule = Schedule::OneFOneB;
    let shares = if level > Some(1) { Shares::Rounds } else { Shares::Blocks };
    let mut workers = lower_parts(&chunked, mesh, N_GRAINS, schedule, 1, shares).unwrap();
    if let Some(level) = level {
        workers = shard(workers, mesh, level.try_into().unwrap()).unwrap();
    }
    for (worker, program) in workers.iter_mut().enumerate() {
        for holding in &mut program.holdings {
            let of = parts.parameters.iter().find(|own| own.name == holding.name).unwrap();
            let (.., value) = whole.parameters().find(|(name, ..)| *name == holding.name).unwrap();
            let part = &of.along[mesh.position(worker).tensor];
            holding.along = holding.along.clone().within(part).unwrap();
            holding.ty = whole.ty(value).clone();
        }
    }
    check(&workers).unwrap();
    (workers, parts)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

fn floats(ty: &TensorType, bytes: &[u8]) -> Vec<f64> {
    Tensor::from_bytes(ty.clone(), bytes.to_vec()).unwrap().to_f64()
}

/// Holds a step of a split program against one of the whole; says what is split.
fn check_split(whole: Program, mesh: Mesh) -> Vec<String> {
    let types: HashMap<String, TensorType> = whole
        .parameters()
        .map(|(name, _, value)| (name.to_string(), whole.ty(value).clone()))
        .collect();
    let (workers, parts) = workers(&whole, mesh, None);
    let trained = Trained { program: whole, last: None, n_classes: N_CLASSES, n_grains: N_GRAINS };
    let steps = &trained.inputs()[..1];
    let (expected_losses, expected) = alone(&trained, steps);
    let (losses, found) = together(workers, linked(mesh.n_workers()).unwrap(), steps);
    let off = f64::from((losses[0] - expected_losses[0]).abs() / expected_losses[0]);
    assert!(off < TOLERANCE, "{mesh}: the loss is off by {off}");
    let mut n_gradients = 0;
    for ((name, found), (expected_name, expected)) in found.iter().zip(&expected) {
        assert_eq!(name, expected_name);
        let ty = &types[name];
        let (found, expected) = (floats(ty, found), floats(ty, expected));
        let size = norm(expected.iter().copied());
        let off = norm(found.iter().zip(&expected).map(|(a, b)| a - b));
        // The bias of keys has no gradient but rounding: softmax does not see what is added to all scores.
        assert!(off < TOLERANCE * size || off < 1e-7, "{mesh}: {name} is off by {off} of {size}");
        n_gradients += usize::from(name.ends_with("/momentum") && size > 1e-6);
    }
    assert!(n_gradients > 2, "{n_gradients} gradients");
    let is_split = |along: &Vec<Along>| along.iter().any(|one| *one != Along::Whole);
    let split = parts.parameters.iter().filter(|own| is_split(&own.along));
    split.map(|own| own.name.clone()).collect()
}

fn check_all(whole: fn() -> Program, layers: &[&str]) {
    let meshes = [(1, 1, 2), (1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 2)];
    for (data, pipeline, tensor) in meshes {
        let split = check_split(whole(), Mesh { data, pipeline, tensor });
        for layer in layers {
            assert!(split.iter().any(|name| name == layer), "{layer} is not among {split:?}");
        }
    }
}

#[test]
fn dense_layers_that_are_split_train_as_one_worker_does() {
    check_all(dense, &["dense0/weight", "dense0/bias", "dense1/weight"]);
}

#[test]
fn attention_that_is_split_trains_as_one_worker_does() {
    check_all(
        attention,
        &["attention0/qkv/weight", "transformer0/qkv/weight", "transformer0/contract/weight"],
    );
}

#[test]
fn an_embedding_that_is_split_trains_as_one_worker_does() {
    check_all(language_model, &["embedding0/table"]);
}

#[test]
fn convolutions_that_are_split_train_as_one_worker_does() {
    check_all(convolutions, &["conv0/kernel", "conv1/kernel"]);
}

#[test]
fn parts_that_replicas_share_out_train_to_the_same_bits() {
    let wide = || program(&["dense 256 relu", "dense 192 tanh", "dense 8"], numbers(&[64]), false);
    for mesh in [(2, 1, 2), (2, 2, 2), (3, 1, 2)] {
        let (data, pipeline, tensor) = mesh;
        let mesh = Mesh { data, pipeline, tensor };
        let trained =
            Trained { program: wide(), last: None, n_classes: N_CLASSES, n_grains: N_GRAINS };
        let steps = &trained.inputs()[..2];
        let train = |level| {
            let (workers, _) = workers(&trained.program, mesh, level);
            let is_shard = |along: &Along| matches!(along, Along::AxisElements { .. });
            let holdings = workers.iter().flat_map(|worker| &worker.holdings);
            let n_shards = holdings.filter(|holding| is_shard(&holding.along)).count();
            (together(workers, linked(mesh.n_workers()).unwrap(), steps), n_shards)
        };
        let (expected, none) = train(None);
        assert_eq!(none, 0);
        for level in 1..=3 {
            let (found, n_shards) = train(Some(level));
            assert!(n_shards > 0, "{mesh}, level {level}: nothing is spread");
            assert!(found == expected, "{mesh}, level {level}: other bits");
        }
    }
}
