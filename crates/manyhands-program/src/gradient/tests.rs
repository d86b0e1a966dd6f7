//! What gradients look like as programs. Their numbers are checked on a device, against PyTorch and finite differences.

use expect_test::{Expect, expect};

use crate::{
    Builder, DType, Init, Op, Pooling, Program, ProgramError, Reduction, TensorType, Unary, Value,
    Window,
};

type Built = Result<Value, ProgramError>;

/// One line per operation that the outputs need: results, name, operands, type; bodies indented.
fn lines(program: &Program, indent: &str) -> String {
    let roots: Vec<_> = program.outputs().iter().map(|output| output.value).collect();
    let needed = super::reach::needed(program, &roots, &|_| false);
    let mut text = String::new();
    for node in program.nodes() {
        if !node.results.iter().any(|result| needed[result.idx()]) {
            continue;
        }
        let list = |ids: &[crate::ValueId]| {
            ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let types: Vec<String> =
            node.results.iter().map(|&result| program.ty(result).to_string()).collect();
        let line = format!(
            "{indent}{} = {} {}: {}",
            list(&node.results),
            node.op.name(),
            list(&node.operands),
            types.join(" ")
        );
        text += &format!("{}\n", line.replace(" :", ":"));
        match &node.op {
            Op::Scan(scan) => text += &lines(&scan.body, &format!("{indent}    ")),
            Op::Cond(cond) => {
                text += &lines(&cond.then, &format!("{indent}    "));
                text += &lines(&cond.otherwise, &format!("{indent}    "));
            }
            _ => {}
        }
    }
    text += &format!("{indent}outputs {:?}\n", roots.iter().map(|id| id.idx()).collect::<Vec<_>>());
    text
}

/// The program of the sum of what `build` makes of x `f32[2, 3]` and w `f32[3, 4]`, with the gradients of both.
fn check(build: impl FnOnce(&Builder, &Value, &Value) -> Built, expect: Expect) {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let w = g.weight("w", [3, 4], Init::Normal(0.1)).unwrap();
    let loss = build(&g, &x, &w).unwrap().sum_all().unwrap();
    let gradients = g.gradients(&loss, &[&x, &w]).unwrap();
    g.output("dx", &gradients[0]).unwrap();
    g.output("dw", &gradients[1]).unwrap();
    expect.assert_eq(&lines(&g.finish(), ""));
}

fn refusal(build: impl FnOnce(&Builder, &Value) -> Built) -> ProgramError {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let loss = build(&g, &x).unwrap();
    g.gradients(&loss, &[&x]).expect_err("the gradient is refused")
}

#[test]
fn a_dense_layer_uses_its_result_and_two_products() {
    check(
        |_, x, w| x.matmul(w)?.relu(),
        expect![[r#"
        %0 = input: f32[2, 3]
        %1 = parameter: f32[3, 4]
        %2 = matmul %0 %1: f32[2, 4]
        %3 = relu %2: f32[2, 4]
        %5 = constant: f32[]
        %6 = broadcast %5: f32[2, 4]
        %7 = constant: f32[]
        %8 = broadcast %7: f32[2, 4]
        %9 = gt %3 %8: bool[2, 4]
        %10 = select %9 %6 %8: f32[2, 4]
        %11 = matmul %10 %1: f32[2, 3]
        %12 = matmul %0 %10: f32[3, 4]
        outputs [11, 12]
    "#]],
    );
}

#[test]
fn contributions_are_added_in_the_order_of_uses() {
    check(
        |_, x, w| {
            let first = x.tanh()?.matmul(w)?;
            let second = (x * 2.0)?.matmul(w)?;
            first + second
        },
        expect![[r#"
            %0 = input: f32[2, 3]
            %1 = parameter: f32[3, 4]
            %2 = tanh %0: f32[2, 3]
            %4 = constant: f32[]
            %5 = broadcast %4: f32[2, 3]
            %6 = mul %0 %5: f32[2, 3]
            %10 = constant: f32[]
            %11 = broadcast %10: f32[2, 4]
            %12 = matmul %11 %1: f32[2, 3]
            %13 = matmul %6 %11: f32[3, 4]
            %14 = mul %12 %5: f32[2, 3]
            %15 = matmul %11 %1: f32[2, 3]
            %16 = matmul %2 %11: f32[3, 4]
            %17 = mul %2 %2: f32[2, 3]
            %18 = constant: f32[]
            %19 = broadcast %18: f32[2, 3]
            %20 = sub %19 %17: f32[2, 3]
            %21 = mul %15 %20: f32[2, 3]
            %22 = add %21 %14: f32[2, 3]
            %23 = add %16 %13: f32[3, 4]
            outputs [22, 23]
        "#]],
    );
}

#[test]
fn a_recurrent_layer_has_one_product_for_its_weight() {
    let g = Builder::new("test");
    let items = g.input("items", DType::F32, [5, 2, 3]).unwrap();
    let w = g.weight("w", [3, 3], Init::Normal(0.1)).unwrap();
    let start = g.full(&TensorType::new(DType::F32, [2, 3]), 0.0).unwrap();
    let (last, _) = g
        .scan(&[&start], &[&items], false, |_, carried, items| {
            let next = (carried[0].matmul(&w)? + &items[0])?.tanh()?;
            Ok((vec![next], vec![]))
        })
        .unwrap();
    let loss = last[0].sum_all().unwrap();
    let gradients = g.gradients(&loss, &[&w, &items]).unwrap();
    g.output("loss", &loss).unwrap();
    g.output("dw", &gradients[0]).unwrap();
    g.output("ditems", &gradients[1]).unwrap();
    expect![[r#"
        %0 = input: f32[5, 2, 3]
        %1 = parameter: f32[3, 3]
        %2 = constant: f32[]
        %3 = broadcast %2: f32[2, 3]
        %4 %5 %6 = scan %3 %0 %1: f32[2, 3] f32[5, 2, 3] f32[5, 2, 3]
            %1 = input: f32[2, 3]
            %2 = input: f32[2, 3]
            %3 = input: f32[3, 3]
            %4 = matmul %1 %3: f32[2, 3]
            %5 = add %4 %2: f32[2, 3]
            %6 = tanh %5: f32[2, 3]
            %7 = mul %6 %6: f32[2, 3]
            %8 = constant: f32[]
            %9 = broadcast %8: f32[2, 3]
            %10 = sub %9 %7: f32[2, 3]
            outputs [6, 1, 10]
        %7 = reduce %4: f32[]
        %8 = constant: f32[]
        %9 = broadcast %8: f32[2, 3]
        %10 %11 = scan %9 %6 %1: f32[2, 3] f32[5, 2, 3]
            %1 = input: f32[2, 3]
            %2 = input: f32[2, 3]
            %3 = mul %1 %2: f32[2, 3]
            %4 = input: f32[3, 3]
            %5 = matmul %3 %4: f32[2, 3]
            outputs [5, 3]
        %12 = reshape %5: f32[10, 3]
        %13 = reshape %11: f32[10, 3]
        %14 = matmul %12 %13: f32[3, 3]
        outputs [7, 14, 11]
    "#]]
    .assert_eq(&lines(&g.finish(), ""));
}

#[test]
fn a_cond_has_a_cond_as_gradient() {
    check(
        |g, x, w| {
            let positive = x.sum_all()?.greater(&g.scalar(DType::F32, 0.0)?)?;
            let product = Op::Matmul { transpose_lhs: false, transpose_rhs: false };
            let part = Op::Slice { start: vec![0, 0], limit: vec![2, 4], stride: vec![1, 1] };
            let chosen = g.cond(
                &positive,
                |inner| Ok(vec![inner.apply(product, &[x, w])?]),
                |inner| Ok(vec![inner.apply(part, &[w])?]),
            )?;
            Ok(chosen[0].clone())
        },
        expect![[r#"
            %0 = input: f32[2, 3]
            %1 = parameter: f32[3, 4]
            %2 = reduce %0: f32[]
            %3 = constant: f32[]
            %4 = gt %2 %3: bool[]
            %7 = constant: f32[]
            %8 = broadcast %7: f32[2, 4]
            %9 %10 = cond %4 %8 %1 %0 %8: f32[2, 3] f32[3, 4]
                %0 = input: f32[2, 4]
                %1 = input: f32[3, 4]
                %2 = matmul %0 %1: f32[2, 3]
                %3 = input: f32[2, 3]
                %4 = matmul %3 %0: f32[3, 4]
                outputs [2, 4]
                %0 = constant: f32[]
                %1 = input: f32[2, 4]
                %2 = pad %1 %0: f32[3, 4]
                %3 = constant: f32[]
                %4 = broadcast %3: f32[2, 3]
                outputs [4, 2]
            outputs [9, 10]
        "#]],
    );
}

#[test]
fn uses_can_be_kept_apart() {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let w = g.weight("w", [3, 3], Init::Normal(0.1)).unwrap();
    let twice = x.matmul(&w).unwrap().matmul(&w).unwrap();
    let loss = twice.sum_all().unwrap();
    let uses = g.gradients_per_use(&loss, &[&w, &x]).unwrap();
    assert_eq!(uses.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    let operands =
        |value: &Value| g.inspect(|program| program.definer(value.id()).operands.clone());
    assert_eq!(operands(&uses[0][0])[0], x.id(), "the first use comes first");
}

#[test]
fn new_operations_belong_to_the_scope_of_the_forward_one() {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let h = g.scope("layer0", |_| x.exp()).unwrap();
    let loss = g.scope("loss", |_| h.sum_all()).unwrap();
    let before = g.inspect(|program| program.nodes().len());
    g.gradients(&loss, &[&x]).unwrap();
    let scopes = g.inspect(|program| {
        program.nodes()[before..].iter().map(|node| node.scope.clone()).collect::<Vec<_>>()
    });
    assert_eq!(scopes, ["loss", "loss", "layer0"]);
    assert_eq!(g.scope_path(), "");
}

#[test]
fn steps_are_flat() {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let loss = x.floor().unwrap().sum_all().unwrap();
    let gradient = &g.gradients(&loss, &[&x]).unwrap()[0];
    let op = g.inspect(|program| program.definer(gradient.id()).op.clone());
    assert!(matches!(op, Op::Broadcast { .. }), "zeros, not {op:?}");
}

#[test]
fn what_cannot_be_differentiated_is_named() {
    assert_eq!(
        refusal(|_, x| x.exp()).to_string(),
        "no gradient of %1 = exp, which is f32[2, 3]: a gradient is taken of a scalar float"
    );
    assert_eq!(
        refusal(|g, _| g.scalar(DType::F32, 1.0)).to_string(),
        "no gradient of %1 = constant with respect to input \"x\": the one does not depend on the other"
    );
    let through = |build: fn(&Builder, &Value) -> Built| {
        let error = refusal(|g, x| build(g, x)?.sum_all());
        assert!(matches!(error, ProgramError::NotDifferentiable { .. }), "{error}");
        error.to_string()
    };
    let error = through(|_, x| x.grain_sum());
    assert!(error.starts_with("no gradient through `grain_sum` (%1 = grain_sum): take"), "{error}");
    let error = through(|_, x| x.all_reduce());
    assert!(error.contains("`all_reduce` (%1 = all_reduce): take"), "{error}");
    let error = through(|g, x| {
        let one = g.full(&TensorType::new(DType::F32, [3]), 1.0)?;
        let [_, mean, _] = x.batch_norm(&one, &one, 1e-5)?;
        Ok(mean)
    });
    assert!(error.contains("`batch_norm` (%4 = batch_norm): its statistics"), "{error}");
    through(|g, x| {
        let dy = g.full(&x.ty(), 1.0)?;
        g.apply(Op::SoftmaxGrad, &[x, &dy])
    });
    let error = refusal(|_, x| x.argmax(1)?.cast(DType::F32)?.sum_all());
    assert!(matches!(error, ProgramError::Independent { .. }), "{error}");
}

#[test]
fn integers_have_no_gradient() {
    let g = Builder::new("test");
    let labels = g.input("labels", DType::I32, [2]).unwrap();
    let loss = labels.cast(DType::F32).unwrap().sum_all().unwrap();
    let error = g.gradients(&loss, &[&labels]).unwrap_err().to_string();
    assert!(error.contains("input \"labels\": it is i32[2], and only floating-point"), "{error}");
}

#[test]
fn a_value_of_another_program_is_refused() {
    let (here, there) = (Builder::new("here"), Builder::new("there"));
    let x = here.scalar(DType::F32, 1.0).unwrap();
    let y = there.scalar(DType::F32, 1.0).unwrap();
    let error = here.gradients(&x, &[&y]).unwrap_err().to_string();
    assert!(error.contains("belongs to another program"), "{error}");
}

/// Every operation whose results and operands can be floats is either differentiated or refused, and never panics.
#[test]
fn every_operation_has_a_rule_or_a_reason() {
    let g = Builder::new("test");
    let image = g.input("image", DType::F32, [2, 6, 6, 4]).unwrap();
    let rows = g.input("rows", DType::F32, [2, 3, 4]).unwrap();
    let four = g.input("four", DType::F32, [4]).unwrap();
    let kernel = g.input("kernel", DType::F32, [3, 3, 2, 6]).unwrap();
    let index = g.input("index", DType::I32, [2]).unwrap();
    let window = Window {
        stride: vec![2, 1],
        padding: vec![(1, 0), (0, 2)],
        dilation: vec![1, 2],
        groups: 2,
    };
    let pooling = Pooling::tiles(&[2, 3]);
    let zero = g.scalar(DType::F32, 0.0).unwrap();
    let mut built = vec![
        image.convolution(&kernel, window),
        image.max_pool(pooling.clone()),
        image.average_pool(pooling),
        rows.softmax(1),
        rows.log_softmax(2),
        rows.layer_norm(&four, &four, 1e-5),
        rows.batch_norm(&four, &four, 1e-5).map(|[y, ..]| y),
        rows.attention(&rows, &rows, 2, true, None),
        rows.dropout(0.5),
        rows.transpose(&[2, 0, 1]),
        rows.slice(&[0, 1, 1], &[2, 3, 4], &[1, 1, 2]),
        rows.pad(&zero, &[1, 0, 0], &[0, 2, 0], &[0, 1, 2]),
        rows.gather(0, &index),
        rows.scatter_add(0, &index, &rows),
        rows.matmul_with(true, &rows, false),
        rows.cast(DType::F64).and_then(|x| x.cast(DType::F32)),
        four.cross_entropy(&g.constant(crate::Tensor::scalar(DType::I32, 1.0)).unwrap()),
        g.apply(Op::BlockSquareSums, &[&rows]),
        g.concatenate(1, &[&rows, &rows]),
    ];
    built.extend(Unary::ALL.iter().filter(|op| **op != Unary::Not).map(|op| rows.unary(*op)));
    built.extend(Reduction::ALL.iter().map(|kind| rows.reduce(*kind, &[0, 2])));
    let condition = rows.greater(&rows).unwrap();
    built.push(g.apply(Op::Select, &[&condition, &rows, &rows]));
    for op in crate::Binary::ALL {
        if !matches!(op.name(), "and" | "or" | "xor") {
            built.push(g.apply(Op::Binary(*op), &[&rows, &rows]));
        }
    }
    for value in built {
        let value = value.unwrap();
        let name = g.inspect(|program| program.describe(value.id()));
        let loss = value.sum_all().unwrap();
        let wrt: Vec<&Value> = [&image, &rows, &four, &kernel]
            .into_iter()
            .filter(|wrt| g.inspect(|p| super::reach::backward(p, &[loss.id()])[wrt.id().idx()]))
            .collect();
        assert!(!wrt.is_empty(), "{name}");
        let gradients = g.gradients(&loss, &wrt).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (gradient, wrt) in gradients.iter().zip(wrt) {
            assert_eq!(gradient.ty(), wrt.ty(), "{name}");
        }
    }
}
