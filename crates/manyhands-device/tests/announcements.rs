//! What a launch announces while it runs: every result once, when it has its last value.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use manyhands_device::{BufferId, CpuDevice, Device, DeviceError, Launch, Moment};
use manyhands_program::{
    Builder, DType, Init, Optimizer, Pooling, Program, ProgramError, Sgd, Tensor, TensorType,
    Training, Value, Window, accumulating, split_grains,
};

/// Numbers between -1 and 1; whole ones from 0 to 4.
fn filled(ty: &TensorType, seed: usize) -> Tensor {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 40
    };
    let n = ty.shape.n_elements();
    let bytes: Vec<u8> = match ty.dtype {
        DType::F32 => {
            (0..n).flat_map(|_| (next() as f32 / (1u64 << 23) as f32 - 1.0).to_le_bytes()).collect()
        }
        DType::I32 => (0..n).flat_map(|_| (next() as i32 % 5).to_le_bytes()).collect(),
        _ => vec![1; ty.n_bytes()],
    };
    Tensor::from_bytes(ty.clone(), bytes).unwrap()
}

/// A program on a device, with buffers that hold something.
struct Scene {
    device: CpuDevice,
    launch: Launch,
    /// What it writes: outputs, and parameters with an update.
    written: Vec<BufferId>,
}

impl Scene {
    fn new(program: &Program, n_threads: usize) -> Scene {
        let mut device = CpuDevice::new(n_threads).unwrap();
        let executable = device.compile(program).unwrap();
        let upload = |device: &mut CpuDevice, values: Vec<_>| -> Vec<BufferId> {
            let values = values.into_iter().enumerate();
            values.map(|(idx, v)| device.upload(&filled(program.ty(v), idx)).unwrap()).collect()
        };
        let inputs = upload(&mut device, program.inputs().map(|(_, value)| value).collect());
        let values: Vec<_> = program.parameters().map(|(.., value)| value).collect();
        let parameters = upload(&mut device, values.clone());
        let outputs: Vec<BufferId> = {
            let types = program.outputs().iter().map(|output| program.ty(output.value));
            types.map(|ty| device.allocate(ty).unwrap()).collect()
        };
        let is_updated = |value| program.updates().iter().any(|u| u.parameter == value);
        let updated = parameters.iter().zip(&values).filter(|(_, value)| is_updated(**value));
        let written = updated.map(|(buffer, _)| *buffer).chain(outputs.iter().copied()).collect();
        Scene { device, launch: Launch { executable, inputs, parameters, outputs }, written }
    }

    fn bytes(&self, buffer: BufferId) -> Vec<u8> {
        self.device.download(buffer).unwrap().bytes().to_vec()
    }
}

/// Buffers that became final at one moment, with the bytes that they had then.
type Finals = Vec<(BufferId, Vec<u8>)>;

/// What was seen of a run, moment after moment.
fn announced(scene: &mut Scene) -> Result<Vec<Finals>, DeviceError> {
    let (mut moments, mut left) = (Vec::new(), scene.written.clone());
    let (inputs, launch) = (scene.launch.inputs.clone(), scene.launch.clone());
    scene.device.run_announcing(&launch, &mut |moment: Moment<'_>| {
        let seen = |&buffer: &BufferId| (buffer, moment.bytes(buffer).unwrap().to_vec());
        moments.push(moment.finals().iter().map(seen).collect());
        left.retain(|buffer| !moment.finals().contains(buffer));
        assert!(left.iter().all(|&buffer| moment.bytes(buffer).is_none()), "too early");
        assert!(inputs.iter().all(|&buffer| moment.bytes(buffer).is_some()));
    })?;
    Ok(moments)
}

/// Runs a program as it is and announced, and compares.
fn check(program: &Program) {
    for n_threads in 1..=3 {
        let (mut plain, mut scene) =
            (Scene::new(program, n_threads), Scene::new(program, n_threads));
        let before: Vec<Vec<u8>> = scene.written.iter().map(|&b| scene.bytes(b)).collect();
        plain.device.run(std::slice::from_ref(&plain.launch)).unwrap();
        let moments = announced(&mut scene).unwrap();
        let with_news = moments.iter().filter(|finals| !finals.is_empty()).count();
        assert!(with_news > 1 || scene.written.len() < 2, "all at once");
        assert!(!moments[0].is_empty(), "nobody is called before there is something");
        let mut found: Finals = moments.into_iter().flatten().collect();
        for (buffer, bytes) in &found {
            assert!(scene.bytes(*buffer) == *bytes, "it changed after it was final");
        }
        let place = |buffer: &BufferId| scene.written.iter().position(|one| one == buffer).unwrap();
        found.sort_by_key(|(buffer, _)| place(buffer));
        let buffers: Vec<BufferId> = found.iter().map(|(buffer, _)| *buffer).collect();
        assert_eq!(buffers, scene.written, "each once");
        for ((buffer, (_, bytes)), before) in plain.written.iter().zip(&found).zip(&before) {
            assert!(plain.bytes(*buffer) == *bytes, "other bits than a run that nobody follows");
            assert!(bytes != before, "nothing was written");
        }
    }
}

/// The per-grain part of training on this loss, in both of its forms.
fn check_training(build: impl FnOnce(&Builder) -> Result<Value, ProgramError>) {
    let g = Builder::new("model");
    let logits = build(&g).unwrap();
    let rows = logits.shape()[0];
    let labels = g.input("labels", DType::I32, [rows]).unwrap();
    let loss = logits.cross_entropy(&labels).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, rows as f64).unwrap();
    let optimizer = Optimizer::Sgd(Sgd::default());
    Training { optimizer, clip: None }.add_step(&g, &loss, &divisor).unwrap();
    let split = split_grains(&g.finish()).unwrap();
    check(&split.grain);
    check(&accumulating(&split.grain).unwrap());
    check(&split.step);
}

