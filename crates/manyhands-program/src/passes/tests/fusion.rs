//! Dense layers, elementwise groups, attention, recomputation, and the whole order of passes.

use expect_test::expect;

use super::super::interpreter::Interpreter;
use super::super::*;
use super::{check, same_results};
use crate::{Builder, DType, Init, Op, Optimizer, Sgd, TensorType, Value, live_memory};

#[test]
fn product_bias_and_activation_become_one() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2, 4]
        %1 = parameter {name: "w", role: weight, init: normal(0.1)} : f32[4, 3]
        %2 = parameter {name: "b", role: weight, init: constant(0.0)} : f32[3]
        %3 = matmul %0, %1 : f32[2, 3]
        %4 = broadcast %2 {axes: [1]} : f32[2, 3]
        %5 = add %4, %3 : f32[2, 3]
        %6 = relu %5 : f32[2, 3]
        %7 = matmul %0, %1 : f32[2, 3]
        %8 = tanh %7 : f32[2, 3]
        output a = %6
        output b = %8
        "#,
        fuse_dense,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2, 4]
              %1 = parameter {name: "w", role: weight, init: normal(0.1)} : f32[4, 3]
              %2 = parameter {name: "b", role: weight, init: constant(0.0)} : f32[3]
              %3 = dense %0, %1, %2 {add: bias, activation: relu} : f32[2, 3]
              %4 = dense %0, %1 {activation: tanh} : f32[2, 3]
              output a = %3
              output b = %4
            }
        "#]],
    );
}

#[test]
fn a_value_that_others_use_is_not_hidden_in_a_dense_layer() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2, 4]
        %1 = input {name: "w"} : f32[4, 3]
        %2 = input {name: "b"} : f32[3]
        %3 = matmul %0, %1 : f32[2, 3]
        %4 = broadcast %2 {axes: [1]} : f32[2, 3]
        %5 = add %3, %4 : f32[2, 3]
        %6 = logistic %5 : f32[2, 3]
        output before = %5
        output after = %6
        "#,
        fuse_dense,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2, 4]
              %1 = input {name: "w"} : f32[4, 3]
              %2 = input {name: "b"} : f32[3]
              %3 = dense %0, %1, %2 {add: bias} : f32[2, 3]
              %4 = logistic %3 : f32[2, 3]
              output before = %3
              output after = %4
            }
        "#]],
    );
}

#[test]
fn only_the_sum_that_replaces_its_parameter_takes_the_product_in() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2, 4]
        %1 = input {name: "dy"} : f32[2, 3]
        %2 = parameter {name: "sum0", role: slot, init: constant(0.0)} : f32[4, 3]
        %3 = parameter {name: "other", role: slot, init: constant(0.0)} : f32[4, 3]
        %4 = matmul %0, %1 {transpose_lhs: true} : f32[4, 3]
        %5 = add %2, %4 : f32[4, 3]
        %6 = matmul %0, %1 {transpose_lhs: true} : f32[4, 3]
        %7 = add %3, %6 : f32[4, 3]
        output y = %7
        update %2 = %5
        "#,
        fuse_dense,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2, 4]
              %1 = input {name: "dy"} : f32[2, 3]
              %2 = parameter {name: "sum0", role: slot, init: constant(0.0)} : f32[4, 3]
              %3 = parameter {name: "other", role: slot, init: constant(0.0)} : f32[4, 3]
              %4 = dense %0, %1, %2 {transpose_lhs: true, add: matrix} : f32[4, 3]
              %5 = matmul %0, %1 {transpose_lhs: true} : f32[4, 3]
              %6 = add %3, %5 : f32[4, 3]
              output y = %6
              update %2 = %4
            }
        "#]],
    );
}

