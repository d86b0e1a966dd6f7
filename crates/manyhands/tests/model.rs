//! Models: names of weights, programs for any grain, mistakes and what is said of them, finding a NaN.

#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

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
    check_summary(MIXED, &image(), classes(5), expect![[r#""#]]);
}

#[test]
fn a_first_dense_layer_takes_a_whole_image() {
    check_summary(
        "layers = [\"dense 4 relu\", \"dense 3\"]",
        &image(),
        classes(3),
        expect![[r#""#]],
    );
    // A run of times is no image: each time by itself.
    check_summary(
        "layers = [\"dense 4 relu\", \"lstm 3\"]",
        &features(&[12, 12]),
        classes(3),
        expect![[r#""#]],
    );
}

#[test]
fn names_of_weights_are_those_that_a_person_looks_for() {
    let model = model(MIXED, &image(), classes(5)).unwrap();
    let names: Vec<String> =
        parameters(&training(&model, 2, None), false).into_iter().map(|(name, _)| name).collect();
    expect![[r#""#]].assert_eq(&names.join("\n"));
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
    check_summary(GRAPH, &table(), classes(3), expect![[r#""#]]);
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

fn check_error(text: &str, inputs: &[InputSpec], expected: Expect) {
    match model(text, inputs, classes(3)) {
        Ok(_) => panic!("no error"),
        Err(error) => expected.assert_eq(&error.to_string()),
    }
}

#[test]
fn mistakes_in_a_list_say_which_layer_and_what_would_be_right() {
    let list = |layers: &str| format!("layers = [{layers}]");
    let flat = features(&[10]);
    check_error("", &flat, expect![[r#""#]]);
    check_error(&list("\"dense 3\""), &table(), expect![[r#""#]]);
    check_error(&list("\"dens 3\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dense\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dense 4\", \"dense 3 unit=4\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dense 0\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dense 4 rely\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dense 4\", \"conv2d 8 3\""), &flat, expect![[r#""#]]);
    check_error(&list("\"conv2d 8 13\""), &image(), expect![[r#""#]]);
    check_error(&list("\"conv2d 8 [3,3,3]\""), &image(), expect![[r#""#]]);
    check_error(&list("\"conv2d 8 3\", \"conv2d 9 3 groups=4\""), &image(), expect![[r#""#]]);
    check_error(&list("\"lstm 4\""), &flat, expect![[r#""#]]);
    check_error(&list("\"max_pool\""), &flat, expect![[r#""#]]);
    check_error(&list("\"dropout 1\""), &flat, expect![[r#""#]]);
    check_error(&list("\"attention 5\""), &features(&[4, 12]), expect![[r#""#]]);
    check_error(&list("\"reshape [3,4]\""), &flat, expect![[r#""#]]);
    check_error(&list("\"add\""), &flat, expect![[r#""#]]);
    check_error(&list("\"embedding 3\""), &flat, expect![[r#""#]]);
    let tokens = [input("tokens", DType::I32, &[6])];
    check_error(&list("\"dense 3\""), &tokens, expect![[r#""#]]);
    check_error(&list("\"embedding 3 5\""), &tokens, expect![[r#""#]]);
    check_error(&list("'bidirectional \"dense 3\"'"), &features(&[4, 12]), expect![[r#""#]]);
    check_error(
        &list("{ residual = { layers = [\"dense 4\", \"relu\"] } }"),
        &flat,
        expect![[r#""#]],
    );
    check_error(
        &list("{ residual = { layers = [\"dense 10\", \"lstm 10\"] } }"),
        &flat,
        expect![[r#""#]],
    );
}

#[test]
fn mistakes_in_a_graph_name_the_node() {
    let node = |name: &str, layer: &str, inputs: &str| {
        format!("[[node]]\nname = \"{name}\"\nlayer = \"{layer}\"\ninputs = [{inputs}]\n")
    };
    let two = |inputs: &str| node("a", "dense 3", inputs) + &node("late", "dense 3", "");
    check_error(&node("a", "dense 3", ""), &table(), expect![[r#""#]]);
    check_error(&two("\"feature\""), &table(), expect![[r#""#]]);
    check_error(&two("\"late\""), &table(), expect![[r#""#]]);
    check_error(&node("town", "dense 3", "\"features\""), &table(), expect![[r#""#]]);
    check_error(&node("a/b", "dense 3", "\"features\""), &table(), expect![[r#""#]]);
    check_error(&node("a", "add", "\"features\", \"town\""), &table(), expect![[r#""#]]);
    let unlike = node("a", "dense 4", "\"features\"") + &node("b", "add", "\"a\", \"features\"");
    check_error(&unlike, &table(), expect![[r#""#]]);
    let both = format!("layers = [\"dense 3\"]\n{}", node("a", "dense 3", ""));
    check_error(&both, &features(&[5]), expect![[r#""#]]);
    check_error(&node("a", "dense 3", ""), &[input("rate", DType::F32, &[5])], expect![[r#""#]]);
}

fn check_misfit(text: &str, shape: &[usize], target: TargetSpec, choice: &str, expected: Expect) {
    let model = model(text, &features(shape), target).unwrap();
    let error = model.evaluation_program(4, loss(choice).as_ref()).unwrap_err();
    expected.assert_eq(&error.to_string());
}

#[test]
fn a_last_layer_that_does_not_fit_the_target_is_told_what_to_be() {
    let nine = "layers = [\"dense 4 relu\", \"dense 9\"]";
    check_misfit(nine, &[5], classes(10), "cross_entropy", expect![[r#""#]]);
    check_misfit(nine, &[5], number(), "squared_error", expect![[r#""#]]);
    check_misfit(nine, &[5], classes(2), "binary_cross_entropy", expect![[r#""#]]);
    check_misfit(nine, &[5], classes(10), "hinge", expect![[r#""#]]);
    check_misfit(nine, &[6, 5], classes(9), "cross_entropy", expect![[r#""#]]);
    check_misfit(nine, &[5], classes(9), "huber", expect![[r#""#]]);
    let tokens = TargetSpec { dtype: DType::I32, shape: vec![6], n_classes: Some(9) };
    check_misfit("layers = [\"lstm 9\"]", &[6, 5], tokens, "cross_entropy", expect![[r#""#]]);
}

#[test]
fn class_weights_need_one_weight_per_class() {
    let model = model("layers = [\"dense 3\"]", &features(&[5]), classes(3)).unwrap();
    let loss = loss("cross_entropy");
    let error = model.training_program(4, loss.as_ref(), &adam(), None, Some(&[1.0, 2.0]));
    expect![[r#""#]].assert_eq(&error.unwrap_err().to_string());
}

#[test]
fn a_probe_shows_in_which_layer_a_nan_first_appears() {
    let text = "layers = [\"dense 4 relu\", \"dense 4 tanh\", \"dense 3\"]";
    let model = model(text, &features(&[5]), classes(3)).unwrap();
    let program = model.probe_program(2, loss("cross_entropy").as_ref(), None).unwrap();
    let device = CpuDevice::new(1).unwrap();
    let mut step = StepExecutor::new(Box::new(device), &program, 2, 1).unwrap();
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
        step.write_grain_input(grain, "features", features.bytes()).unwrap();
        let label = Tensor::new([2], &[0i32, 2]).unwrap();
        step.write_grain_input(grain, "label", label.bytes()).unwrap();
    }
    step.run().unwrap();
    let is_nan = |tensor: Tensor| tensor.to_f64().iter().any(|v| v.is_nan());
    let layers = model.describe().layers.iter().map(|layer| format!("layer/{}", layer.name));
    let bad = layers.filter(|name| is_nan(step.grain_output(1, name).unwrap()));
    assert_eq!(bad.collect::<Vec<_>>(), ["layer/dense1", "layer/dense2"]);
    assert!(is_nan(step.step_output("gradient/dense0/weight").unwrap()));
    assert!(is_nan(step.step_output("loss").unwrap()));
    assert!(program.updates().is_empty());
}
