//! Operations of networks: products, convolutions, pooling, reductions, norms, attention, losses.

use super::{
    Inferred, check_axes, check_axis, check_finite, check_length, check_steps, expect_shape, float,
    index, one, same, same_dtype, same_shape, take,
};
use crate::dtype::DType;
use crate::error::Problem;
use crate::op::{Addend, AttentionSpec, Op, Pooling, SQUARE_BLOCK, Unary, Window};
use crate::shape::{MAX_ELEMENTS, Shape, TensorType};

pub(super) fn network(op: &Op, operands: &[&TensorType]) -> Inferred {
    match op {
        Op::Matmul { transpose_lhs, transpose_rhs } => {
            let [lhs, rhs] = take::<2>(operands, "two")?;
            one(lhs.dtype, product(lhs, rhs, *transpose_lhs, *transpose_rhs)?)
        }
        Op::Dense { transpose_lhs, transpose_rhs, add, activation } => {
            check_activation(*activation)?;
            let (pair, rest) = operands
                .split_at_checked(2)
                .ok_or(Problem::OperandCount { expected: "two or three", found: operands.len() })?;
            let shape = product(pair[0], pair[1], *transpose_lhs, *transpose_rhs)?;
            check_length("add", usize::from(add.is_some()), rest.len())?;
            if let (Some(add), Some(&addend)) = (add, rest.first()) {
                same_dtype(pair[0], addend)?;
                let expected =
                    if *add == Addend::Bias { Shape::from([shape.last()]) } else { shape.clone() };
                expect_shape(2, addend, &expected)?;
            }
            one(pair[0].dtype, shape)
        }
        Op::Convolution(window) => {
            let [x, kernel] = take::<2>(operands, "two")?;
            convolution(x, kernel, window)
        }
        Op::BiasedConvolution { window, activation } => {
            check_activation(*activation)?;
            let [x, kernel, bias] = take::<3>(operands, "three")?;
            super::reject_dtype(0, x.dtype, x.dtype != DType::F32, "f32")?;
            same_dtype(x, bias)?;
            let result = convolution(x, kernel, window)?;
            expect_shape(2, bias, &Shape::from([result[0].shape.last()]))?;
            Ok(result)
        }
        Op::Gated { op } => gated(op, operands),
        Op::ConvolutionInputGrad { window, input } => {
            let [dy, kernel] = take::<2>(operands, "two")?;
            let channels = kernel_sizes(kernel, window)?.saturating_mul(window.groups);
            let x = surrounded(dy, input, channels)?;
            same(&convolution(&x, kernel, window)?[0], dy)?;
            Ok(vec![x])
        }
        Op::ConvolutionKernelGrad { window, kernel } => {
            let [x, dy] = take::<2>(operands, "two")?;
            check_length("kernel", window.stride.len(), kernel.len())?;
            divides("channels", x.shape.last(), window.groups)?;
            let tail = [x.shape.last() / window.groups, dy.shape.last()];
            let sizes = kernel.iter().copied().chain(tail).collect::<Shape>();
            let kernel = TensorType::new(x.dtype, sizes);
            same(&convolution(x, &kernel, window)?[0], dy)?;
            Ok(vec![kernel])
        }
        Op::MaxPool(pooling) | Op::AveragePool(pooling) => {
            let [x] = take::<1>(operands, "one")?;
            pool(x, pooling)
        }
        Op::MaxPoolGrad(pooling) => {
            let [x, dy] = take::<2>(operands, "two")?;
            same(&pool(x, pooling)?[0], dy)?;
            Ok(vec![x.clone()])
        }
        Op::AveragePoolGrad { pooling, input } => {
            let [dy] = take::<1>(operands, "one")?;
            let x = surrounded(dy, input, dy.shape.last())?;
            same(&pool(&x, pooling)?[0], dy)?;
            Ok(vec![x])
        }
        Op::Reduce { axes, .. } => {
            let [x] = take::<1>(operands, "one")?;
            check_axes(axes, x.shape.rank())?;
            super::reject_dtype(0, x.dtype, x.dtype == DType::Bool, "a number type")?;
            one(x.dtype, x.shape.without(axes))
        }
        Op::Argmax { axis } => {
            let [x] = take::<1>(operands, "one")?;
            check_axis(*axis, x.shape.rank())?;
            super::reject_dtype(0, x.dtype, x.dtype == DType::Bool, "a number type")?;
            let size = x.shape[*axis];
            if size == 0 || i32::try_from(size).is_err() {
                let expected = "an axis with at least 1 and below 2147483648 elements";
                let found = size.to_string();
                return Err(Problem::Attribute { attribute: "axis", expected, found });
            }
            one(DType::I32, x.shape.without(&[*axis]))
        }
        Op::BlockSquareSums => {
            let [x] = take::<1>(operands, "one")?;
            float(0, x)?;
            one(x.dtype, Shape::from([x.shape.n_elements().div_ceil(SQUARE_BLOCK)]))
        }
        _ => rows(op, operands),
    }
}

