//! Norms against f64, by bits between parts and instruction sets.

use super::*;
use crate::cpu::kernels::Part;
use crate::cpu::simd::Isa;

const SIZES: [(usize, usize); 8] =
    [(0, 4), (1, 1), (2, 15), (3, 16), (70, 17), (5, 100), (65, 256), (3, 300)];
const EPSILON: f32 = 1e-5;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 31) % 10_007) as f32 / 2500.0 - 1.0).collect()
}

/// Runs on every instruction set in one to five parts with fresh outputs of the given lengths,
/// asserts equal bits, and gives the outputs.
fn same_everywhere<const K: usize>(
    lengths: [usize; K],
    run: impl Fn(Isa, [*mut f32; K], Part),
) -> [Vec<f32>; K] {
    let bits =
        |out: &[Vec<f32>; K]| -> Vec<u32> { out.iter().flatten().map(|x| x.to_bits()).collect() };
    let mut first: Option<[Vec<f32>; K]> = None;
    for isa in Isa::available() {
        for count in 1..=5 {
            let mut out = lengths.map(|n| vec![7.7; n]);
            let pointers: [*mut f32; K] = out.each_mut().map(|out| out.as_mut_ptr());
            (0..count).for_each(|idx| run(isa, pointers, Part { idx, count }));
            let want = first.get_or_insert_with(|| out.clone());
            assert_eq!(bits(want), bits(&out), "{} in {count} parts", isa.name());
        }
    }
    first.expect("there is an instruction set")
}

fn close(name: &str, got: &[f32], want: impl Iterator<Item = f64>, tolerance: f64) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1.0), "{name}[{i}] is {got}, not {want}");
    }
}

/// One group's statistics (mean, variance) in f64.
fn statistics(x: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = x.clone().count() as f64;
    let mean = x.clone().sum::<f64>() / n;
    (mean, x.map(|x| (x - mean).powi(2)).sum::<f64>() / n)
}

