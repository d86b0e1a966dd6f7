//! Elementwise operations, reductions, and moves.

use half::{bf16, f16};
use manyhands_program::{
    Binary, Comparison, DType, Distribution, Element, Expression, Op, Reduction, SQUARE_BLOCK,
    Shape, Spread, Tensor, TensorType, Term, Unary,
};

use super::super::{Fault, place};
use super::{evaluate, scrambled};

fn row<T: Element>(elements: &[T]) -> Tensor {
    Tensor::new([elements.len()], elements).unwrap()
}

/// The elements of the only result, which has the given type.
fn run<T: Element>(op: Op, operands: &[Tensor], shape: impl Into<Shape>) -> Vec<T> {
    let results = evaluate(&op, operands, &[TensorType::new(T::DTYPE, shape)]).unwrap();
    results[0].elements().unwrap()
}

fn unary<T: Element>(unary: Unary, x: &[T]) -> Vec<T> {
    run(Op::Unary(unary), &[row(x)], [x.len()])
}

fn binary<T: Element>(binary: Binary, a: &[T], b: &[T]) -> Vec<T> {
    run(Op::Binary(binary), &[row(a), row(b)], [a.len()])
}

fn cast<From: Element, To: Element>(x: &[From]) -> Vec<To> {
    run(Op::Cast { dtype: To::DTYPE }, &[row(x)], [x.len()])
}

