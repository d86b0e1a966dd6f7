//! Every function against f64 arithmetic, over sweeps of bit patterns, and by bits between
//! instruction sets.

use super::*;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// A function of one argument under test, applied to a whole vector of inputs.
macro_rules! unary {
    ($($kernel:ident = $function:ident;)*) => {$(
        struct $kernel<'a>(&'a [f32]);

        impl Kernel for $kernel<'_> {
            type Output = Vec<f32>;

            // SAFETY: the caller keeps what the trait asks.
            #[inline(always)]
            unsafe fn run<L: Lanes>(self, l: L) -> Vec<f32> {
                let mut out = vec![0.0; self.0.len()];
                for at in (0..self.0.len()).step_by(WIDTH) {
                    let n = WIDTH.min(self.0.len() - at);
                    // SAFETY: both slices have `n` elements from `at` on.
                    unsafe {
                        let y = $function(l, l.load_first(self.0.as_ptr().add(at), n));
                        l.store_first(out.as_mut_ptr().add(at), y, n);
                    }
                }
                out
            }
        }
    )*};
}

unary! {
    Exp = exp;
    Expm1 = expm1;
    Log = log;
    Log1p = log1p;
    Tanh = tanh;
    Logistic = logistic;
    Silu = silu;
    Softplus = softplus;
    Erf = erf;
    Gelu = gelu;
    GeluDerivative = gelu_derivative;
    Sin = sin;
    Cos = cos;
    Rsqrt = rsqrt;
}

/// Runs a kernel on every instruction set, compares bits, and gives the values.
macro_rules! on_all {
    ($kernel:ident, $inputs:expr) => {{
        let inputs: &[f32] = $inputs;
        // SAFETY: portable code runs everywhere.
        let want = unsafe { Isa::Portable.run($kernel(inputs)) };
        for isa in Isa::available() {
            // SAFETY: the instruction set is the machine's own.
            let got = unsafe { isa.run($kernel(inputs)) };
            for ((x, got), want) in inputs.iter().zip(&got).zip(&want) {
                assert!(
                    same(*got, *want),
                    "{}({x:e}) on {}: {got:e}, {want:e}",
                    stringify!($kernel),
                    isa.name()
                );
            }
        }
        want
    }};
}

/// Equal bits, or both NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Every 4,099th bit pattern (all exponents, both signs, NaN and infinities), a dense sweep of the
/// range that matters most, and edges.
fn sweep() -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u32::MAX / 4099).map(|i| f32::from_bits(i * 4099)).collect();
    xs.extend((-200_000..200_000).map(|i| i as f32 / 1999.0));
    xs.extend((-100_000..100_000).map(|i| i as f32 / 49_999.0));
    for edge in [
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        1.0,
        f32::MAX,
        f32::INFINITY,
        88.722_84,
        103.972_08,
    ] {
        xs.extend([
            edge,
            -edge,
            edge.next_up(),
            edge.next_down(),
            -edge.next_up(),
            -edge.next_down(),
        ]);
    }
    xs
}

/// The distance of `got` from `want` in units of the last place of an f32 near `want`.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if same(got, nearest) {
        return 0.0;
    }
    let magnitude = nearest.abs().clamp(f32::MIN_POSITIVE, f32::MAX);
    // One step past the largest finite value counts as 2^128, which is what infinity stands for.
    let value = if got.is_infinite() { 2f64.powi(128).copysign(got.into()) } else { got.into() };
    let unit = f64::from(f32::from_bits(magnitude.to_bits() & 0x7f80_0000)) * 2f64.powi(-23);
    (value - want.clamp(-2f64.powi(128), 2f64.powi(128))).abs() / unit
}

/// Asserts that errors stay within `most` ulp, or `absolute`.
fn close(name: &str, xs: &[f32], ys: &[f32], exact: impl Fn(f64) -> f64, most: f64, absolute: f64) {
    let mut worst = (0.0, 0.0, 0.0);
    for (x, y) in xs.iter().zip(ys) {
        let want = exact(f64::from(*x));
        let error = ulps(*y, want);
        let fine = error <= most || (f64::from(*y) - want).abs() <= absolute;
        assert!(fine, "{name}({x:e}) is {y:e}, not {want:e}: {error} ulp");
        if error > worst.0 {
            worst = (error, *x, *y);
        }
    }
    eprintln!("{name}: at most {:.3} ulp, at {:e}, {:e}", worst.0, worst.1, worst.2);
}

macro_rules! check {
    ($kernel:ident, $exact:expr, $most:expr, $absolute:expr) => {{
        let xs = sweep();
        let ys = on_all!($kernel, &xs);
        close(stringify!($kernel), &xs, &ys, $exact, $most, $absolute);
    }};
}

/// 1 - erf(x) for x >= 0, by its series near zero and its continued fraction further out.
fn upper(x: f64) -> f64 {
    let scale = 2.0 / std::f64::consts::PI.sqrt();
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for k in 1..100 {
            term *= -x * x / f64::from(k);
            sum += term / f64::from(2 * k + 1);
        }
        return 1.0 - scale * sum;
    }
    if x > 30.0 {
        return 0.0;
    }
    let fraction = (1..200).rev().fold(0.0, |f, k| f64::from(k) / 2.0 / (x + f));
    (-x * x).exp() * scale / 2.0 / (x + fraction)
}

