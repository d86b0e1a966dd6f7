//! Operations of networks: small cases by hand, gradients by finite differences.

use manyhands_program::{
    Addend, AttentionSpec, DType, Op, Pooling, Program, Tensor, TensorType, Unary, ValueId, Window,
};

use super::super::Fault;
use super::{evaluate, scrambled};

/// The results of an operation, with the types that the program's own rules give them.
fn run(op: &Op, operands: &[Tensor]) -> Vec<Tensor> {
    let mut program = Program::new("test");
    let values: Vec<ValueId> = operands
        .iter()
        .map(|operand| program.push(Op::Constant(operand.clone()), &[], "").unwrap()[0])
        .collect();
    let results = program.push(op.clone(), &values, "").unwrap();
    let types: Vec<TensorType> = results.iter().map(|&id| program.ty(id).clone()).collect();
    evaluate(op, operands, &types).unwrap()
}

fn run_f64(op: &Op, operands: &[Tensor]) -> Vec<f64> {
    run(op, operands)[0].to_f64()
}

fn tensor(shape: &[usize], elements: &[f64]) -> Tensor {
    Tensor::new(shape, elements).unwrap()
}

fn close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}, element {i}: {a} and {b}");
    }
}

/// The gradient of sum(weights * first result) for one operand, by central differences.
fn differences(op: &Op, operands: &[Tensor], operand: usize, weights: &[f64]) -> Vec<f64> {
    let x = operands[operand].to_f64();
    let value_at = |i: usize, h: f64| {
        let (mut moved, mut all) = (x.clone(), operands.to_vec());
        moved[i] += h;
        all[operand] = tensor(operands[operand].shape(), &moved);
        run_f64(op, &all).iter().zip(weights).map(|(y, w)| y * w).sum::<f64>()
    };
    let h = 1e-5;
    (0..x.len()).map(|i| (value_at(i, h) - value_at(i, -h)) / (2.0 * h)).collect()
}

