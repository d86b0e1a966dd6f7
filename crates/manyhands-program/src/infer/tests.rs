//! One misuse of each kind, and the sentence it gets.

use crate::{Builder, DType, Init, Pooling, Value, Window};

fn message(build: impl FnOnce(&Builder, &Value) -> Result<Value, crate::ProgramError>) -> String {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [128, 784]).unwrap();
    let error = build(&g, &x).expect_err("the misuse is refused").to_string();
    assert!(error.contains("tests.rs:"), "names the source line: {error}");
    error
}

#[test]
fn a_product_of_matrices_that_do_not_fit_names_both() {
    let error = message(|g, x| {
        let w = g.scope("layer0", |g| g.weight("w", [785, 512], Init::Normal(0.1)))?;
        x.matmul(&w)
    });
    assert!(error.starts_with("`matmul` of input \"x\" f32[128, 784] (from "), "{error}");
    assert!(error.contains("parameter \"layer0/w\" f32[785, 512]"), "{error}");
    assert!(error.ends_with("the inner sizes 784 and 785 differ"), "{error}");
}

#[test]
fn operands_that_do_not_stretch_are_refused() {
    let error = message(|g, x| x + &g.input("b", DType::F32, [10])?);
    assert!(error.contains("their shapes [128, 784] and [10] differ"), "{error}");
}

#[test]
fn types_are_never_mixed_silently() {
    let error = message(|g, x| x + &g.input("b", DType::I32, [784])?);
    assert!(error.contains("element types f32 and i32 differ; cast one"), "{error}");
    let error = message(|g, _| g.input("i", DType::I32, [3])?.exp());
    assert!(error.contains("must be a float type, not i32"), "{error}");
}

#[test]
fn windows_must_fit() {
    let error = message(|g, _| {
        let x = g.input("image", DType::F32, [1, 4, 4, 2])?;
        x.convolution(&g.weight("k", [5, 5, 2, 3], Init::Constant(0.0))?, Window::valid(2))
    });
    assert!(error.contains("a window of 5 does not fit in 4"), "{error}");
    let error = message(|_, x| x.max_pool(Pooling::tiles(&[2, 2])));
    assert!(error.contains("operand 0 must have 4 axes, not 2"), "{error}");
}

#[test]
fn axes_and_slices_are_checked() {
    assert!(message(|_, x| x.sum(&[2])).contains("the axes [2]"));
    assert!(message(|_, x| x.slice_axis(0, 100, 129)).contains("does not lie in shape [128, 784]"));
    assert!(message(|_, x| x.reshape([10, 10])).contains("cannot be seen as [10, 10]"));
    assert!(message(|_, x| x.transpose(&[0, 0])).contains("not an order of all 2 axes"));
    assert!(message(|_, x| x.dropout(1.0)).contains("at least 0 and below 1"));
}

#[test]
fn values_of_another_program_are_refused() {
    let other = Builder::new("other");
    let y = other.input("y", DType::F32, [128, 784]).unwrap();
    assert!(message(|_, x| x + &y).contains("belongs to another program"));
}

#[test]
fn a_scan_whose_carried_value_changes_shape_is_refused() {
    let error = message(|g, x| {
        let start = g.full(&crate::TensorType::new(DType::F32, [784]), 0.0)?;
        let (_, all) = g.scan(&[&start], &[x], false, |_, c, x| {
            Ok((vec![c[0].sum_all()?], vec![x[0].clone()]))
        })?;
        Ok(all[0].clone())
    });
    assert!(error.contains("carried value 0 is f32[], where f32[784] is needed"), "{error}");
}

/// Operands of many types, for lines of text that misuse them.
const OPERANDS: &str = r#"program misuse {
    %x = input {name: "x"} : f32[4, 6]
    %v = input {name: "v"} : f32[6]
    %s = input {name: "s"} : f32[]
    %d = input {name: "d"} : f64[4, 6]
    %i = input {name: "i"} : i32[4]
    %n = input {name: "n"} : i32[]
    %b = input {name: "b"} : bool[4, 6]
    %c = input {name: "c"} : bool[]
    %image = input {name: "image"} : f32[2, 8, 8, 4]
    %kernel = input {name: "kernel"} : f32[3, 3, 4, 6]
    %q = input {name: "q"} : f32[2, 4, 6]
    %k = input {name: "k"} : f32[2, 5, 6]
    %mask = input {name: "mask"} : bool[4, 5]
    %context = input {name: "random"} : i64[3]
    %large = input {name: "large"} : f32[1000000, 1000000]
