//! What programs look like as text, that they come back, and what is said of text that is not a
//! program.

mod damage;
mod generate;
mod hostile;
mod refused;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::vocabulary::OPERATIONS;
use crate::{Builder, DType, Init, Op, Program, ProgramError, Tensor, TensorType};

/// Parses, and compares what is printed then. `UPDATE_EXPECT=1` rewrites what is expected.
fn check(text: &str, expected: Expect) {
    let program: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    expected.assert_eq(&program.to_string());
    check_round_trip(&program);
}

fn check_built(build: impl FnOnce(&Builder) -> Result<(), ProgramError>, expected: Expect) {
    let g = Builder::new("test");
    build(&g).unwrap();
    let program = g.finish();
    expected.assert_eq(&program.to_string());
    check_round_trip(&program);
}

fn check_round_trip(program: &Program) {
    let text = program.to_string();
    let again: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again, *program, "{text}");
    assert_eq!(again.to_string(), text, "printing is a fixed point");
}

/// Compares what is said of a text that is no program.
fn check_error(text: &str, expected: Expect) {
    let error = text.parse::<Program>().expect_err("the text is no program");
    expected.assert_eq(&error.to_string());
}

#[test]
fn a_small_network_prints_one_line_per_operation() {
    check_built(
        |g| {
            let x = g.input("x", DType::F32, [8, 4])?;
            let h = g.scope("layer0", |g| {
                let w = g.weight("w", [4, 3], Init::Normal(0.5))?;
                let b = g.weight("b", [3], Init::Constant(0.0))?;
                let h = (x.matmul(&w)? + &b)?.relu()?;
                g.update(&w, &(&w * 0.9)?)?;
                Ok::<_, ProgramError>(h)
            })?;
            let labels = g.input("labels", DType::I32, [8])?;
            g.output("loss", &h.cross_entropy(&labels)?.sum_all()?.grain_sum()?)?;
            g.output("odd name", &h)
        },
        expect![[r#"
            program test {
              %0 = input {name: "x"} : f32[8, 4]
              %1 = parameter {name: "layer0/w", role: weight, init: normal(0.5)} : f32[4, 3] @ "layer0"
              %2 = parameter {name: "layer0/b", role: weight, init: constant(0.0)} : f32[3] @ "layer0"
              %3 = matmul %0, %1 : f32[8, 3] @ "layer0"
              %4 = broadcast %2 {axes: [1]} : f32[8, 3] @ "layer0"
              %5 = add %3, %4 : f32[8, 3] @ "layer0"
              %6 = relu %5 : f32[8, 3] @ "layer0"
              %7 = constant {splat: 0.9} : f32[] @ "layer0"
              %8 = broadcast %7 {axes: []} : f32[4, 3] @ "layer0"
              %9 = mul %1, %8 : f32[4, 3] @ "layer0"
              %10 = input {name: "labels"} : i32[8]
              %11 = cross_entropy %6, %10 : f32[8]
              %12 = reduce %11 {kind: sum, axes: [0]} : f32[]
              %13 = grain_sum %12 : f32[]
              output loss = %13
              output "odd name" = %6
              update %1 = %9
            }
        "#]],
    );
}

#[test]
fn bodies_are_indented_blocks() {
    check_built(
        |g| {
            let xs = g.input("xs", DType::F32, [5, 2])?;
            let start = g.full(&TensorType::new(DType::F32, [2]), 0.0)?;
            let weight = g.input("weight", DType::F32, [2])?;
            let (last, all) = g.scan(&[&start], &[&xs], true, |_, carried, items| {
                let next = (&carried[0] + &(&items[0] * &weight)?)?;
                Ok((vec![next.clone()], vec![next]))
            })?;
            let positive = last[0].sum_all()?.greater(&g.scalar(DType::F32, 0.0)?)?;
            let chosen =
                g.cond(&positive, |_| Ok(vec![all[0].clone()]), |_| Ok(vec![all[0].relu()?]))?;
            g.output("chosen", &chosen[0])
        },
        expect![[r#"
            program test {
              %0 = input {name: "xs"} : f32[5, 2]
              %1 = constant {splat: 0.0} : f32[]
              %2 = broadcast %1 {axes: []} : f32[2]
              %3 = input {name: "weight"} : f32[2]
              %4, %5 = scan %2, %0, %3 {n_carried: 1, n_scanned: 1, length: 5, reverse: true} : f32[2], f32[5, 2] body {
                %0 = input {name: "iteration"} : i32[]
                %1 = input {name: "carried0"} : f32[2]
                %2 = input {name: "scanned0"} : f32[2]
                %3 = input {name: "captured0"} : f32[2]
                %4 = mul %2, %3 : f32[2]
                %5 = add %1, %4 : f32[2]
                output out0 = %5
                output out1 = %5
              }
              %6 = reduce %4 {kind: sum, axes: [0]} : f32[]
              %7 = constant {splat: 0.0} : f32[]
              %8 = gt %6, %7 : bool[]
              %9 = cond %8, %5, %5 : f32[5, 2] then {
                %0 = input {name: "captured0"} : f32[5, 2]
                output out0 = %0
              } otherwise {
                %0 = input {name: "captured0"} : f32[5, 2]
                %1 = relu %0 : f32[5, 2]
                output out0 = %1
              }
              output chosen = %9
            }
        "#]],
    );
}

#[test]
fn every_kind_of_attribute_has_a_short_form() {
    check(
        r#"program attributes {
            %x = input {name: "x", dtype: f32, shape: [2, 7, 7, 4]}
            %k = parameter {name: "k", role: weight, init: uniform(1e-3)} : f32[3, 3, 4, 6]
            %c = convolution %x, %k {stride: [1, 2], padding: [[1, 1], [0, 0]], dilation: [1, 1], groups: 1}
            %p = max_pool %c {window: [2, 2], stride: [2, 2], padding: [[0, 0], [0, 0]]}
            %s = reduce %p {kind: sum, axes: [0, 1, 2]} @ "head"
        }"#,
        expect![[r#"
            program attributes {
              %0 = input {name: "x"} : f32[2, 7, 7, 4]
              %1 = parameter {name: "k", role: weight, init: uniform(0.001)} : f32[3, 3, 4, 6]
              %2 = convolution %0, %1 {stride: [1, 2], padding: [[1, 1], [0, 0]], dilation: [1, 1], groups: 1} : f32[2, 7, 3, 6]
              %3 = max_pool %2 {window: [2, 2], stride: [2, 2], padding: [[0, 0], [0, 0]]} : f32[2, 3, 1, 6]
              %4 = reduce %3 {kind: sum, axes: [0, 1, 2]} : f32[6] @ "head"
            }
        "#]],
    );
    check(
        r#"program fused {
            %0 = input {name: "x"} : f32[2, 3]
            %1 = fused %0, %0 {
                operands: [full, full],
                terms: [
                    operand(0), number(0.1), binary(mul, 0, 1), unary(tanh, 2), // half way
                    compare(lt, 2, 3), select(4, 2, 3),
                ],
                results: [5],
            }
        }"#,
        expect![[r#"
            program fused {
              %0 = input {name: "x"} : f32[2, 3]
              %1 = fused %0, %0 {operands: [full, full], terms: [operand(0), number(0.1), binary(mul, 0, 1), unary(tanh, 2), compare(lt, 2, 3), select(4, 2, 3)], results: [5]} : f32[2, 3]
            }
        "#]],
    );
}

#[test]
fn constants_are_as_short_as_their_bits_allow() {
    let tensors = [
        Tensor::scalar(DType::F32, 0.1),
        Tensor::scalar(DType::F32, -0.0),
        Tensor::scalar(DType::F64, 1.0 / 3.0),
        Tensor::filled(TensorType::new(DType::Bf16, [4, 4]), 0.5).unwrap(),
        Tensor::new([3], &[1i32, -2, i32::MAX]).unwrap(),
        Tensor::new([2], &[i64::MAX, i64::MIN]).unwrap(),
        Tensor::new([2], &[true, false]).unwrap(),
        Tensor::new([2], &[f32::NAN, 1.0]).unwrap(),
        Tensor::scalar(DType::F16, f64::INFINITY),
        Tensor::new([0, 3], &[] as &[u8]).unwrap(),
    ];
    check_built(
        |g| tensors.into_iter().try_for_each(|tensor| g.constant(tensor).map(|_| ())),
        expect![[r#"
            program test {
              %0 = constant {splat: 0.1} : f32[]
              %1 = constant {splat: -0.0} : f32[]
              %2 = constant {splat: 0.3333333333333333} : f64[]
              %3 = constant {splat: 0.5} : bf16[4, 4]
              %4 = constant {list: [1, -2, 2147483647]} : i32[3]
              %5 = constant {list: [9.223372036854776e18, -9.223372036854776e18]} : i64[2]
              %6 = constant {list: [1, 0]} : bool[2]
              %7 = constant {hex: "0000c07f0000803f"} : f32[2]
              %8 = constant {hex: "007c"} : f16[]
              %9 = constant {list: []} : u8[0, 3]
            }
        "#]],
    );
}

#[test]
fn names_that_are_no_words_are_quoted() {
    let mut program = Program::new("two words\n");
    let name = "a \"b\" \\ \u{7} größe".to_string();
    let input = Op::Input { name, dtype: DType::F32, shape: [0; 0].into() };
    let x = program.push(input, &[], "scope with \"quotes\"").unwrap()[0];
    for name in ["plain", "0", "", "program", "%1", "ünicode", "true"] {
        program.add_output(name, x).unwrap();
    }
    expect![[r#"
        program "two words\n" {
          %0 = input {name: "a \"b\" \\ \u0007 größe"} : f32[] @ "scope with \"quotes\""
          output plain = %0
          output "0" = %0
          output "" = %0
          output program = %0
          output "%1" = %0
          output "ünicode" = %0
          output true = %0
        }
    "#]]
    .assert_eq(&program.to_string());
    check_round_trip(&program);
}

#[test]
fn values_may_have_any_name_and_are_numbered_in_order() {
    check(
        "
        // Comments and empty lines are skipped.
        program p {

            %x.0 = input {name: \"x\"} : f32[2] // here too
            output out = %x.0
            %7 = add %x.0, %x.0
            %mean_ = mul %7, %x.0 : f32[2]
            output other = %mean_ }
        ",
        expect![[r#"
            program p {
              %0 = input {name: "x"} : f32[2]
              %1 = add %0, %0 : f32[2]
              %2 = mul %1, %0 : f32[2]
              output out = %0
              output other = %2
            }
        "#]],
    );
}

#[test]
fn operations_without_results_come_back() {
    let mut program = Program::new("p");
    let truth = Op::Input { name: "c".into(), dtype: DType::Bool, shape: [0; 0].into() };
    let condition = program.push(truth, &[], "").unwrap()[0];
    let (then, otherwise) = (Program::new("then"), Program::new("another name"));
    let cond = Op::Cond(Box::new(crate::CondSpec { then, otherwise }));
    assert!(program.push(cond, &[condition], "").unwrap().is_empty());
    expect![[r#"
        program p {
          %0 = input {name: "c"} : bool[]
          cond %0 then {
          } otherwise "another name" {
          }
        }
    "#]]
    .assert_eq(&program.to_string());
    check_round_trip(&program);
}

#[test]
fn every_operation_comes_back() {
    let program = generate::every_operation();
    let text = program.to_string();
    for name in OPERATIONS.keys() {
        let used =
            [format!(" {name} "), format!(" {name}\n")].iter().any(|use_| text.contains(use_));
        assert!(used, "`{name}` is not in the program with every operation");
    }
    check_round_trip(&program);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn random_programs_come_back(draws in prop::collection::vec(any::<u32>(), 0..300)) {
        let program = generate::random_program(draws);
        check_round_trip(&program);
        let json = serde_json::to_string(&program).unwrap();
        let again: Program = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(again.to_string(), program.to_string());
    }
}

#[test]
fn constants_of_one_value_have_a_limit_in_memory() {
    let splat = |n: usize| format!("%{n} = constant {{splat: 1.0}} : f32[16777216]");
    let text =
        |n| format!("program p {{\n{}\n}}", (0..n).map(splat).collect::<Vec<_>>().join("\n"));
    check_error(
        &text(2),
        expect![
            "line 3: constants written as one value would take more than 67108864 bytes of memory in all"
        ],
    );
    // Beyond the limit the printer writes bytes, which are as long in text as in memory.
    let mut program: Program = text(1).parse().unwrap();
    program.push(Op::Constant(Tensor::scalar(DType::F32, 1.0)), &[], "").unwrap();
    assert!(program.to_string().contains(r#"%1 = constant {hex: "0000803f"} : f32[]"#));
    assert_eq!(program.to_string().parse(), Ok(program));
}