/// The normal distribution function.
fn phi(x: f64) -> f64 {
    let tail = upper(x.abs() / std::f64::consts::SQRT_2) / 2.0;
    if x < 0.0 { tail } else { 1.0 - tail }
}

fn exact_logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

#[test]
fn exponentials_and_logarithms_are_within_two_ulp() {
    check!(Exp, f64::exp, 1.1, 0.0);
    check!(Expm1, f64::exp_m1, 2.0, 0.0);
    check!(Log, f64::ln, 2.0, 0.0);
    check!(Log1p, f64::ln_1p, 2.0, 0.0);
    check!(Rsqrt, |x| 1.0 / x.sqrt(), 1.5, 0.0);
}

#[test]
fn activations_are_within_three_ulp() {
    check!(Tanh, f64::tanh, 2.0, 0.0);
    check!(Logistic, exact_logistic, 2.3, 0.0);
    check!(Silu, |x| if x == f64::NEG_INFINITY { -0.0 } else { x * exact_logistic(x) }, 3.0, 1e-38);
    let exact = |x: f64| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() };
    check!(Softplus, exact, 2.0, 0.0);
}

#[test]
fn erf_and_gelu_are_close() {
    check!(
        Erf,
        |x| if x.is_nan() {
            x
        } else if x.abs() < 1e-8 {
            x * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            (1.0 - upper(x.abs())).copysign(x)
        },
        2.0,
        0.0
    );
    check!(Gelu, |x| if x == f64::NEG_INFINITY { 0.0 } else { x * phi(x) }, 4.0, 1e-7);
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    check!(GeluDerivative, |x| phi(x) + x.clamp(-1e3, 1e3) * density(x), 4.0, 1.5e-7);
}

#[test]
fn sine_and_cosine_are_within_two_ulp_up_to_a_hundred_thousand() {
    let mut xs = sweep();
    xs.retain(|x| x.abs() <= 1e5 || !x.is_finite());
    xs.extend((0..200_000).map(|i| i as f32 * 0.499_99));
    xs.extend((0..60_000).map(|i| (f64::from(i) * std::f64::consts::FRAC_PI_2) as f32));
    close("Sin", &xs, &on_all!(Sin, &xs), f64::sin, 2.0, 0.0);
    close("Cos", &xs, &on_all!(Cos, &xs), f64::cos, 2.0, 0.0);
}

#[test]
fn sine_and_cosine_of_anything_finite_stay_between_minus_one_and_one() {
    let mut xs = sweep();
    xs.retain(|x| x.is_finite());
    for y in on_all!(Sin, &xs).into_iter().chain(on_all!(Cos, &xs)) {
        assert!(y.abs() <= 1.0, "{y:e}");
    }
}

/// `pow` under test.
struct Pow<'a>(&'a [f32], &'a [f32]);

impl Kernel for Pow<'_> {
    type Output = Vec<f32>;

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) -> Vec<f32> {
        let mut out = vec![0.0; self.0.len()];
        for at in (0..self.0.len()).step_by(WIDTH) {
            let n = WIDTH.min(self.0.len() - at);
            // SAFETY: the slices have `n` elements from `at` on.
            unsafe {
                let x = l.load_first(self.0.as_ptr().add(at), n);
                let y = l.load_first(self.1.as_ptr().add(at), n);
                l.store_first(out.as_mut_ptr().add(at), pow(l, x, y), n);
            }
        }
        out
    }
}

#[test]
fn powers_are_within_two_and_a_half_ulp() {
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    for _ in 0..300_000 {
        xs.extend([
            f32::from_bits(next()),
            f32::from_bits(next() >> 1),
            0.5 + (next() >> 8) as f32 / 16_777_216.0,
        ]);
        let (a, b) = (f32::from_bits(next()), next() as f32 / 2f32.powi(28) - 8.0);
        ys.extend([a, b, b * 16.0]);
    }
    let edges = [
        0.0,
        0.5,
        1.0,
        2.0,
        3.0,
        2.5,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        f32::INFINITY,
        f32::NAN,
        16_777_215.0,
        1e10,
    ];
    for x in edges.iter().flat_map(|x| [*x, -*x]) {
        for y in edges.iter().flat_map(|y| [*y, -*y]) {
            xs.push(x);
            ys.push(y);
        }
    }
    // SAFETY: portable code runs everywhere; the others are the machine's own.
    let want = unsafe { Isa::Portable.run(Pow(&xs, &ys)) };
    for isa in Isa::available() {
        // SAFETY: as above.
        let got = unsafe { isa.run(Pow(&xs, &ys)) };
        assert!(got.iter().zip(&want).all(|(a, b)| same(*a, *b)), "{}", isa.name());
    }
    let mut worst = 0.0f64;
    for ((x, y), got) in xs.iter().zip(&ys).zip(&want) {
        let exact = f64::from(*x).powf(f64::from(*y));
        let error = ulps(*got, exact);
        assert!(error <= 2.5, "{x:e}^{y:e} is {got:e}, not {exact:e}: {error} ulp");
        worst = worst.max(error);
    }
    eprintln!("Pow: at most {worst:.3} ulp");
}