"#;

/// Checks that a line is refused, and what is said after the operands.
#[track_caller]
fn refused(line: &str, reason: &str) {
    let error = format!("{OPERANDS}{line}\n}}").parse::<crate::Program>();
    let error = error.expect_err(line).to_string();
    assert!(error.ends_with(&format!(": {reason}")), "{line}\n{error}");
}

#[test]
fn elementwise_operations_are_picky_about_types() {
    refused("%r = relu %x, %x", "it takes one operands, not 2");
    refused("%r = not %x", "operand 0 must be bool, not f32");
    refused("%r = neg %b", "operand 0 must be a signed number type, not bool");
    refused("%r = and %x, %x", "operand 0 must be bool, not f32");
    refused("%r = add %b, %b", "operand 0 must be a number type, not bool");
    refused("%r = pow %i, %i", "operand 0 must be a float type, not i32");
    refused("%r = lt %x, %d", "their element types f32 and f64 differ; cast one of them");
    refused("%r = select %x, %x, %x", "operand 0 must be bool, not f32");
    refused("%r = select %c, %x, %x", "their shapes [] and [4, 6] differ");
    refused("%r = grain_sum %b", "operand 0 must be a float or i32 or i64, not bool");
    refused("%r = all_reduce %i", "operand 0 must be a float type, not i32");
    refused("%r = cast : f32[]", "it takes one operands, not 0");
}

#[test]
fn values_from_nothing_are_checked_too() {
    refused("%r = iota {axis: 0} : f32[]", "axis 0 is not among the 0 axes");
    refused("%r = iota {axis: 0} : bool[2]", "operand 0 must be a number type, not bool");
    refused("%r = input %x {name: \"y\"} : f32[]", "it takes no operands, not 1");
    refused("%r = constant %x {splat: 1.0} : f32[]", "it takes no operands, not 1");
    let too_large =
        "the result f32[2000000, 1000000] would be larger than any tensor that can be held";
    refused("%r = concatenate %large, %large {axis: 0}", too_large);
    let axes = vec!["1"; 33].join(", ");
    let reason = "the result would have 33 axes, and a tensor has at most 32";
    refused(&format!("%r = input {{name: \"y\"}} : f32[{axes}]"), reason);
    let random = "{distribution: normal, key: 1} : f32[2]";
    refused(
        &format!("%r = random {random}"),
        "it takes a random context and its own operands, not 0",
    );
    refused(&format!("%r = random %i {random}"), "operand 0 must be i64, not i32");
    refused(&format!("%r = random %context, %i {random}"), "operand 1 must have shape [], not [4]");
    refused(
        "%r = dropout %i, %context {rate: 0.5, key: 1}",
        "operand 0 must be a float type, not i32",
    );
    refused(
        "%r = dropout %x, %context {rate: -0.1, key: 1}",
        "`rate` must be at least 0 and below 1, not -0.1",
    );
}

