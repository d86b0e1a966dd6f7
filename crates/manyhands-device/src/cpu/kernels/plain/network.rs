//! Matrix products, and the way to the other operations of networks.

use manyhands_program::{Addend, Op};

use super::element::{Float, total};
use super::elementwise::unary_float;
use super::memory::Call;
use super::{attention, convolution, loss, norm, pool};

pub(super) fn run<T: Float>(op: &Op, call: &mut Call<'_>) {
    match op {
        Op::Matmul { transpose_lhs, transpose_rhs } => {
            product::<T>(call, *transpose_lhs, *transpose_rhs, |_, sum| sum);
        }
        Op::Dense { transpose_lhs, transpose_rhs, add, activation } => {
            // Each step rounds as the operation does that it stands for, so fusing keeps bits.
            let addend = if add.is_some() { call.operand::<T>(2) } else { &[] };
            let n = call.result_type(0).shape.last();
            product::<T>(call, *transpose_lhs, *transpose_rhs, |i, sum| {
                let sum = match add {
                    Some(Addend::Bias) => sum.add(addend[i % n]),
                    Some(Addend::Matrix) => addend[i].add(sum),
                    None => sum,
                };
                activation.map_or(sum, |activation| unary_float(activation, sum))
            });
        }
        Op::Convolution(window) => convolution::forward::<T>(window, call),
        Op::ConvolutionInputGrad { window, .. } => convolution::input_grad::<T>(window, call),
        Op::ConvolutionKernelGrad { window, .. } => convolution::kernel_grad::<T>(window, call),
        Op::MaxPool(pooling) => pool::max::<T>(pooling, call),
        Op::MaxPoolGrad(pooling) => pool::max_grad::<T>(pooling, call),
        Op::AveragePool(pooling) => pool::average::<T>(pooling, call),
        Op::AveragePoolGrad { pooling, .. } => pool::average_grad::<T>(pooling, call),
        Op::Softmax => loss::softmax::<T>(call),
        Op::LogSoftmax => loss::log_softmax::<T>(call),
        Op::SoftmaxGrad => loss::softmax_grad::<T>(call),
        Op::LogSoftmaxGrad => loss::log_softmax_grad::<T>(call),
        Op::LayerNorm { epsilon } => norm::layer::<T>(*epsilon, call),
        Op::LayerNormGrad => norm::layer_grad::<T>(call),
        Op::BatchNorm { epsilon } => norm::batch::<T>(*epsilon, call),
        Op::BatchNormGrad { epsilon } => norm::batch_grad::<T>(*epsilon, call),
        Op::Attention(spec) => attention::forward::<T>(spec, call),
        Op::AttentionGrad(spec) => attention::backward::<T>(spec, call),
        other => panic!("the plain evaluator has no {}", other.name()),
    }
}

/// The matrix product; each element goes through `finish` with its position.
fn product<T: Float>(
    call: &Call<'_>,
    transpose_lhs: bool,
    transpose_rhs: bool,
    finish: impl Fn(usize, T) -> T,
) {
    let (lhs, rhs) = (call.operand::<T>(0), call.operand::<T>(1));
    let shape = &call.result_type(0).shape;
    let (m, n) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
    let lhs_sizes = call.sizes(0);
    let k = lhs_sizes[lhs_sizes.len() - if transpose_lhs { 2 } else { 1 }];
    // One matrix on the right serves all on the left.
    let rhs_step = if call.sizes(1).len() == 2 { 0 } else { k * n };
    call.result::<T>(0).fill(|i| {
        let (matrix, row, column) = (i / (m * n), i / n % m, i % n);
        let (a, b) = (&lhs[matrix * m * k..], &rhs[matrix * rhs_step..]);
        let term = |at: usize| {
            let left = if transpose_lhs { a[at * m + row] } else { a[row * k + at] };
            let right = if transpose_rhs { b[column * k + at] } else { b[at * n + column] };
            left.wide() * right.wide()
        };
        finish(i, T::narrow(total((0..k).map(term))))
    });
}
