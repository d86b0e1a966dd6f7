//! Reductions against f64, by bits between parts and instruction sets.

use super::*;

const SHAPES: [[usize; 3]; 16] = [
    [1, 0, 1],
    [2, 0, 3],
    [0, 3, 2],
    [1, 1, 1],
    [3, 15, 1],
    [5, 16, 1],
    [4, 17, 1],
    [2, 100, 1],
    [1, 9000, 1],
    [1, 128, 512],
    [1, 200, 17],
    [1, 65, 600],
    [3, 64, 5],
    [2, 7, 40],
    [6, 1, 16],
    [2, 100, 100],
];

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 5000.0 - 1.0).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn same_everywhere(n: usize, run: impl Fn(Isa, *mut f32, Part)) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        for count in 1..=5 {
            let mut out = vec![7.7; n];
            (0..count).for_each(|idx| run(isa, out.as_mut_ptr(), Part { idx, count }));
            let want = first.get_or_insert_with(|| out.clone());
            assert_eq!(bits(want), bits(&out), "{} in {count} parts", isa.name());
        }
    }
    first.unwrap_or_default()
}

/// The reduction of every result in f64, in plain order.
fn exact(
    x: &[f32],
    [outer, axis, inner]: [usize; 3],
    fold: fn(f64, f64) -> f64,
    empty: f64,
) -> Vec<f64> {
    let element = |o: usize, a: usize, i: usize| f64::from(x[(o * axis + a) * inner + i]);
    let result = |o: usize, i: usize| (0..axis).map(|a| element(o, a, i)).fold(empty, fold);
    (0..outer * inner).map(|at| result(at / inner, at % inner)).collect()
}

#[test]
fn reductions_agree_with_f64() {
    type Plain = (Reduction, fn(f64, f64) -> f64, f64);
    let plain: [Plain; 4] = [
        (Reduction::Sum, |a, b| a + b, 0.0),
        (Reduction::Product, |a, b| a * b, 1.0),
        (Reduction::Max, f64::max, f64::NEG_INFINITY),
        (Reduction::Min, f64::min, f64::INFINITY),
    ];
    for shape in SHAPES {
        let [outer, axis, inner] = shape;
        let x = numbers(outer * axis * inner);
        for (reduction, fold, empty) in plain {
            let got = same_everywhere(outer * inner, |isa, out, part| {
                // SAFETY: the slices have the shape given.
                unsafe { reduce(isa, reduction, x.as_ptr(), out, outer, axis, inner, part) }
            });
            for (got, want) in got.iter().zip(exact(&x, shape, fold, empty)) {
                let error = (f64::from(*got) - want).abs();
                let fine = f64::from(*got) == want || error <= 1e-5 * want.abs().max(1.0);
                assert!(fine, "{reduction:?} of {shape:?}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn a_nan_anywhere_is_the_largest_and_the_smallest() {
    for [outer, axis, inner] in [[1, 100, 1], [1, 5000, 1], [1, 100, 20]] {
        for spoiled in [0, 1, 63, 64, 99] {
            let mut x = numbers(outer * axis * inner);
            x[spoiled * inner] = f32::NAN;
            for reduction in [Reduction::Max, Reduction::Min] {
                for isa in Isa::available() {
                    let mut out = vec![0.0; inner];
                    // SAFETY: the slices have the shape given.
                    unsafe {
                        let out = out.as_mut_ptr();
                        reduce(isa, reduction, x.as_ptr(), out, outer, axis, inner, Part::WHOLE);
                    }
                    assert!(out[0].is_nan(), "{reduction:?} {spoiled} {}", isa.name());
                    assert!(out[1..].iter().all(|y| y.is_finite()));
                }
            }
        }
    }
}

#[test]
fn column_sums_and_block_square_sums_agree_with_f64() {
    for (rows, cols) in [(0, 5), (1, 1), (128, 512), (100, 17), (70, 1030)] {
        let x = numbers(rows * cols);
        let got = same_everywhere(cols, |isa, out, part| {
            // SAFETY: the slices have the shape given.
            unsafe { reduce(isa, Reduction::Sum, x.as_ptr(), out, 1, rows, cols, part) }
        });
        for (got, want) in got.iter().zip(exact(&x, [1, rows, cols], |a, b| a + b, 0.0)) {
            assert!((f64::from(*got) - want).abs() < 1e-4, "{got} {want}");
        }
        let n_blocks = x.len().div_ceil(SQUARE_BLOCK);
        let got = same_everywhere(n_blocks, |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { block_square_sums(isa, x.as_ptr(), out, x.len(), part) }
        });
        for (got, block) in got.iter().zip(x.chunks(SQUARE_BLOCK)) {
            let want: f64 = block.iter().map(|x| f64::from(*x).powi(2)).sum();
            assert!((f64::from(*got) - want).abs() < 1e-3, "{got} {want}");
        }
    }
}