/// An activation is for floats.
fn check_activation(activation: Option<Unary>) -> Result<(), Problem> {
    match activation {
        Some(Unary::Not) => Err(Problem::Attribute {
            attribute: "activation",
            expected: "an operation on floats",
            found: Unary::Not.name().to_string(),
        }),
        _ => Ok(()),
    }
}

/// An operation through a gate: only those that have such a kernel.
fn gated(op: &Op, operands: &[&TensorType]) -> Inferred {
    if !matches!(op, Op::ConvolutionInputGrad { .. } | Op::MaxPoolGrad(_)) {
        return Err(Problem::Attribute {
            attribute: "op",
            expected: "a convolution_input_grad or a max_pool_grad",
            found: op.name().to_string(),
        });
    }
    let Some((gate, operands)) = operands.split_last() else {
        return Err(Problem::OperandCount { expected: "the operation's and a gate", found: 0 });
    };
    super::reject_dtype(0, gate.dtype, gate.dtype != DType::F32, "f32")?;
    let result = network(op, operands)?;
    same(&result[0], gate)?;
    Ok(result)
}

/// Operations along the last axis.
fn rows(op: &Op, operands: &[&TensorType]) -> Inferred {
    match op {
        Op::Softmax | Op::LogSoftmax => {
            let [x] = take::<1>(operands, "one")?;
            float(0, x)?;
            at_least("at least 1", 0, x, 1)?;
            Ok(vec![x.clone()])
        }
        Op::SoftmaxGrad | Op::LogSoftmaxGrad => {
            let [y, dy] = take::<2>(operands, "two")?;
            float(0, y)?;
            at_least("at least 1", 0, y, 1)?;
            same(y, dy)?;
            Ok(vec![y.clone()])
        }
        Op::CrossEntropy => {
            let [logits, labels] = take::<2>(operands, "two")?;
            one(logits.dtype, labelled(logits, labels)?)
        }
        Op::CrossEntropyGrad => {
            let [logits, labels, d] = take::<3>(operands, "three")?;
            same_dtype(logits, d)?;
            expect_shape(2, d, &labelled(logits, labels)?)?;
            Ok(vec![logits.clone()])
        }
        Op::LayerNorm { epsilon } => {
            let [x, scale, bias] = take::<3>(operands, "three")?;
            check_epsilon(*epsilon)?;
            affine(x, scale, 1)?;
            affine(x, bias, 2)?;
            let rows = TensorType::new(x.dtype, &x.shape[..x.shape.rank() - 1]);
            Ok(vec![x.clone(), rows.clone(), rows])
        }
        Op::LayerNormGrad => {
            let [x, scale, mean, rstd, dy] = take::<5>(operands, "five")?;
            affine(x, scale, 1)?;
            let rows = TensorType::new(x.dtype, &x.shape[..x.shape.rank() - 1]);
            same(&rows, mean)?;
            same(&rows, rstd)?;
            same(x, dy)?;
            Ok(vec![x.clone(), scale.clone(), scale.clone()])
        }
        Op::BatchNorm { epsilon } => {
            let [x, scale, bias] = take::<3>(operands, "three")?;
            check_epsilon(*epsilon)?;
            affine(x, scale, 1)?;
            affine(x, bias, 2)?;
            Ok(vec![x.clone(), scale.clone(), scale.clone()])
        }
        Op::BatchNormGrad { epsilon } => {
            let [x, scale, mean, variance, dy] = take::<5>(operands, "five")?;
            check_epsilon(*epsilon)?;
            affine(x, scale, 1)?;
            same(scale, mean)?;
            same(scale, variance)?;
            same(x, dy)?;
            Ok(vec![x.clone(), scale.clone(), scale.clone()])
        }
        Op::Attention(spec) => {
            let n = 3 + usize::from(spec.masked);
            attention(spec, operands, n)?;
            Ok(vec![operands[0].clone()])
        }
        Op::AttentionGrad(spec) => {
            let n = 4 + usize::from(spec.masked);
            attention(spec, operands, n)?;
            same(operands[0], operands[n - 1])?;
            Ok(operands[..3].iter().map(|&ty| ty.clone()).collect())
        }
        _ => unreachable!("`infer` handles every other operation"),
    }
}

fn at_least(
    expected: &'static str,
    operand: usize,
    ty: &TensorType,
    n: usize,
) -> Result<(), Problem> {
    if ty.shape.rank() >= n {
        return Ok(());
    }
    Err(Problem::Rank { operand, expected, found: ty.shape.rank() })
}

