//! Convolutions with bias and activation in one kernel, and gradients of convolutions and max pools with that of the relu
//! they pass through.

use super::fuse_dense::{is_activation, sole, spread_bias};
use super::rewrite::{Rewriter, Rewritten, in_bodies};
use crate::dtype::DType;
use crate::op::{Binary, Comparison, Op, Unary, Window};
use crate::program::{Node, Program, ValueId};

/// Joins convolutions with what surrounds them.
pub fn fuse_convolution(program: &Program) -> Rewritten {
    let uses = program.use_counts();
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        let found = biased(program, &uses, node).or_else(|| gated(program, &uses, node));
        let (op, operands) = match found {
            Some((op, operands)) => {
                let operands = operands.into_iter().map(|old| rewriter.get(old));
                (op, operands.collect::<Result<Vec<_>, _>>()?)
            }
            None => (in_bodies(&node.op, &mut fuse_convolution)?, rewriter.operands(node)?),
        };
        rewriter.replace(node, op, &operands)?;
    }
    super::dead_code(&rewriter.finish()?)
}

/// A convolution with its bias, and with the activation where this node is one.
fn biased(program: &Program, uses: &[usize], node: &Node) -> Option<(Op, Vec<ValueId>)> {
    let (sum, activation) = match node.op {
        Op::Unary(unary) if is_activation(unary) => {
            (sole(program, uses, node.operands[0])?, Some(unary))
        }
        _ => (node, None),
    };
    let (window, operands) = sum_with_bias(program, uses, sum)?;
    // Other activations than relu are no part of the kernel, and are better fused with what follows.
    if activation.is_some_and(|unary| unary != Unary::Relu) {
        return None;
    }
    Some((Op::BiasedConvolution { window, activation }, operands))
}

fn sum_with_bias(program: &Program, uses: &[usize], node: &Node) -> Option<(Window, Vec<ValueId>)> {
    if node.op != Op::Binary(Binary::Add) || program.ty(node.results[0]).dtype != DType::F32 {
        return None;
    }
    let [a, b] = [node.operands[0], node.operands[1]];
    [(a, b), (b, a)].into_iter().find_map(|(convolved, spread)| {
        let convolution = sole(program, uses, convolved)?;
        let Op::Convolution(window) = &convolution.op else { return None };
        let bias = spread_bias(program, spread)?;
        Some((window.clone(), vec![convolution.operands[0], convolution.operands[1], bias]))
    })
}

/// `select(gate > 0, gradient, 0)`: the gradient of a relu whose result is the gate.
fn gated(program: &Program, uses: &[usize], node: &Node) -> Option<(Op, Vec<ValueId>)> {
    if node.op != Op::Select || program.ty(node.results[0]).dtype != DType::F32 {
        return None;
    }
    let [condition, gradient, zeros] = [node.operands[0], node.operands[1], node.operands[2]];
    let condition = program.definer(condition);
    if condition.op != Op::Compare(Comparison::Gt) || !is_zero(program, condition.operands[1]) {
        return None;
    }
    let (gate, inner) = (condition.operands[0], sole(program, uses, gradient)?);
    let fits = match &inner.op {
        Op::ConvolutionInputGrad { .. } => true,
        // The kernel looks at the value it pools, so that must be the gate.
        Op::MaxPoolGrad(_) => inner.operands[0] == gate,
        _ => false,
    };
    let same = program.ty(gate) == program.ty(gradient);
    if !(fits && same && is_zero(program, zeros)) {
        return None;
    }
    let operands = inner.operands.iter().copied().chain([gate]).collect();
    Some((Op::Gated { op: Box::new(inner.op.clone()) }, operands))
}

/// Whether a value is +0 everywhere.
fn is_zero(program: &Program, value: ValueId) -> bool {
    match &program.definer(value).op {
        Op::Constant(tensor) => tensor.bytes().iter().all(|&byte| byte == 0),
        Op::Broadcast { .. } => is_zero(program, program.definer(value).operands[0]),
        _ => false,
    }
}
