//! Operations, gradients, recurrent layers, losses and optimizers against numbers that PyTorch computed in double
//! precision from the same f32 operands (`bench/oracle/record_torch.py` wrote them).
//!
//! Tolerance: the norm of the difference is at most 1e-5 of the norm of what was recorded, for each tensor, in f32; 1e-6 in
//! f64, where the recorded numbers' own rounding to f32 is what differs.

#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

use manyhands_device::{CpuDevice, Device};
use manyhands_program::{
    Builder, Clip, DType, Init, Op, Optimizer, Program, ProgramError, Role, Shape, Tensor, Value,
};
use serde_json::Value as Json;

fn recorded() -> Json {
    serde_json::from_str(include_str!("data/torch.json")).unwrap()
}

/// A recorded tensor, floats as `float`.
fn tensor(json: &Json, float: DType) -> Tensor {
    let tensor: Tensor = serde_json::from_value(json.clone()).unwrap();
    match (tensor.ty().dtype, float) {
        (DType::F32, DType::F64) => Tensor::new(tensor.shape(), &tensor.to_f64()).unwrap(),
        _ => tensor,
    }
}

fn tensors(json: &Json, float: DType) -> Vec<Option<Tensor>> {
    let list = json.as_array().unwrap().iter();
    list.map(|json| (!json.is_null()).then(|| tensor(json, float))).collect()
}

/// How far off a tensor is, norm-wise; `None` is fine.
fn difference(found: &Tensor, expected: &Tensor, tolerance: f64) -> Option<String> {
    assert_eq!(found.ty(), expected.ty());
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let size = norm(&mut expected.iter().copied());
    let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    // Where the right answer is zero there is nothing to be relative to.
    let close = off <= tolerance * size + 1e-7;
    (!close).then(|| format!("off by {off:e} of {size:e}: {found:?} instead of {expected:?}"))
}

#[test]
fn the_comparison_notices_a_small_error() {
    let tensor = |last: f32| Tensor::new([3], &[1.0f32, -2.0, last]).unwrap();
    assert_eq!(difference(&tensor(3.0), &tensor(3.0), 1e-5), None);
    assert_eq!(difference(&tensor(3.00001), &tensor(3.0), 1e-5), None);
    assert!(difference(&tensor(3.0001), &tensor(3.0), 1e-5).is_some());
    assert!(difference(&tensor(f32::NAN), &tensor(3.0), 1e-5).is_some());
}

fn build(case: &Json, g: &Builder, x: &[Value]) -> Result<Vec<Value>, ProgramError> {
    if let Some(op) = case.get("op") {
        let op: Op = serde_json::from_value(op.clone()).unwrap();
        return g.apply_all(op, &x.iter().collect::<Vec<_>>());
    }
    let settings = &case["settings"];
    Ok(match case["function"].as_str().unwrap() {
        "binary_cross_entropy" => vec![x[0].binary_cross_entropy(&x[1])?],
        "squared_error" => vec![x[0].squared_error(&x[1])?],
        "absolute_error" => vec![x[0].absolute_error(&x[1])?],
        "huber" => vec![x[0].huber(&x[1], settings["delta"].as_f64().unwrap())?],
        "hinge" => vec![x[0].hinge(&x[1])?],
        "lstm" => lstm(g, x, settings["reverse"].as_bool().unwrap())?,
        "gru" => gru(g, x, settings["reverse"].as_bool().unwrap())?,
        other => panic!("no function {other}"),
    })
}

