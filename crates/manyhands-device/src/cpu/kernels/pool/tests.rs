//! Pooling against plain loops, bit for bit, on all instruction sets and parts.

use super::*;

/// A small generator, so that failures repeat.
struct Random(u32);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % n
    }

    /// Few different values, so that windows have ties; sometimes NaN or an infinity.
    fn floats(&mut self, n: usize) -> Vec<f32> {
        let mut next = || match self.below(40) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            _ => self.below(7) as f32 / 3.0 - 1.0,
        };
        (0..n).map(|_| next()).collect()
    }

    fn axis(&mut self) -> Axis {
        let axis = Axis {
            input: 1 + self.below(10),
            kernel: 1 + self.below(3),
            stride: 1 + self.below(3),
            dilation: 1 + self.below(2),
            pad_low: self.below(3),
            pad_high: self.below(3),
        };
        if axis.output() == 0 { self.axis() } else { axis }
    }
}

const POOLINGS: [Pooling; 3] = [
    Pooling::Max,
    Pooling::Average { count_padding: false },
    Pooling::Average { count_padding: true },
];

/// `y` and `dx` by plain loops.
fn reference(shape: &PoolShape, pooling: Pooling, x: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut y, mut dx) = (Vec::new(), vec![0.0f32; shape.x_len()]);
    let (rows, cols) = (&shape.rows, &shape.cols);
    for (idx, gradient) in dy.iter().enumerate() {
        let (pixel, channel) = (idx / shape.channels, idx % shape.channels);
        let (row, ow) = (pixel / cols.output(), pixel % cols.output());
        let (n, oh) = (row / rows.output(), row % rows.output());
        let mut seen = Vec::new();
        for (kh, kw) in (0..rows.kernel).flat_map(|kh| (0..cols.kernel).map(move |kw| (kh, kw))) {
            let h = (oh * rows.stride + kh * rows.dilation).checked_sub(rows.pad_low);
            let w = (ow * cols.stride + kw * cols.dilation).checked_sub(cols.pad_low);
            if let (Some(h), Some(w)) = (h, w)
                && h < rows.input
                && w < cols.input
            {
                seen.push(((n * rows.input + h) * cols.input + w) * shape.channels + channel);
            }
        }
        match pooling {
            Pooling::Max => {
                let mut best: Option<usize> = seen.first().copied();
                for &at in &seen {
                    if best.is_some_and(|best| x[at] > x[best]) || x[at].is_nan() {
                        best = Some(at);
                    }
                }
                y.push(best.map_or(f32::NEG_INFINITY, |at| x[at]));
                if let Some(at) = best {
                    dx[at] += gradient;
                }
            }
            Pooling::Average { count_padding } => {
                let n = if count_padding { rows.kernel * cols.kernel } else { seen.len() } as f32;
                let sum = seen.iter().fold(0.0, |sum, &at| sum + x[at]);
                y.push(if seen.is_empty() { 0.0 } else { sum / n });
                for at in seen {
                    dx[at] += gradient / n;
                }
            }
        }
    }
    (y, dx)
}

/// Equal bits; of a NaN only that it is one, since the sign of a sum of two NaNs is the compiler's
/// choice here.
fn same(got: &[f32], want: &[f32], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "element {i}: {got} and not {want}; {what}");
    }
}

fn check(shape: &PoolShape, random: &mut Random) {
    let (x, dy) = (random.floats(shape.x_len()), random.floats(shape.y_len()));
    for pooling in POOLINGS {
        let (want_y, want_dx) = reference(shape, pooling, &x, &dy);
        for isa in Isa::available() {
            for count in 1..=4 {
                let what = format!("{pooling:?}, {}, {count} parts, {shape:?}", isa.name());
                let (mut y, mut dx) = (vec![9.0; want_y.len()], vec![9.0; want_dx.len()]);
                for idx in 0..count {
                    let part = Part { idx, count };
                    let (x, dy) = (x.as_ptr(), dy.as_ptr());
                    // SAFETY: the lengths are the shape's own.
                    unsafe {
                        forward(isa, shape, pooling, x, y.as_mut_ptr(), part);
                        input_grad(isa, shape, pooling, x, dy, dx.as_mut_ptr(), part);
                    }
                }
                same(&y, &want_y, &what);
                same(&dx, &want_dx, &what);
                if pooling == Pooling::Max {
                    check_through_relu(isa, shape, &x, &dy, &dx, count);
                }
            }
        }
    }
}

/// The gradient through a relu has the bits of the plain one, zeroed where `x` is not above zero.
fn check_through_relu(isa: Isa, shape: &PoolShape, x: &[f32], dy: &[f32], dx: &[f32], n: usize) {
    let zeroed = |(x, dx): (&f32, &f32)| if *x > 0.0 { *dx } else { 0.0 };
    let want: Vec<f32> = x.iter().zip(dx).map(zeroed).collect();
    let mut got = vec![9.0; want.len()];
    for idx in 0..n {
        let (part, to) = (Part { idx, count: n }, got.as_mut_ptr());
        // SAFETY: the lengths are the shape's own.
        unsafe { max_input_grad_through_relu(isa, shape, x.as_ptr(), dy.as_ptr(), to, part) };
    }
    same(&got, &want, &format!("through relu, {}, {n} parts, {shape:?}", isa.name()));
}

#[test]
fn random_shapes_give_the_bits_of_plain_loops() {
    let mut random = Random(1);
    for _ in 0..150 {
        let shape = PoolShape {
            batch: random.below(4),
            rows: random.axis(),
            cols: random.axis(),
            channels: [1, 3, 16, 19, 64, 100][random.below(6)],
        };
        check(&shape, &mut random);
    }
}

#[test]
fn windows_that_cover_the_input_once_give_the_bits_of_plain_loops() {
    for channels in [1, 16, 64, 70] {
        let axis = Axis { stride: 2, ..Axis::unpadded(6, 2) };
        check(&PoolShape { batch: 3, rows: axis, cols: axis, channels }, &mut Random(2));
    }
}

#[test]
fn largest_of_a_window_is_the_first_and_gets_the_whole_gradient() {
    let axis = Axis { stride: 2, ..Axis::unpadded(2, 2) };
    let shape = PoolShape { batch: 1, rows: axis, cols: axis, channels: 1 };
    let (x, dy) = ([1.0f32, 5.0, 5.0, 2.0], [3.0f32]);
    let mut dx = [9.0f32; 4];
    let (x, dy, to) = (x.as_ptr(), dy.as_ptr(), dx.as_mut_ptr());
    // SAFETY: four places in, one out.
    unsafe { input_grad(Isa::detect(), &shape, Pooling::Max, x, dy, to, Part::WHOLE) };
    assert_eq!(dx, [0.0, 3.0, 0.0, 0.0]);
}