#[test]
fn momentum_and_the_new_weight_come_out_of_one_pass() {
    let g = Builder::new("t");
    let w = g.weight("w", [3, 2], Init::Constant(1.0)).unwrap();
    let gradient = g.input("g", DType::F32, [3, 2]).unwrap();
    let rate = g.input("rate", DType::F32, []).unwrap();
    let step = g.input("step", DType::F32, []).unwrap();
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    sgd.update(&g, &w, &gradient, &rate, &step).unwrap();
    let before = g.finish();
    let after = fuse_elementwise(&before).unwrap();
    same_results(&before, &after);
    expect![[r#"
        program t {
          %0 = parameter {name: "w", role: weight, init: constant(1.0)} : f32[3, 2]
          %1 = input {name: "g"} : f32[3, 2]
          %2 = input {name: "rate"} : f32[]
          %3 = input {name: "step"} : f32[]
          %4 = parameter {name: "w/momentum", role: slot, init: constant(0.0)} : f32[3, 2]
          %5, %6 = fused %4, %1, %2, %0 {operands: [full, full, scalar, full], terms: [operand(0), number(0.9), binary(mul, 0, 1), operand(1), binary(add, 2, 3), operand(2), binary(mul, 4, 5), operand(3), binary(sub, 7, 6)], results: [4, 8]} : f32[3, 2], f32[3, 2]
          update %4 = %5
          update %0 = %6
        }
    "#]].assert_eq(&after.to_string());
}

#[test]
fn broadcasts_are_absorbed_where_they_are_plain() {
    check(
        r#"
        %0 = input {name: "x"} : f32[2, 3, 4]
        %1 = input {name: "last"} : f32[4]
        %2 = input {name: "first"} : f32[2, 3]
        %3 = input {name: "middle"} : f32[3]
        %4 = input {name: "one"} : f32[1, 1]
        %5 = broadcast %1 {axes: [2]} : f32[2, 3, 4]
        %6 = broadcast %2 {axes: [0, 1]} : f32[2, 3, 4]
        %7 = broadcast %3 {axes: [1]} : f32[2, 3, 4]
        %8 = broadcast %4 {axes: [0, 1]} : f32[2, 3, 4]
        %9 = add %0, %5 : f32[2, 3, 4]
        %10 = mul %9, %6 : f32[2, 3, 4]
        %11 = sub %10, %7 : f32[2, 3, 4]
        %12 = div %11, %8 : f32[2, 3, 4]
        output y = %12
        "#,
        fuse_elementwise,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[2, 3, 4]
              %1 = input {name: "last"} : f32[4]
              %2 = input {name: "first"} : f32[2, 3]
              %3 = input {name: "middle"} : f32[3]
              %4 = input {name: "one"} : f32[1, 1]
              %5 = broadcast %3 {axes: [1]} : f32[2, 3, 4]
              %6 = fused %0, %1, %2, %5, %4 {operands: [full, trailing, leading, full, scalar], terms: [operand(0), operand(1), binary(add, 0, 1), operand(2), binary(mul, 2, 3), operand(3), binary(sub, 4, 5), operand(4), binary(div, 6, 7)], results: [8]} : f32[2, 3, 4]
              output y = %6
            }
        "#]],
    );
}

#[test]
fn a_group_does_not_reach_around_what_lies_between_its_members() {
    // %1 feeds both the product and the sum after it: joining the two would put the product inside the group.
    check(
        r#"
        %0 = input {name: "x"} : f32[3, 3]
        %1 = exp %0 : f32[3, 3]
        %2 = matmul %1, %0 : f32[3, 3]
        %3 = add %1, %2 : f32[3, 3]
        output y = %3
        "#,
        fuse_elementwise,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[3, 3]
              %1 = fused %0 {operands: [full], terms: [operand(0), unary(exp, 0)], results: [1]} : f32[3, 3]
              %2 = matmul %1, %0 : f32[3, 3]
              %3 = fused %1, %2 {operands: [full, full], terms: [operand(0), operand(1), binary(add, 0, 1)], results: [2]} : f32[3, 3]
              output y = %3
            }
        "#]],
    );
}

