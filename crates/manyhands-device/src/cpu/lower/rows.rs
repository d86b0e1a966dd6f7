//! Operations along the last axis or over axes: reductions, softmax, norms, cross-entropy.

use manyhands_program::{DType, Op, Reduction};

use super::{Lowered, as_matrix};
use crate::cpu::kernels::{argmax, cross_entropy, norm, reduce, softmax};
use crate::cpu::memory::Place;

/// Axes that lie side by side, seen as [outer, axis, inner].
fn middle(shape: &[usize], axes: &[usize]) -> Option<(usize, usize, usize)> {
    let side_by_side = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let (&first, &last) = (axes.first()?, axes.last()?);
    side_by_side.then(|| {
        let product = |sizes: &[usize]| sizes.iter().product::<usize>();
        (product(&shape[..first]), product(&shape[first..=last]), product(&shape[last + 1..]))
    })
}

pub(super) fn reduce(out: &mut Lowered<'_>, kind: Reduction, axes: &[usize]) {
    // Axes of size 1 change nothing, so they do not keep others apart.
    let shape = &out.operand_type(0).shape;
    let real: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] != 1).collect();
    let (from, to) = (out.operand(0), out.result(0));
    let kind = match kind {
        Reduction::Sum => reduce::Reduction::Sum,
        Reduction::Product => reduce::Reduction::Product,
        Reduction::Max => reduce::Reduction::Max,
        Reduction::Min => reduce::Reduction::Min,
    };
    let (outer, axis, inner) = match middle(shape, &real) {
        Some(sizes) => sizes,
        None if real.is_empty() => (1, 1, shape.n_elements()),
        None => return super::moves::plain(out),
    };
    out.emit(
        0,
        Box::new(move |context, part| {
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                let (from, to) = (context.at(from), context.at(to));
                reduce::reduce(context.isa, kind, from, to, outer, axis, inner, part);
            }
            Ok(())
        }),
    );
}

pub(super) fn argmax(out: &mut Lowered<'_>, axis: usize) {
    let shape = &out.operand_type(0).shape;
    let (outer, size, inner) = middle(shape, &[axis]).expect("one axis lies beside itself");
    let (from, to) = (out.operand(0), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                let (from, to) = (context.at(from), context.at(to));
                argmax::argmax(context.isa, from, to, outer, size, inner, part);
            }
            Ok(())
        }),
    );
}

pub(super) fn block_square_sums(out: &mut Lowered<'_>) {
    let n = out.operand_type(0).shape.n_elements();
    let (from, to) = (out.operand(0), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                let (from, to) = (context.at(from), context.at(to));
                reduce::block_square_sums(context.isa, from, to, n, part);
            }
            Ok(())
        }),
    );
}

pub(super) fn softmax(out: &mut Lowered<'_>) {
    let (rows, cols) = as_matrix(&out.operand_type(0).shape);
    let (first, last, to) =
        (out.operand(0), out.operand(out.node.operands.len() - 1), out.result(0));
    let op = out.node.op.clone();
    out.emit(
        0,
        Box::new(move |context, part| {
            let (isa, first, to) = (context.isa, context.at(first), context.at(to));
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                let last = context.at(last);
                match op {
                    Op::Softmax => softmax::softmax(isa, first, to, rows, cols, part),
                    Op::LogSoftmax => softmax::log_softmax(isa, first, to, rows, cols, part),
                    Op::SoftmaxGrad => {
                        softmax::softmax_grad(isa, first, last, to, rows, cols, part)
                    }
                    _ => softmax::log_softmax_grad(isa, first, last, to, rows, cols, part),
                }
            }
            Ok(())
        }),
    );
}

