//! Softmax and its kin along the last axis, and cross-entropy.

use manyhands_program::Op;

use super::element::{Float, total};
use super::layout::for_each_index;
use super::memory::Call;
use crate::cpu::kernels::fault::Fault;

/// Calls `each` with every row of the first operand: its index, and where it starts.
fn for_each_row(call: &Call<'_>, mut each: impl FnMut(usize, usize)) {
    let shape = &call.operand_type(0).shape;
    let cols = shape.last();
    let n_rows = shape.n_elements().checked_div(cols).unwrap_or(0);
    (0..n_rows).for_each(|row| each(row, row * cols));
}

/// The largest of a row, and the logarithm of the sum of exp(x - largest).
fn log_sum<T: Float>(row: &[T]) -> (f64, f64) {
    let largest =
        row.iter().map(|x| x.wide()).fold(f64::NEG_INFINITY, |a, b| if b > a { b } else { a });
    let sum = total(row.iter().map(|x| libm::exp(x.wide() - largest)));
    (largest, libm::log(sum))
}

pub(super) fn softmax<T: Float>(call: &Call<'_>) {
    let (x, y, cols) =
        (call.operand::<T>(0), call.result::<T>(0), call.result_type(0).shape.last());
    for_each_row(call, |_, start| {
        let row = &x[start..start + cols];
        let (largest, _) = log_sum(row);
        let sum = total(row.iter().map(|x| libm::exp(x.wide() - largest)));
        for (i, x) in row.iter().enumerate() {
            y.set(start + i, T::narrow(libm::exp(x.wide() - largest) / sum));
        }
    });
}

pub(super) fn log_softmax<T: Float>(call: &Call<'_>) {
    let (x, y, cols) =
        (call.operand::<T>(0), call.result::<T>(0), call.result_type(0).shape.last());
    for_each_row(call, |_, start| {
        let row = &x[start..start + cols];
        let (largest, log_sum) = log_sum(row);
        for (i, x) in row.iter().enumerate() {
            y.set(start + i, T::narrow(x.wide() - largest - log_sum));
        }
    });
}

pub(super) fn softmax_grad<T: Float>(call: &Call<'_>) {
    let (y, dy) = (call.operand::<T>(0), call.operand::<T>(1));
    let (dx, cols) = (call.result::<T>(0), call.result_type(0).shape.last());
    for_each_row(call, |_, start| {
        let dot = total((start..start + cols).map(|i| y[i].wide() * dy[i].wide()));
        for i in start..start + cols {
            dx.set(i, T::narrow(y[i].wide() * (dy[i].wide() - dot)));
        }
    });
}

pub(super) fn log_softmax_grad<T: Float>(call: &Call<'_>) {
    let (y, dy) = (call.operand::<T>(0), call.operand::<T>(1));
    let (dx, cols) = (call.result::<T>(0), call.result_type(0).shape.last());
    for_each_row(call, |_, start| {
        let sum = total(dy[start..start + cols].iter().map(|dy| dy.wide()));
        for i in start..start + cols {
            dx.set(i, T::narrow(dy[i].wide() - libm::exp(y[i].wide()) * sum));
        }
    });
}

pub(super) fn run<T: Float>(op: &Op, call: &Call<'_>) -> Result<(), Fault> {
    let logits = call.operand::<T>(0);
    let n_classes = call.operand_type(0).shape.last();
    let out = call.result::<T>(0);
    let row_at = |row: usize| &logits[row * n_classes..(row + 1) * n_classes];
    let done = match op {
        Op::CrossEntropy => for_each_index(call, 1, n_classes, |row, label| {
            let (largest, log_sum) = log_sum(row_at(row));
            out.set(row, T::narrow(log_sum - (row_at(row)[label].wide() - largest)));
        }),
        _ => {
            let d = call.operand::<T>(2);
            for_each_index(call, 1, n_classes, |row, label| {
                let (largest, log_sum) = log_sum(row_at(row));
                for (class, x) in row_at(row).iter().enumerate() {
                    let share = libm::exp(x.wide() - largest - log_sum);
                    let miss = if class == label { share - 1.0 } else { share };
                    out.set(row * n_classes + class, T::narrow(miss * d[row].wide()));
                }
            })
        }
    };
    done.map_err(|fault| match fault {
        Fault::IndexOutOfRange { index, size, position } => {
            Fault::LabelOutOfRange { label: index, n_classes: size, row: position }
        }
        other => other,
    })
}
