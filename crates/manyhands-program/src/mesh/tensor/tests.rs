//! What the parts of small programs look like. That they compute the same is tested on a device.

use expect_test::expect;

use super::*;
use crate::{Builder, DType, Init, Optimizer, Sgd, Training};

fn two_layers() -> Program {
    let g = Builder::new("two_layers");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let first = g.weight("first", [3, 4], Init::Normal(0.5)).unwrap();
    let second = g.weight("second", [4, 3], Init::Normal(0.5)).unwrap();
    let y = x.matmul(&first).unwrap().relu().unwrap().matmul(&second).unwrap();
    let loss = (&y * &y).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 2.0).unwrap();
    let optimizer = Optimizer::Sgd(Sgd::default());
    Training { optimizer, clip: None }.add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

#[test]
fn a_part_of_two_layers_has_a_share_of_both_and_one_sum() {
    let parts = split(&two_layers(), 2, &Annotations::default()).unwrap();
    expect![[r#"
        program two_layers {
          %0 = input {name: "x"} : f32[2, 3]
          %1 = parameter {name: "first", role: weight, init: normal(0.5)} : f32[3, 2]
          %2 = parameter {name: "second", role: weight, init: normal(0.5)} : f32[2, 3]
          %3 = matmul %0, %1 : f32[2, 2]
          %4 = relu %3 : f32[2, 2]
          %5 = matmul %4, %2 : f32[2, 3]
          %6 = all_reduce %5 : f32[2, 3]
          %7 = mul %6, %6 : f32[2, 3]
          %8 = reduce %7 {kind: sum, axes: [0, 1]} : f32[]
          %9 = constant {splat: 2.0} : f32[]
          %10 = constant {splat: 1.0} : f32[]
          %11 = broadcast %10 {axes: []} : f32[2, 3]
          %12 = mul %11, %6 : f32[2, 3]
          %13 = mul %11, %6 : f32[2, 3]
          %14 = add %12, %13 : f32[2, 3]
          %15 = matmul %14, %2 {transpose_rhs: true} : f32[2, 2]
          %16 = matmul %4, %14 {transpose_lhs: true} : f32[2, 3]
          %17 = constant {splat: 0.0} : f32[]
          %18 = broadcast %17 {axes: []} : f32[2, 2]
          %19 = gt %4, %18 : bool[2, 2]
          %20 = select %19, %15, %18 : f32[2, 2]
          %21 = matmul %0, %20 {transpose_lhs: true} : f32[3, 2]
          %22 = grain_sum %8 : f32[]
          %23 = grain_sum %9 : f32[]
          %24 = constant {splat: 1.0} : f32[]
          %25 = div %24, %23 : f32[]
          %26 = grain_sum %21 : f32[3, 2]
          %27 = broadcast %25 {axes: []} : f32[3, 2]
          %28 = mul %26, %27 : f32[3, 2]
          %29 = grain_sum %16 : f32[2, 3]
          %30 = broadcast %25 {axes: []} : f32[2, 3]
          %31 = mul %29, %30 : f32[2, 3]
          %32 = input {name: "rate"} : f32[]
          %33 = input {name: "step"} : f32[]
          %34 = broadcast %32 {axes: []} : f32[3, 2]
          %35 = mul %28, %34 : f32[3, 2]
          %36 = sub %1, %35 : f32[3, 2]
          %37 = broadcast %32 {axes: []} : f32[2, 3]
          %38 = mul %31, %37 : f32[2, 3]
          %39 = sub %2, %38 : f32[2, 3]
          %40 = div %22, %23 : f32[]
          output loss = %40
          update %1 = %36
          update %2 = %39
        }
    "#]]
    .assert_eq(&parts.programs[1].to_string());
    let named = |part: usize| -> Vec<String> {
        let own = |own: &SplitParameter| format!("{}: {:?}", own.name, own.along[part]);
        parts.parameters.iter().map(own).collect()
    };
    assert_eq!(
        named(1),
        ["first: Axis { axis: 1, runs: [2..4] }", "second: Axis { axis: 0, runs: [2..4] }"]
    );
    assert_eq!(parts.whole, []);
}

#[test]
fn a_gathered_value_is_put_into_zeros_and_summed() {
    let g = Builder::new("gathered");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let w = g.weight("w", [3, 4], Init::Normal(0.5)).unwrap();
    g.output("y", &x.matmul(&w).unwrap().softmax(1).unwrap()).unwrap();
    let wish = Wish::Axis { axis: 1, blocks: 2 };
    let wishes = Annotations { parameters: BTreeMap::from([("w".to_string(), wish)]), rest: false };
    let parts = split(&g.finish(), 2, &wishes).unwrap();
    expect![[r#"
        program gathered {
          %0 = input {name: "x"} : f32[2, 3]
          %1 = parameter {name: "w", role: weight, init: normal(0.5)} : f32[3, 2]
          %2 = matmul %0, %1 : f32[2, 2]
          %3 = constant {splat: 0.0} : f32[]
          %4 = reshape %2 : f32[2, 2, 1]
          %5 = pad %4, %3 {low: [0, 0, 1], high: [0, 0, 0], interior: [0, 0, 0]} : f32[2, 2, 2]
          %6 = reshape %5 : f32[2, 4]
          %7 = all_reduce %6 : f32[2, 4]
          %8 = softmax %7 : f32[2, 4]
          output y = %8
        }
    "#]]
    .assert_eq(&parts.programs[1].to_string());
}

#[test]
fn parts_have_the_same_structure() {
    let parts = split(&two_layers(), 4, &Annotations::default()).unwrap();
    for part in &parts.programs[1..] {
        assert_eq!(part.nodes().len(), parts.programs[0].nodes().len());
        for (own, first) in part.nodes().iter().zip(parts.programs[0].nodes()) {
            assert_eq!(own.op.name(), first.op.name());
            assert_eq!((&own.operands, &own.results), (&first.operands, &first.results));
        }
    }
}

#[test]
fn what_is_asked_in_vain_is_said() {
    let program = two_layers();
    let wish = |name: &str, axis: usize| Annotations {
        parameters: BTreeMap::from([(name.to_string(), Wish::Axis { axis, blocks: 1 })]),
        rest: false,
    };
    let refused = |n_parts: usize, wishes: &Annotations| {
        split(&program, n_parts, wishes).unwrap_err().to_string()
    };
    assert_eq!(
        refused(0, &Annotations::default()),
        "a program is split into at least one part, not 0"
    );
    assert_eq!(refused(2, &wish("third", 0)), "there is no parameter \"third\" to split");
    assert_eq!(refused(2, &wish("first", 2)), "\"first\" has no axis 2: it has 2");
    assert_eq!(
        refused(3, &wish("first", 1)),
        "\"first\" cannot be split over 3 parts along axis 1: its size of 4 in 1 blocks fits 1, 2 or 4"
    );
}
