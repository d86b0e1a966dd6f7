//! Floating-point operations of each operation.

use super::TRANSCENDENTAL;
use crate::expression::Term;
use crate::op::{AttentionSpec, Binary, Op, Unary};
use crate::program::{Node, Program};
use crate::shape::Shape;

/// What a random number counts: ten rounds of a counter-based generator.
const RANDOM: u64 = 40;
/// Of softmax, per element: the maximum, a difference, an exponential, the sum, the quotient.
const SOFTMAX: u64 = TRANSCENDENTAL + 4;

/// The floating-point operations of one node; bodies are not counted here.
pub(super) fn operations(program: &Program, node: &Node) -> u64 {
    let operand = |idx: usize| &program.ty(node.operands[idx]).shape;
    let n_operand = |idx: usize| count(operand(idx));
    let result = node.results.first().map_or_else(Shape::scalar, |&r| program.ty(r).shape.clone());
    let n = count(&result);
    match &node.op {
        Op::Random { .. } => n * RANDOM,
        Op::Dropout { .. } => n * (RANDOM + 1),
        Op::Unary(unary) => n * unary_weight(*unary),
        Op::Binary(binary) => n * binary_weight(*binary),
        Op::Compare(_) | Op::Select | Op::Cast { .. } | Op::GrainSum | Op::AllReduce => n,
        Op::Fused(expression) => n * expression.terms.iter().map(term_weight).sum::<u64>(),
        Op::ScatterAdd { .. } => n_operand(2),
        Op::MergeRows { .. } => (0..node.operands.len()).map(n_operand).sum(),
        Op::Matmul { transpose_lhs, .. } => n * 2 * inner(operand(0), *transpose_lhs),
        Op::Dense { transpose_lhs, add, activation, .. } => {
            let after = u64::from(add.is_some()) + activation.map_or(0, unary_weight);
            n * (2 * inner(operand(0), *transpose_lhs) + after)
        }
        // Each element of the result (of dy, in gradients) meets the taps of one feature once.
        Op::Convolution(_) => n * taps(operand(1)),
        Op::BiasedConvolution { activation, .. } => {
            n * (taps(operand(1)) + 1 + activation.map_or(0, unary_weight))
        }
        Op::Gated { op } => {
            n + match &**op {
                Op::MaxPoolGrad(pooling) => n_operand(1) * window(&pooling.window),
                _ => n_operand(0) * taps(operand(1)),
            }
        }
        Op::ConvolutionInputGrad { .. } => n_operand(0) * taps(operand(1)),
        Op::ConvolutionKernelGrad { .. } => n_operand(1) * taps(&result),
        Op::MaxPool(pooling) | Op::AveragePool(pooling) => n * window(&pooling.window),
        Op::MaxPoolGrad(pooling) => n_operand(1) * window(&pooling.window),
        Op::AveragePoolGrad { pooling, .. } => n_operand(0) * window(&pooling.window),
        Op::Reduce { .. } | Op::Argmax { .. } => n_operand(0),
        Op::BlockSquareSums => 2 * n_operand(0),
        Op::Softmax | Op::LogSoftmax | Op::CrossEntropyGrad => n * SOFTMAX,
        Op::CrossEntropy => n_operand(0) * SOFTMAX,
        Op::SoftmaxGrad => n * 4,
        Op::LogSoftmaxGrad => n * (TRANSCENDENTAL + 3),
        // Mean, variance, and a multiply-add each for centring and for scale and bias.
        Op::LayerNorm { .. } | Op::BatchNorm { .. } => n * 8,
        Op::LayerNormGrad | Op::BatchNormGrad { .. } => n * 14,
        Op::Attention(spec) => attention(spec, operand(0), operand(1), 4, SOFTMAX),
        // Scores again, then the gradients of weights, values, queries and keys: five products.
        Op::AttentionGrad(spec) => attention(spec, operand(0), operand(1), 10, SOFTMAX + 4),
        Op::Input { .. }
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::TakeRows
        | Op::PutGrain { .. }
        | Op::PutRows
        | Op::Scan(_)
        | Op::Cond(_) => 0,
    }
}

fn count(shape: &Shape) -> u64 {
    shape.n_elements() as u64
}

fn inner(lhs: &Shape, transposed: bool) -> u64 {
    lhs[lhs.rank() - if transposed { 2 } else { 1 }] as u64
}

/// Twice the multiply-adds per element of a convolution's result: the kernel less its features.
fn taps(kernel: &Shape) -> u64 {
    2 * kernel[..kernel.rank() - 1].iter().map(|&size| size as u64).product::<u64>()
}

fn window(sizes: &[usize]) -> u64 {
    sizes.iter().map(|&size| size as u64).product()
}

fn attention(spec: &AttentionSpec, q: &Shape, k: &Shape, products: u64, softmax: u64) -> u64 {
    let [batch, n_queries, width] = [q[0] as u64, q[1] as u64, q[2] as u64];
    let n_keys = k[1] as u64;
    // Under a causal mask query i looks at keys up to i + keys - queries.
    let hidden = if spec.causal { n_queries * n_queries.saturating_sub(1) / 2 } else { 0 };
    let pairs = batch * (n_queries * n_keys - hidden);
    pairs * (products * width + spec.heads as u64 * softmax)
}

fn unary_weight(unary: Unary) -> u64 {
    match unary {
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Sqrt
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Relu
        | Unary::Not => 1,
        Unary::Rsqrt => 2,
        _ => TRANSCENDENTAL,
    }
}

fn binary_weight(binary: Binary) -> u64 {
    if binary == Binary::Pow { 2 * TRANSCENDENTAL } else { 1 }
}

fn term_weight(term: &Term) -> u64 {
    match *term {
        Term::Operand(_) | Term::Number(_) => 0,
        Term::Unary(unary, _) => unary_weight(unary),
        Term::Binary(binary, ..) => binary_weight(binary),
        Term::Compare(..) | Term::Select(..) => 1,
    }
}