#[test]
fn arithmetic_of_f32_is_that_of_the_machine() {
    let a: Vec<f32> = (0..2000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
    let b: Vec<f32> = (0..2000u32).map(|i| f32::from_bits(i.wrapping_mul(1_013_904_223))).collect();
    let check = |op: Binary, expected: fn(f32, f32) -> f32| {
        for (i, found) in binary(op, &a, &b).into_iter().enumerate() {
            let expected = expected(a[i], b[i]);
            let same =
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
            assert!(same, "{op:?} of {} and {}: {found}, not {expected}", a[i], b[i]);
        }
    };
    check(Binary::Add, |a, b| a + b);
    check(Binary::Sub, |a, b| a - b);
    check(Binary::Mul, |a, b| a * b);
    check(Binary::Div, |a, b| a / b);
    check(Binary::Rem, |a, b| a % b);
}

#[test]
fn integers_wrap_and_divide_by_zero_to_zero() {
    assert_eq!(binary(Binary::Add, &[i32::MAX, 1], &[1, 2]), [i32::MIN, 3]);
    assert_eq!(binary(Binary::Mul, &[200u8], &[2]), [144]);
    assert_eq!(binary(Binary::Div, &[-7i64, 7, i64::MIN], &[2, 0, -1]), [-3, 0, i64::MIN]);
    assert_eq!(binary(Binary::Rem, &[-7i32, 7, 7], &[4, 0, -4]), [-3, 0, 3]);
    assert_eq!(unary(Unary::Neg, &[i32::MIN, 5]), [i32::MIN, -5]);
    assert_eq!(unary(Unary::Abs, &[-3i64, 3]), [3, 3]);
    assert_eq!(unary(Unary::Sign, &[-3i32, 0, 9]), [-1, 0, 1]);
    assert_eq!(unary(Unary::Relu, &[-3i64, 9]), [0, 9]);
}

#[test]
fn the_larger_and_the_smaller_keep_nan() {
    let (a, b) = ([1.0f32, f32::NAN, 1.0], [2.0f32, 1.0, f32::NAN]);
    for op in [Binary::Max, Binary::Min] {
        let found = binary(op, &a, &b);
        assert!(!found[0].is_nan() && found[1].is_nan() && found[2].is_nan());
    }
    assert!(unary(Unary::Relu, &[f32::NAN])[0].is_nan());
    assert_eq!(binary(Binary::Max, &[3u8, 200], &[4, 100]), [4, 200]);
}

#[test]
fn functions_have_their_known_values() {
    let near = |op: Unary, x: f64, expected: f64| {
        let found = unary(op, &[x])[0];
        assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{op:?}({x}) is {found}");
        let narrow = unary(op, &[x as f32])[0];
        assert_eq!(narrow, unary(op, &[f64::from(x as f32)])[0] as f32, "{op:?} rounds once");
    };
    near(Unary::Exp, 1.0, std::f64::consts::E);
    near(Unary::Expm1, 1e-10, 1.00000000005e-10);
    near(Unary::Log, 10.0, std::f64::consts::LN_10);
    near(Unary::Log1p, 1e-10, 9.9999999995e-11);
    near(Unary::Sqrt, 2.0, std::f64::consts::SQRT_2);
    near(Unary::Rsqrt, 4.0, 0.5);
    near(Unary::Tanh, 0.5, 0.46211715726000976);
    near(Unary::Logistic, 0.5, 0.6224593312018546);
    near(Unary::Erf, 0.5, 0.5204998778130465);
    near(Unary::Gelu, 1.0, 0.8413447460685429);
    near(Unary::Gelu, -3.0, -0.00404969409489029);
    near(Unary::GeluSlope, 1.0, 1.0833154705876864);
    near(Unary::Silu, 1.0, 0.7310585786300049);
    near(Unary::Softplus, 1.0, 1.3132616875182228);
    near(Unary::Sin, 1.0, 0.8414709848078965);
    near(Unary::Cos, 1.0, 0.5403023058681398);
    assert_eq!(unary(Unary::Round, &[0.5f64, 1.5, -2.5]), [0.0, 2.0, -2.0]);
    assert_eq!(unary(Unary::Floor, &[-0.5f32, 1.5]), [-1.0, 1.0]);
    assert_eq!(unary(Unary::Ceil, &[-0.5f32, 1.5]), [-0.0, 2.0]);
    assert_eq!(unary(Unary::Softplus, &[-1000.0f64, 1000.0]), [0.0, 1000.0]);
    assert_eq!(unary(Unary::Gelu, &[f64::NEG_INFINITY, f64::INFINITY]), [0.0, f64::INFINITY]);
    assert_eq!(unary(Unary::Silu, &[f64::NEG_INFINITY, f64::INFINITY]), [0.0, f64::INFINITY]);
    assert_eq!(binary(Binary::Pow, &[2.0f32, -2.0], &[0.5, 3.0]), [std::f32::consts::SQRT_2, -8.0]);
    assert_eq!(unary(Unary::Not, &[true, false]), [false, true]);
    assert_eq!(
        binary(Binary::Xor, &[true, true, false], &[true, false, false]),
        [false, true, false]
    );
}

#[test]
fn casts_saturate_round_once_and_test_for_zero() {
    assert_eq!(cast::<f32, i32>(&[1e10, -1e10, f32::NAN, -1.9]), [i32::MAX, i32::MIN, 0, -1]);
    assert_eq!(cast::<f64, u8>(&[300.0, -5.0, 7.9]), [255, 0, 7]);
    assert_eq!(cast::<i64, i32>(&[1 << 32 | 5]), [5]);
    assert_eq!(cast::<f32, bool>(&[0.0, -0.0, 0.1, f32::NAN]), [false, false, true, true]);
    assert_eq!(cast::<bool, f16>(&[true, false]), [f16::ONE, f16::ZERO]);
    // Just above the middle between two neighbours: rounding to f32 first would lose the "above".
    let above = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
    assert_eq!(cast::<f64, f16>(&[above, 1.0 + f64::powi(2.0, -11)])[0].to_bits(), 0x3c01);
    assert_eq!(cast::<f64, f16>(&[1.0 + f64::powi(2.0, -11)])[0].to_bits(), 0x3c00);
    let above = 1.0 + f64::powi(2.0, -8) + f64::powi(2.0, -50);
    assert_eq!(cast::<f64, bf16>(&[above])[0].to_bits(), 0x3f81);
    assert_eq!(cast::<f64, bf16>(&[f64::MAX, f64::MIN])[0], bf16::INFINITY);
    assert!(cast::<f64, f16>(&[f64::NAN])[0].is_nan());
    let large = (1i64 << 62) + (1i64 << 38) + 1;
    assert_eq!(cast::<i64, f32>(&[large, -large]), [large as f32, -(large as f32)]);
}

#[test]
fn comparisons_with_nan_hold_only_for_ne() {
    for &comparison in Comparison::ALL {
        let found = run::<bool>(Op::Compare(comparison), &[row(&[f32::NAN]), row(&[1.0f32])], [1]);
        assert_eq!(found[0], comparison == Comparison::Ne);
    }
    let (a, b) = (row(&[false, true]), row(&[true, true]));
    assert_eq!(run::<bool>(Op::Compare(Comparison::Lt), &[a, b], [2]), [true, false]);
}

#[test]
fn selects_and_counts() {
    let operands = [row(&[true, false]), row(&[1i64, 2]), row(&[3i64, 4])];
    assert_eq!(run::<i64>(Op::Select, &operands, [2]), [1, 4]);
    let iota = |axis: usize| Op::Iota { dtype: DType::F16, shape: [2, 3].into(), axis };
    let numbers = |found: Vec<f16>| found.into_iter().map(f64::from).collect::<Vec<_>>();
    assert_eq!(numbers(run(iota(1), &[], [2, 3])), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    assert_eq!(numbers(run(iota(0), &[], [2, 3])), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn reductions_sum_along_their_axes() {
    let x = Tensor::new([2, 3, 2], &(0..12).collect::<Vec<i32>>()).unwrap();
    let reduce = |kind: Reduction, axes: &[usize], shape: &[usize]| {
        run::<i32>(Op::Reduce { kind, axes: axes.to_vec() }, std::slice::from_ref(&x), shape)
    };
    assert_eq!(reduce(Reduction::Sum, &[1], &[2, 2]), [6, 9, 24, 27]);
    assert_eq!(reduce(Reduction::Sum, &[0, 2], &[3]), [14, 22, 30]);
    assert_eq!(reduce(Reduction::Max, &[0, 1, 2], &[]), [11]);
    assert_eq!(reduce(Reduction::Min, &[0], &[3, 2]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(reduce(Reduction::Product, &[2], &[2, 3]), [0, 6, 20, 42, 72, 110]);
    let empty = Tensor::new([0, 2], &[0.0f32; 0]).unwrap();
    let over = |kind: Reduction| {
        run::<f32>(Op::Reduce { kind, axes: vec![0] }, std::slice::from_ref(&empty), [2])
    };
    assert_eq!(over(Reduction::Sum)[0].to_bits(), 0);
    assert_eq!(over(Reduction::Max), [f32::NEG_INFINITY; 2]);
    // In f32 the small ones would be lost one by one.
    let many: Vec<f32> = std::iter::once(16_777_216.0).chain([1.0; 4]).collect();
    let sum = Op::Reduce { kind: Reduction::Sum, axes: vec![0] };
    assert_eq!(run::<f32>(sum, &[row(&many)], []), [16_777_220.0]);
}

#[test]
fn argmax_is_the_first_largest_or_the_first_nan() {
    let argmax = |x: &[f32]| run::<i32>(Op::Argmax { axis: 0 }, &[row(x)], [])[0];
    assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    assert_eq!(argmax(&[1.0, f32::NAN, 3.0, f32::NAN]), 1);
    let x = Tensor::new([2, 2], &[1u8, 5, 3, 2]).unwrap();
    assert_eq!(run::<i32>(Op::Argmax { axis: 0 }, &[x], [2]), [1, 0]);
}

#[test]
fn squares_are_summed_in_blocks() {
    let x = Tensor::filled(TensorType::new(DType::Bf16, [SQUARE_BLOCK + 3]), 2.0).unwrap();
    let found = run::<bf16>(Op::BlockSquareSums, &[x], [2]);
    assert_eq!(found.map_f64(), [4096.0, 12.0]);
}

trait MapF64 {
    fn map_f64(self) -> Vec<f64>;
}

impl<T: Element> MapF64 for Vec<T> {
    fn map_f64(self) -> Vec<f64> {
        self.into_iter().map(Element::to_f64).collect()
    }
}

#[test]
fn moves_put_elements_where_they_belong() {
    let x = Tensor::new([2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
    let one = |op: Op, shape: &[usize]| run::<i64>(op, std::slice::from_ref(&x), shape);
    assert_eq!(one(Op::Transpose { order: vec![1, 0] }, &[3, 2]), [1, 4, 2, 5, 3, 6]);
    let slice = Op::Slice { start: vec![1, 0], limit: vec![2, 3], stride: vec![1, 2] };
    assert_eq!(one(slice, &[1, 2]), [4, 6]);
    assert_eq!(one(Op::Reshape { shape: [6].into() }, &[6]), [1, 2, 3, 4, 5, 6]);
    let stretched = Op::Broadcast { shape: [2, 2, 3].into(), axes: vec![1, 2] };
    assert_eq!(one(stretched, &[2, 2, 3]), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]);
    let column = Tensor::new([2, 1], &[7i64, 8]).unwrap();
    let stretched = Op::Broadcast { shape: [2, 3].into(), axes: vec![0, 1] };
    assert_eq!(run::<i64>(stretched, std::slice::from_ref(&column), [2, 3]), [7, 7, 7, 8, 8, 8]);
    let joined = run::<i64>(Op::Concatenate { axis: 1 }, &[x.clone(), column], [2, 4]);
    assert_eq!(joined, [1, 2, 3, 7, 4, 5, 6, 8]);
    let pad = Op::Pad { low: vec![1], high: vec![2], interior: vec![1] };
    let operands = [row(&[1u8, 2, 3]), Tensor::new([], &[9u8]).unwrap()];
    assert_eq!(run::<u8>(pad, &operands, [8]), [9, 1, 9, 2, 9, 3, 9, 9]);
}

#[test]
fn rows_are_gathered_and_added_back() {
    let x = Tensor::new([3, 2], &[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let indices = row(&[2i32, 0, 2]);
    let operands = [x.clone(), indices.clone()];
    let picked = run::<f64>(Op::Gather { axis: 0 }, &operands, [3, 2]);
    assert_eq!(picked, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    let updates = Tensor::new([3, 2], &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).unwrap();
    let added = run::<f64>(Op::ScatterAdd { axis: 0 }, &[x.clone(), indices, updates], [3, 2]);
    assert_eq!(added, [31.0, 42.0, 3.0, 4.0, 65.0, 86.0]);
    let columns = run::<f64>(Op::Gather { axis: 1 }, &[x.clone(), row(&[1i64])], [3, 1]);
    assert_eq!(columns, [2.0, 4.0, 6.0]);
    let bad = [x, row(&[1i64, 3])];
    let ty = TensorType::new(DType::F64, [2, 2]);
    let fault = Fault::IndexOutOfRange { index: 3, size: 3, position: 1 };
    assert_eq!(evaluate(&Op::Gather { axis: 0 }, &bad, &[ty]), Err(fault));
}

#[test]
fn dropout_keeps_the_same_elements_in_every_type() {
    let context = row(&[5i64, 2, 1]);
    let op = Op::Dropout { rate: 0.25, key: 77 };
    let run = |dtype: DType| {
        let ty = TensorType::new(dtype, [300]);
        let operands = [Tensor::filled(ty.clone(), 3.0).unwrap(), context.clone()];
        evaluate(&op, &operands, &[ty]).unwrap()[0].to_f64()
    };
    let expected = run(DType::F32);
    let n_dropped = expected.iter().filter(|&&value| value == 0.0).count();
    assert!((40..110).contains(&n_dropped), "{n_dropped} of 300");
    assert!(expected.iter().all(|&value| value == 0.0 || value == 4.0));
    for dtype in [DType::F64, DType::F16, DType::Bf16] {
        assert_eq!(run(dtype), expected);
    }
}

#[test]
fn random_numbers_depend_on_every_iteration_around_them() {
    let op = Op::Random { distribution: Distribution::Uniform, shape: [64].into(), key: 3 };
    let draw = |iterations: &[i32]| {
        let mut operands = vec![row(&[5i64, 2, 1])];
        operands.extend(iterations.iter().map(|&i| Tensor::new([], &[i]).unwrap()));
        run::<f32>(op.clone(), &operands, [64])
    };
    assert!(draw(&[]).iter().all(|value| (0.0..1.0).contains(value)));
    assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
    assert_ne!(draw(&[1, 2]), draw(&[0, 2]));
    assert_ne!(draw(&[1, 2]), draw(&[1, 1]));
    assert_ne!(draw(&[1]), draw(&[2]));
    assert_eq!(place(3, [5, 2, 1], [7]).iteration, 7);
    assert_eq!(place(3, [5, 2, 1], []).operation, 3);
}

#[test]
fn a_fused_expression_does_its_parts() {
    let expression = Expression {
        operands: vec![Spread::Full, Spread::Trailing, Spread::Leading, Spread::Scalar],
        terms: vec![
            Term::Operand(0),
            Term::Operand(1),
            Term::Binary(Binary::Add, 0, 1),
            Term::Operand(2),
            Term::Binary(Binary::Mul, 2, 3),
            Term::Operand(3),
            Term::Compare(Comparison::Gt, 4, 5),
            Term::Number(-1.0),
            Term::Select(6, 4, 7),
            Term::Unary(Unary::Exp, 7),
        ],
        results: vec![8, 9],
    };
    let x = Tensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let operands = [x, row(&[10.0f32, 20.0]), row(&[1.0f32, 2.0]), row(&[12.0f32])];
    let ty = TensorType::new(DType::F32, [2, 2]);
    let found = evaluate(&Op::Fused(expression), &operands, &[ty.clone(), ty]).unwrap();
    assert_eq!(found[0].elements::<f32>().unwrap(), [-1.0, 22.0, 26.0, 48.0]);
    assert_eq!(found[1].elements::<f32>().unwrap(), [libm::exp(-1.0) as f32; 4]);
}

#[test]
fn empty_tensors_are_fine() {
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
        let x = scrambled(dtype, [0, 4], 1);
        for op in [Op::Unary(Unary::Exp), Op::Softmax] {
            let found = evaluate(&op, std::slice::from_ref(&x), std::slice::from_ref(x.ty()));
            assert_eq!(found, Ok(vec![x.clone()]));
        }
        let w = scrambled(dtype, [4, 3], 2);
        let matmul = Op::Matmul { transpose_lhs: false, transpose_rhs: false };
        assert!(evaluate(&matmul, &[x, w], &[TensorType::new(dtype, [0, 3])]).is_ok());
    }
}