#[test]
fn layouts_must_fit_their_operands() {
    refused(
        "%r = broadcast %v {axes: [0]} : f32[5, 6]",
        "shape [6] does not stretch to [5, 6] with its axes at [0]",
    );
    refused(
        "%r = broadcast %x {axes: [1, 0]} : f32[6, 4]",
        "the axes [1, 0] must be different axes of the 2, in rising order",
    );
    refused("%r = concatenate {axis: 0}", "it takes at least one operands, not 0");
    refused("%r = concatenate %x, %v {axis: 0}", "their shapes [4, 6] and [6] differ");
    refused("%r = concatenate %x, %x {axis: 2}", "axis 2 is not among the 2 axes");
    refused("%r = transpose %x {order: [0]}", "the order [0] is not an order of all 2 axes");
    refused(
        "%r = slice %x {start: [0], limit: [4, 6], stride: [1, 1]}",
        "`start` needs 2 entries, not 1",
    );
    refused(
        "%r = slice %x {start: [0, 0], limit: [4, 6], stride: [1, 0]}",
        "the part [0, 0] to [4, 6] by [1, 0] does not lie in shape [4, 6]",
    );
    refused(
        "%r = pad %x, %v {low: [0, 0], high: [0, 0], interior: [0, 0]}",
        "operand 1 must have shape [], not [6]",
    );
    refused(
        "%r = pad %x, %s {low: [0], high: [0, 0], interior: [0, 0]}",
        "`low` needs 2 entries, not 1",
    );
    refused("%r = gather %x, %v {axis: 0}", "operand 1 must be i32 or i64, not f32");
    refused("%r = gather %x, %i {axis: 2}", "axis 2 is not among the 2 axes");
    refused("%r = scatter_add %b, %i, %b {axis: 0}", "operand 0 must be a number type, not bool");
    refused(
        "%r = scatter_add %x, %i, %x {axis: 1}",
        "operand 2 must have shape [4, 4], not [4, 6]",
    );
}

#[test]
fn rows_of_tables_must_fit() {
    refused("%r = take_rows %v, %i", "operand 0 must have 2 axes, not 1");
    refused("%r = take_rows %x, %v", "operand 1 must be i32 or i64, not f32");
    refused("%r = put_grain %context {n_grains: 2}", "it takes two or three operands, not 1");
    refused("%r = put_grain %i, %x {n_grains: 2}", "operand 0 must be i64, not i32");
    refused(
        "%r = put_grain %context, %x, %x {n_grains: 2}",
        "operand 2 must have shape [2, 4, 6], not [4, 6]",
    );
    let pairs = "it takes up to 16 pairs of codes and values operands";
    refused("%r, %s = merge_rows {most: 2}", &format!("{pairs}, not 0"));
    refused("%r, %s = merge_rows %i {most: 2}", &format!("{pairs}, not 1"));
    refused("%r, %s = merge_rows %i, %x {most: 2}", "operand 1 must have 3 axes, not 2");
    refused("%r = put_rows %x, %v, %x", "operand 1 must be i32, not f32");
    refused("%r = put_rows %x, %i, %v", "operand 2 must have shape [4, 6], not [6]");
}

#[test]
fn products_and_convolutions_must_fit() {
    refused("%r = matmul %x, %v", "operand 1 must have at least 2 axes, not 1");
    refused("%r = matmul %q, %k {transpose_lhs: true}", "the inner sizes 4 and 5 differ");
    refused("%r = dense %x, %x {transpose_rhs: true, add: bias}", "`add` needs 1 entries, not 0");
    refused(
        "%r = dense %x, %x, %v {transpose_rhs: true, add: bias}",
        "operand 2 must have shape [4], not [6]",
    );
    let convolution = |groups, stride| {
        let rest = "padding: [[0, 0], [0, 0]], dilation: [1, 1]";
        format!("%r = convolution %image, %kernel {{stride: {stride}, {rest}, groups: {groups}}}")
    };
    refused(&convolution(0, "[1, 1]"), "`groups` must be at least 1, not 0");
    refused(&convolution(3, "[1, 1]"), "the channels of size 4 does not divide into 3");
    refused(&convolution(2, "[1, 1]"), "the inner sizes 2 and 4 differ");
    refused(&convolution(1, "[0, 1]"), "`stride` must be at least 1, not 0");
    refused(&convolution(1, "[1, 1, 1]"), "`stride` needs 2 entries, not 3");
    let window = "{stride: [1, 1], padding: [[0, 0], [0, 0]], dilation: [1, 1], groups: 1}";
    refused(
        &format!("%r = convolution_input_grad %image, %kernel {{window: {window}, input: [8, 8]}}"),
        "their shapes [2, 6, 6, 6] and [2, 8, 8, 4] differ",
    );
    refused(
        &format!("%r = convolution_kernel_grad %image, %image {{window: {window}, kernel: [3]}}"),
        "`kernel` needs 2 entries, not 1",
    );
}

