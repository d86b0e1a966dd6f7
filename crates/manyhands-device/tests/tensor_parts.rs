//! The parts of a split training program, run side by side, make the step of the whole program.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::collections::{BTreeMap, HashMap};

use manyhands_device::{CpuDevice, Device};
use manyhands_program::mesh::{
    Along, Annotations, SplitError, TensorParts, Wish, part_of, put_together, split,
};
use manyhands_program::{
    Adam, Builder, Clip, DType, Init, Lamb, Op, Optimizer, Pooling, Program, ProgramError,
    RunningStatistics, Sgd, Tensor, TensorType, Training, Value, Window, split_grains,
};

type Named = BTreeMap<String, Tensor>;

/// Runs programs of the same structure side by side, operation by operation, as a step of one grain; sums over parts are added in
/// the order of the parts. Gives the outputs and the next values of parameters.
fn run(programs: &[Program], inputs: &Named, parameters: &[Named]) -> Vec<(Named, Named)> {
    let mut device = CpuDevice::new(1).unwrap();
    let mut values: Vec<Vec<Tensor>> = vec![Vec::new(); programs.len()];
    for idx in 0..programs[0].nodes().len() {
        if programs[0].nodes()[idx].op == Op::AllReduce {
            let operand = programs[0].nodes()[idx].operands[0].idx();
            let mut sum = values[0][operand].to_f64();
            for part in &values[1..] {
                let more = part[operand].to_f64();
                sum.iter_mut()
                    .zip(more)
                    .for_each(|(sum, more)| *sum = f64::from((*sum + more) as f32));
            }
            let sum: Vec<f32> = sum.into_iter().map(|v| v as f32).collect();
            let sum = Tensor::new(values[0][operand].shape().clone(), &sum).unwrap();
            values.iter_mut().for_each(|values| values.push(sum.clone()));
            continue;
        }
        for (part, program) in programs.iter().enumerate() {
            let node = &program.nodes()[idx];
            assert_eq!(node.op.name(), programs[0].nodes()[idx].op.name());
            assert_eq!(node.operands, programs[0].nodes()[idx].operands);
            let results = match &node.op {
                Op::Input { name, .. } => vec![inputs[name].clone()],
                Op::Parameter { name, .. } => vec![parameters[part][name].clone()],
                Op::GrainSum => vec![values[part][node.operands[0].idx()].clone()],
                op => {
                    let mut one = Program::new("one");
                    let mut given = Vec::new();
                    let operands: Vec<_> = node
                        .operands
                        .iter()
                        .enumerate()
                        .map(|(idx, operand)| {
                            let tensor = values[part][operand.idx()].clone();
                            let TensorType { dtype, shape } = tensor.ty().clone();
                            given.push(tensor);
                            let name = idx.to_string();
                            one.push(Op::Input { name, dtype, shape }, &[], "").unwrap()[0]
                        })
                        .collect();
                    let results = one.push(op.clone(), &operands, "").unwrap();
                    for (idx, &result) in results.iter().enumerate() {
                        one.add_output(idx.to_string(), result).unwrap();
                    }
                    device.evaluate(&one, &given, &[]).unwrap().outputs
                }
            };
            values[part].extend(results);
        }
    }
    let of_part = |(program, values): (&Program, &Vec<Tensor>)| {
        let outputs = program.outputs().iter();
        let outputs = outputs.map(|o| (o.name.clone(), values[o.value.idx()].clone())).collect();
        let name = |value| match &program.definer(value).op {
            Op::Parameter { name, .. } => name.clone(),
            other => panic!("an update of {}", other.name()),
        };
        let updates = program.updates().iter();
        let updates = updates.map(|u| (name(u.parameter), values[u.value.idx()].clone())).collect();
        (outputs, updates)
    };
    programs.iter().zip(&values).map(of_part).collect()
}

