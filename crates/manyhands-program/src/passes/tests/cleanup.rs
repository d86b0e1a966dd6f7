//! Dead code, common subexpressions, constant folding, simplification.

use std::error::Error;

use expect_test::expect;

use super::super::interpreter::Interpreter;
use super::super::{Evaluate, dead_code, fold_constants, simplify, subexpressions};
use super::{check, same_results};
use crate::{Binary, Builder, DType, Op, Program, Tensor, Unary};

#[test]
fn what_nobody_needs_is_dropped_but_the_signature_stays() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2]
        %1 = input {name: "unused"} : f32[3]
        %2 = exp %0 : f32[2]
        %3 = tanh %0 : f32[2]
        %4 = neg %3 : f32[2]
        output y = %2
        "#,
        dead_code,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2]
              %1 = input {name: "unused"} : f32[3]
              %2 = exp %0 : f32[2]
              output y = %2
            }
        "#]],
    );
}

/// A scan that carries two values and stacks two, of which only one stacked value is used.
fn scan() -> Program {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [3, 2]).unwrap();
    let (a, b) = (g.input("a", DType::F32, [2]).unwrap(), g.input("b", DType::F32, [2]).unwrap());
    let (_, stacked) = g
        .scan(&[&a, &b], &[&x, &x], false, |_, carried, items| {
            let next = (&carried[0] + &items[0])?;
            let other = (&carried[1] * &b)?;
            let (seen, unseen) = ((-&next)?, (&other + &items[1])?);
            Ok((vec![next, other], vec![unseen, seen]))
        })
        .unwrap();
    g.output("y", &stacked[1]).unwrap();
    g.finish()
}

#[test]
fn a_scan_loses_the_carried_stacked_and_captured_values_that_nobody_needs() {
    let before = scan();
    let after = dead_code(&before).unwrap();
    same_results(&before, &after);
    expect![[r#"
        program t {
          %0 = input {name: "x"} : f32[3, 2]
          %1 = input {name: "a"} : f32[2]
          %2 = input {name: "b"} : f32[2]
          %3, %4 = scan %1, %0 {n_carried: 1, n_scanned: 1, length: 3} : f32[2], f32[3, 2] body {
            %0 = input {name: "iteration"} : i32[]
            %1 = input {name: "carried0"} : f32[2]
            %2 = input {name: "scanned0"} : f32[2]
            %3 = add %1, %2 : f32[2]
            %4 = neg %3 : f32[2]
            output out0 = %3
            output out3 = %4
          }
          output y = %4
        }
    "#]]
    .assert_eq(&after.to_string());
}

#[test]
fn a_cond_loses_the_results_that_nobody_needs() {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let y = g.input("y", DType::F32, [2]).unwrap();
    let flag = g.input("flag", DType::Bool, []).unwrap();
    let exp = Op::Unary(Unary::Exp);
    let results = g
        .cond(
            &flag,
            |g| {
                Ok(vec![g.apply(exp.clone(), &[&x])?, g.apply(Op::Binary(Binary::Add), &[&x, &y])?])
            },
            |g| Ok(vec![g.apply(exp.clone(), &[&y])?, g.apply(exp.clone(), &[&x])?]),
        )
        .unwrap();
    g.output("second", &results[1]).unwrap();
    let before = g.finish();
    let after = dead_code(&before).unwrap();
    same_results(&before, &after);
    expect![[r#"
        program t {
          %0 = input {name: "x"} : f32[2]
          %1 = input {name: "y"} : f32[2]
          %2 = input {name: "flag"} : bool[]
          %3 = cond %2, %0, %1, %0 : f32[2] then {
            %0 = input {name: "captured0"} : f32[2]
            %1 = input {name: "captured1"} : f32[2]
            %2 = add %0, %1 : f32[2]
            output out1 = %2
          } otherwise {
            %0 = input {name: "captured1"} : f32[2]
            %1 = exp %0 : f32[2]
            output out1 = %1
          }
          output second = %3
        }
    "#]]
    .assert_eq(&after.to_string());
}

#[test]
fn equal_expressions_are_computed_once_and_random_ones_by_their_key() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2]
        %1 = constant {splat: 0.5} : f32[2]
        %2 = constant {splat: 0.5} : f32[2]
        %3 = mul %0, %1 : f32[2]
        %4 = mul %0, %2 : f32[2]
        %5 = add %3, %4 : f32[2]
        %6 = sub %4, %3 : f32[2]
        output a = %5
        output b = %6
        "#,
        subexpressions,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2]
              %1 = constant {splat: 0.5} : f32[2]
              %2 = mul %0, %1 : f32[2]
              %3 = add %2, %2 : f32[2]
              %4 = sub %2, %2 : f32[2]
              output a = %3
              output b = %4
            }
        "#]],
    );
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [4]).unwrap();
    let (a, b) = (x.dropout(0.5).unwrap(), x.dropout(0.5).unwrap());
    let random = g.inspect(|program| program.definer(a.id()).operands[1]);
    let again =
        g.apply(g.inspect(|p| p.definer(a.id()).op.clone()), &[&x, &g.value(random)]).unwrap();
    for (name, value) in [("a", &a), ("b", &b), ("again", &again)] {
        g.output(name, value).unwrap();
    }
    let shared = subexpressions(&g.finish()).unwrap();
    assert_eq!(shared.output("a"), shared.output("again"));
    assert_ne!(shared.output("a"), shared.output("b"));
}