#[test]
fn poolings_and_reductions_must_fit() {
    let pool = |window, padding| {
        format!("%r = max_pool %image {{window: {window}, stride: [1, 1], padding: {padding}}}")
    };
    refused(&pool("[9, 2]", "[[0, 0], [0, 0]]"), "a window of 9 does not fit in 8 (with padding)");
    refused(
        &pool("[2, 2]", "[[2, 0], [0, 0]]"),
        "`padding` must be smaller than the window, not (2, 0)",
    );
    refused(&pool("[2, 2]", "[[0, 0]]"), "`padding` needs 2 entries, not 1");
    let pooling = "{window: [2, 2], stride: [2, 2], padding: [[0, 0], [0, 0]]}";
    let attributes = &pooling[1..pooling.len() - 1];
    refused(
        &format!("%r = max_pool_grad %image, %image {{{attributes}}}"),
        "their shapes [2, 4, 4, 4] and [2, 8, 8, 4] differ",
    );
    refused(
        &format!("%r = average_pool_grad %x {{pooling: {pooling}, input: [8]}}"),
        "operand 0 must have at least 3 axes, not 2",
    );
    refused("%r = reduce %b {kind: sum, axes: [0]}", "operand 0 must be a number type, not bool");
    refused("%r = argmax %x {axis: 2}", "axis 2 is not among the 2 axes");
    refused(
        "%e = input {name: \"e\"} : f32[4, 0]\n%r = argmax %e {axis: 1}",
        "`axis` must be an axis with at least 1 and below 2147483648 elements, not 0",
    );
    refused("%r = block_square_sums %i", "operand 0 must be a float type, not i32");
}

#[test]
fn row_operations_must_fit() {
    refused("%r = softmax %s", "operand 0 must have at least 1 axes, not 0");
    refused("%r = softmax_grad %x, %v", "their shapes [4, 6] and [6] differ");
    refused("%r = cross_entropy %x, %n", "operand 1 must have shape [4], not []");
    refused("%r = cross_entropy_grad %x, %i, %v", "operand 2 must have shape [4], not [6]");
    refused("%r = layer_norm %x, %v, %s {epsilon: 0.1}", "operand 2 must have shape [6], not []");
    refused("%r = layer_norm %x, %v, %v {epsilon: -1}", "`epsilon` must be at least 0, not -1");
    refused("%r = layer_norm_grad %x, %v, %v, %v, %x", "their shapes [4] and [6] differ");
    refused("%r = batch_norm %i, %v, %v {epsilon: 0.1}", "operand 0 must be a float type, not i32");
    refused("%r = batch_norm_grad %x, %v, %v, %v {epsilon: 0.1}", "it takes five operands, not 4");
    let attention =
        |operands, attributes| format!("%r = attention {operands} {{scale: 1.0, {attributes}}}");
    refused(
        &attention("%q, %k, %k", "heads: 0, causal: false"),
        "the last axis of size 6 does not divide into 0",
    );
    refused(
        &attention("%q, %k, %q", "heads: 2, causal: false"),
        "their shapes [2, 5, 6] and [2, 4, 6] differ",
    );
    refused(
        &attention("%k, %q, %q", "heads: 2, causal: true"),
        "`causal` must be false where there are fewer keys than queries, not true",
    );
    refused(
        &attention("%q, %k, %k, %c", "heads: 2, causal: false, masked: true"),
        "operand 3 must have shape [4, 5], not []",
    );
    refused(
        &attention("%x, %x, %x", "heads: 2, causal: false"),
        "operand 0 must have 3 axes, not 2",
    );
}