/// Numbers that all differ, between -1 and 1.
fn spread(shape: &[usize], seed: u64) -> Tensor {
    let n: usize = shape.iter().product();
    let own = |i: usize| ((i as u64 * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0;
    tensor(shape, &(0..n).map(own).collect::<Vec<_>>())
}

#[test]
fn products_follow_their_transpositions() {
    let a = tensor(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = tensor(&[3, 2], &[7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    let turned =
        |x: &Tensor| run(&Op::Transpose { order: vec![1, 0] }, std::slice::from_ref(x)).remove(0);
    let expected = [58.0, 64.0, 139.0, 154.0];
    for (transpose_lhs, transpose_rhs) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let lhs = if transpose_lhs { turned(&a) } else { a.clone() };
        let rhs = if transpose_rhs { turned(&b) } else { b.clone() };
        let op = Op::Matmul { transpose_lhs, transpose_rhs };
        assert_eq!(run_f64(&op, &[lhs, rhs]), expected);
    }
    let op = Op::Matmul { transpose_lhs: false, transpose_rhs: false };
    let two = tensor(&[2, 1, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(run_f64(&op, &[two.clone(), b.clone()]), expected);
    let both = tensor(&[2, 3, 1], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(run_f64(&op, &[two, both]), [6.0, 30.0]);
}

#[test]
fn dense_adds_and_activates() {
    let a = tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let b = tensor(&[2, 2], &[1.0, 0.0, 0.0, 1.0]);
    let dense = |add, activation| Op::Dense {
        transpose_lhs: false,
        transpose_rhs: false,
        add: Some(add),
        activation,
    };
    let bias = tensor(&[2], &[-2.0, 1.0]);
    let found = run_f64(&dense(Addend::Bias, Some(Unary::Relu)), &[a.clone(), b.clone(), bias]);
    assert_eq!(found, [0.0, 3.0, 1.0, 5.0]);
    let addend = tensor(&[2, 2], &[10.0, 20.0, 30.0, 40.0]);
    assert_eq!(run_f64(&dense(Addend::Matrix, None), &[a, b, addend]), [11.0, 22.0, 33.0, 44.0]);
}

fn window(
    stride: &[usize],
    padding: &[(usize, usize)],
    dilation: &[usize],
    groups: usize,
) -> Window {
    let (stride, padding, dilation) = (stride.to_vec(), padding.to_vec(), dilation.to_vec());
    Window { stride, padding, dilation, groups }
}

#[test]
fn a_small_convolution_by_hand() {
    let x = tensor(&[1, 4, 1], &[1.0, 2.0, 3.0, 4.0]);
    let kernel = tensor(&[2, 1, 1], &[10.0, 1.0]);
    let op = Op::Convolution(window(&[1], &[(1, 0)], &[1], 1));
    assert_eq!(run_f64(&op, &[x.clone(), kernel.clone()]), [1.0, 12.0, 23.0, 34.0]);
    let op = Op::Convolution(window(&[2], &[(0, 1)], &[2], 1));
    assert_eq!(run_f64(&op, &[x, kernel]), [13.0, 30.0]);
}

#[test]
fn convolution_gradients_are_differences() {
    let cases: [(&[usize], &[usize], Window); 4] = [
        (&[2, 5, 4, 2], &[3, 2, 2, 3], window(&[1, 1], &[(1, 1), (0, 1)], &[1, 1], 1)),
        (&[1, 7, 6, 4], &[3, 2, 2, 6], window(&[2, 3], &[(1, 2), (1, 0)], &[2, 1], 2)),
        (&[2, 9, 2], &[3, 2, 2], window(&[2], &[(2, 1)], &[2], 1)),
        (&[1, 6, 3], &[2, 1, 3], window(&[1], &[(0, 0)], &[3], 3)),
    ];
    for (x_sizes, kernel_sizes, window) in cases {
        let operands = [spread(x_sizes, 1), spread(kernel_sizes, 2)];
        let op = Op::Convolution(window.clone());
        let dy = spread(run(&op, &operands)[0].shape(), 3);
        let n = window.stride.len();
        let grad =
            Op::ConvolutionInputGrad { window: window.clone(), input: x_sizes[1..=n].to_vec() };
        let expected = differences(&op, &operands, 0, &dy.to_f64());
        close(&run_f64(&grad, &[dy.clone(), operands[1].clone()]), &expected, 1e-7, "input");
        let grad = Op::ConvolutionKernelGrad { window, kernel: kernel_sizes[..n].to_vec() };
        let expected = differences(&op, &operands, 1, &dy.to_f64());
        close(&run_f64(&grad, &[operands[0].clone(), dy]), &expected, 1e-7, "kernel");
    }
}

fn pooling(
    window: &[usize],
    stride: &[usize],
    padding: &[(usize, usize)],
    count_padding: bool,
) -> Pooling {
    let (window, stride, padding) = (window.to_vec(), stride.to_vec(), padding.to_vec());
    Pooling { window, stride, padding, count_padding }
}

#[test]
fn pools_by_hand() {
    let x = tensor(&[1, 4, 1], &[1.0, 3.0, 3.0, -2.0]);
    let wide = pooling(&[3], &[1], &[(1, 1)], false);
    let one = std::slice::from_ref(&x);
    assert_eq!(run_f64(&Op::MaxPool(wide.clone()), one), [3.0, 3.0, 3.0, 3.0]);
    assert_eq!(run_f64(&Op::AveragePool(wide.clone()), one), [2.0, 7.0 / 3.0, 4.0 / 3.0, 0.5]);
    let counted = Op::AveragePool(Pooling { count_padding: true, ..wide.clone() });
    assert_eq!(run_f64(&counted, one)[0], 4.0 / 3.0);
    // The first three windows hold the 3 at place 1; the last one begins at place 2.
    let dy = tensor(&[1, 4, 1], &[1.0, 10.0, 100.0, 1000.0]);
    assert_eq!(run_f64(&Op::MaxPoolGrad(wide), &[x, dy]), [0.0, 111.0, 1000.0, 0.0]);
}

#[test]
fn pool_gradients_are_differences() {
    let cases: [(&[usize], Pooling); 4] = [
        (&[2, 6, 5, 2], pooling(&[2, 2], &[2, 2], &[(0, 0), (1, 0)], false)),
        (&[1, 7, 7, 1], pooling(&[3, 2], &[2, 1], &[(1, 1), (0, 1)], true)),
        (&[2, 9, 3], pooling(&[3], &[2], &[(1, 2)], false)),
        (&[1, 5, 1], pooling(&[2], &[3], &[(0, 0)], false)),
    ];
    for (sizes, pooling) in cases {
        let x = spread(sizes, 1);
        let n = pooling.window.len();
        let op = Op::MaxPool(pooling.clone());
        let dy = spread(run(&op, std::slice::from_ref(&x))[0].shape(), 3);
        let expected = differences(&op, std::slice::from_ref(&x), 0, &dy.to_f64());
        let found = run_f64(&Op::MaxPoolGrad(pooling.clone()), &[x.clone(), dy.clone()]);
        close(&found, &expected, 1e-7, "max");
        let op = Op::AveragePool(pooling.clone());
        let expected = differences(&op, &[x], 0, &dy.to_f64());
        let grad = Op::AveragePoolGrad { pooling, input: sizes[1..=n].to_vec() };
        close(&run_f64(&grad, &[dy]), &expected, 1e-7, "average");
    }
}

#[test]
fn softmax_and_its_kin_agree_with_their_definitions() {
    let x = spread(&[3, 5], 1);
    let dy = spread(&[3, 5], 2);
    let one = std::slice::from_ref(&x);
    let y = run(&Op::Softmax, one).remove(0);
    let sums: Vec<f64> = y.to_f64().chunks(5).map(|row| row.iter().sum()).collect();
    close(&sums, &[1.0; 3], 1e-14, "a row of shares");
    let logs: Vec<f64> = y.to_f64().iter().map(|&share| libm::log(share)).collect();
    let log_y = run(&Op::LogSoftmax, one).remove(0);
    close(&log_y.to_f64(), &logs, 1e-13, "logarithms");
    let expected = differences(&Op::Softmax, one, 0, &dy.to_f64());
    close(&run_f64(&Op::SoftmaxGrad, &[y, dy.clone()]), &expected, 1e-8, "softmax");
    let expected = differences(&Op::LogSoftmax, one, 0, &dy.to_f64());
    close(&run_f64(&Op::LogSoftmaxGrad, &[log_y.clone(), dy]), &expected, 1e-8, "log softmax");

    let labels = Tensor::new([3], &[4i32, 0, 2]).unwrap();
    let losses = run_f64(&Op::CrossEntropy, &[x.clone(), labels.clone()]);
    let logs = log_y.to_f64();
    close(&losses, &[-logs[4], -logs[5], -logs[12]], 1e-13, "cross entropy");
    let d = tensor(&[3], &[1.0, -2.0, 0.5]);
    let operands = [x.clone(), labels.clone()];
    let expected = differences(&Op::CrossEntropy, &operands, 0, &d.to_f64());
    let found = run_f64(&Op::CrossEntropyGrad, &[x.clone(), labels, d]);
    close(&found, &expected, 1e-8, "cross entropy gradient");

    let bad = [x, Tensor::new([3], &[4i64, 5, -1]).unwrap()];
    let fault = Fault::LabelOutOfRange { label: 5, n_classes: 5, row: 1 };
    let ty = TensorType::new(DType::F64, [3]);
    assert_eq!(evaluate(&Op::CrossEntropy, &bad, &[ty]), Err(fault));
}

#[test]
fn norms_standardise_and_their_gradients_are_differences() {
    let operands = [spread(&[2, 3, 4], 1), spread(&[4], 2), spread(&[4], 3)];
    let dy = spread(&[2, 3, 4], 5);
    for (op, grad) in [
        (Op::LayerNorm { epsilon: 1e-3 }, Op::LayerNormGrad),
        (Op::BatchNorm { epsilon: 1e-3 }, Op::BatchNormGrad { epsilon: 1e-3 }),
    ] {
        let results = run(&op, &operands);
        let saved = [results[1].clone(), results[2].clone()];
        let [x, scale, _] = operands.clone();
        let [first, second] = saved;
        let found = run(&grad, &[x, scale, first, second, dy.clone()]);
        for (idx, found) in found.iter().enumerate() {
            let expected = differences(&op, &operands, idx, &dy.to_f64());
            close(&found.to_f64(), &expected, 1e-6, op.name());
        }
    }
    let x = tensor(&[2, 2], &[1.0, 3.0, 5.0, 9.0]);
    let plain = [x, tensor(&[2], &[1.0, 2.0]), tensor(&[2], &[0.0, 1.0])];
    let layer = run(&Op::LayerNorm { epsilon: 0.0 }, &plain);
    assert_eq!(layer[0].to_f64(), [-1.0, 3.0, -1.0, 3.0]);
    assert_eq!(layer[1].to_f64(), [2.0, 7.0]);
    assert_eq!(layer[2].to_f64(), [1.0, 0.5]);
    let batch = run(&Op::BatchNorm { epsilon: 0.0 }, &plain);
    assert_eq!(batch[0].to_f64(), [-1.0, -1.0, 1.0, 3.0]);
    assert_eq!(batch[1].to_f64(), [3.0, 6.0]);
    assert_eq!(batch[2].to_f64(), [4.0, 9.0]);
}

#[test]
fn attention_weighs_values_and_its_gradients_are_differences() {
    let mask = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        Tensor::new(shape, &(0..n).map(|i| i % 3 != 1).collect::<Vec<_>>()).unwrap()
    };
    for (causal, mask) in
        [(false, None), (true, None), (false, Some(mask(&[3, 4]))), (true, Some(mask(&[2, 3, 4])))]
    {
        let spec = AttentionSpec { heads: 2, causal, scale: 0.7, masked: mask.is_some() };
        let mut operands =
            vec![spread(&[2, 3, 4], 1), spread(&[2, 4, 4], 2), spread(&[2, 4, 4], 4)];
        operands.extend(mask);
        let op = Op::Attention(spec.clone());
        let dy = spread(&[2, 3, 4], 6);
        let mut with_dy = operands.clone();
        with_dy.push(dy.clone());
        for (idx, found) in run(&Op::AttentionGrad(spec), &with_dy).iter().enumerate() {
            let expected = differences(&op, &operands, idx, &dy.to_f64());
            close(&found.to_f64(), &expected, 1e-7, "attention");
        }
    }
    // One key may be seen by the first query, both alike by the second.
    let spec = AttentionSpec { heads: 1, causal: true, scale: 1.0, masked: false };
    let (q, k) = (tensor(&[1, 2, 1], &[0.0, 0.0]), tensor(&[1, 2, 1], &[5.0, 7.0]));
    let v = tensor(&[1, 2, 1], &[10.0, 20.0]);
    assert_eq!(run_f64(&Op::Attention(spec), &[q.clone(), k.clone(), v.clone()]), [10.0, 15.0]);
    let spec = AttentionSpec { heads: 1, causal: false, scale: 1.0, masked: true };
    let nothing = Tensor::new([2, 2], &[false, false, true, false]).unwrap();
    assert_eq!(run_f64(&Op::Attention(spec), &[q, k, v, nothing]), [0.0, 10.0]);
}

#[test]
fn narrow_types_round_what_doubles_give() {
    let window = window(&[1, 2], &[(1, 0), (0, 1)], &[1, 1], 1);
    let cases: [(Op, Vec<Vec<usize>>); 4] = [
        (Op::Matmul { transpose_lhs: false, transpose_rhs: true }, vec![vec![3, 9], vec![4, 9]]),
        (Op::Convolution(window), vec![vec![1, 4, 5, 2], vec![2, 2, 2, 3]]),
        (Op::Softmax, vec![vec![3, 7]]),
        (Op::LayerNorm { epsilon: 1e-5 }, vec![vec![3, 7], vec![7], vec![7]]),
    ];
    for (op, shapes) in cases {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let own = |(i, shape): (usize, &Vec<usize>)| scrambled(dtype, shape.clone(), i as u64);
            let operands: Vec<Tensor> = shapes.iter().enumerate().map(own).collect();
            let wide: Vec<Tensor> =
                operands.iter().map(|x| tensor(x.shape(), &x.to_f64())).collect();
            let (found, exact) = (run(&op, &operands).remove(0), run(&op, &wide).remove(0));
            let rounded = run(&Op::Cast { dtype }, &[exact]).remove(0);
            assert_eq!(found, rounded, "{} of {dtype}", op.name());
        }
    }
}