#[test]
fn constants_are_folded_but_not_spread_out() {
    check(
        r#"
        %0 = input {name: "x"} : f32[100, 100]
        %1 = constant {splat: 2.0} : f32[]
        %2 = exp %1 : f32[]
        %3 = broadcast %2 {axes: []} : f32[100, 100]
        %4 = add %0, %3 : f32[100, 100]
        %5 = constant {list: [1, 2, 3]} : f32[3]
        %6 = reduce %5 {kind: sum, axes: [0]} : f32[]
        %7 = constant {splat: 1.0} : f32[3]
        %8 = add %7, %7 : f32[3]
        %9 = mul %5, %8 : f32[3]
        output a = %4
        output b = %6
        output c = %9
        "#,
        |program| fold_constants(program, &Interpreter),
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[100, 100]
              %1 = constant {splat: 7.389056} : f32[]
              %2 = broadcast %1 {axes: []} : f32[100, 100]
              %3 = add %0, %2 : f32[100, 100]
              %4 = constant {splat: 6.0} : f32[]
              %5 = constant {list: [2.0, 4.0, 6.0]} : f32[3]
              output a = %3
              output b = %4
              output c = %5
            }
        "#]],
    );
}

#[test]
fn a_large_value_made_of_little_is_left_to_the_run() {
    check(
        r#"
        %0 = iota {axis: 0} : i32[100, 100]
        %1 = iota {axis: 1} : i32[100, 100]
        %2 = ge %0, %1 : bool[100, 100]
        %3 = constant {splat: 1} : i64[]
        %4 = grain_sum %3 : i64[]
        output mask = %2
        output n_grains = %4
        "#,
        |program| fold_constants(program, &Interpreter),
        &expect![[r#"
            program t {
              %0 = iota {axis: 0} : i32[100, 100]
              %1 = iota {axis: 1} : i32[100, 100]
              %2 = ge %0, %1 : bool[100, 100]
              %3 = constant {splat: 1} : i64[]
              %4 = grain_sum %3 : i64[]
              output mask = %2
              output n_grains = %4
            }
        "#]],
    );
}

#[test]
fn operations_that_do_nothing_go() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2, 3]
        %1 = transpose %0 {order: [1, 0]} : f32[3, 2]
        %2 = transpose %1 {order: [1, 0]} : f32[2, 3]
        %3 = reshape %2 : f32[6]
        %4 = reshape %3 : f32[3, 2]
        %5 = slice %4 {start: [0, 0], limit: [3, 2], stride: [1, 1]} : f32[3, 2]
        %6 = constant {splat: 1.0} : f32[3, 2]
        %7 = mul %5, %6 : f32[3, 2]
        %8 = div %7, %6 : f32[3, 2]
        %9 = neg %8 : f32[3, 2]
        %10 = neg %9 : f32[3, 2]
        %11 = broadcast %10 {axes: [0, 1]} : f32[3, 2]
        %12 = cast %11 : f32[3, 2]
        output y = %12
        "#,
        simplify,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2, 3]
              %1 = reshape %0 : f32[3, 2]
              output y = %1
            }
        "#]],
    );
}

#[test]
fn adding_zero_is_not_nothing_but_subtracting_it_is() {
    check(
        r#"
        %0 = input {name: "x"} : f32[4]
        %1 = constant {splat: 0.0} : f32[4]
        %2 = constant {splat: -0.0} : f32[4]
        %3 = add %0, %1 : f32[4]
        %4 = sub %3, %1 : f32[4]
        %5 = add %4, %2 : f32[4]
        output y = %5
        "#,
        simplify,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[4]
              %1 = constant {splat: 0.0} : f32[4]
              %2 = add %0, %1 : f32[4]
              output y = %2
            }
        "#]],
    );
}