#[test]
fn fused_terms_must_refer_to_earlier_ones() {
    let fused = |spreads: &str, terms: &str, results: &str| {
        format!("%r = fused %x, %v {{operands: {spreads}, terms: {terms}, results: {results}}}")
    };
    let terms = "`terms` must be terms that use earlier ones, truth values only to select, not";
    let both = "[full, trailing]";
    refused(&fused(both, "[unary(relu, 0)]", "[0]"), &format!("{terms} term 0: Unary(Relu, 0)"));
    refused(&fused(both, "[operand(2)]", "[0]"), &format!("{terms} term 0: Operand(2)"));
    refused(&fused(both, "[number(1e39)]", "[0]"), &format!("{terms} term 0: Number(inf)"));
    refused(&fused(both, "[operand(0), compare(lt, 0, 0)]", "[1]"), &format!("{terms} result 1"));
    refused(&fused(both, "[operand(0)]", "[]"), &format!("{terms} no results"));
    refused(&fused("[full]", "[operand(0)]", "[0]"), "`operands` needs 2 entries, not 1");
    refused(
        &fused("[trailing, trailing]", "[]", "[]"),
        "it takes at least one full operands, not 0",
    );
    refused(&fused("[full, full]", "[]", "[]"), "operand 1 must have shape [4, 6], not [6]");
}

#[test]
fn bodies_must_fit_what_is_around_them() {
    let scan = |attributes: &str, body: &str| {
        let iteration = "%t = input {name: \"t\"} : i32[]";
        format!("%r = scan %v, %x {{{attributes}}} body {{\n{iteration}\n{body}\n}}")
    };
    let carried = "%c = input {name: \"c\"} : f32[6]\n%e = input {name: \"e\"} : f32[6]\n";
    let one_each = "n_carried: 1, n_scanned: 1, length: 4";
    refused(&scan(one_each, ""), "the body has 1 inputs, where 3 are needed");
    refused(&scan(one_each, carried), "the body has 0 outputs, where 1 are needed");
    refused(
        &scan(one_each, &format!("{carried}output a = %t")),
        "the body's carried value 0 is i32[], where f32[6] is needed",
    );
    refused(
        &scan("n_carried: 1, n_scanned: 1, length: 5", carried),
        "operand 1 must have shape [5], not [4, 6]",
    );
    refused(
        &scan("n_carried: 9, n_scanned: 18446744073709551615, length: 4", carried),
        "it takes the carried and scanned values, then what the body captures, operands, not 2",
    );
    refused(
        &scan("n_carried: 1, n_scanned: 1, length: 2147483648", carried),
        "`length` must be below 2147483648, not 2147483648",
    );
    refused(
        &scan(one_each, "%p = parameter {name: \"p\", role: weight, init: normal(1)} : f32[]"),
        "the body may hold only inputs, constants and operations, not parameters",
    );
    refused(
        &scan(one_each, &format!("{carried}%g = grain_sum %c")),
        "the body may hold only inputs, constants and operations, not sums over grains",
    );
    refused("cond %x then {} otherwise {}", "operand 0 must be bool, not f32");
    refused("cond %c, %x then {} otherwise {}", "`operands` needs 0 entries, not 1");
    let constant = "{\n%k = constant {splat: 1.0} : f32[]\noutput k = %k\n}";
    refused(
        &format!("%r = cond %c then {constant} otherwise {{}}"),
        "the body has 0 outputs, where 1 are needed",
    );
    refused(
        &format!("%r = cond %c then {constant} otherwise {}", constant.replace("f32", "f64")),
        "the body's output 0 is f64[], where f32[] is needed",
    );
}

#[test]
fn values_that_are_not_there_are_refused() {
    let mut program = crate::Program::new("p");
    let nowhere = crate::ValueId::at(7);
    let error = program.push(crate::Op::Select, &[nowhere], "").unwrap_err();
    assert_eq!(error.to_string(), "`select`: %7 is not defined in this program");
}