fn weight<const N: usize>(g: &Builder, name: &str, shape: [usize; N]) -> Value {
    g.weight(name, shape, Init::Constant(0.0)).unwrap()
}

fn dense(g: &Builder, x: &Value, name: &str, size: usize) -> Result<Value, ProgramError> {
    let w = weight(g, name, [x.shape().last(), size]);
    x.matmul(&w)? + &weight(g, &format!("{name}_bias"), [size])
}

#[test]
fn dense_layers_announce_each_gradient_once() {
    check_training(|g| {
        let x = g.input("x", DType::F32, [9, 20])?;
        let x = dense(g, &x, "a", 33)?.relu()?;
        let shared = weight(g, "shared", [33, 33]);
        let [x, ..] = x.matmul(&shared)?.batch_norm(
            &weight(g, "scale", [33]),
            &weight(g, "shift", [33]),
            1e-5,
        )?;
        let x = x.matmul(&shared)?.tanh()?;
        dense(g, &x, "b", 5)
    });
}

#[test]
fn convolutions_announce_each_gradient_once() {
    check_training(|g| {
        let mut x = g.input("x", DType::F32, [3, 9, 9, 2])?;
        for (idx, features) in [5, 18].into_iter().enumerate() {
            let kernel = weight(g, &format!("k{idx}"), [3, 3, x.shape().last(), features]);
            let bias = weight(g, &format!("b{idx}"), [features]);
            x = (x.convolution(&kernel, Window::valid(2))? + &bias)?.relu()?;
        }
        let pooled = x.max_pool(Pooling::tiles(&[2, 2]))?;
        let flat = pooled.reshape([3, pooled.shape()[1..].iter().product::<usize>()])?;
        dense(g, &flat, "head", 5)
    });
}

#[test]
fn recurrent_layers_announce_each_gradient_once() {
    check_training(|g| {
        let items = g.input("x", DType::F32, [6, 4, 3])?;
        let start = g.input("start", DType::F32, [4, 8])?;
        let (w_in, w_own) = (weight(g, "w_in", [3, 32]), weight(g, "w_own", [8, 32]));
        let bias = weight(g, "bias", [32]);
        let (last, _) = g.scan(&[&start, &start], &[&items], false, |_, carried, item| {
            let sum = (item[0].matmul(&w_in)? + carried[0].matmul(&w_own)?)?;
            let gates = (sum + &bias)?.split(1, 4)?;
            let (input, forget) = (gates[0].logistic()?, gates[1].logistic()?);
            let cell = ((forget * &carried[1])? + (input * gates[2].tanh()?)?)?;
            let hidden = (gates[3].logistic()? * cell.tanh()?)?;
            Ok((vec![hidden.clone(), cell], vec![hidden]))
        })?;
        dense(g, &last[0], "head", 5)
    });
}

#[test]
fn transformers_announce_each_gradient_once() {
    check_training(|g| {
        let tokens = g.input("x", DType::I32, [2, 6])?;
        let mut x = weight(g, "tokens", [5, 16]).gather(0, &tokens)?;
        for idx in 0..2 {
            let name = |what: &str| format!("{what}{idx}");
            let (scale, shift) = (weight(g, &name("scale"), [16]), weight(g, &name("shift"), [16]));
            let normed = x.layer_norm(&scale, &shift, 1e-5)?;
            let qkv = dense(g, &normed, &name("qkv"), 48)?.split(2, 3)?;
            let seen = qkv[0].attention(&qkv[1], &qkv[2], 2, true, None)?;
            x = (&x + &dense(g, &seen, &name("project"), 16)?)?;
            let hidden = dense(g, &x, &name("expand"), 64)?.gelu()?;
            x = (&x + &dense(g, &hidden, &name("contract"), 16)?)?;
        }
        dense(g, &x.reshape([12, 16])?, "head", 5)
    });
}

#[test]
fn results_that_are_copied_at_the_end_are_announced_then() {
    let g = Builder::new("copies");
    let (a, b) = (weight(&g, "a", [40]), weight(&g, "b", [40]));
    let x = g.input("x", DType::F32, [40]).unwrap();
    // Parameters that change places, an output that is an input, and one value under two names.
    let sum = (&x + &a).unwrap();
    g.output("x_again", &x).unwrap();
    g.output("sum", &sum).unwrap();
    g.output("sum_again", &sum).unwrap();
    g.update(&a, &b).unwrap();
    g.update(&b, &a).unwrap();
    check(&g.finish());
}

#[test]
fn a_fault_ends_an_announced_run_and_the_device_goes_on() {
    let g = Builder::new("faulty");
    let tokens = g.input("tokens", DType::I32, [4]).unwrap();
    let table = weight(&g, "table", [5, 3]);
    g.output("double", &(&table + &table).unwrap()).unwrap();
    g.output("rows", &table.gather(0, &tokens).unwrap()).unwrap();
    let program = g.finish();
    for n_threads in 1..=3 {
        let mut scene = Scene::new(&program, n_threads);
        let tokens = scene.launch.inputs[0];
        scene.device.write(tokens, [9i32; 4].map(i32::to_le_bytes).as_flattened()).unwrap();
        let error = announced(&mut scene).unwrap_err();
        assert!(matches!(error, DeviceError::Data { .. }), "{error}");
        scene.device.write(tokens, &[0; 16]).unwrap();
        assert_eq!(announced(&mut scene).unwrap().into_iter().flatten().count(), 2);
    }
}
