//! A slow and simple interpreter, for tests: what a program means, so that rewritten ones can be held against it.
//!
//! Every value is held in doubles and rounded to its element type after each operation, which for sums, products,
//! quotients and roots of f32 gives the bits of IEEE arithmetic.

use std::collections::HashMap;
use std::error::Error;

use crate::{
    Addend, Binary, Comparison, DType, Element, Evaluate, Expression, Op, Program, Reduction,
    Spread, Tensor, TensorType, Term, Unary, ValueId,
};

/// Runs a program. Arguments are looked up by name; parameters that are not given are ones.
pub(crate) fn run(program: &Program, arguments: &HashMap<String, Tensor>) -> Vec<(String, Tensor)> {
    let values = evaluate(program, &|name, ty| {
        let given = arguments.get(name).cloned();
        given.unwrap_or_else(|| Tensor::filled(ty.clone(), 1.0).unwrap()).to_f64()
    });
    let tensor = |value: ValueId| to_tensor(program.ty(value), &values[value.idx()]);
    let outputs = program.outputs().iter().map(|o| (o.name.clone(), tensor(o.value)));
    let updates =
        program.updates().iter().map(|u| (program.describe(u.parameter), tensor(u.value)));
    outputs.chain(updates).collect()
}

/// Folds constants with the interpreter.
pub(crate) struct Interpreter;

impl Evaluate for Interpreter {
    fn evaluate(&self, program: &Program) -> Result<Vec<Tensor>, Box<dyn Error + Send + Sync>> {
        assert!(program.inputs().next().is_none() && program.parameters().next().is_none());
        Ok(run(program, &HashMap::new()).into_iter().map(|(_, tensor)| tensor).collect())
    }
}

fn to_tensor(ty: &TensorType, values: &[f64]) -> Tensor {
    let bytes = values.iter().flat_map(|&v| Tensor::scalar(ty.dtype, v).bytes().to_vec()).collect();
    Tensor::from_bytes(ty.clone(), bytes).unwrap()
}

fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::Bool => f64::from(u8::from(value != 0.0)),
        DType::I32 => i32::from_f64(value).to_f64(),
        DType::I64 => i64::from_f64(value).to_f64(),
        _ => value,
    }
}

type Values = Vec<Vec<f64>>;

fn evaluate(program: &Program, argument: &dyn Fn(&str, &TensorType) -> Vec<f64>) -> Values {
    let mut values: Values = Vec::new();
    for node in program.nodes() {
        let ty = node.results.first().map(|&r| program.ty(r).clone());
        let operands: Vec<&[f64]> = node.operands.iter().map(|v| &values[v.idx()][..]).collect();
        let types: Vec<&TensorType> = node.operands.iter().map(|&v| program.ty(v)).collect();
        let results = match (&node.op, ty) {
            (Op::Input { name, .. } | Op::Parameter { name, .. }, Some(ty)) => {
                vec![argument(name, &ty)]
            }
            (Op::Scan(scan), _) => run_scan(scan, &operands, &types),
            (Op::Cond(cond), _) => {
                let (body, rest) = match operands[0][0] != 0.0 {
                    true => (&cond.then, &operands[1..]),
                    false => (&cond.otherwise, &operands[1 + cond.then.inputs().count()..]),
                };
                run_body(body, rest)
            }
            (Op::Fused(expression), Some(ty)) => fused(expression, &ty, &operands),
            (op, Some(ty)) => vec![simple(op, &ty, &operands, &types)],
            (_, None) => vec![],
        };
        for (result, value) in node.results.iter().zip(results) {
            let dtype = program.ty(*result).dtype;
            values.push(value.into_iter().map(|v| rounded(dtype, v)).collect());
        }
    }
    values
}

fn run_body(body: &Program, inputs: &[&[f64]]) -> Values {
    let names: Vec<&str> = body.inputs().map(|(name, _)| name).collect();
    let values = evaluate(body, &|name, _| {
        inputs[names.iter().position(|known| *known == name).unwrap()].to_vec()
    });
    body.outputs().iter().map(|output| values[output.value.idx()].clone()).collect()
}