fn noise(name: &str, n: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn arguments(program: &Program) -> (Named, Named) {
    let mut inputs = Named::new();
    for (name, value) in program.inputs() {
        let ty = program.ty(value);
        let n = ty.shape.n_elements();
        let tensor = match (name, ty.dtype) {
            ("rate", _) => Tensor::scalar(DType::F32, 0.5),
            ("step", _) => Tensor::scalar(DType::F32, 1.0),
            ("random", _) => Tensor::new([3], &[3i64, 1, 0]).unwrap(),
            (_, DType::I32) => {
                let ids: Vec<i32> =
                    noise(name, n).iter().map(|v| ((v + 1.0) * 4.0) as i32).collect();
                Tensor::new(ty.shape.clone(), &ids).unwrap()
            }
            _ => Tensor::new(ty.shape.clone(), &noise(name, n)).unwrap(),
        };
        inputs.insert(name.to_string(), tensor);
    }
    let mut parameters = Named::new();
    for node in program.nodes() {
        let Op::Parameter { name, shape, init, .. } = &node.op else { continue };
        let n = shape.n_elements();
        let values: Vec<f32> = match *init {
            Init::Constant(value) => vec![value as f32; n],
            Init::Normal(size) | Init::Uniform(size) => {
                noise(name, n).iter().map(|v| v * size as f32 * 1.7).collect()
            }
        };
        parameters.insert(name.clone(), Tensor::new(shape.clone(), &values).unwrap());
    }
    (inputs, parameters)
}

/// The distance of two tensors, over the norm of the second. Two that are zero but for rounding are the same: the bias of keys has no
/// gradient, because softmax does not see what is added to all scores.
fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.ty(), expected.ty());
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    let norms = [&found, &expected].map(|values| norm(&mut values.iter().copied()));
    if norms.iter().all(|norm| *norm < 1e-6) { 0.0 } else { off / norms[1] }
}

fn moved(after: &Tensor, before: &Tensor) -> Tensor {
    let values = after.to_f64().into_iter().zip(before.to_f64()).map(|(a, b)| (a - b) as f32);
    Tensor::new(after.shape().clone(), &values.collect::<Vec<_>>()).unwrap()
}

/// Splits a program and holds a step of the parts against a step of the whole. With `by_gradient`, what a step adds to each weight is
/// compared too, which is its gradient.
fn check(
    program: &Program,
    n_parts: usize,
    wishes: &Annotations,
    by_gradient: bool,
) -> TensorParts {
    let parts = split(program, n_parts, wishes).unwrap();
    assert_eq!(parts.programs.len(), n_parts);
    for part in &parts.programs {
        split_grains(part).unwrap();
    }
    let (inputs, parameters) = arguments(program);
    let expected = run(std::slice::from_ref(program), &inputs, std::slice::from_ref(&parameters));
    let along: HashMap<&str, &Vec<Along>> =
        parts.parameters.iter().map(|own| (own.name.as_str(), &own.along)).collect();
    let of_part = |part: usize| {
        let own = |(name, tensor): (&String, &Tensor)| {
            (name.clone(), part_of(tensor, &along[name.as_str()][part]).unwrap())
        };
        parameters.iter().map(own).collect::<Named>()
    };
    let of_parts: Vec<Named> = (0..n_parts).map(of_part).collect();
    let found = run(&parts.programs, &inputs, &of_parts);
    let (outputs, updates) = &expected[0];
    for (part, (own, _)) in found.iter().enumerate() {
        for (name, tensor) in outputs {
            let distance = distance(&own[name], tensor);
            assert!(distance < 1e-5, "{name} of part {part} is off by {distance}");
        }
    }
    for (name, tensor) in updates {
        let together: Vec<(Along, Tensor)> = (0..n_parts)
            .map(|part| (along[name.as_str()][part].clone(), found[part].1[name].clone()))
            .collect();
        let together = put_together(&together, tensor.ty()).unwrap();
        let off = distance(&together, tensor);
        assert!(off < 1e-5, "{name} is off by {off}");
        if by_gradient {
            let before = &parameters[name];
            let off = distance(&moved(&together, before), &moved(tensor, before));
            assert!(off < 1e-5, "the gradient of {name} is off by {off}");
        }
    }
    parts
}

fn linear(g: &Builder, x: &Value, to: usize) -> Result<Value, ProgramError> {
    let from = x.shape().last();
    let weight = g.weight("weight", [from, to], Init::Normal(1.0 / (from as f64).sqrt()))?;
    let bias = g.weight("bias", [to], Init::Normal(0.1))?;
    x.matmul(&weight)? + bias
}

fn finish(g: Builder, loss: &Value, optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let divisor = g.scalar(DType::F32, 8.0).unwrap();
    Training { optimizer, clip }.add_step(&g, loss, &divisor).unwrap();
    g.finish()
}

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd::default())
}