fn check_epsilon(epsilon: f64) -> Result<(), Problem> {
    check_finite("epsilon", epsilon)?;
    if epsilon >= 0.0 {
        return Ok(());
    }
    let found = epsilon.to_string();
    Err(Problem::Attribute { attribute: "epsilon", expected: "at least 0", found })
}

fn divides(what: &'static str, size: usize, parts: usize) -> Result<(), Problem> {
    // Nothing divides into anything, but a count of parts stays a count of something that is there.
    if parts > 0 && parts <= size.max(1) && size.is_multiple_of(parts) {
        return Ok(());
    }
    Err(Problem::NotDivisible { what, size, parts })
}

/// A scale or bias: as long as the last axis of x.
fn affine(x: &TensorType, own: &TensorType, operand: usize) -> Result<(), Problem> {
    float(0, x)?;
    at_least("at least 1", 0, x, 1)?;
    same_dtype(x, own)?;
    expect_shape(operand, own, &Shape::from([x.shape.last()]))
}

fn labelled(logits: &TensorType, labels: &TensorType) -> Result<Shape, Problem> {
    float(0, logits)?;
    at_least("at least 1", 0, logits, 1)?;
    index(1, labels)?;
    let expected = Shape::from(&logits.shape[..logits.shape.rank() - 1]);
    expect_shape(1, labels, &expected)?;
    Ok(expected)
}

fn product(
    lhs: &TensorType,
    rhs: &TensorType,
    transpose_lhs: bool,
    transpose_rhs: bool,
) -> Result<Shape, Problem> {
    float(0, lhs)?;
    same_dtype(lhs, rhs)?;
    at_least("at least 2", 0, lhs, 2)?;
    at_least("at least 2", 1, rhs, 2)?;
    let (leading, [rows, inner]) = split_matrix(&lhs.shape, transpose_lhs);
    let (other, [rhs_inner, columns]) = split_matrix(&rhs.shape, transpose_rhs);
    if inner != rhs_inner {
        return Err(Problem::InnerSizes { lhs: inner, rhs: rhs_inner });
    }
    // One matrix on the right may serve many on the left, but only where each stands upright.
    if leading != other && (!other.is_empty() || transpose_lhs) {
        return Err(Problem::ShapesDiffer { lhs: lhs.shape.clone(), rhs: rhs.shape.clone() });
    }
    Ok(leading.iter().copied().chain([rows, columns]).collect())
}

fn split_matrix(shape: &Shape, transposed: bool) -> (&[usize], [usize; 2]) {
    let (leading, matrix) = shape.split_at(shape.rank() - 2);
    (leading, if transposed { [matrix[1], matrix[0]] } else { [matrix[0], matrix[1]] })
}

/// Checks the kernel's rank and gives its channels per group.
fn kernel_sizes(kernel: &TensorType, window: &Window) -> Result<usize, Problem> {
    let n = window.stride.len();
    if !(1..=2).contains(&n) {
        return Err(Problem::AttributeLength { attribute: "stride", expected: 2, found: n });
    }
    check_length("padding", n, window.padding.len())?;
    check_length("dilation", n, window.dilation.len())?;
    check_steps("stride", &window.stride)?;
    check_steps("dilation", &window.dilation)?;
    if kernel.shape.rank() != n + 2 {
        let expected = if n == 1 { "3" } else { "4" };
        return Err(Problem::Rank { operand: 1, expected, found: kernel.shape.rank() });
    }
    if window.groups == 0 {
        return Err(Problem::Attribute {
            attribute: "groups",
            expected: "at least 1",
            found: "0".into(),
        });
    }
    Ok(kernel.shape[n])
}

fn convolution(x: &TensorType, kernel: &TensorType, window: &Window) -> Inferred {
    float(0, x)?;
    same_dtype(x, kernel)?;
    let per_group = kernel_sizes(kernel, window)?;
    let n = window.stride.len();
    if x.shape.rank() != n + 2 {
        let expected = if n == 1 { "3" } else { "4" };
        return Err(Problem::Rank { operand: 0, expected, found: x.shape.rank() });
    }
    divides("channels", x.shape.last(), window.groups)?;
    divides("features", kernel.shape.last(), window.groups)?;
    if x.shape.last() / window.groups != per_group {
        return Err(Problem::InnerSizes { lhs: x.shape.last() / window.groups, rhs: per_group });
    }
    check_padded(x, &window.padding)?;
    let mut sizes = vec![x.shape[0]];
    for axis in 0..n {
        let dilation = window.dilation[axis];
        sizes.push(window_count(
            x.shape[axis + 1],
            kernel.shape[axis],
            window.stride[axis],
            window.padding[axis],
            dilation,
        )?);
    }
    sizes.push(kernel.shape.last());
    one(x.dtype, sizes.into())
}