/// The gradient of a normalised group, from the gradient of its normalised values.
fn normalised_grad(x: &[f64], g: &[f64]) -> Vec<f64> {
    let (mean, variance) = statistics(x.iter().copied());
    let (rstd, n) = ((variance + f64::from(EPSILON)).sqrt().recip(), x.len() as f64);
    let sum: f64 = g.iter().sum();
    let dot: f64 = g.iter().zip(x).map(|(g, x)| g * (x - mean) * rstd).sum();
    let dx = |(g, x): (&f64, &f64)| rstd * (g - sum / n - (x - mean) * rstd * dot / n);
    g.iter().zip(x).map(dx).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn layer_norm_agrees_with_f64() {
    for (rows, cols) in SIZES {
        let (x, scale, bias) = (numbers(rows * cols, 1), numbers(cols, 2), numbers(cols, 3));
        let [y, mean, rstd] =
            same_everywhere([x.len(), rows, rows], |isa, [y, mean, rstd], part| {
                let (x, scale, bias) = (x.as_ptr(), scale.as_ptr(), bias.as_ptr());
                let op = LayerNorm { x, scale, bias, epsilon: EPSILON, y, mean, rstd, rows, cols };
                // SAFETY: the vectors have the sizes given.
                unsafe { layer_norm(isa, op, part) }
            });
        for row in 0..rows {
            let x = wide(&x[row * cols..][..cols]);
            let (exact_mean, variance) = statistics(x.iter().copied());
            let exact_rstd = (variance + f64::from(EPSILON)).sqrt().recip();
            close("mean", &mean[row..=row], [exact_mean].into_iter(), 1e-6);
            close("rstd", &rstd[row..=row], [exact_rstd].into_iter(), 1e-5);
            let want = (0..cols).map(|c| {
                (x[c] - exact_mean) * exact_rstd * f64::from(scale[c]) + f64::from(bias[c])
            });
            close("y", &y[row * cols..][..cols], want, 1e-5);
        }
    }
}

#[test]
fn layer_norm_gradients_agree_with_f64() {
    for (rows, cols) in SIZES {
        let (x, scale, dy) = (numbers(rows * cols, 1), numbers(cols, 2), numbers(rows * cols, 5));
        let stats: Vec<(f64, f64)> =
            x.chunks(cols).map(|x| statistics(wide(x).into_iter())).collect();
        let rstd_of = |variance: f64| (variance + f64::from(EPSILON)).sqrt().recip();
        let mean: Vec<f32> = stats.iter().map(|s| s.0 as f32).collect();
        let rstd: Vec<f32> = stats.iter().map(|s| rstd_of(s.1) as f32).collect();
        let (x_at, dy_at, mean_at, rstd_at) =
            (x.as_ptr(), dy.as_ptr(), mean.as_ptr(), rstd.as_ptr());
        let [dx] = same_everywhere([x.len()], |isa, [dx], part| {
            let (x, dy, mean, rstd) = (x_at, dy_at, mean_at, rstd_at);
            let op = LayerNormGrad { x, scale: scale.as_ptr(), mean, rstd, dy, dx, rows, cols };
            // SAFETY: the vectors have the sizes given.
            unsafe { layer_norm_grad(isa, op, part) }
        });
        let [dscale, dbias] = same_everywhere([cols, cols], |isa, [dscale, dbias], part| {
            let (x, dy, mean, rstd) = (x_at, dy_at, mean_at, rstd_at);
            let op = LayerNormGradScale { x, mean, rstd, dy, dscale, dbias, rows, cols };
            // SAFETY: the vectors have the sizes given.
            unsafe { layer_norm_grad_scale(isa, op, part) }
        });
        for row in 0..rows {
            let (x, dy) = (wide(&x[row * cols..][..cols]), wide(&dy[row * cols..][..cols]));
            let g: Vec<f64> = dy.iter().zip(&scale).map(|(d, s)| d * f64::from(*s)).collect();
            close("dx", &dx[row * cols..][..cols], normalised_grad(&x, &g).into_iter(), 1e-4);
        }
        let column = |c: usize, term: &dyn Fn(usize, f64, f64) -> f64| -> f64 {
            let at = |row: usize| row * cols + c;
            (0..rows).map(|r| term(r, x[at(r)].into(), dy[at(r)].into())).sum()
        };
        let normal = |row: usize, x: f64| (x - stats[row].0) * rstd_of(stats[row].1);
        close("dscale", &dscale, (0..cols).map(|c| column(c, &|r, x, d| d * normal(r, x))), 1e-4);
        close("dbias", &dbias, (0..cols).map(|c| column(c, &|_, _, d| d)), 1e-5);
    }
}

#[test]
fn batch_norm_and_its_gradients_agree_with_f64() {
    for (rows, cols) in SIZES.into_iter().filter(|size| size.0 > 0) {
        let (x, scale, bias) = (numbers(rows * cols, 1), numbers(cols, 2), numbers(cols, 3));
        let dy = numbers(rows * cols, 5);
        let (x_at, scale_at) = (x.as_ptr(), scale.as_ptr());
        let n = x.len();
        let [y, mean, variance] =
            same_everywhere([n, cols, cols], |isa, [y, mean, variance], part| {
                let (x, scale, bias, epsilon) = (x_at, scale_at, bias.as_ptr(), EPSILON);
                let op = BatchNorm { x, scale, bias, epsilon, y, mean, variance, rows, cols };
                // SAFETY: the vectors have the sizes given.
                unsafe { batch_norm(isa, op, part) }
            });
        let (mean_at, variance_at) = (mean.as_ptr(), variance.as_ptr());
        let [dx, dscale, dbias] =
            same_everywhere([n, cols, cols], |isa, [dx, dscale, dbias], part| {
                let op = BatchNormGrad {
                    x: x_at,
                    scale: scale_at,
                    mean: mean_at,
                    variance: variance_at,
                    epsilon: EPSILON,
                    dy: dy.as_ptr(),
                    dx,
                    dscale,
                    dbias,
                    rows,
                    cols,
                };
                // SAFETY: the vectors have the sizes given.
                unsafe { batch_norm_grad(isa, op, part) }
            });
        for c in 0..cols {
            let column = |m: &[f32]| -> Vec<f32> { (0..rows).map(|r| m[r * cols + c]).collect() };
            let (x, dy) = (wide(&column(&x)), wide(&column(&dy)));
            let (exact_mean, exact_variance) = statistics(x.iter().copied());
            close("mean", &mean[c..=c], [exact_mean].into_iter(), 1e-6);
            close("variance", &variance[c..=c], [exact_variance].into_iter(), 1e-5);
            // One row has no variance, and epsilon's root magnifies the rounding of the mean.
            let rstd = (exact_variance + f64::from(EPSILON)).sqrt().recip();
            let (s, b) = (f64::from(scale[c]), f64::from(bias[c]));
            let normal: Vec<f64> = x.iter().map(|x| (x - exact_mean) * rstd).collect();
            close("y", &column(&y), normal.iter().map(|n| n * s + b), 2e-5);
            let dot: f64 = dy.iter().zip(&normal).map(|(d, n)| d * n).sum();
            close("dscale", &dscale[c..=c], [dot].into_iter(), 1e-4);
            close("dbias", &dbias[c..=c], [dy.iter().sum()].into_iter(), 1e-5);
            let g: Vec<f64> = dy.iter().map(|d| d * s).collect();
            close("dx", &column(&dx), normalised_grad(&x, &g).into_iter(), 1e-3);
        }
    }
}
