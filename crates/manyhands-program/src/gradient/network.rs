//! Rules of products, convolutions, pooling, norms, attention and losses.

use super::{Contributions, Forward};
use crate::builder::Value;
use crate::error::ProgramError;
use crate::op::Op;
use crate::shape::Shape;

pub(super) fn contributions(forward: &Forward<'_>) -> Contributions {
    let g = forward.cotangent()?;
    let (builder, operands, results) = (forward.builder, &forward.operands, &forward.results);
    let spatial = |value: &Value, from: usize, n: usize| value.shape()[from..from + n].to_vec();
    match &forward.node.op {
        Op::Matmul { transpose_lhs, transpose_rhs } => {
            forward.each(|operand| product(forward, g, operand, *transpose_lhs, *transpose_rhs))
        }
        Op::Convolution(window) => forward.each(|operand| {
            let (window, n) = (window.clone(), window.stride.len());
            if operand == 0 {
                let input = spatial(&operands[0], 1, n);
                builder.apply(Op::ConvolutionInputGrad { window, input }, &[g, &operands[1]])
            } else {
                let kernel = spatial(&operands[1], 0, n);
                builder.apply(Op::ConvolutionKernelGrad { window, kernel }, &[&operands[0], g])
            }
        }),
        Op::ConvolutionInputGrad { window, .. } => forward.each(|operand| {
            let (window, n) = (window.clone(), window.stride.len());
            if operand == 0 {
                g.convolution(&operands[1], window)
            } else {
                let kernel = spatial(&operands[1], 0, n);
                builder.apply(Op::ConvolutionKernelGrad { window, kernel }, &[g, &operands[0]])
            }
        }),
        Op::ConvolutionKernelGrad { window, .. } => forward.each(|operand| {
            let (window, n) = (window.clone(), window.stride.len());
            if operand == 0 {
                let input = spatial(&operands[0], 1, n);
                builder.apply(Op::ConvolutionInputGrad { window, input }, &[&operands[1], g])
            } else {
                operands[0].convolution(g, window)
            }
        }),
        Op::MaxPool(pooling) => {
            let op = Op::MaxPoolGrad(pooling.clone());
            forward.each(|_| builder.apply(op.clone(), &[&operands[0], g]))
        }
        Op::AveragePool(pooling) => forward.each(|_| {
            let input = spatial(&operands[0], 1, pooling.window.len());
            builder.apply(Op::AveragePoolGrad { pooling: pooling.clone(), input }, &[g])
        }),
        Op::AveragePoolGrad { pooling, .. } => forward.each(|_| g.average_pool(pooling.clone())),
        Op::Softmax => forward.each(|_| builder.apply(Op::SoftmaxGrad, &[&results[0], g])),
        Op::LogSoftmax => forward.each(|_| builder.apply(Op::LogSoftmaxGrad, &[&results[0], g])),
        Op::CrossEntropy => {
            forward.each(|_| builder.apply(Op::CrossEntropyGrad, &[&operands[0], &operands[1], g]))
        }
        Op::LayerNorm { .. } => {
            let given = [&operands[0], &operands[1], &results[1], &results[2], g];
            forward.first(builder.apply_all(Op::LayerNormGrad, &given)?)
        }
        Op::BatchNorm { epsilon } => {
            let given = [&operands[0], &operands[1], &results[1], &results[2], g];
            let op = Op::BatchNormGrad { epsilon: *epsilon };
            forward.first(builder.apply_all(op, &given)?)
        }
        Op::Attention(spec) => {
            let given: Vec<&Value> = operands.iter().chain([g]).collect();
            forward.first(builder.apply_all(Op::AttentionGrad(spec.clone()), &given)?)
        }
        _ => unreachable!("only operations of networks come here"),
    }
}

/// The gradient of a matrix product with respect to one side: again one product, transposed where needed so that it has
/// the layout of that side.
fn product(
    forward: &Forward<'_>,
    g: &Value,
    operand: usize,
    transpose_lhs: bool,
    transpose_rhs: bool,
) -> Result<Value, ProgramError> {
    let (a, b) = (&forward.operands[0], &forward.operands[1]);
    if operand == 0 {
        return if transpose_lhs {
            b.matmul_with(transpose_rhs, g, true)
        } else {
            g.matmul_with(false, b, !transpose_rhs)
        };
    }
    // One matrix that served many rows of matrices: all their rows together make one product.
    let one_for_many = b.shape().rank() < a.shape().rank();
    let rows = |value: &Value| {
        let shape = value.shape();
        let leading = Shape::from(&shape[..shape.rank() - 1]);
        value.reshape([leading.n_elements(), shape.last()])
    };
    let (a, g) = if one_for_many { (rows(a)?, rows(g)?) } else { (a.clone(), g.clone()) };
    if transpose_rhs {
        g.matmul_with(true, &a, transpose_lhs)
    } else {
        a.matmul_with(!transpose_lhs, &g, false)
    }
}
