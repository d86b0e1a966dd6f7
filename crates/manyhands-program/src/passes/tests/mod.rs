//! Each pass on its text form, and all of them on random programs.

mod cleanup;
mod fusion;
mod random;

use std::collections::HashMap;

use expect_test::Expect;

use super::interpreter::run;
use super::rewrite::Rewritten;
use crate::{DType, Op, Program, Tensor, TensorType};

/// Runs a pass on a program given by its lines, holds the text of the result against the expected one, and its results
/// against those of the program, bit for bit.
fn check(lines: &str, pass: impl Fn(&Program) -> Rewritten, expected: &Expect) {
    let program: Program = format!("program t {{\n{lines}\n}}").parse().unwrap();
    let rewritten = pass(&program).unwrap();
    expected.assert_eq(&rewritten.to_string());
    same_results(&program, &rewritten);
    assert_eq!(pass(&rewritten).unwrap(), rewritten, "running the pass again changes nothing");
}

/// Asserts that two programs have the same signature and give the same bits.
fn same_results(before: &Program, after: &Program) {
    let signature = |program: &Program| -> Vec<Op> {
        program.nodes().iter().map(|node| node.op.clone()).filter(Op::is_argument).collect()
    };
    assert_eq!(signature(before), signature(after));
    let arguments = arguments(before);
    assert_eq!(run(before, &arguments), run(after, &arguments));
}

/// Arguments with numbers of many kinds, among them both zeros.
fn arguments(program: &Program) -> HashMap<String, Tensor> {
    let values = program.inputs().chain(program.parameters().map(|(name, _, id)| (name, id)));
    values
        .enumerate()
        .map(|(seed, (name, id))| (name.to_string(), filled(program.ty(id), seed)))
        .collect()
}

fn filled(ty: &TensorType, seed: usize) -> Tensor {
    let bytes = (0..ty.shape.n_elements()).flat_map(|i| {
        let mixed = (i * 7919 + seed * 104_729 + 12_345) % 1009;
        let number = match (ty.dtype, mixed % 13) {
            (DType::Bool, _) => (mixed % 2) as f64,
            (DType::F32, 0) => 0.0,
            (DType::F32, 1) => -0.0,
            (DType::F32, _) => mixed as f64 / 251.0 - 2.0,
            _ => (mixed % 3) as f64,
        };
        Tensor::scalar(ty.dtype, number).bytes().to_vec()
    });
    Tensor::from_bytes(ty.clone(), bytes.collect()).unwrap()
}