#[test]
fn bodies_are_not_nested_without_end() {
    let mut body = crate::Program::new("then");
    for depth in 0..40 {
        let mut outer = crate::Program::new("then");
        let truth = |name: &str| crate::Op::Input {
            name: name.to_string(),
            dtype: DType::Bool,
            shape: crate::Shape::scalar(),
        };
        let condition = outer.push(truth("condition"), &[], "").unwrap()[0];
        let captured = vec![condition; body.inputs().count()];
        let otherwise = crate::Program::new("otherwise");
        let cond = crate::Op::Cond(Box::new(crate::CondSpec { then: body, otherwise }));
        match outer.push(cond, &[vec![condition], captured].concat(), "") {
            Ok(_) => body = outer,
            Err(error) => {
                assert_eq!(depth, super::MAX_NESTING);
                assert!(error.to_string().ends_with("bodies would be nested deeper than 32"));
                return;
            }
        }
    }
    panic!("40 bodies in each other were accepted");
}

#[test]
fn operations_on_outer_values_inside_a_branch_belong_to_the_branch() {
    let g = Builder::new("branches");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let large = x.sum_all().unwrap().greater(&g.scalar(DType::F32, 1.0).unwrap()).unwrap();
    let n_before = g.inspect(|program| program.nodes().len());
    let chosen = g.cond(&large, |_| Ok(vec![x.exp()?]), |_| Ok(vec![(&x * 2.0)?])).unwrap();
    g.output("y", &chosen[0]).unwrap();
    let program = g.finish();
    assert_eq!(program.nodes().len(), n_before + 1, "only the cond itself was added outside");
    let crate::Op::Cond(cond) = &program.nodes()[n_before].op else { panic!("a cond was added") };
    assert!(cond.then.any_op(&mut |op| op.name() == "exp"));
    assert!(cond.otherwise.any_op(&mut |op| op.name() == "mul"));
}

#[test]
fn random_operations_of_a_program_have_keys_of_their_own() {
    let g = Builder::new("keys");
    let xs = g.input("xs", DType::F32, [3, 4]).unwrap();
    let start = g.full(&crate::TensorType::new(DType::F32, [4]), 0.0).unwrap();
    for _ in 0..2 {
        let body = |_: &Builder, c: &[Value], x: &[Value]| {
            Ok((vec![(&c[0] + &x[0].dropout(0.5)?)?.dropout(0.5)?], vec![]))
        };
        let (last, _) = g.scan(&[&start], &[&xs], false, body).unwrap();
        g.output(&format!("y{}", last[0].id()), &last[0].dropout(0.5).unwrap()).unwrap();
    }
    let again = Builder::from_program(g.finish());
    let x = again.input("x", DType::F32, [4]).unwrap();
    again.output("z", &x.dropout(0.5).unwrap()).unwrap();
    let mut keys = Vec::new();
    again.finish().any_op(&mut |op| {
        if let crate::Op::Dropout { key, .. } = op {
            keys.push(*key);
        }
        false
    });
    assert_eq!(keys.len(), 7);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 7, "no key is used twice");
}

#[test]
fn attributes_that_no_kernel_could_follow_are_refused() {
    let g = Builder::new("absurd");
    let x = g.input("x", DType::F32, [1, 4, 4, 1]).unwrap();
    let kernel = g.input("k", DType::F32, [1, 1, 1, 1]).unwrap();
    let far = (1 << 31) - 2;
    let window = Window { padding: vec![(far, far); 2], ..Window::valid(2) };
    let error = x.convolution(&kernel, window).unwrap_err().to_string();
    assert!(error.contains("larger than any tensor"), "{error}");
    let window = Window { stride: vec![1 << 31; 2], ..Window::valid(2) };
    let error = x.convolution(&kernel, window).unwrap_err().to_string();
    assert!(error.contains("`stride` must be at most 1048576"), "{error}");
    let zero = g.scalar(DType::F32, 0.0).unwrap();
    let error = x.pad(&zero, &[0; 4], &[0; 4], &[0, 0, 0, usize::MAX]).unwrap_err().to_string();
    assert!(error.contains("`interior` must be at most"), "{error}");
    let dense = crate::Op::Dense {
        transpose_lhs: false,
        transpose_rhs: false,
        add: None,
        activation: Some(crate::Unary::Not),
    };
    let m = g.input("m", DType::F32, [2, 2]).unwrap();
    let error = g.apply(dense, &[&m, &m]).unwrap_err().to_string();
    assert!(error.contains("must be an operation on floats, not not"), "{error}");
}