/// Kernels may hold x with its padding, so that too must be of a size that can be held.
fn check_padded(x: &TensorType, padding: &[(usize, usize)]) -> Result<(), Problem> {
    let padded =
        |(axis, &size): (usize, &usize)| match axis.checked_sub(1).and_then(|a| padding.get(a)) {
            Some(&(low, high)) => size.saturating_add(low).saturating_add(high),
            None => size,
        };
    let shape: Shape = x.shape.iter().enumerate().map(padded).collect();
    if shape.iter().fold(1usize, |n, &size| n.saturating_mul(size.max(1))) <= MAX_ELEMENTS {
        return Ok(());
    }
    Err(Problem::TooLarge { ty: TensorType { dtype: x.dtype, shape } })
}

fn window_count(
    size: usize,
    taps: usize,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
) -> Result<usize, Problem> {
    if stride == 0 || dilation == 0 {
        let attribute = if stride == 0 { "stride" } else { "dilation" };
        return Err(Problem::Attribute { attribute, expected: "at least 1", found: "0".into() });
    }
    let padded = size.saturating_add(padding.0).saturating_add(padding.1);
    let window = taps.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
    if taps == 0 || window > padded {
        return Err(Problem::Window { window, size: padded });
    }
    Ok((padded - window) / stride + 1)
}

/// The type of an x with these spatial sizes whose result was `dy`.
fn surrounded(dy: &TensorType, spatial: &[usize], channels: usize) -> Result<TensorType, Problem> {
    at_least("at least 3", 0, dy, 3)?;
    check_length("input", dy.shape.rank() - 2, spatial.len())?;
    let sizes = [dy.shape[0]].into_iter().chain(spatial.iter().copied()).chain([channels]);
    Ok(TensorType::new(dy.dtype, sizes.collect::<Shape>()))
}

fn pool(x: &TensorType, pooling: &Pooling) -> Inferred {
    float(0, x)?;
    let n = pooling.window.len();
    if !(1..=2).contains(&n) {
        return Err(Problem::AttributeLength { attribute: "window", expected: 2, found: n });
    }
    check_length("stride", n, pooling.stride.len())?;
    check_length("padding", n, pooling.padding.len())?;
    check_steps("stride", &pooling.stride)?;
    if x.shape.rank() != n + 2 {
        let expected = if n == 1 { "3" } else { "4" };
        return Err(Problem::Rank { operand: 0, expected, found: x.shape.rank() });
    }
    check_padded(x, &pooling.padding)?;
    let mut sizes = vec![x.shape[0]];
    for axis in 0..n {
        let (window, padding) = (pooling.window[axis], pooling.padding[axis]);
        // A window that lies in padding alone has no largest element and no mean.
        if padding.0 >= window || padding.1 >= window {
            return Err(Problem::Attribute {
                attribute: "padding",
                expected: "smaller than the window",
                found: format!("{padding:?}"),
            });
        }
        sizes.push(window_count(x.shape[axis + 1], window, pooling.stride[axis], padding, 1)?);
    }
    sizes.push(x.shape.last());
    one(x.dtype, sizes.into())
}

fn attention(spec: &AttentionSpec, operands: &[&TensorType], n: usize) -> Result<(), Problem> {
    if operands.len() != n {
        let expected = "q, k, v, the mask where there is one, and dy in the gradient";
        return Err(Problem::OperandCount { expected, found: operands.len() });
    }
    check_finite("scale", spec.scale)?;
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    float(0, q)?;
    for (operand, ty) in [q, k, v].into_iter().enumerate() {
        same_dtype(q, ty)?;
        if ty.shape.rank() != 3 {
            return Err(Problem::Rank { operand, expected: "3", found: ty.shape.rank() });
        }
    }
    same_shape(&k.shape, &v.shape)?;
    expect_shape(1, k, &Shape::from([q.shape[0], k.shape[1], q.shape[2]]))?;
    divides("last axis", q.shape[2], spec.heads)?;
    if spec.causal && k.shape[1] < q.shape[1] {
        return Err(Problem::Attribute {
            attribute: "causal",
            expected: "false where there are fewer keys than queries",
            found: "true".into(),
        });
    }
    if spec.masked {
        let mask = operands[3];
        super::reject_dtype(3, mask.dtype, mask.dtype != DType::Bool, "bool")?;
        let (batch, pairs) = (q.shape[0], [q.shape[1], k.shape[1]]);
        if mask.shape[..] != pairs && mask.shape[..] != [batch, pairs[0], pairs[1]] {
            let found = mask.shape.clone();
            return Err(Problem::OperandShape { operand: 3, expected: pairs.into(), found });
        }
    }
    Ok(())
}
