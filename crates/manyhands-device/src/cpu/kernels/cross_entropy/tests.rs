//! Cross-entropy against f64, and labels that are no classes.

use super::*;

fn logits(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Losses and gradients from `run`, asserted equal by bits on every instruction set and cut.
fn same_everywhere(n: usize, run: impl Fn(Isa, *mut f32, Part)) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        for count in 1..=5 {
            let mut out = vec![f32::NAN; n];
            (0..count).for_each(|idx| run(isa, out.as_mut_ptr(), Part { idx, count }));
            let want = first.get_or_insert_with(|| out.clone());
            assert_eq!(bits(want), bits(&out), "{} in {count} parts", isa.name());
        }
    }
    first.unwrap_or_default()
}

#[test]
fn losses_and_gradients_agree_with_f64() {
    for (rows, cols) in [(0, 3), (1, 1), (3, 10), (4, 16), (5, 17), (6, 100)] {
        let x = logits(rows * cols);
        let labels: Vec<i64> = (0..rows).map(|row| (row * 5 % cols) as i64).collect();
        let short: Vec<i32> = labels.iter().map(|label| *label as i32).collect();
        let weights: Vec<f32> = (0..rows).map(|row| row as f32 - 1.5).collect();
        let losses = same_everywhere(rows, |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { cross_entropy(isa, x.as_ptr(), labels.as_ptr(), out, rows, cols, part) }
                .expect("the labels are classes");
        });
        let grads = same_everywhere(x.len(), |isa, out, part| {
            let (labels, weights) = (short.as_ptr(), weights.as_ptr());
            // SAFETY: the slices have the sizes given.
            unsafe { cross_entropy_grad(isa, x.as_ptr(), labels, weights, out, rows, cols, part) }
                .expect("the labels are classes");
        });
        for row in 0..rows {
            let class = labels[row] as usize;
            let x: Vec<f64> = x[row * cols..][..cols].iter().map(|x| f64::from(*x)).collect();
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            let loss = sum.ln() - x[class];
            assert!((f64::from(losses[row]) - loss).abs() < 2e-6, "{} {loss}", losses[row]);
            for col in 0..cols {
                let one = if col == class { 1.0 } else { 0.0 };
                let want = (x[col].exp() / sum - one) * f64::from(weights[row]);
                let got = f64::from(grads[row * cols + col]);
                assert!((got - want).abs() < 2e-6, "{got} {want}");
            }
        }
    }
}

#[test]
fn a_label_that_is_no_class_is_named_and_not_read_through() {
    let x = logits(4 * 3);
    for (label, name) in [(3, "label 3 in row 2"), (-1, "label -1 in row 2")] {
        let labels = [0, 2, label, -7];
        let (mut losses, mut grads) = ([0.0; 4], [0.0; 12]);
        // SAFETY: the arrays have four rows of three classes.
        let (loss, grad) = unsafe {
            let (x, labels, out) = (x.as_ptr(), labels.as_ptr(), losses.as_mut_ptr());
            let isa = Isa::detect();
            let loss = cross_entropy::<i32>(isa, x, labels, out, 4, 3, Part::WHOLE);
            let grad =
                cross_entropy_grad(isa, x, labels, out, grads.as_mut_ptr(), 4, 3, Part::WHOLE);
            (loss, grad)
        };
        assert_eq!(loss, grad);
        let said = loss.expect_err("the third label is bad").to_string();
        assert_eq!(said, format!("{name} is not one of the 3 classes"));
        assert!(losses[1].is_finite() && losses[2].is_nan() && losses[3].is_nan());
        assert!(grads[..6].iter().all(|d| d.is_finite()) && grads[6..].iter().all(|d| d.is_nan()));
    }
}