#[test]
fn transposes_become_flags_of_products_where_they_may() {
    check(
        r#"
        %0 = input {name: "x"} : f32[4, 2]
        %1 = input {name: "w"} : f32[3, 4]
        %2 = input {name: "many"} : f32[5, 4, 2]
        %3 = transpose %0 {order: [1, 0]} : f32[2, 4]
        %4 = transpose %1 {order: [1, 0]} : f32[4, 3]
        %5 = matmul %3, %4 : f32[2, 3]
        %6 = transpose %2 {order: [0, 2, 1]} : f32[5, 2, 4]
        %7 = matmul %6, %4 : f32[5, 2, 3]
        %8 = matmul %6, %2 : f32[5, 2, 2]
        output a = %5
        output b = %7
        output c = %8
        "#,
        simplify,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[4, 2]
              %1 = input {name: "w"} : f32[3, 4]
              %2 = input {name: "many"} : f32[5, 4, 2]
              %3 = matmul %0, %1 {transpose_lhs: true, transpose_rhs: true} : f32[2, 3]
              %4 = transpose %2 {order: [0, 2, 1]} : f32[5, 2, 4]
              %5 = matmul %4, %1 {transpose_rhs: true} : f32[5, 2, 3]
              %6 = matmul %2, %2 {transpose_lhs: true} : f32[5, 2, 2]
              output a = %3
              output b = %5
              output c = %6
            }
        "#]],
    );
}

#[test]
fn what_is_done_to_spread_scalars_is_done_once() {
    check(
        r#"
        %0 = input {name: "rate"} : f32[]
        %1 = input {name: "x"} : f32[2, 3]
        %2 = broadcast %0 {axes: []} : f32[3, 2]
        %3 = exp %2 : f32[3, 2]
        %4 = transpose %3 {order: [1, 0]} : f32[2, 3]
        %5 = mul %1, %4 : f32[2, 3]
        output y = %5
        "#,
        simplify,
        &expect![[r#"
            program t {
              %0 = input {name: "rate"} : f32[]
              %1 = input {name: "x"} : f32[2, 3]
              %2 = exp %0 : f32[]
              %3 = broadcast %2 {axes: []} : f32[2, 3]
              %4 = mul %1, %3 : f32[2, 3]
              output y = %4
            }
        "#]],
    );
}

#[test]
fn a_reshape_that_adds_an_axis_of_one_does_not_hide_what_is_spread() {
    check(
        r#"
        %0 = input {name: "rows"} : f32[2]
        %1 = reshape %0 : f32[2, 1]
        %2 = broadcast %1 {axes: [0, 1]} : f32[2, 3]
        %3 = transpose %1 {order: [1, 0]} : f32[1, 2]
        output y = %2
        output z = %3
        "#,
        simplify,
        &expect![[r#"
            program t {
              %0 = input {name: "rows"} : f32[2]
              %1 = broadcast %0 {axes: [0]} : f32[2, 3]
              %2 = reshape %0 : f32[1, 2]
              output y = %1
              output z = %2
            }
        "#]],
    );
}

#[test]
fn bodies_are_simplified_too() {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [3, 2]).unwrap();
    let start = g.input("a", DType::F32, [2]).unwrap();
    let (last, _) = g
        .scan(&[&start], &[&x], true, |_, c, i| Ok((vec![((&c[0] * 1.0)? + &i[0])?], vec![])))
        .unwrap();
    g.output("y", &last[0]).unwrap();
    let before = g.finish();
    let after = simplify(&before).unwrap();
    same_results(&before, &after);
    assert!(!after.any_op(&mut |op| *op == Op::Binary(Binary::Mul)));
}

#[test]
fn a_folded_result_leaves_the_others_of_its_operation_alone() {
    let program: Program = r#"program t {
        %x = input {name: "x"} : f32[2]
        %c = constant {list: [1.0, 2.0, 3.0, 4.0]} : f32[2, 2]
        %s = constant {list: [1.0, 2.0]} : f32[2]
        %y, %m, %r = layer_norm %c, %s, %s {epsilon: 0.1} : f32[2, 2], f32[2], f32[2]
        %t = tanh %y : f32[2, 2]
        %u = reduce %t {kind: sum, axes: [0]} : f32[2]
        %a = add %x, %u : f32[2]
        %b = add %x, %m : f32[2]
        output a = %a
        output b = %b
    }"#
    .parse()
    .unwrap();
    struct Zeros;
    impl Evaluate for Zeros {
        fn evaluate(&self, p: &Program) -> Result<Vec<Tensor>, Box<dyn Error + Send + Sync>> {
            let zeros = |output: &crate::Output| Tensor::filled(p.ty(output.value).clone(), 0.0);
            Ok(p.outputs().iter().map(zeros).collect::<Result<_, _>>()?)
        }
    }
    let folded = fold_constants(&program, &Zeros).unwrap();
    assert!(!folded.any_op(&mut |op| op.name() == "layer_norm"), "{folded}");
}
