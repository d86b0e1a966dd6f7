//! Layers and losses against numbers that PyTorch computed in double precision from the same f32 values
//! (`bench/oracle/record_layers.py` wrote them): what comes out, the gradients of weights and inputs, running statistics.
//!
//! Tolerance: the norm of the difference is at most 2e-5 of the norm of what was recorded, for each tensor.

#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

use std::collections::BTreeMap;

use manyhands::device::{CpuDevice, PlanId, StepExecutor};
use manyhands::job::ModelSpec;
use manyhands::layers::{Layer, LayerError, Site};
use manyhands::losses::{Loss, Meaning, Misfit};
use manyhands::model::{InputSpec, Model, TargetSpec};
use manyhands::program::{
    Builder, DType, Init, Op, Program, ProgramError, Role, Tensor, TensorType, Value,
};
use manyhands::{Choice, Registry};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};

fn recorded() -> Json {
    serde_json::from_str(include_str!("data/layers.json")).unwrap()
}

fn tensor(json: &Json) -> Tensor {
    serde_json::from_value(json.clone()).unwrap()
}

fn tensors(json: &Json) -> BTreeMap<String, Tensor> {
    json.as_object().unwrap().iter().map(|(name, json)| (name.clone(), tensor(json))).collect()
}

/// How far off a tensor is, norm-wise; `None` is fine.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    assert_eq!(found.ty(), expected.ty());
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().copied());
    let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    // Where the right answer is zero (the bias of attention keys) there is nothing to be relative to.
    let close = off <= 2e-5 * size + 1e-5;
    (!close).then(|| format!("off by {off:e} of {size:e}: {found:?} instead of {expected:?}"))
}

/// An own layer that adds zeros: their gradient is that of the input.
#[derive(Deserialize, JsonSchema)]
struct Shift {}

impl Layer for Shift {
    fn build(&self, site: &Site, inputs: &[Value]) -> Result<Value, LayerError> {
        let zeros = site.builder.weight("zeros", inputs[0].shape(), Init::Constant(0.0))?;
        Ok((&inputs[0] + &zeros)?)
    }
}

/// An own loss: the sum of all outputs, each times its factor, which is the target.
struct Factors;

impl Loss for Factors {
    fn meaning(&self) -> Meaning {
        Meaning::Numbers
    }

    fn check(&self, _output: &[usize], _target: &TargetSpec) -> Result<(), Misfit> {
        Ok(())
    }

    fn build(&self, _: &Builder, output: &Value, target: &Value) -> Result<Value, ProgramError> {
        let axes: Vec<usize> = (1..output.shape().rank()).collect();
        (output * target)?.sum(&axes)
    }
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.layers.add("shift", |own: Shift| Box::new(own));
    registry
}

fn sample(tensor: &Tensor) -> Vec<usize> {
    tensor.shape()[1..].to_vec()
}

/// The model of a case. Float inputs go through a shift, called `shift0` in a list and `shift_NAME` in a graph.
fn spec(case: &Json, inputs: &BTreeMap<String, Tensor>) -> ModelSpec {
    let floats: Vec<&String> =
        inputs.iter().filter(|(_, t)| t.ty().dtype == DType::F32).map(|(name, _)| name).collect();
    let model = match case.get("layers") {
        Some(layers) => {
            let own = layers.as_array().unwrap().iter().cloned();
            let shift = floats.iter().map(|_| json!("shift"));
            json!({ "layers": shift.chain(own).collect::<Vec<_>>() })
        }
        None => {
            let mut nodes: Vec<Json> = Vec::new();
            for name in &floats {
                let shift = format!("shift_{name}");
                nodes.push(json!({ "name": shift, "layer": "shift", "inputs": [name] }));
            }
            for node in case["nodes"].as_array().unwrap() {
                let mut node = node.clone();
                for input in node["inputs"].as_array_mut().unwrap() {
                    if floats.iter().any(|name| input == name.as_str()) {
                        *input = json!(format!("shift_{}", input.as_str().unwrap()));
                    }
                }
                nodes.push(node);
            }
            json!({ "node": nodes })
        }
    };
    serde_json::from_value(model).unwrap()
}

fn model(case: &Json, target: TargetSpec) -> Model {
    let inputs = tensors(&case["inputs"]);
    let n_categories = case["categories"].as_u64().map(|n| n as usize);
    let described = inputs.iter().map(|(name, tensor)| InputSpec {
        name: name.clone(),
        dtype: tensor.ty().dtype,
        shape: sample(tensor),
        n_categories,
        is_image: false,
    });
    let described: Vec<InputSpec> = described.collect();
    Model::new(&spec(case, &inputs), &registry(), &described, target).unwrap()
}

