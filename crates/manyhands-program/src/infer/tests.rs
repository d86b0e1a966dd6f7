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
        let (_, all) =
            g.scan(&[&start], &[x], false, |_, c, x| Ok((vec![c[0].sum_all()?], vec![x[0].clone()])))?;
        Ok(all[0].clone())
    });
    assert!(error.contains("carried value 0 is f32[], where f32[784] is needed"), "{error}");
}