fn run_scan(scan: &crate::ScanSpec, operands: &[&[f64]], _: &[&TensorType]) -> Values {
    let (carried, rest) = operands.split_at(scan.n_carried);
    let (scanned, captured) = rest.split_at(scan.n_scanned);
    let mut carried: Values = carried.iter().map(|c| c.to_vec()).collect();
    let n_stacked = scan.body.outputs().len() - scan.n_carried;
    let mut stacked: Vec<Values> = vec![vec![Vec::new(); scan.length]; n_stacked];
    let mut order: Vec<usize> = (0..scan.length).collect();
    if scan.reverse {
        order.reverse();
    }
    for t in order {
        let iteration = [t as f64];
        let mut inputs: Vec<&[f64]> = vec![&iteration];
        inputs.extend(carried.iter().map(|c| &c[..]));
        inputs.extend(scanned.iter().map(|s| {
            let size = s.len() / scan.length;
            &s[t * size..(t + 1) * size]
        }));
        inputs.extend(captured);
        let mut next = run_body(&scan.body, &inputs);
        for (idx, value) in next.split_off(scan.n_carried).into_iter().enumerate() {
            stacked[idx][t] = value;
        }
        carried = next;
    }
    carried.into_iter().chain(stacked.into_iter().map(|parts| parts.concat())).collect()
}

/// The index along each axis of an element.
fn position(shape: &[usize], mut element: usize) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        at[axis] = element % shape[axis];
        element /= shape[axis];
    }
    at
}

fn element(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |sum, (&size, &idx)| sum * size + idx)
}

fn simple(op: &Op, ty: &TensorType, operands: &[&[f64]], types: &[&TensorType]) -> Vec<f64> {
    let n = ty.shape.n_elements();
    let each = |f: &dyn Fn(usize) -> f64| (0..n).map(f).collect::<Vec<f64>>();
    let at = |i: usize| position(&ty.shape, i);
    match op {
        Op::Constant(tensor) => tensor.to_f64(),
        Op::Iota { axis, .. } => each(&|i| at(i)[*axis] as f64),
        Op::Unary(unary) => each(&|i| unary_of(*unary, operands[0][i])),
        Op::Binary(binary) => each(&|i| binary_of(*binary, operands[0][i], operands[1][i])),
        Op::Compare(c) => {
            each(&|i| f64::from(u8::from(compare(*c, operands[0][i], operands[1][i]))))
        }
        Op::Select => {
            each(&|i| if operands[0][i] != 0.0 { operands[1][i] } else { operands[2][i] })
        }
        Op::Cast { .. } | Op::Reshape { .. } | Op::GrainSum => operands[0].to_vec(),
        Op::Broadcast { axes, .. } => each(&|i| {
            let (at, from) = (at(i), &types[0].shape);
            let own = axes.iter().zip(from.iter()).map(|(&a, &s)| if s == 1 { 0 } else { at[a] });
            operands[0][element(from, &own.collect::<Vec<_>>())]
        }),
        Op::Transpose { order } => each(&|i| {
            let mut own = vec![0; order.len()];
            order.iter().zip(at(i)).for_each(|(&axis, idx)| own[axis] = idx);
            operands[0][element(&types[0].shape, &own)]
        }),
        Op::Slice { start, stride, .. } => each(&|i| {
            let own = at(i)
                .iter()
                .enumerate()
                .map(|(a, idx)| start[a] + idx * stride[a])
                .collect::<Vec<_>>();
            operands[0][element(&types[0].shape, &own)]
        }),
        Op::Reduce { kind, axes } => reduce(*kind, axes, ty, operands[0], &types[0].shape),
        Op::Matmul { transpose_lhs, transpose_rhs } => {
            product(ty, [*transpose_lhs, *transpose_rhs], operands, types)
        }
        Op::Dense { transpose_lhs, transpose_rhs, add, activation } => {
            let product = product(ty, [*transpose_lhs, *transpose_rhs], operands, types);
            let sum = |i: usize| match add {
                Some(Addend::Bias) => product[i] + operands[2][i % ty.shape.last()],
                Some(Addend::Matrix) => operands[2][i] + product[i],
                None => product[i],
            };
            each(&|i| {
                let sum = rounded(DType::F32, sum(i));
                activation.map_or(sum, |unary| unary_of(unary, sum))
            })
        }
        Op::Softmax => operands[0].chunks(ty.shape.last()).flat_map(softmax).collect(),
        Op::BlockSquareSums => operands[0]
            .chunks(crate::SQUARE_BLOCK)
            .map(|block| block.iter().fold(0.0, |sum, v| rounded(DType::F32, sum + v * v)))
            .collect(),
        other => panic!("the tests have no {}", other.name()),
    }
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|v| rounded(DType::F32, (v - largest).exp())).collect();
    let sum = powers.iter().fold(0.0, |sum, v| rounded(DType::F32, sum + v));
    powers.iter().map(|power| power / sum).collect()
}