/// A program with its parameters and inputs set, after one run with one grain.
fn ran(program: &Program, case: &Json, label: Option<&Tensor>) -> (StepExecutor, PlanId) {
    let device = CpuDevice::new(1).unwrap();
    let mut step = StepExecutor::new(Box::new(device), 1);
    let plan = step.add_plan(program, 1, None).unwrap();
    let mut given = tensors(&case["weights"]);
    given.extend(tensors(&case["statistics"]));
    let names: Vec<(String, TensorType)> = program
        .parameters()
        .map(|(name, _, id)| (name.to_string(), program.ty(id).clone()))
        .collect();
    for (name, ty) in names {
        let value = match given.remove(&name) {
            Some(value) => value,
            None if name.ends_with("/zeros") => Tensor::filled(ty, 0.0).unwrap(),
            None => panic!("{}: {name} was not recorded", case["name"]),
        };
        step.set_parameter(&name, &value).unwrap();
    }
    assert!(given.is_empty(), "{}: no weights {:?}", case["name"], given.keys());
    for (name, value) in tensors(&case["inputs"]) {
        step.write_grain_input(plan, 0, &name, value.bytes()).unwrap();
    }
    if let Some(label) = label {
        step.write_grain_input(plan, 0, "label", label.bytes()).unwrap();
    }
    step.run(plan).unwrap();
    (step, plan)
}

/// What is wrong with a case.
fn problems(case: &Json) -> Vec<String> {
    let (output, upstream) = (tensor(&case["output"]), tensor(&case["upstream"]));
    let target = TargetSpec { dtype: DType::F32, shape: sample(&upstream), n_classes: None };
    let model = model(case, target);
    let n_samples = output.shape()[0];
    let mut found: Vec<(String, Tensor, Tensor)> = Vec::new();
    if case["mode"] == "evaluating" {
        let (step, plan) = ran(&model.prediction_program(n_samples, &Factors).unwrap(), case, None);
        found.push(("output".into(), step.grain_output(plan, 0, "prediction").unwrap(), output));
    } else {
        let program = model.probe_program(n_samples, &Factors, None).unwrap();
        let (step, plan) = ran(&program, case, Some(&upstream));
        let last = format!("layer/{}", model.describe().layers.last().unwrap().name);
        found.push(("output".into(), step.grain_output(plan, 0, &last).unwrap(), output));
        for (name, expected) in tensors(&case["gradients"]) {
            let weight = match case["inputs"].get(&name) {
                Some(_) if case.get("layers").is_some() => "shift0/zeros".to_string(),
                Some(_) => format!("shift_{name}/zeros"),
                None => name.clone(),
            };
            let mean = step.step_output(plan, &format!("gradient/{weight}")).unwrap();
            // The step's gradient is of the mean over samples.
            let total: Vec<f32> =
                mean.to_f64().iter().map(|v| (v * n_samples as f64) as f32).collect();
            found.push((name, Tensor::new(mean.shape(), &total).unwrap(), expected));
        }
        for (name, expected) in tensors(&case["updated"]) {
            found.push((format!("updated {name}"), step.parameter(&name).unwrap(), expected));
        }
    }
    let wrong = |(what, found, expected): (String, Tensor, Tensor)| {
        let problem = difference(&found, &expected)?;
        Some(format!("{} {what}: {problem}", case["name"]))
    };
    found.into_iter().filter_map(wrong).collect()
}

#[test]
fn layers_agree_with_torch() {
    let recorded = recorded();
    let cases = recorded["cases"].as_array().unwrap();
    let problems: Vec<String> = cases.iter().flat_map(problems).collect();
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), cases.len(), problems.join("\n"));
    assert!(cases.len() > 70, "only {} cases", cases.len());
}