/// Operands: x, the weights of the input and of the state, their biases, the states, the lengths.
fn lstm(g: &Builder, x: &[Value], reverse: bool) -> Result<Vec<Value>, ProgramError> {
    let [items, w_in, w_own, b_in, b_own, hidden, cell, lengths] = x else { panic!("eight") };
    let (last, stacked) =
        g.scan_lengths(lengths, &[hidden, cell], &[items], reverse, |_, carried, item| {
            let from_input = (item[0].matmul(w_in)? + b_in)?;
            let gates = (from_input + (carried[0].matmul(w_own)? + b_own)?)?.split(1, 4)?;
            let (input, forget) = (gates[0].logistic()?, gates[1].logistic()?);
            let (new, output) = (gates[2].tanh()?, gates[3].logistic()?);
            let cell = ((forget * &carried[1])? + (input * new)?)?;
            let hidden = (output * cell.tanh()?)?;
            Ok((vec![hidden.clone(), cell], vec![hidden]))
        })?;
    Ok(stacked.into_iter().chain(last).collect())
}

fn gru(g: &Builder, x: &[Value], reverse: bool) -> Result<Vec<Value>, ProgramError> {
    let [items, w_in, w_own, b_in, b_own, hidden, lengths] = x else { panic!("seven") };
    let (last, stacked) =
        g.scan_lengths(lengths, &[hidden], &[items], reverse, |_, carried, item| {
            let from_input = (item[0].matmul(w_in)? + b_in)?.split(1, 3)?;
            let from_state = (carried[0].matmul(w_own)? + b_own)?.split(1, 3)?;
            let reset = (&from_input[0] + &from_state[0])?.logistic()?;
            let keep = (&from_input[1] + &from_state[1])?.logistic()?;
            let new = (&from_input[2] + (reset * &from_state[2])?)?.tanh()?;
            let hidden = (&new + (keep * (&carried[0] - &new)?)?)?;
            Ok((vec![hidden.clone()], vec![hidden]))
        })?;
    Ok(stacked.into_iter().chain(last).collect())
}

/// The program of a case: its results, then the gradients of sum(result * upstream), and what goes in.
fn program(case: &Json, float: DType) -> Result<(Program, Vec<Tensor>), ProgramError> {
    let operands: Vec<Tensor> = tensors(&case["operands"], float).into_iter().flatten().collect();
    let upstream = tensors(&case["upstream"], float);
    let g = Builder::new(case["name"].as_str().unwrap());
    let mut given = Vec::new();
    let mut input = |name: String, tensor: &Tensor| {
        given.push(tensor.clone());
        g.input(&name, tensor.ty().dtype, tensor.shape())
    };
    let named = operands.iter().enumerate();
    let x = named
        .map(|(idx, tensor)| input(format!("x{idx}"), tensor))
        .collect::<Result<Vec<_>, _>>()?;
    let results = build(case, &g, &x)?;
    let mut loss = g.scalar(float, 0.0)?;
    for (idx, (result, upstream)) in results.iter().zip(&upstream).enumerate() {
        g.output(&format!("result{idx}"), result)?;
        if let Some(upstream) = upstream {
            let upstream = input(format!("upstream{idx}"), upstream)?;
            loss = (loss + (result * upstream)?.sum_all()?)?;
        }
    }
    let differentiated = case["gradients"].as_array().unwrap().iter().zip(&x);
    let wrt: Vec<&Value> =
        differentiated.filter(|(gradient, _)| !gradient.is_null()).map(|(_, x)| x).collect();
    for (idx, gradient) in g.gradients(&loss, &wrt)?.iter().enumerate() {
        g.output(&format!("gradient{idx}"), gradient)?;
    }
    Ok((g.finish(), given))
}

fn check_cases(float: DType, tolerance: f64) {
    let recorded = recorded();
    let mut device = CpuDevice::new(1).unwrap();
    let (mut problems, mut n_cases) = (Vec::new(), 0);
    for case in recorded["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (program, given) =
            program(case, float).unwrap_or_else(|error| panic!("{name}: {error}"));
        let evaluated = device.evaluate(&program, &given, &[]);
        let outputs = evaluated.unwrap_or_else(|error| panic!("{name}: {error}")).outputs;
        let results = tensors(&case["results"], float);
        let gradients = tensors(&case["gradients"], float);
        let expected: Vec<Tensor> = results.into_iter().chain(gradients).flatten().collect();
        assert_eq!(outputs.len(), expected.len(), "{name}");
        for (output, (found, expected)) in
            program.outputs().iter().zip(outputs.iter().zip(&expected))
        {
            if let Some(problem) = difference(found, expected, tolerance) {
                let what = case.get("op").unwrap_or(&case["settings"]);
                problems.push(format!("{name} {what}, {}: {problem}", output.name));
            }
        }
        n_cases += 1;
    }
    assert!(problems.is_empty(), "{} of {n_cases}:\n{}", problems.len(), problems.join("\n"));
    assert!(n_cases > 100, "only {n_cases} cases");
}