pub(super) fn cross_entropy(out: &mut Lowered<'_>) {
    let (rows, n_classes) = as_matrix(&out.operand_type(0).shape);
    let is_grad = out.node.op == Op::CrossEntropyGrad;
    let wide = out.operand_type(1).dtype == DType::I64;
    let (logits, labels, to) = (out.operand(0), out.operand(1), out.result(0));
    let d = out.operand(out.node.operands.len() - 1);
    out.emit(
        0,
        Box::new(move |context, part| {
            let (isa, x, to) = (context.isa, context.at(logits), context.at(to));
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            let outcome = unsafe {
                macro_rules! with {
                    ($label:ty) => {{
                        let labels = context.at::<$label>(labels);
                        match is_grad {
                            false => cross_entropy::cross_entropy(
                                isa, x, labels, to, rows, n_classes, part,
                            ),
                            true => cross_entropy::cross_entropy_grad(
                                isa,
                                x,
                                labels,
                                context.at(d),
                                to,
                                rows,
                                n_classes,
                                part,
                            ),
                        }
                    }};
                }
                if wide { with!(i64) } else { with!(i32) }
            };
            Ok(outcome?)
        }),
    );
}

pub(super) fn layer_norm(out: &mut Lowered<'_>) {
    let (rows, cols) = as_matrix(&out.operand_type(0).shape);
    let operands: Vec<Place> = (0..out.node.operands.len()).map(|idx| out.operand(idx)).collect();
    let [y, second, third] = [out.result(0), out.result(1), out.result(2)];
    if let Op::LayerNorm { epsilon } = out.node.op {
        out.emit(
            0,
            Box::new(move |context, part| {
                let op = norm::LayerNorm {
                    x: context.at(operands[0]),
                    scale: context.at(operands[1]),
                    bias: context.at(operands[2]),
                    epsilon: epsilon as f32,
                    y: context.at(y),
                    mean: context.at(second),
                    rstd: context.at(third),
                    rows,
                    cols,
                };
                // SAFETY: the plan gives every place the bytes of its type; no result overlaps an operand.
                unsafe { norm::layer_norm(context.isa, op, part) };
                Ok(())
            }),
        );
        return;
    }
    out.emit(
        0,
        Box::new(move |context, part| {
            let read = |idx: usize| context.at::<f32>(operands[idx]).cast_const();
            let (x, scale, mean, rstd, dy) = (read(0), read(1), read(2), read(3), read(4));
            let (dx, dscale, dbias) = (context.at(y), context.at(second), context.at(third));
            // SAFETY: the plan gives every place the bytes of its type; no result overlaps an operand.
            unsafe {
                let op = norm::LayerNormGrad { x, scale, mean, rstd, dy, dx, rows, cols };
                norm::layer_norm_grad(context.isa, op, part);
                let op = norm::LayerNormGradScale { x, mean, rstd, dy, dscale, dbias, rows, cols };
                norm::layer_norm_grad_scale(context.isa, op, part);
            }
            Ok(())
        }),
    );
}

pub(super) fn batch_norm(out: &mut Lowered<'_>) {
    let (rows, cols) = as_matrix(&out.operand_type(0).shape);
    let operands: Vec<Place> = (0..out.node.operands.len()).map(|idx| out.operand(idx)).collect();
    let [first, second, third] = [out.result(0), out.result(1), out.result(2)];
    let (Op::BatchNorm { epsilon } | Op::BatchNormGrad { epsilon }) = out.node.op else {
        unreachable!("only batch norms come here")
    };
    let (epsilon, is_grad) = (epsilon as f32, operands.len() == 5);
    out.emit(
        0,
        Box::new(move |context, part| {
            let read = |idx: usize| context.at::<f32>(operands[idx]).cast_const();
            // SAFETY: the plan gives every place the bytes of its type; no result overlaps an operand.
            unsafe {
                if is_grad {
                    let op = norm::BatchNormGrad {
                        x: read(0),
                        scale: read(1),
                        mean: read(2),
                        variance: read(3),
                        epsilon,
                        dy: read(4),
                        dx: context.at(first),
                        dscale: context.at(second),
                        dbias: context.at(third),
                        rows,
                        cols,
                    };
                    norm::batch_norm_grad(context.isa, op, part);
                } else {
                    let op = norm::BatchNorm {
                        x: read(0),
                        scale: read(1),
                        bias: read(2),
                        epsilon,
                        y: context.at(first),
                        mean: context.at(second),
                        variance: context.at(third),
                        rows,
                        cols,
                    };
                    norm::batch_norm(context.isa, op, part);
                }
            }
            Ok(())
        }),
    );
}