#[test]
fn comparisons_are_repeated_rather_than_stored_and_stay_where_others_need_them() {
    check(
        r#"
        %0 = input {name: "x"} : f32[4]
        %1 = input {name: "y"} : f32[4]
        %2 = gt %0, %1 : bool[4]
        %3 = select %2, %0, %1 : f32[4]
        %4 = cast %2 : f32[4]
        %5 = reduce %3 {kind: sum, axes: [0]} : f32[]
        %6 = not %2 : bool[4]
        output a = %5
        output b = %4
        output c = %6
        "#,
        fuse_elementwise,
        &expect![[r#"
            program t {
              %0 = input {name: "x"} : f32[4]
              %1 = input {name: "y"} : f32[4]
              %2 = gt %0, %1 : bool[4]
              %3 = fused %0, %1 {operands: [full, full], terms: [operand(0), operand(1), compare(gt, 0, 1), select(2, 0, 1)], results: [3]} : f32[4]
              %4 = fused %0, %1 {operands: [full, full], terms: [operand(0), operand(1), compare(gt, 0, 1), number(1.0), number(0.0), select(2, 3, 4)], results: [5]} : f32[4]
              %5 = reduce %3 {kind: sum, axes: [0]} : f32[]
              %6 = not %2 : bool[4]
              output a = %5
              output b = %4
              output c = %6
            }
        "#]],
    );
}

#[test]
fn a_group_without_a_full_operand_gets_one() {
    check(
        r#"
        %0 = input {name: "row"} : f32[3]
        %1 = input {name: "column"} : f32[2]
        %2 = broadcast %0 {axes: [1]} : f32[2, 3]
        %3 = broadcast %1 {axes: [0]} : f32[2, 3]
        %4 = mul %2, %3 : f32[2, 3]
        %5 = constant {splat: 2.0} : f32[4]
        %6 = exp %5 : f32[4]
        output y = %4
        output z = %6
        "#,
        fuse_elementwise,
        &expect![[r#"
            program t {
              %0 = input {name: "row"} : f32[3]
              %1 = input {name: "column"} : f32[2]
              %2 = broadcast %0 {axes: [1]} : f32[2, 3]
              %3 = fused %2, %1 {operands: [full, leading], terms: [operand(0), operand(1), binary(mul, 0, 1)], results: [2]} : f32[2, 3]
              %4 = constant {splat: 2.0} : f32[]
              %5 = broadcast %4 {axes: []} : f32[4]
              %6 = fused %5 {operands: [full], terms: [operand(0), unary(exp, 0)], results: [1]} : f32[4]
              output y = %3
              output z = %6
            }
        "#]],
    );
}

#[test]
fn long_chains_are_cut_into_groups_of_bounded_size() {
    let g = Builder::new("t");
    let mut x = g.input("x", DType::F32, [4]).unwrap();
    for idx in 0..200 {
        x = match idx % 3 {
            0 => x.sin().unwrap(),
            1 => (&x + f64::from(idx)).unwrap(),
            _ => (&x * &g.input(&format!("x{idx}"), DType::F32, [4]).unwrap()).unwrap(),
        };
    }
    g.output("y", &x).unwrap();
    let before = g.finish();
    let after = fuse_elementwise(&before).unwrap();
    same_results(&before, &after);
    let mut n_groups = 0;
    for node in after.nodes() {
        if let Op::Fused(expression) = &node.op {
            n_groups += 1;
            assert!(expression.terms.len() <= MAX_TERMS && node.operands.len() <= MAX_OPERANDS);
        }
    }
    assert!((5..20).contains(&n_groups), "{n_groups}");
}

/// Attention written out.
struct WrittenOut {
    heads: usize,
    /// Scales the scores by a product, by a quotient, or the queries beforehand.
    scale: &'static str,
    mask: &'static str,
}

impl WrittenOut {
    fn build(&self) -> Program {
        let g = Builder::new("t");
        let (batch, rows, width) = (2, 5, 8);
        let d = width / self.heads;
        let [q, k, v] =
            ["q", "k", "v"].map(|n| g.input(n, DType::F32, [batch, rows, width]).unwrap());
        let split = |x: &Value| {
            x.reshape([batch, rows, self.heads, d]).unwrap().transpose(&[0, 2, 1, 3]).unwrap()
        };
        let q = if self.scale == "queries" { (&q * 0.5).unwrap() } else { q };
        let scores = split(&q).matmul(&split(&k).transpose(&[0, 1, 3, 2]).unwrap()).unwrap();
        let scores = match self.scale {
            "product" => (scores * 0.3).unwrap(),
            "quotient" => (scores / 4.0).unwrap(),
            _ => scores,
        };
        let never = g.scalar(DType::F32, f64::NEG_INFINITY).unwrap();
        let scores = match self.mask {
            "causal" => {
                let row = g.iota(DType::I32, [rows, rows], 0).unwrap();
                let column = g.iota(DType::I32, [rows, rows], 1).unwrap();
                row.greater_equal(&column).unwrap().select(&scores, &never).unwrap()
            }
            "blocked" => {
                let blocked = g.input("blocked", DType::Bool, [batch, 1, rows, rows]).unwrap();
                blocked.select(&never, &scores).unwrap()
            }
            _ => scores,
        };
        let mixed = scores.softmax(3).unwrap().matmul(&split(&v)).unwrap();
        let joined = mixed.transpose(&[0, 2, 1, 3]).unwrap().reshape([batch, rows, width]).unwrap();
        g.output("y", &joined).unwrap();
        g.finish()
    }
}

#[test]
fn attention_written_out_is_recognised() {
    let text = |written: &WrittenOut| fuse_attention(&written.build()).unwrap().to_string();
    let written = WrittenOut { heads: 2, scale: "product", mask: "causal" };
    expect![[r#"
        program t {
          %0 = input {name: "q"} : f32[2, 5, 8]
          %1 = input {name: "k"} : f32[2, 5, 8]
          %2 = input {name: "v"} : f32[2, 5, 8]
          %3 = attention %0, %1, %2 {heads: 2, causal: true, scale: 0.30000001192092896} : f32[2, 5, 8]
          output y = %3
        }
    "#]].assert_eq(&text(&written));
    // Of a query that sees no key the parts make NaN and the operation zeros, so given masks stay as they are.
    let written = WrittenOut { heads: 1, scale: "quotient", mask: "blocked" }.build();
    assert_eq!(fuse_attention(&written).unwrap(), written);
    // What simplification made of it is recognised as well.
    for written in [
        WrittenOut { heads: 2, scale: "product", mask: "none" },
        WrittenOut { heads: 1, scale: "product", mask: "causal" },
        WrittenOut { heads: 4, scale: "quotient", mask: "causal" },
    ] {
        let fused = fuse_attention(&simplify(&written.build()).unwrap()).unwrap();
        assert!(fused.nodes().iter().any(|node| matches!(node.op, Op::Attention(_))), "{fused}");
    }
}

#[test]
fn attention_with_scaled_queries_rounds_differently_and_keeps_the_scaling() {
    let written = WrittenOut { heads: 2, scale: "queries", mask: "none" };
    let fused = fuse_attention(&written.build()).unwrap();
    let spec = fused.nodes().iter().find_map(|node| match &node.op {
        Op::Attention(spec) => Some(spec.clone()),
        _ => None,
    });
    // The scores are not scaled any more, the queries still are.
    assert_eq!(spec.map(|spec| spec.scale), Some(1.0));
    assert!(fused.nodes().iter().any(|node| node.op == Op::Binary(crate::Binary::Mul)));
}

#[test]
fn a_cheap_value_that_waits_over_the_peak_is_computed_again() {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [64, 64]).unwrap();
    let early = x.exp().unwrap();
    let a = early.matmul(&x).unwrap();
    let b = a.matmul(&x).unwrap();
    let c = b.matmul(&a).unwrap();
    let late = c.matmul(&early).unwrap().sum_all().unwrap();
    g.output("y", &late).unwrap();
    let before = g.finish();
    let after = recompute(&before, Recompute::Cheap, 0).unwrap();
    same_results(&before, &after);
    assert!(live_memory(&after).peak < live_memory(&before).peak);
    let n_exp = |p: &Program| p.nodes().iter().filter(|n| n.op.name() == "exp").count();
    assert_eq!((n_exp(&before), n_exp(&after)), (1, 2));
    assert_eq!(recompute(&before, Recompute::None, 0).unwrap(), before);
    let enough = live_memory(&before).peak;
    assert_eq!(recompute(&before, Recompute::Cheap, enough).unwrap(), before);
}

#[test]
fn a_view_of_a_recomputed_value_is_seen_again_too() {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [64, 64]).unwrap();
    let early = x.exp().unwrap();
    let view = early.reshape([64, 32, 2]).unwrap().reshape([32, 128]).unwrap();
    let a = early.matmul(&x).unwrap();
    let b = a.matmul(&x).unwrap();
    let c = b.matmul(&a).unwrap().sum_all().unwrap();
    let late = (view.sum_all().unwrap() + c).unwrap();
    g.output("y", &late).unwrap();
    let before = g.finish();
    let after = recompute(&before, Recompute::Cheap, 0).unwrap();
    same_results(&before, &after);
}

/// One training step of a small network, before any pass.
fn training() -> Program {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [4, 3]).unwrap();
    let y = g.input("y", DType::F32, [4, 2]).unwrap();
    let w1 = g.weight("w1", [3, 5], Init::Normal(0.1)).unwrap();
    let b1 = g.weight("b1", [5], Init::Constant(0.0)).unwrap();
    let w2 = g.weight("w2", [5, 2], Init::Normal(0.1)).unwrap();
    let h = (x.matmul(&w1).unwrap() + &b1).unwrap().tanh().unwrap();
    let loss = h.matmul(&w2).unwrap().squared_error(&y).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 4.0).unwrap();
    let training = crate::Training {
        optimizer: Optimizer::Adam(crate::Adam::default()),
        clip: Some(crate::Clip::GlobalNorm(1.0)),
    };
    training.add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

#[test]
fn optimizing_keeps_every_bit_of_a_training_step_and_is_done_in_one_go() {
    let before = training();
    let after = optimize(&before, &Interpreter).unwrap();
    same_results(&before, &after);
    assert_eq!(optimize(&after, &Interpreter).unwrap(), after);
    assert!(after.nodes().len() * 3 < before.nodes().len());
    let plain = |op: &Op| op.is_elementwise();
    assert!(!after.nodes().iter().any(|node| plain(&node.op)), "{after}");
}

#[test]
fn the_halves_of_a_step_optimize_to_dense_layers_and_one_pass_per_parameter() {
    let split = crate::split_grains(&training()).unwrap();
    let grain = optimize(&crate::accumulating(&split.grain).unwrap(), &Interpreter).unwrap();
    let count = |program: &Program, name: &str| {
        program.nodes().iter().filter(|node| node.op.name() == name).count()
    };
    assert_eq!((count(&grain, "matmul"), count(&grain, "dense")), (2, 3), "{grain}");
    let step = optimize(&split.step, &Interpreter).unwrap();
    let over = |shape: &[usize]| {
        let is = |node: &&crate::Node| {
            *step.ty(node.results[0]) == TensorType::new(DType::F32, shape)
                && matches!(node.op, Op::Fused(_))
        };
        step.nodes().iter().filter(is).count()
    };
    // The gradient is scaled before its norm is known, and the rest of the update is one pass.
    assert_eq!((over(&[3, 5]), over(&[5]), over(&[5, 2])), (2, 2, 2), "{step}");
}

#[test]
fn convolutions_take_their_bias_and_relu_and_gradients_the_gate() {
    let program: Program = r#"program t {
        %x = input {name: "x"} : f32[1, 4, 4, 2]
        %k = input {name: "k"} : f32[3, 3, 2, 3]
        %b = input {name: "b"} : f32[3]
        %dy = input {name: "dy"} : f32[1, 2, 2, 3]
        %conv = convolution %x, %k {stride: [1, 1], padding: [[0, 0], [0, 0]], dilation: [1, 1], groups: 1} : f32[1, 2, 2, 3]
        %spread = broadcast %b {axes: [3]} : f32[1, 2, 2, 3]
        %sum = add %conv, %spread : f32[1, 2, 2, 3]
        %y = relu %sum : f32[1, 2, 2, 3]
        %dx = convolution_input_grad %dy, %k {window: {stride: [1, 1], padding: [[0, 0], [0, 0]], dilation: [1, 1], groups: 1}, input: [4, 4]} : f32[1, 4, 4, 2]
        %zero = constant {splat: 0.0} : f32[]
        %zeros = broadcast %zero {axes: []} : f32[1, 4, 4, 2]
        %open = gt %x, %zeros : bool[1, 4, 4, 2]
        %through = select %open, %dx, %zeros : f32[1, 4, 4, 2]
        output y = %y
        output dx = %through
    }"#
    .parse()
    .unwrap();
    let fused = fuse_convolution(&program).unwrap();
    let names: Vec<&str> = fused.nodes().iter().map(|node| node.op.name()).collect();
    assert_eq!(names, ["input", "input", "input", "input", "biased_convolution", "gated"]);
    assert_eq!(fuse_convolution(&fused).unwrap(), fused);
}
