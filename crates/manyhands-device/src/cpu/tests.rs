//! Passes keep bits on the real kernels: a program compiled as it stands gives what the optimized one gives.

use manyhands_program::{
    Builder, DType, Init, Pooling, Program, ProgramError, Tensor, TensorType, Value, Window,
};

use super::CpuDevice;
use crate::device::{Device, Evaluated};

/// Numbers between -1 and 1 that look random.
fn scrambled(ty: &TensorType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let elements: Vec<f32> = (0..ty.shape.n_elements()).map(|_| next()).collect();
    Tensor::new(ty.shape.clone(), &elements).unwrap()
}

fn evaluate(program: &Program, passes: bool) -> Evaluated {
    let tensor = |(idx, value)| scrambled(program.ty(value), idx as u64 + 1);
    let inputs: Vec<Tensor> =
        program.inputs().map(|(_, value)| value).enumerate().map(tensor).collect();
    let parameters: Vec<Tensor> =
        program.parameters().map(|(.., value)| value).enumerate().map(tensor).collect();
    let mut device = CpuDevice::new(1).unwrap();
    let executable =
        if passes { device.compile(program) } else { device.compile_as_is(program) }.unwrap();
    device.evaluate_compiled(executable, program, &inputs, &parameters).unwrap()
}

/// Builds a program that gives the loss and its gradients, and compares the two ways to run it.
fn check(build: impl FnOnce(&Builder) -> Result<(Value, Vec<Value>), ProgramError>) {
    let g = Builder::new("check");
    let (loss, wrt) = build(&g).unwrap();
    let gradients = g.gradients(&loss, &wrt.iter().collect::<Vec<_>>()).unwrap();
    g.output("loss", &loss).unwrap();
    for (idx, gradient) in gradients.iter().enumerate() {
        g.output(&format!("gradient{idx}"), gradient).unwrap();
    }
    let program = g.finish();
    let (plain, fused) = (evaluate(&program, false), evaluate(&program, true));
    assert!(plain.outputs.iter().any(|output| output.to_f64().iter().any(|&x| x != 0.0)));
    for (idx, (plain, fused)) in plain.outputs.iter().zip(&fused.outputs).enumerate() {
        assert!(plain == fused, "output {idx} differs");
    }
}

#[test]
fn convolutions_with_bias_relu_and_pooling_keep_their_bits() {
    check(|g| {
        let mut x = g.input("x", DType::F32, [3, 9, 8, 2])?;
        let mut weights = Vec::new();
        for (idx, features) in [5, 18].into_iter().enumerate() {
            let channels = x.shape().last();
            let kernel =
                g.weight(&format!("k{idx}"), [3, 2, channels, features], Init::Constant(0.0))?;
            let bias = g.weight(&format!("b{idx}"), [features], Init::Constant(0.0))?;
            x = (x.convolution(&kernel, Window::valid(2))? + &bias)?.relu()?;
            weights.extend([kernel, bias]);
        }
        let pooled = x.max_pool(Pooling::tiles(&[2, 2]))?;
        Ok(((&pooled * &pooled)?.sum_all()?, weights))
    });
}

#[test]
fn dense_layers_with_every_activation_keep_their_bits() {
    check(|g| {
        let mut x = g.input("x", DType::F32, [7, 20])?;
        let mut weights = Vec::new();
        for idx in 0..5 {
            let w = g.weight(&format!("w{idx}"), [20, 20], Init::Constant(0.0))?;
            let b = g.weight(&format!("b{idx}"), [20], Init::Constant(0.0))?;
            let h = (x.matmul(&w)? + &b)?;
            x = match idx {
                0 => h.relu()?,
                1 => h.gelu()?,
                2 => h.tanh()?,
                3 => h.logistic()?,
                _ => h.silu()?,
            };
            weights.extend([w, b]);
        }
        Ok((x.softplus()?.sum_all()?, weights))
    });
}

#[test]
fn attention_written_out_keeps_its_bits_when_fused() {
    let g = Builder::new("written");
    let split = |x: &Value| x.reshape([2, 6, 3, 8])?.transpose(&[0, 2, 1, 3]);
    let tokens = |name: &str| g.input(name, DType::F32, [2, 6, 24]).unwrap();
    let (q, k, v) = (tokens("q"), tokens("k"), tokens("v"));
    let scores = split(&q).unwrap().matmul_with(false, &split(&k).unwrap(), true).unwrap();
    let shares = (scores * (1.0 / 8.0f64.sqrt())).unwrap().softmax(3).unwrap();
    let seen = shares.matmul(&split(&v).unwrap()).unwrap();
    let y = seen.transpose(&[0, 2, 1, 3]).unwrap().reshape([2, 6, 24]).unwrap();
    g.output("y", &y).unwrap();
    let program = g.finish();
    let fused = manyhands_program::fuse_attention(&program).unwrap();
    assert!(fused.any_op(&mut |op| op.name() == "attention"), "the pattern is found");
    assert_eq!(evaluate(&program, false), evaluate(&program, true));
}

#[test]
fn recurrent_layers_keep_their_bits() {
    check(|g| {
        let xs = g.input("xs", DType::F32, [5, 3, 4])?;
        let start = g.input("start", DType::F32, [3, 6])?;
        let w = g.weight("w", [4, 6], Init::Constant(0.0))?;
        let u = g.weight("u", [6, 6], Init::Constant(0.0))?;
        let b = g.weight("b", [6], Init::Constant(0.0))?;
        let (last, all) = g.scan(&[&start], &[&xs], false, |_, carried, items| {
            let sum = (items[0].matmul(&w)? + carried[0].matmul(&u)?)?;
            let next = (sum + &b)?.tanh()?;
            Ok((vec![next.clone()], vec![next]))
        })?;
        let loss = (last[0].sum_all()? + (&all[0] * &all[0])?.sum_all()?)?;
        Ok((loss, vec![w, u, b]))
    });
}