fn reduce(kind: Reduction, axes: &[usize], ty: &TensorType, x: &[f64], from: &[usize]) -> Vec<f64> {
    let start = match kind {
        Reduction::Sum => 0.0,
        Reduction::Product => 1.0,
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
    };
    let mut results = vec![start; ty.shape.n_elements()];
    for (i, &value) in x.iter().enumerate() {
        let at = position(from, i);
        let kept = (0..from.len()).filter(|axis| !axes.contains(axis)).map(|axis| at[axis]);
        let result = &mut results[element(&ty.shape, &kept.collect::<Vec<_>>())];
        *result = match kind {
            Reduction::Sum => rounded(ty.dtype, *result + value),
            Reduction::Product => rounded(ty.dtype, *result * value),
            Reduction::Max => result.max(value),
            Reduction::Min => result.min(value),
        };
    }
    results
}

fn product(ty: &TensorType, flags: [bool; 2], x: &[&[f64]], types: &[&TensorType]) -> Vec<f64> {
    let rank = ty.shape.rank();
    let (m, n) = (ty.shape[rank - 2], ty.shape[rank - 1]);
    let lhs = &types[0].shape;
    let k = lhs[lhs.rank() - if flags[0] { 2 } else { 1 }];
    let batched = types[1].shape.rank() > 2;
    let one = |i: usize| {
        let (batch, row, column) = (i / (m * n), i / n % m, i % n);
        let right = if batched { batch * k * n } else { 0 };
        (0..k).fold(0.0, |sum, step| {
            let a = x[0][batch * m * k + if flags[0] { step * m + row } else { row * k + step }];
            let b = x[1][right + if flags[1] { column * k + step } else { step * n + column }];
            rounded(DType::F32, a.mul_add(b, sum))
        })
    };
    (0..ty.shape.n_elements()).map(one).collect()
}

fn fused(expression: &Expression, ty: &TensorType, operands: &[&[f64]]) -> Values {
    let n = ty.shape.n_elements();
    let mut results: Values = vec![Vec::with_capacity(n); expression.results.len()];
    for i in 0..n {
        let mut terms: Vec<f64> = Vec::new();
        for term in &expression.terms {
            let t = |idx: u32| terms[idx as usize];
            let value = match *term {
                Term::Operand(idx) => {
                    let own = operands[idx as usize];
                    match expression.operands[idx as usize] {
                        Spread::Full => own[i],
                        Spread::Scalar => own[0],
                        Spread::Trailing => own[i % own.len()],
                        Spread::Leading => own[i / (n / own.len())],
                    }
                }
                Term::Number(number) => f64::from(number),
                Term::Unary(unary, a) => unary_of(unary, t(a)),
                Term::Binary(binary, a, b) => binary_of(binary, t(a), t(b)),
                Term::Compare(c, a, b) => f64::from(u8::from(compare(c, t(a), t(b)))),
                Term::Select(c, a, b) => {
                    if t(c) != 0.0 {
                        t(a)
                    } else {
                        t(b)
                    }
                }
            };
            terms.push(rounded(DType::F32, value));
        }
        for (result, &term) in results.iter_mut().zip(&expression.results) {
            result.push(terms[term as usize]);
        }
    }
    results
}

fn compare(comparison: Comparison, a: f64, b: f64) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
    }
}

fn unary_of(unary: Unary, x: f64) -> f64 {
    match unary {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Tanh => x.tanh(),
        Unary::Logistic => 1.0 / (1.0 + (-x).exp()),
        Unary::Relu => {
            if x > 0.0 {
                x
            } else {
                x * 0.0
            }
        }
        Unary::Not => f64::from(u8::from(x == 0.0)),
        Unary::Sin | Unary::Gelu | Unary::GeluSlope | Unary::Silu => x.sin(),
        Unary::Floor => x.floor(),
        Unary::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        other => panic!("the tests have no {}", other.name()),
    }
}

fn binary_of(binary: Binary, a: f64, b: f64) -> f64 {
    match binary {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        Binary::Min => {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        Binary::And => a * b,
        other => panic!("the tests have no {}", other.name()),
    }
}