#[test]
fn operations_and_gradients_agree_with_torch_in_f32() {
    check_cases(DType::F32, 1e-5);
}

#[test]
fn operations_and_gradients_agree_with_torch_in_f64() {
    check_cases(DType::F64, 1e-6);
}

/// A program that takes the gradients, the rate and the step, and updates the parameters.
fn update_program(case: &Json, parameters: &[Tensor]) -> Result<(Program, f64), ProgramError> {
    let optimizer: Optimizer = serde_json::from_value(case["optimizer"].clone()).unwrap();
    let clip: Option<Clip> = serde_json::from_value(case["clip"].clone()).unwrap();
    let g = Builder::new("update");
    let (mut own, mut gradients) = (Vec::new(), Vec::new());
    for (idx, tensor) in parameters.iter().enumerate() {
        let (name, ty) = (format!("w{idx}"), tensor.ty().clone());
        gradients.push(g.input(&format!("gradient{idx}"), ty.dtype, ty.shape.clone())?);
        own.push(g.parameter(&name, ty, Role::Weight, Init::Constant(0.0))?);
    }
    let rate = g.input("rate", DType::F32, Shape::scalar())?;
    let step = g.input("step", DType::F32, Shape::scalar())?;
    let gradients = clip.map_or(Ok(gradients.clone()), |clip| clip.apply(&gradients))?;
    for (parameter, gradient) in own.iter().zip(&gradients) {
        optimizer.update(&g, parameter, gradient, &rate, &step)?;
    }
    Ok((g.finish(), optimizer.rate()))
}

#[test]
fn optimizers_agree_with_torch_step_by_step() {
    let recorded = recorded();
    let mut device = CpuDevice::new(1).unwrap();
    let mut problems = Vec::new();
    let cases = recorded["optimizers"].as_array().unwrap();
    for case in cases {
        let all = |json: &Json| tensors(json, DType::F32).into_iter().flatten().collect::<Vec<_>>();
        let first = all(&case["parameters"]);
        let (program, rate) = update_program(case, &first).unwrap();
        let weight = |name: &str| name.strip_prefix('w').and_then(|idx| idx.parse::<usize>().ok());
        let start = |(name, _, id): (&str, Role, manyhands_program::ValueId)| match weight(name) {
            Some(idx) => first[idx].clone(),
            None => Tensor::filled(program.ty(id).clone(), 0.0).unwrap(),
        };
        let mut state: Vec<Tensor> = program.parameters().map(start).collect();
        for (step, recorded) in case["steps"].as_array().unwrap().iter().enumerate() {
            let mut given = all(&recorded["gradients"]);
            given.push(Tensor::scalar(DType::F32, rate));
            given.push(Tensor::scalar(DType::F32, (step + 1) as f64));
            state = device.evaluate(&program, &given, &state).unwrap().parameters;
            let named = program.parameters().zip(&state);
            let weights = named.filter_map(|((name, ..), found)| weight(name).map(|_| found));
            for (idx, (found, expected)) in weights.zip(all(&recorded["parameters"])).enumerate() {
                if let Some(problem) = difference(found, &expected, 1e-5) {
                    let (optimizer, clip) = (&case["optimizer"], &case["clip"]);
                    problems.push(format!("{optimizer} {clip} step {step} w{idx}: {problem}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(cases.len() > 10);
}
