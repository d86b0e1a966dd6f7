//! Models: names of weights, programs for any grain, mistakes and what is said of them, finding a NaN.

#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

mod mistakes;

use expect_test::{Expect, expect};
use manyhands::device::{CpuDevice, StepExecutor};
use manyhands::job::ModelSpec;
use manyhands::model::{InputSpec, Model, ModelError, TargetSpec};
use manyhands::program::{
    Adam, Clip, DType, Optimizer, Program, Role, Tensor, TensorType, split_grains,
};
use manyhands::{Choice, Registry, initial_value};

fn input(name: &str, dtype: DType, shape: &[usize]) -> InputSpec {
    let n_categories = (dtype == DType::I32).then_some(7);
    let is_image = name == "image";
    InputSpec { name: name.into(), dtype, shape: shape.to_vec(), n_categories, is_image }
}

fn features(shape: &[usize]) -> Vec<InputSpec> {
    vec![input("features", DType::F32, shape)]
}

fn image() -> Vec<InputSpec> {
    vec![input("image", DType::F32, &[12, 12])]
}

fn classes(n: usize) -> TargetSpec {
    TargetSpec { dtype: DType::I32, shape: vec![], n_classes: Some(n) }
}

fn number() -> TargetSpec {
    TargetSpec { dtype: DType::F32, shape: vec![], n_classes: None }
}

/// A model from the TOML of `[model]`.
fn model(text: &str, inputs: &[InputSpec], target: TargetSpec) -> Result<Model, ModelError> {
    let spec: ModelSpec = toml::from_str(text).unwrap();
    Model::new(&spec, &Registry::default(), inputs, target)
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam::default())
}

fn loss(text: &str) -> Box<dyn manyhands::losses::Loss> {
    Registry::default().losses.make(&Choice::from(text)).unwrap()
}

fn training(model: &Model, grain: usize, weights: Option<&[f32]>) -> Program {
    let clip = Some(Clip::GlobalNorm(1.0));
    model.training_program(grain, loss("cross_entropy").as_ref(), &adam(), clip, weights).unwrap()
}

fn parameters(program: &Program, slots: bool) -> Vec<(String, TensorType)> {
    program
        .parameters()
        .filter(|(_, role, _)| slots || *role != Role::Slot)
        .map(|(name, _, id)| (name.to_string(), program.ty(id).clone()))
        .collect()
}

/// Something of every family.
const MIXED: &str = r#"
layers = [
    "conv2d 8 3 relu",
    "batch_norm",
    "max_pool 2",
    { residual = { layers = ["conv2d 8 3 padding=same", "relu"] } },
    "dropout 0.2",
    "reshape [25, 8]",
    "transformer 2 dropout=0.1",
    'bidirectional "gru 6 sequences=true"',
    "lstm 6",
    "layer_norm",
    "dense 5",
]
"#;

#[test]
fn programs_for_other_grains_differ_in_sizes_alone() {
    let model = model(MIXED, &image(), classes(5)).unwrap();
    let weights = [1.0, 2.0, 0.5, 1.0, 1.0];
    let [large, small] = [16, 3].map(|grain| training(&model, grain, Some(&weights)));
    assert_eq!(parameters(&large, true), parameters(&small, true));
    let [large, small] = [large, small].map(|program| split_grains(&program).unwrap());
    assert_eq!(large.step, small.step);
    assert_eq!(large.grain.nodes().len(), small.grain.nodes().len());
    let keys = |program: &Program| {
        let mut keys = Vec::new();
        program.any_op(&mut |op| {
            if let manyhands::program::Op::Dropout { key, .. } = op {
                keys.push(*key);
            }
            false
        });
        keys
    };
    assert_eq!(keys(&large.grain), keys(&small.grain));
    assert!(keys(&large.grain).len() >= 3);
}

#[test]
fn answers_use_the_parameters_of_training() {
    let model = model(MIXED, &image(), classes(5)).unwrap();
    let trained = parameters(&training(&model, 4, None), false);
    let loss = loss("cross_entropy");
    let evaluating = model.evaluation_program(9, loss.as_ref()).unwrap();
    assert_eq!(parameters(&evaluating, true), trained);
    let predicting = model.prediction_program(9, loss.as_ref()).unwrap();
    assert_eq!(parameters(&predicting, true), trained);
    assert_eq!(predicting.inputs().map(|(name, _)| name).collect::<Vec<_>>(), ["image"]);
    assert_eq!(evaluating.inputs().map(|(name, _)| name).collect::<Vec<_>>(), ["image", "label"]);
    assert!(evaluating.updates().is_empty());
    let outputs: Vec<&str> = evaluating.outputs().iter().map(|o| o.name.as_str()).collect();
    assert_eq!(outputs, ["prediction", "losses"]);
}

