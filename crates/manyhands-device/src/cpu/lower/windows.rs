//! Convolutions and poolings.

use manyhands_program::{Node, Op, Pooling, Program, TensorType, Unary, Window};

use super::Lowered;
use crate::cpu::kernels::conv::{self, ConvShape, Direction};
use crate::cpu::kernels::pool::{self, PoolShape};
use crate::cpu::kernels::window::Axis;
use crate::cpu::memory::Place;

/// The arena bytes for the weights as the kernel wants them laid out.
pub(super) fn workspace_bytes(program: &Program, node: &Node) -> usize {
    let all_f32 = |ty: &TensorType| ty.dtype == manyhands_program::DType::F32;
    let ty = |idx: usize| program.ty(node.operands[idx]);
    match &node.op {
        Op::Convolution(window) | Op::BiasedConvolution { window, .. } if all_f32(ty(0)) => {
            conv_shape(&ty(0).shape, &ty(1).shape, window).packed_len(Direction::Forward) * 4
        }
        op if all_f32(program.ty(node.results[0])) => match input_grad_window(op) {
            Some(window) => {
                let x = &program.ty(node.results[0]).shape;
                conv_shape(x, &ty(1).shape, window).packed_len(Direction::InputGrad) * 4
            }
            None => 0,
        },
        _ => 0,
    }
}

/// The window of an input gradient, gated or not.
fn input_grad_window(op: &Op) -> Option<&Window> {
    match op {
        Op::ConvolutionInputGrad { window, .. } => Some(window),
        Op::Gated { op } => input_grad_window(op),
        _ => None,
    }
}

fn conv_shape(x: &[usize], kernel: &[usize], window: &Window) -> ConvShape {
    let axis = |idx: usize| Axis {
        input: x[idx + 1],
        kernel: kernel[idx],
        stride: window.stride[idx],
        dilation: window.dilation[idx],
        pad_low: window.padding[idx].0,
        pad_high: window.padding[idx].1,
    };
    let (rows, cols) = match window.stride.len() {
        1 => (Axis::ONE, axis(0)),
        _ => (axis(0), axis(1)),
    };
    ConvShape {
        batch: x[0],
        rows,
        cols,
        in_channels: x[x.len() - 1],
        out_channels: kernel[kernel.len() - 1],
        groups: window.groups,
    }
}

pub(super) fn convolution(out: &mut Lowered<'_>) {
    match &out.node.op {
        Op::Convolution(window) => {
            let shape = conv_shape(&out.operand_type(0).shape, &out.operand_type(1).shape, window);
            correlate(out, shape, Direction::Forward, None, false);
        }
        Op::BiasedConvolution { window, activation } => {
            let shape = conv_shape(&out.operand_type(0).shape, &out.operand_type(1).shape, window);
            let (bias, activation) = (out.operand(2), *activation);
            let relu = activation == Some(Unary::Relu);
            correlate(out, shape, Direction::Forward, Some(bias), relu);
            if let Some(unary) = activation.filter(|_| !relu) {
                super::moves::activation(out, unary);
            }
        }
        op if input_grad_window(op).is_some() => {
            let window = input_grad_window(op).expect("it was just there");
            let shape = conv_shape(&out.result_type(0).shape, &out.operand_type(1).shape, window);
            let gate = matches!(op, Op::Gated { .. }).then(|| out.operand(2));
            correlate(out, shape, Direction::InputGrad, gate, false);
        }
        Op::ConvolutionKernelGrad { window, .. } => {
            let shape = conv_shape(&out.operand_type(0).shape, &out.result_type(0).shape, window);
            let (x, dy, dw) = (out.operand(0), out.operand(1), out.result(0));
            out.emit(
                shape.weight_grad_scratch_len(),
                Box::new(move |context, part| {
                    // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
                    unsafe {
                        conv::weight_grad(
                            context.isa,
                            &shape,
                            context.at(x),
                            context.at(dy),
                            context.at(dw),
                            context.scratch_f32(),
                            part,
                        );
                    }
                    Ok(())
                }),
            );
        }
        _ => unreachable!("only convolutions come here"),
    }
}

