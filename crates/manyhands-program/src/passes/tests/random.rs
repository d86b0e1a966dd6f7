//! Random programs keep their bits through every pass.

use proptest::prelude::*;

use super::super::interpreter::Interpreter;
use super::super::rewrite::Rewritten;
use super::super::*;
use super::same_results;
use crate::{Binary, Builder, DType, Init, Op, Unary, Value};

/// Builds a program from a list of choices: each adds one operation on earlier values.
fn build(choices: &[(u8, u8, u8, u8)]) -> Program {
    let g = Builder::new("random");
    let x = g.input("x", DType::F32, [3, 4]).unwrap();
    let square = g.input("square", DType::F32, [4, 4]).unwrap();
    let w = g.weight("w", [3, 4], Init::Constant(0.5)).unwrap();
    let row = g.input("row", DType::F32, [4]).unwrap();
    let column = g.input("column", DType::F32, [3]).unwrap();
    let rate = g.input("rate", DType::F32, []).unwrap();
    // Values over the one shape, and smaller ones that are spread over it.
    let mut values = vec![x, w.clone()];
    let spread = [row, column, rate];
    for &(kind, a, b, c) in choices {
        let pick = |choice: u8| &values[usize::from(choice) % values.len()];
        let made = match kind % 16 {
            0..=2 => pick(a)
                .unary([Unary::Tanh, Unary::Neg, Unary::Exp, Unary::Relu][usize::from(c) % 4]),
            3..=6 => {
                let ops = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max];
                g.apply(Op::Binary(ops[usize::from(c) % ops.len()]), &[pick(a), pick(b)])
            }
            7 => pick(a) + [0.0, -0.0, 1.0, 0.25][usize::from(c) % 4],
            8 => pick(a) * [0.0, -0.0, 1.0, 0.25][usize::from(c) % 4],
            9 => match c % 3 {
                0 => pick(a) + &spread[0],
                1 => pick(a) * &spread[1].broadcast([3, 4], &[0]).unwrap(),
                _ => pick(a) - &spread[2],
            },
            10 => pick(a).less(pick(b)).unwrap().select(pick(c), pick(a)),
            11 => pick(a).greater(pick(b)).unwrap().cast(DType::F32),
            12 => pick(a).matmul(&square),
            13 => (pick(a).matmul(&square).unwrap() + &spread[0]).unwrap().tanh(),
            14 => pick(a).reshape([12]).unwrap().reshape([2, 6]).unwrap().reshape([3, 4]),
            _ => {
                let sum: Value = pick(a).sum(&[usize::from(c) % 2]).unwrap();
                let axes = [1 - usize::from(c) % 2];
                sum.exp().unwrap().broadcast([3, 4], &axes).unwrap() - pick(b)
            }
        };
        values.push(made.unwrap());
    }
    let last = &values[values.len() - 1];
    g.output("last", last).unwrap();
    g.output("middle", &values[values.len() / 2]).unwrap();
    g.update(&w, &(&w + last).unwrap()).unwrap();
    g.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pass_keeps_the_bits_of_random_programs(
        choices in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..40),
    ) {
        let program = build(&choices);
        let passes: [&dyn Fn(&Program) -> Rewritten; 7] = [
            &dead_code,
            &subexpressions,
            &simplify,
            &|program| fold_constants(program, &Interpreter),
            &fuse_dense,
            &fuse_elementwise,
            &|program| recompute(program, Recompute::Cheap, 0),
        ];
        for pass in passes {
            same_results(&program, &pass(&program).unwrap());
        }
        let optimized = optimize(&program, &Interpreter).unwrap();
        same_results(&program, &optimized);
        prop_assert_eq!(&optimize(&optimized, &Interpreter).unwrap(), &optimized);
        let frugal = recompute(&optimized, Recompute::Cheap, 0).unwrap();
        same_results(&program, &frugal);
        prop_assert!(crate::live_memory(&frugal).peak <= crate::live_memory(&optimized).peak);
    }
}

#[test]
fn a_parameter_that_is_read_again_for_a_copy_is_not_taken_for_overwritten() {
    // Found by chance: what is computed again reads `w`, whose update then needs memory of its own.
    let mut choices = vec![(0, 0, 0, 0); 23];
    let found = [
        (0, (79, 0, 19, 0)),
        (1, (190, 80, 0, 0)),
        (3, (44, 17, 0, 0)),
        (6, (0, 42, 0, 0)),
        (7, (15, 9, 0, 0)),
        (8, (30, 129, 0, 0)),
        (10, (207, 21, 140, 0)),
        (13, (0, 13, 0, 0)),
        (18, (115, 149, 65, 0)),
        (22, (202, 0, 0, 44)),
    ];
    found.into_iter().for_each(|(at, choice)| choices[at] = choice);
    let optimized = optimize(&build(&choices), &Interpreter).unwrap();
    let frugal = recompute(&optimized, Recompute::Cheap, 0).unwrap();
    assert!(crate::live_memory(&frugal).peak <= crate::live_memory(&optimized).peak);
}
