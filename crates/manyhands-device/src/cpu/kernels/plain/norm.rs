//! Layer norm and batch norm with their gradients.
//!
//! Both see x as a matrix whose columns are the last axis. Layer norm standardises each row, batch
//! norm each column.

use super::element::{Float, total};
use super::memory::Call;

/// Rows and columns of the first operand.
fn matrix(call: &Call<'_>) -> (usize, usize) {
    let shape = &call.operand_type(0).shape;
    let cols = shape.last();
    (shape[..shape.rank() - 1].iter().product(), cols)
}

/// The mean and the (biased) variance of `n` elements.
fn moments(n: usize, x: impl Fn(usize) -> f64) -> (f64, f64) {
    let mean = total((0..n).map(&x)) / n as f64;
    let squares = total((0..n).map(|i| (x(i) - mean) * (x(i) - mean)));
    (mean, squares / n as f64)
}

pub(super) fn layer<T: Float>(epsilon: f64, call: &Call<'_>) {
    let (rows, cols) = matrix(call);
    let [x, scale, bias] = [0, 1, 2].map(|idx| call.operand::<T>(idx));
    let [y, means, rstds] = [0, 1, 2].map(|idx| call.result::<T>(idx));
    for row in 0..rows {
        let x = |i: usize| x[row * cols + i].wide();
        let (mean, variance) = moments(cols, x);
        let rstd = 1.0 / (variance + epsilon).sqrt();
        means.set(row, T::narrow(mean));
        rstds.set(row, T::narrow(rstd));
        for i in 0..cols {
            let standard = (x(i) - mean) * rstd;
            y.set(row * cols + i, T::narrow(standard * scale[i].wide() + bias[i].wide()));
        }
    }
}

pub(super) fn layer_grad<T: Float>(call: &Call<'_>) {
    let (rows, cols) = matrix(call);
    let [x, scale, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|idx| call.operand::<T>(idx));
    let [dx, dscale, dbias] = [0, 1, 2].map(|idx| call.result::<T>(idx));
    let standard =
        |row: usize, i: usize| (x[row * cols + i].wide() - mean[row].wide()) * rstd[row].wide();
    let dy = |row: usize, i: usize| dy[row * cols + i].wide();
    for (row, rstd) in rstd.iter().enumerate() {
        let slope = |i: usize| dy(row, i) * scale[i].wide();
        let along_mean = total((0..cols).map(slope)) / cols as f64;
        let along_x = total((0..cols).map(|i| slope(i) * standard(row, i))) / cols as f64;
        for i in 0..cols {
            let own = slope(i) - along_mean - standard(row, i) * along_x;
            dx.set(row * cols + i, T::narrow(own * rstd.wide()));
        }
    }
    dscale.fill(|i| T::narrow(total((0..rows).map(|row| dy(row, i) * standard(row, i)))));
    dbias.fill(|i| T::narrow(total((0..rows).map(|row| dy(row, i)))));
}

pub(super) fn batch<T: Float>(epsilon: f64, call: &Call<'_>) {
    let (rows, cols) = matrix(call);
    let [x, scale, bias] = [0, 1, 2].map(|idx| call.operand::<T>(idx));
    let [y, means, variances] = [0, 1, 2].map(|idx| call.result::<T>(idx));
    for i in 0..cols {
        let x = |row: usize| x[row * cols + i].wide();
        let (mean, variance) = moments(rows, x);
        means.set(i, T::narrow(mean));
        variances.set(i, T::narrow(variance));
        let rstd = 1.0 / (variance + epsilon).sqrt();
        for row in 0..rows {
            let standard = (x(row) - mean) * rstd;
            y.set(row * cols + i, T::narrow(standard * scale[i].wide() + bias[i].wide()));
        }
    }
}

pub(super) fn batch_grad<T: Float>(epsilon: f64, call: &Call<'_>) {
    let (rows, cols) = matrix(call);
    let [x, scale, mean, variance, dy] = [0, 1, 2, 3, 4].map(|idx| call.operand::<T>(idx));
    let [dx, dscale, dbias] = [0, 1, 2].map(|idx| call.result::<T>(idx));
    for i in 0..cols {
        let rstd = 1.0 / (variance[i].wide() + epsilon).sqrt();
        let standard = |row: usize| (x[row * cols + i].wide() - mean[i].wide()) * rstd;
        let dy = |row: usize| dy[row * cols + i].wide();
        let along_mean = total((0..rows).map(dy));
        let along_x = total((0..rows).map(|row| dy(row) * standard(row)));
        dscale.set(i, T::narrow(along_x));
        dbias.set(i, T::narrow(along_mean));
        let n = rows as f64;
        for row in 0..rows {
            let own = dy(row) - along_mean / n - standard(row) * (along_x / n);
            dx.set(row * cols + i, T::narrow(own * rstd * scale[i].wide()));
        }
    }
}
