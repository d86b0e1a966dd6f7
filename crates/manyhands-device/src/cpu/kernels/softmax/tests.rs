//! Softmax and log-softmax against f64, by bits between parts and instruction sets.

use super::*;

const SIZES: [(usize, usize); 9] =
    [(0, 4), (3, 0), (1, 1), (2, 15), (3, 16), (4, 17), (5, 100), (7, 130), (2, 1000)];

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 1_000_000.0 - 8.0
    };
    (0..n).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs on every instruction set and cut into one to five parts, asserts equal bits, gives them.
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

fn close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1e-3), "{got} is not {want}");
    }
}

fn exact_log_softmax(x: &[f32], cols: usize) -> Vec<f64> {
    x.chunks(cols.max(1))
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            row.iter().map(move |x| f64::from(*x) - sum.ln()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn softmax_agrees_with_f64() {
    for (rows, cols) in SIZES {
        let x = numbers(rows * cols, 3);
        let got = same_everywhere(x.len(), |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { softmax(isa, x.as_ptr(), out, rows, cols, part) }
        });
        let want: Vec<f64> = exact_log_softmax(&x, cols).iter().map(|y| y.exp()).collect();
        close(&got, &want, 1e-6);
    }
}

#[test]
fn log_softmax_agrees_with_f64() {
    for (rows, cols) in SIZES {
        let x = numbers(rows * cols, 5);
        let got = same_everywhere(x.len(), |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { log_softmax(isa, x.as_ptr(), out, rows, cols, part) }
        });
        close(&got, &exact_log_softmax(&x, cols), 1e-6);
    }
}

#[test]
fn gradients_agree_with_f64() {
    for (rows, cols) in SIZES {
        let (x, dy) = (numbers(rows * cols, 7), numbers(rows * cols, 11));
        let exact_log = exact_log_softmax(&x, cols);
        let exact: Vec<f64> = exact_log.iter().map(|y| y.exp()).collect();
        let log_y: Vec<f32> = exact_log.iter().map(|y| *y as f32).collect();
        let y: Vec<f32> = exact.iter().map(|y| *y as f32).collect();
        let got = same_everywhere(x.len(), |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { softmax_grad(isa, y.as_ptr(), dy.as_ptr(), out, rows, cols, part) }
        });
        let got_log = same_everywhere(x.len(), |isa, out, part| {
            // SAFETY: the slices have the sizes given.
            unsafe { log_softmax_grad(isa, log_y.as_ptr(), dy.as_ptr(), out, rows, cols, part) }
        });
        let (mut want, mut want_log) = (Vec::new(), Vec::new());
        for (y, dy) in exact.chunks(cols.max(1)).zip(dy.chunks(cols.max(1))) {
            let sum: f64 = dy.iter().map(|d| f64::from(*d)).sum();
            let dot: f64 = y.iter().zip(dy).map(|(y, d)| y * f64::from(*d)).sum();
            want.extend(y.iter().zip(dy).map(|(y, d)| y * (f64::from(*d) - dot)));
            want_log.extend(y.iter().zip(dy).map(|(y, d)| f64::from(*d) - y * sum));
        }
        let within = |got: &[f32], want: &[f64]| {
            for (got, want) in got.iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 3e-5, "{got} is not {want}");
            }
        };
        within(&got, &want);
        within(&got_log, &want_log);
    }
}

#[test]
fn a_row_padded_with_minus_infinity_gives_the_bits_of_the_row() {
    for n in [1, 5, 15, 16, 17, 33, 100] {
        let mut x = numbers(n, 13);
        let mut short = vec![0.0; n];
        let mut long = vec![1.0; 130];
        for isa in Isa::available() {
            // SAFETY: the slices have the sizes given.
            unsafe {
                softmax(isa, x.as_ptr(), short.as_mut_ptr(), 1, n, Part::WHOLE);
                let mut padded = x.clone();
                padded.resize(130, f32::NEG_INFINITY);
                softmax(isa, padded.as_ptr(), long.as_mut_ptr(), 1, 130, Part::WHOLE);
            }
            assert_eq!(bits(&short), bits(&long[..n]));
            assert!(long[n..].iter().all(|y| y.to_bits() == 0));
        }
        x.fill(f32::NEG_INFINITY);
        // SAFETY: the slices have the sizes given.
        unsafe { softmax(Isa::detect(), x.as_ptr(), short.as_mut_ptr(), 1, n, Part::WHOLE) };
        assert!(short.iter().all(|y| y.is_nan()));
    }
}

#[test]
fn softmax_works_in_place_and_a_nan_spoils_only_its_row() {
    let mut x = numbers(3 * 20, 17);
    x[25] = f32::NAN;
    let mut apart = vec![0.0; x.len()];
    // SAFETY: the slices have the sizes given.
    unsafe {
        softmax(Isa::detect(), x.as_ptr(), apart.as_mut_ptr(), 3, 20, Part::WHOLE);
        softmax(Isa::detect(), x.as_ptr(), x.as_mut_ptr(), 3, 20, Part::WHOLE);
    }
    assert_eq!(bits(&apart[..20]), bits(&x[..20]));
    assert_eq!(bits(&apart[40..]), bits(&x[40..]));
    assert!(x[20..40].iter().all(|y| y.is_nan()));
    assert!(x[40..].iter().all(|y| y.is_finite()));
}