/// Lays the weights out for the kernel, then runs it. `beside` is the bias forward, the gate backward.
fn correlate(
    out: &mut Lowered<'_>,
    shape: ConvShape,
    direction: Direction,
    beside: Option<Place>,
    relu: bool,
) {
    let (from, weights, to, packed) =
        (out.operand(0), out.operand(1), out.result(0), out.workspace());
    out.emit(
        0,
        Box::new(move |context, part| {
            // SAFETY: the workspace has the packed length; the weights have their type's.
            unsafe {
                conv::pack_weights(
                    &shape,
                    direction,
                    context.at(weights),
                    context.at(packed),
                    part,
                );
            }
            Ok(())
        }),
    );
    out.emit(
        0,
        Box::new(move |context, part| {
            let (isa, from, packed, to) =
                (context.isa, context.at(from), context.at(packed), context.at(to));
            let beside =
                beside.map_or(std::ptr::null(), |place| context.at::<f32>(place).cast_const());
            // SAFETY: as above, and all threads have met since the weights were laid out.
            unsafe {
                match direction {
                    Direction::Forward => {
                        conv::forward(isa, &shape, from, packed, beside, relu, to, part);
                    }
                    Direction::InputGrad => {
                        conv::input_grad(isa, &shape, from, packed, beside, to, part)
                    }
                }
            }
            Ok(())
        }),
    );
}

fn pool_shape(x: &[usize], pooling: &Pooling) -> PoolShape {
    let axis = |idx: usize| Axis {
        input: x[idx + 1],
        kernel: pooling.window[idx],
        stride: pooling.stride[idx],
        dilation: 1,
        pad_low: pooling.padding[idx].0,
        pad_high: pooling.padding[idx].1,
    };
    let (rows, cols) = match pooling.window.len() {
        1 => (Axis::ONE, axis(0)),
        _ => (axis(0), axis(1)),
    };
    PoolShape { batch: x[0], rows, cols, channels: x[x.len() - 1] }
}

pub(super) fn pooling(out: &mut Lowered<'_>) {
    let average =
        |pooling: &Pooling| pool::Pooling::Average { count_padding: pooling.count_padding };
    let (pooling, kind, is_grad) = match &out.node.op {
        Op::MaxPool(pooling) => (pooling, pool::Pooling::Max, false),
        Op::AveragePool(pooling) => (pooling, average(pooling), false),
        Op::MaxPoolGrad(pooling) => (pooling, pool::Pooling::Max, true),
        Op::Gated { op } => return gated_pooling(out, op),
        Op::AveragePoolGrad { pooling, .. } => (pooling, average(pooling), true),
        _ => unreachable!("only poolings come here"),
    };
    let x_type = if is_grad { out.result_type(0) } else { out.operand_type(0) };
    let shape = pool_shape(&x_type.shape, pooling);
    let (first, last, to) =
        (out.operand(0), out.operand(out.node.operands.len() - 1), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            let (isa, first, to) = (context.isa, context.at(first), context.at(to));
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                match is_grad {
                    false => pool::forward(isa, &shape, kind, first, to, part),
                    true => pool::input_grad(isa, &shape, kind, first, context.at(last), to, part),
                }
            }
            Ok(())
        }),
    );
}

/// The gradient of a max pool and of the relu before it, in one pass.
fn gated_pooling(out: &mut Lowered<'_>, op: &Op) {
    let Op::MaxPoolGrad(pooling) = op else { unreachable!("only max pools come here") };
    let shape = pool_shape(&out.result_type(0).shape, pooling);
    let (x, dy, to) = (out.operand(0), out.operand(1), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            unsafe {
                let (x, dy, to) = (context.at(x), context.at(dy), context.at(to));
                pool::max_input_grad_through_relu(context.isa, &shape, x, dy, to, part);
            }
            Ok(())
        }),
    );
}