fn mlp(optimizer: Optimizer, clip: Option<Clip>, dropout: f64) -> Program {
    let g = Builder::new("mlp");
    let x = g.input("x", DType::F32, [8, 12]).unwrap();
    let labels = g.input("labels", DType::I32, [8]).unwrap();
    let h = g.scope("dense0", |g| linear(g, &x, 16)).unwrap().relu().unwrap();
    let h = if dropout > 0.0 { h.dropout(dropout).unwrap() } else { h };
    let h = g.scope("dense1", |g| linear(g, &h, 20)).unwrap().tanh().unwrap();
    let logits = g.scope("head", |g| linear(g, &h, 8)).unwrap();
    g.output("logits", &logits).unwrap();
    let loss = logits.cross_entropy(&labels).unwrap().sum_all().unwrap();
    finish(g, &loss, optimizer, clip)
}

fn n_sums(program: &Program) -> usize {
    program.nodes().iter().filter(|node| node.op == Op::AllReduce).count()
}

fn is_cut(parts: &TensorParts, name: &str) -> Option<(usize, usize)> {
    match &parts.parameters.iter().find(|own| own.name == name).unwrap().along[0] {
        Along::Axis { axis, runs } => Some((*axis, runs.len())),
        _ => None,
    }
}

#[test]
fn dense_layers_are_cut_by_columns_then_rows() {
    for n_parts in [2, 4] {
        let parts = check(&mlp(sgd(), None, 0.0), n_parts, &Annotations::default(), true);
        assert_eq!(is_cut(&parts, "dense0/weight"), Some((1, 1)));
        assert_eq!(is_cut(&parts, "dense0/bias"), Some((0, 1)));
        assert_eq!(is_cut(&parts, "dense1/weight"), Some((0, 1)));
        assert_eq!(is_cut(&parts, "dense1/bias"), None);
        assert_eq!(is_cut(&parts, "head/weight"), None);
        // Nothing is needed of the gradient of x, so there is one sum: that of the rows.
        assert_eq!(n_sums(&parts.programs[0]), 1);
        assert_eq!(parts.whole.len(), 1);
        assert!(parts.whole[0].to_string().contains("\"head/weight\" stays whole"));
    }
}

#[test]
fn one_part_is_the_whole_program() {
    let program = mlp(sgd(), None, 0.0);
    let parts = split(&program, 1, &Annotations::default()).unwrap();
    assert_eq!(parts.programs, [program]);
}

#[test]
fn optimizers_norms_and_dropout_follow_the_cut() {
    let norm = Some(Clip::GlobalNorm(0.1));
    let ways = [
        (Optimizer::Adam(Adam::default()), None, 0.0),
        (Optimizer::Adam(Adam::default()), norm, 0.3),
        (Optimizer::Lamb(Lamb::default()), norm, 0.0),
        (Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }), Some(Clip::Value(0.01)), 0.5),
    ];
    for (optimizer, clip, dropout) in ways {
        let parts = check(&mlp(optimizer, clip, dropout), 2, &Annotations::default(), false);
        if let Optimizer::Adam(_) = optimizer {
            assert_eq!(is_cut(&parts, "dense1/weight/mean"), Some((0, 1)));
            assert_eq!(n_sums(&parts.programs[0]), 1 + usize::from(clip.is_some()));
        }
    }
}

/// Token embedding, blocks with a fused projection or three, and a head that is the embedding again or its own.
fn transformer(fused: bool, tied: bool, heads: usize, dropout: f64) -> Program {
    let g = Builder::new("transformer");
    let ids = g.input("ids", DType::I32, [2, 5]).unwrap();
    let labels = g.input("labels", DType::I32, [2, 5]).unwrap();
    let table = g.weight("table", [8, 12], Init::Normal(0.5)).unwrap();
    let mut x = table.gather(0, &ids).unwrap();
    for block in 0..2 {
        x = g.scope(&format!("block{block}"), |g| attended(g, &x, fused, heads, dropout)).unwrap();
    }
    let norm = |g: &Builder| layer_norm(g, &x);
    let x = g.scope("norm", norm).unwrap();
    let logits = match tied {
        true => x.matmul_with(false, &table, true).unwrap(),
        false => g.scope("head", |g| linear(g, &x, 8)).unwrap(),
    };
    let loss = logits.cross_entropy(&labels).unwrap().sum_all().unwrap();
    finish(g, &loss, sgd(), None)
}

fn layer_norm(g: &Builder, x: &Value) -> Result<Value, ProgramError> {
    let width = x.shape().last();
    let scale = g.weight("scale", [width], Init::Constant(1.0))?;
    let bias = g.weight("bias", [width], Init::Normal(0.1))?;
    x.layer_norm(&scale, &bias, 1e-5)
}