#[test]
fn losses_agree_with_torch() {
    let recorded = recorded();
    let cases = recorded["losses"].as_array().unwrap();
    for case in cases {
        let text = case["loss"].as_str().unwrap();
        let (output, label) = (tensor(&case["output"]), tensor(&case["target"]));
        let loss = registry().losses.make(&Choice::from(text)).unwrap();
        let target = TargetSpec { dtype: label.ty().dtype, shape: sample(&label), n_classes: None };
        let case = &json!({
            "name": text, "layers": [], "inputs": { "features": output }, "weights": {}, "statistics": {},
            "class_weights": case["class_weights"], "losses": case["losses"], "mean": case["mean"],
            "gradient": case["gradient"], "prediction": case["prediction"], "categories": null,
        });
        let weights: Option<Vec<f32>> = (!case["class_weights"].is_null())
            .then(|| tensor(&case["class_weights"]).to_f64().iter().map(|&w| w as f32).collect());
        let model = model(case, target);
        let n_samples = output.shape()[0];
        let check = |what: &str, found: Tensor, expected: &Json| {
            let problem = difference(&found, &tensor(expected));
            assert_eq!(problem, None, "{text} {what} {weights:?}");
        };
        let program = model.probe_program(n_samples, loss.as_ref(), weights.as_deref()).unwrap();
        let (step, plan) = ran(&program, case, Some(&label));
        check("mean", step.step_output(plan, "loss").unwrap(), &case["mean"]);
        let gradient = step.step_output(plan, "gradient/shift0/zeros").unwrap();
        check("gradient", gradient, &case["gradient"]);
        let program = model.evaluation_program(n_samples, loss.as_ref()).unwrap();
        let (step, plan) = ran(&program, case, Some(&label));
        check("losses", step.grain_output(plan, 0, "losses").unwrap(), &case["losses"]);
        check("prediction", step.grain_output(plan, 0, "prediction").unwrap(), &case["prediction"]);
    }
    assert!(cases.len() > 10);
}

/// How a parameter of a model of these layers starts.
fn start(layers: &[&str], shape: &[usize], name: &str) -> Init {
    let inputs = [InputSpec {
        name: "features".into(),
        dtype: DType::F32,
        shape: shape.to_vec(),
        n_categories: None,
        is_image: false,
    }];
    let layers = layers.iter().map(|&text| Choice::from(text)).collect();
    let spec = ModelSpec { layers, ..ModelSpec::default() };
    let target = TargetSpec { dtype: DType::F32, shape: vec![], n_classes: None };
    let model = Model::new(&spec, &registry(), &inputs, target).unwrap();
    let program = model.prediction_program(2, &Factors).unwrap();
    let init = program.nodes().iter().find_map(|node| match &node.op {
        Op::Parameter { name: own, init, role: Role::Weight, .. } if own == name => Some(*init),
        _ => None,
    });
    init.unwrap()
}

#[test]
fn weights_start_as_in_torch_unless_said() {
    let sixth = Init::Uniform(1.0 / 6.0);
    assert_eq!(start(&["dense 10"], &[36], "dense0/weight"), sixth);
    assert_eq!(start(&["dense 10"], &[36], "dense0/bias"), sixth);
    assert_eq!(start(&["conv2d 8 3"], &[9, 9, 4], "conv0/kernel"), sixth);
    assert_eq!(start(&["conv2d 8 3 groups=4"], &[9, 9, 16], "conv0/bias"), sixth);
    assert_eq!(start(&["lstm 36"], &[7, 4], "lstm0/weight_input"), sixth);
    assert_eq!(start(&["gru 36"], &[7, 4], "gru0/bias_state"), sixth);
    assert_eq!(start(&["attention 2"], &[7, 36], "attention0/qkv/weight"), sixth);
    assert_eq!(start(&["layer_norm"], &[36], "layer_norm0/scale"), Init::Constant(1.0));
    assert_eq!(
        start(&["position_embedding"], &[7, 3], "position_embedding0/table"),
        Init::Normal(1.0)
    );
    let he = |init: &str| start(&[&format!("dense 10 relu init={init}")], &[36], "dense0/weight");
    assert_eq!(he("he_uniform"), Init::Uniform((6.0f64 / 36.0).sqrt()));
    assert_eq!(he("he_normal"), Init::Normal((2.0f64 / 36.0).sqrt()));
    assert_eq!(he("glorot_uniform"), Init::Uniform((6.0f64 / 46.0).sqrt()));
    assert_eq!(he("glorot_normal"), Init::Normal((2.0f64 / 46.0).sqrt()));
    assert_eq!(he("zeros"), Init::Constant(0.0));
    assert_eq!(he("{\"normal\":0.02}"), Init::Normal(0.02));
    let bias = start(&["dense 10 init=he_normal"], &[36], "dense0/bias");
    assert_eq!(bias, Init::Constant(0.0));
}