fn check_summary(text: &str, inputs: &[InputSpec], target: TargetSpec, expected: Expect) {
    expected.assert_eq(&model(text, inputs, target).unwrap().describe().to_string());
}

#[test]
fn a_model_is_described_as_a_table() {
    check_summary(
        MIXED,
        &image(),
        classes(5),
        expect![[r#"
        name            layer                                                       output       weights
        conv0           conv2d 8 3 relu                                             [10, 10, 8]       80
        batch_norm0     batch_norm                                                  [10, 10, 8]       16
        max_pool0       max_pool 2                                                  [5, 5, 8]          0
        residual0       {"residual":{"layers":["conv2d 8 3 padding=same","relu"]}}  [5, 5, 8]        584
        dropout0        dropout 0.2                                                 [5, 5, 8]          0
        reshape0        reshape [25, 8]                                             [25, 8]            0
        transformer0    transformer 2 dropout=0.1                                   [25, 8]          872
        bidirectional0  bidirectional "gru 6 sequences=true"                        [25, 12]         576
        lstm0           lstm 6                                                      [6]              480
        layer_norm0     layer_norm                                                  [6]               12
        dense0          dense 5                                                     [5]               35
        2,655 weights in all"#]],
    );
}

#[test]
fn a_first_dense_layer_takes_a_whole_image() {
    check_summary(
        "layers = [\"dense 4 relu\", \"dense 3\"]",
        &image(),
        classes(3),
        expect![[r#"
            name    layer         output  weights
            dense0  dense 4 relu  [4]         580
            dense1  dense 3       [3]          15
            595 weights in all"#]],
    );
    // A run of times is no image: each time by itself.
    check_summary(
        "layers = [\"dense 4 relu\", \"lstm 3\"]",
        &features(&[12, 12]),
        classes(3),
        expect![[r#"
            name    layer         output   weights
            dense0  dense 4 relu  [12, 4]       52
            lstm0   lstm 3        [3]          108
            160 weights in all"#]],
    );
}

#[test]
fn names_of_weights_are_those_that_a_person_looks_for() {
    let model = model(MIXED, &image(), classes(5)).unwrap();
    let names: Vec<String> =
        parameters(&training(&model, 2, None), false).into_iter().map(|(name, _)| name).collect();
    expect![[r#"
        conv0/kernel
        conv0/bias
        batch_norm0/scale
        batch_norm0/bias
        batch_norm0/mean
        batch_norm0/variance
        residual0/conv0/kernel
        residual0/conv0/bias
        transformer0/norm1/scale
        transformer0/norm1/bias
        transformer0/qkv/weight
        transformer0/qkv/bias
        transformer0/project/weight
        transformer0/project/bias
        transformer0/norm2/scale
        transformer0/norm2/bias
        transformer0/expand/weight
        transformer0/expand/bias
        transformer0/contract/weight
        transformer0/contract/bias
        bidirectional0/forward/weight_input
        bidirectional0/forward/weight_state
        bidirectional0/forward/bias_input
        bidirectional0/forward/bias_state
        bidirectional0/backward/weight_input
        bidirectional0/backward/weight_state
        bidirectional0/backward/bias_input
        bidirectional0/backward/bias_state
        lstm0/weight_input
        lstm0/weight_state
        lstm0/bias_input
        lstm0/bias_state
        layer_norm0/scale
        layer_norm0/bias
        dense0/weight
        dense0/bias"#]]
    .assert_eq(&names.join("\n"));
}

const GRAPH: &str = r#"
[[node]]
name = "deep"
layer = "dense 8 relu"
inputs = ["features"]

[[node]]
name = "city"
layer = "embedding 4"
inputs = ["town"]

[[node]]
name = "all"
layer = "concatenate"
inputs = ["deep", "city"]

[[node]]
name = "score"
layer = "dense 3"
"#;

fn table() -> Vec<InputSpec> {
    vec![
        input("features", DType::F32, &[5]),
        input("town", DType::I32, &[]),
        input("trade", DType::I32, &[]),
    ]
}

#[test]
fn nodes_take_inputs_by_name() {
    check_summary(
        GRAPH,
        &table(),
        classes(3),
        expect![[r#"
        name   layer         output  weights
        deep   dense 8 relu  [8]          48
        city   embedding 4   [4]          28
        all    concatenate   [12]          0
        score  dense 3       [3]          39
        115 weights in all"#]],
    );
    let model = model(GRAPH, &table(), classes(3)).unwrap();
    let used: Vec<&str> = model.inputs().map(|input| input.name.as_str()).collect();
    assert_eq!(used, ["features", "town"]);
    assert_eq!(model.warnings(), ["the model does not use the input `trade`"]);
}

#[test]
fn a_node_that_nothing_uses_is_left_out_with_a_warning() {
    let idle = format!(
        "[[node]]\nname = \"idle\"\nlayer = \"embedding 2\"\ninputs = [\"trade\"]\n{GRAPH}"
    );
    let model = model(&idle, &table(), classes(3)).unwrap();
    let warnings = [
        "the model does not use the input `trade`",
        "the output does not depend on node `idle`; it is left out",
    ];
    assert_eq!(model.warnings(), warnings);
    let program = training(&model, 4, None);
    assert!(program.inputs().all(|(name, _)| name != "trade"));
    assert!(program.parameters().all(|(name, ..)| !name.starts_with("idle")));
}

#[test]
fn a_probe_shows_in_which_layer_a_nan_first_appears() {
    let text = "layers = [\"dense 4 relu\", \"dense 4 tanh\", \"dense 3\"]";
    let model = model(text, &features(&[5]), classes(3)).unwrap();
    let program = model.probe_program(2, loss("cross_entropy").as_ref(), None).unwrap();
    let device = CpuDevice::new(1).unwrap();
    let mut step = StepExecutor::new(Box::new(device), 1);
    let plan = step.add_plan(&program, 2, None).unwrap();
    for (name, ty) in parameters(&program, true) {
        let init = manyhands::program::Init::Uniform(0.5);
        let mut value = initial_value(step.device_mut(), 1, &name, &ty, init).unwrap();
        if name == "dense1/weight" {
            value = Tensor::filled(ty, f64::NAN).unwrap();
        }
        step.set_parameter(&name, &value).unwrap();
    }
    for grain in 0..2 {
        let features = Tensor::filled(TensorType::new(DType::F32, [2, 5]), 0.5).unwrap();
        step.write_grain_input(plan, grain, "features", features.bytes()).unwrap();
        let label = Tensor::new([2], &[0i32, 2]).unwrap();
        step.write_grain_input(plan, grain, "label", label.bytes()).unwrap();
    }
    step.run(plan).unwrap();
    let is_nan = |tensor: Tensor| tensor.to_f64().iter().any(|v| v.is_nan());
    let layers = model.describe().layers.iter().map(|layer| format!("layer/{}", layer.name));
    let bad = layers.filter(|name| is_nan(step.grain_output(plan, 1, name).unwrap()));
    assert_eq!(bad.collect::<Vec<_>>(), ["layer/dense1", "layer/dense2"]);
    assert!(is_nan(step.step_output(plan, "gradient/dense0/weight").unwrap()));
    assert!(is_nan(step.step_output(plan, "loss").unwrap()));
    assert!(program.updates().is_empty());
}

#[test]
fn pixels_give_what_the_same_numbers_from_0_to_1_give() {
    let pixels: Vec<u8> = (0..24).map(|idx| idx * 11).collect();
    let numbers: Vec<u8> =
        pixels.iter().flat_map(|&byte| (f32::from(byte) / 255.0).to_le_bytes()).collect();
    let answers = |dtype, bytes: &[u8]| {
        let inputs = [input("image", dtype, &[3, 4])];
        let model = model("layers = [\"dense 2\"]", &inputs, classes(2)).unwrap();
        let program = model.prediction_program(2, loss("cross_entropy").as_ref()).unwrap();
        let mut step = StepExecutor::new(Box::new(CpuDevice::new(1).unwrap()), 1);
        let plan = step.add_plan(&program, 1, None).unwrap();
        for (name, ty) in parameters(&program, true) {
            let init = manyhands::program::Init::Uniform(0.5);
            let value = initial_value(step.device_mut(), 1, &name, &ty, init).unwrap();
            step.set_parameter(&name, &value).unwrap();
        }
        step.write_grain_input(plan, 0, "image", bytes).unwrap();
        step.run(plan).unwrap();
        step.grain_output(plan, 0, "prediction").unwrap()
    };
    let (from_pixels, from_numbers) = (answers(DType::U8, &pixels), answers(DType::F32, &numbers));
    assert_eq!(from_pixels.bytes(), from_numbers.bytes());
}