fn attended(
    g: &Builder,
    x: &Value,
    fused: bool,
    heads: usize,
    dropout: f64,
) -> Result<Value, ProgramError> {
    let width = x.shape().last();
    let normed = g.scope("norm1", |g| layer_norm(g, x))?;
    let qkv = match fused {
        true => g.scope("qkv", |g| linear(g, &normed, 3 * width))?.split(2, 3)?,
        false => ["q", "k", "v"]
            .map(|name| g.scope(name, |g| linear(g, &normed, width)).unwrap())
            .to_vec(),
    };
    let seen = qkv[0].attention(&qkv[1], &qkv[2], heads, true, None)?;
    let projected = g.scope("project", |g| linear(g, &seen, width))?;
    let x = (x + projected)?;
    let normed = g.scope("norm2", |g| layer_norm(g, &x))?;
    let h = g.scope("expand", |g| linear(g, &normed, 4 * width))?.gelu()?;
    let h = if dropout > 0.0 { h.dropout(dropout)? } else { h };
    &x + g.scope("contract", |g| linear(g, &h, width))?
}

#[test]
fn a_transformer_block_has_two_sums_forward_and_two_backward() {
    let parts = check(&transformer(true, true, 4, 0.0), 2, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "block0/qkv/weight"), Some((1, 3)));
    assert_eq!(is_cut(&parts, "block0/qkv/bias"), Some((0, 3)));
    assert_eq!(is_cut(&parts, "block0/project/weight"), Some((0, 1)));
    assert_eq!(is_cut(&parts, "block1/expand/weight"), Some((1, 1)));
    assert_eq!(is_cut(&parts, "block1/contract/weight"), Some((0, 1)));
    // Four around the blocks: of the rows that parts looked up, two of the cross-entropy, and of the gradient from the head.
    assert_eq!(n_sums(&parts.programs[0]), 2 * 4 + 4);
    let parts = check(&transformer(false, true, 4, 0.0), 4, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "block0/k/weight"), Some((1, 1)));
    assert_eq!(n_sums(&parts.programs[0]), 2 * 4 + 4);
}

#[test]
fn an_embedding_and_a_head_are_cut_by_vocabulary() {
    let parts = check(&transformer(true, false, 4, 0.2), 2, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "table"), Some((0, 1)));
    assert_eq!(is_cut(&parts, "head/weight"), Some((1, 1)));
    assert_eq!(n_sums(&parts.programs[0]), 2 * 4 + 4);
    let parts = check(&transformer(true, true, 4, 0.0), 2, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "table"), Some((0, 1)));
}

#[test]
fn heads_that_do_not_fit_stay_whole_or_are_refused() {
    let program = transformer(true, true, 4, 0.0);
    let parts = check(&program, 3, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "block0/qkv/weight"), None);
    assert_eq!(is_cut(&parts, "block0/expand/weight"), Some((1, 1)));
    let reason = parts.whole.iter().find(|own| own.name == "block0/qkv/weight").unwrap();
    assert!(reason.reason.contains("4 heads"), "{reason}");
    let wish = |name: &str, axis, blocks| Annotations {
        parameters: BTreeMap::from([(name.to_string(), Wish::Axis { axis, blocks })]),
        rest: false,
    };
    let error = split(&program, 3, &wish("block0/qkv/weight", 1, 3)).unwrap_err();
    assert!(matches!(error, SplitError::Heads { heads: 4, .. }), "{error}");
    assert!(error.to_string().ends_with("fit 1, 2 or 4"), "{error}");
    let error = split(&program, 5, &wish("block0/expand/weight", 1, 1)).unwrap_err();
    assert!(error.to_string().contains("its size of 48"), "{error}");
    assert!(split(&program, 2, &wish("nothing", 1, 1)).is_err());
}

#[test]
fn every_wish_gives_the_same_step() {
    let program = transformer(true, true, 4, 0.0);
    for (name, axis, blocks) in [
        ("table", 0, 1),
        ("table", 1, 1),
        ("block0/qkv/weight", 0, 1),
        ("block0/qkv/weight", 1, 1),
        ("block1/contract/weight", 1, 1),
        ("norm/scale", 0, 1),
    ] {
        let parameters = BTreeMap::from([(name.to_string(), Wish::Axis { axis, blocks })]);
        let parts = check(&program, 2, &Annotations { parameters, rest: false }, true);
        assert_eq!(is_cut(&parts, name), Some((axis, blocks)));
    }
}

fn convolutions(batch_norm: bool) -> Program {
    let g = Builder::new("convolutions");
    let x = g.input("x", DType::F32, [4, 8, 8, 3]).unwrap();
    let labels = g.input("labels", DType::I32, [4]).unwrap();
    let same = Window { padding: vec![(1, 1), (1, 1)], ..Window::valid(2) };
    let kernel = |name: &str, from: usize, to: usize| {
        g.weight(name, [3, 3, from, to], Init::Normal(0.3)).unwrap()
    };
    let bias = |name: &str, n: usize| g.weight(name, [n], Init::Normal(0.2)).unwrap();
    let mut h = x.convolution(&kernel("first", 3, 8), same.clone()).unwrap();
    if batch_norm {
        let [y, mean, variance] = h.batch_norm(&bias("scale", 8), &bias("shift", 8), 1e-5).unwrap();
        let statistic = |name: &str| {
            let ty = TensorType::new(DType::F32, [8]);
            g.parameter(name, ty, manyhands_program::Role::Statistic, Init::Constant(0.5)).unwrap()
        };
        let running = [&statistic("mean"), &statistic("variance")];
        RunningStatistics::default().add_updates(&g, [&mean, &variance], running, 256).unwrap();
        h = y;
    } else {
        h = (h + bias("first_bias", 8)).unwrap();
    }
    let h = h.relu().unwrap().max_pool(Pooling::tiles(&[2, 2])).unwrap();
    let h = h.convolution(&kernel("second", 8, 8), same.clone()).unwrap();
    let h = (h + bias("second_bias", 8)).unwrap().relu().unwrap();
    let h = h.convolution(&kernel("third", 8, 8), same).unwrap().relu().unwrap();
    let flat = h.average_pool(Pooling::tiles(&[2, 2])).unwrap().reshape([4, 32]).unwrap();
    let logits = g.scope("head", |g| linear(g, &flat, 8)).unwrap();
    let loss = logits.cross_entropy(&labels).unwrap().sum_all().unwrap();
    finish(g, &loss, sgd(), None)
}

#[test]
fn convolutions_are_cut_by_features_then_channels() {
    for (batch_norm, n_parts) in [(false, 2), (true, 2), (false, 4)] {
        let parts = check(&convolutions(batch_norm), n_parts, &Annotations::default(), true);
        assert_eq!(is_cut(&parts, "first"), Some((3, 1)));
        assert_eq!(is_cut(&parts, "second"), Some((2, 1)));
        // Flattened, each place of the picture has its share of the channels.
        assert_eq!(is_cut(&parts, "third"), Some((3, 1)));
        assert_eq!(is_cut(&parts, "head/weight"), Some((0, 4)));
        if batch_norm {
            assert_eq!(is_cut(&parts, "mean"), Some((0, 1)));
        }
    }
}

#[test]
fn a_recurrent_layer_stays_whole() {
    let g = Builder::new("recurrent");
    let x = g.input("x", DType::F32, [5, 8, 6]).unwrap();
    let labels = g.input("labels", DType::I32, [8]).unwrap();
    let weight = g.weight("input", [6, 16], Init::Normal(0.4)).unwrap();
    let state = g.weight("state", [4, 16], Init::Normal(0.4)).unwrap();
    let items = x.matmul(&weight).unwrap();
    let zeros = g.full(&TensorType::new(DType::F32, [8, 4]), 0.0).unwrap();
    let (last, _) = g
        .scan(&[&zeros, &zeros], &[&items], false, |_, carried, items| {
            let gates = (&items[0] + &carried[0].matmul(&state)?)?.split(1, 4)?;
            let kept = (gates[0].logistic()? * &carried[1])?;
            let cell = (kept + (gates[1].logistic()? * gates[2].tanh()?)?)?;
            let hidden = (gates[3].logistic()? * cell.tanh()?)?;
            Ok((vec![hidden, cell], vec![]))
        })
        .unwrap();
    let h = g.scope("dense0", |g| linear(g, &last[0], 8)).unwrap().relu().unwrap();
    let logits = g.scope("dense1", |g| linear(g, &h, 8)).unwrap();
    let loss = logits.cross_entropy(&labels).unwrap().sum_all().unwrap();
    let parts = check(&finish(g, &loss, sgd(), None), 2, &Annotations::default(), true);
    assert_eq!(is_cut(&parts, "input"), None);
    assert_eq!(is_cut(&parts, "state"), None);
    assert_eq!(is_cut(&parts, "dense0/weight"), Some((1, 1)));
    let whole: Vec<&str> = parts.whole.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(whole, ["input", "state"]);
}
