//! Every direction against plain loops: the same bits on all instruction sets and parts, and the
//! right numbers.

use super::*;
use crate::cpu::kernels::window::Axis;

/// A small generator, so that failures repeat.
struct Random(u32);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % n
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn axis(&mut self) -> Axis {
        let axis = Axis {
            input: 1 + self.below(12),
            kernel: 1 + self.below(4),
            stride: 1 + self.below(3),
            dilation: 1 + self.below(3),
            pad_low: self.below(4),
            pad_high: self.below(4),
        };
        if axis.output() == 0 { self.axis() } else { axis }
    }

    fn shape(&mut self) -> ConvShape {
        let groups = [1, 1, 1, 2, 3][self.below(5)];
        let channels = |random: &mut Random| [1, 3, 5, 8, 16, 17, 32, 35][random.below(8)];
        let (in_channels, out_channels) = match self.below(5) {
            0 => (groups * 7, groups * 7),
            _ => (groups * channels(self), groups * channels(self)),
        };
        let groups =
            if self.below(6) == 0 && in_channels == out_channels { in_channels } else { groups };
        ConvShape {
            batch: 1 + self.below(4),
            rows: if self.below(5) == 0 { Axis::ONE } else { self.axis() },
            cols: self.axis(),
            in_channels,
            out_channels,
            groups,
        }
    }
}

/// One product of the sum that defines a convolution: offsets into `x`, `weights` and `y`.
struct Term {
    x: Option<usize>,
    weight: usize,
    y: usize,
}

/// All products, in the order `(n, oh, ow, co, kh, kw, ci)`; those of padding positions have no
/// `x`.
fn terms(shape: &ConvShape) -> Vec<Term> {
    let (rows, cols) = (&shape.rows, &shape.cols);
    let (group_in, group_out) =
        (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
    let mut terms = Vec::new();
    let inside = |axis: &Axis, out: usize, tap: usize| {
        let at = (out * axis.stride + tap * axis.dilation).checked_sub(axis.pad_low)?;
        (at < axis.input).then_some(at)
    };
    for n in 0..shape.batch {
        for (oh, ow) in pairs(rows.output(), cols.output()) {
            for co in 0..shape.out_channels {
                for (kh, kw) in pairs(rows.kernel, cols.kernel) {
                    for ci in 0..group_in {
                        let channel = co / group_out * group_in + ci;
                        let x = inside(rows, oh, kh).zip(inside(cols, ow, kw)).map(|(h, w)| {
                            ((n * rows.input + h) * cols.input + w) * shape.in_channels + channel
                        });
                        let weight =
                            ((kh * cols.kernel + kw) * group_in + ci) * shape.out_channels + co;
                        let y = ((n * rows.output() + oh) * cols.output() + ow)
                            * shape.out_channels
                            + co;
                        terms.push(Term { x, weight, y });
                    }
                }
            }
        }
    }
    terms
}

fn pairs(n: usize, m: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |i| (0..m).map(move |j| (i, j)))
}

/// Runs `call` for every instruction set and for one to four parts, and compares each result's
/// bits.
fn check(shape: &ConvShape, want: &[f32], call: impl Fn(Isa, Part, *mut f32)) {
    for isa in Isa::available() {
        for count in 1..=4 {
            let mut got = vec![f32::NAN; want.len()];
            for idx in 0..count {
                call(isa, Part { idx, count }, got.as_mut_ptr());
            }
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "element {i}: {got} and not {want}; {}, {count} parts, {shape:?}",
                    isa.name()
                );
            }
        }
    }
}

fn near(got: &[f32], want: &[f64]) {
    let scale = want.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= 1e-5 * scale, "{got} is far from {want}");
    }
}

fn packed(shape: &ConvShape, direction: Direction, weights: &[f32]) -> Vec<f32> {
    let mut whole = vec![f32::NAN; shape.packed_len(direction)];
    for idx in 0..3 {
        let part = Part { idx, count: 3 };
        // SAFETY: the lengths are the shape's own.
        unsafe { pack_weights(shape, direction, weights.as_ptr(), whole.as_mut_ptr(), part) };
    }
    assert!(whole.iter().all(|x| !x.is_nan()), "packing leaves no hole: {shape:?}");
    whole
}

fn check_forward(shape: &ConvShape, random: &mut Random) {
    let (x, weights) = (random.floats(shape.x_len()), random.floats(shape.weights_len()));
    let bias = random.floats(shape.out_channels);
    let (mut sums, mut exact) = (vec![0.0f32; shape.y_len()], vec![0.0f64; shape.y_len()]);
    for term in terms(shape) {
        let Some(at) = term.x else { continue };
        sums[term.y] = x[at].mul_add(weights[term.weight], sums[term.y]);
        exact[term.y] += f64::from(x[at]) * f64::from(weights[term.weight]);
    }
    near(&sums, &exact);
    let packed = packed(shape, Direction::Forward, &weights);
    let call = |bias: *const f32, relu: bool| {
        let (x, packed) = (x.as_ptr(), packed.as_ptr());
        // SAFETY: the lengths are the shape's own.
        move |isa, part, y| unsafe { forward(isa, shape, x, packed, bias, relu, y, part) }
    };
    check(shape, &sums, call(std::ptr::null(), false));
    let finished: Vec<f32> = sums
        .iter()
        .enumerate()
        .map(|(i, sum)| {
            let v = sum + bias[i % shape.out_channels];
            if 0.0 > v { 0.0 } else { v }
        })
        .collect();
    check(shape, &finished, call(bias.as_ptr(), true));
}

fn check_input_grad(shape: &ConvShape, random: &mut Random) {
    let (dy, weights) = (random.floats(shape.y_len()), random.floats(shape.weights_len()));
    let (mut sums, mut exact) = (vec![0.0f32; shape.x_len()], vec![0.0f64; shape.x_len()]);
    // Ascending `y` offsets are ascending `(oh, ow, co)`, and each window holds an input position
    // once.
    for term in terms(shape) {
        let Some(at) = term.x else { continue };
        sums[at] = dy[term.y].mul_add(weights[term.weight], sums[at]);
        exact[at] += f64::from(dy[term.y]) * f64::from(weights[term.weight]);
    }
    near(&sums, &exact);
    let packed = packed(shape, Direction::InputGrad, &weights);
    let call = |gate: *const f32| {
        let (dy, packed) = (dy.as_ptr(), packed.as_ptr());
        // SAFETY: the lengths are the shape's own.
        move |isa, part, dx| unsafe { input_grad(isa, shape, dy, packed, gate, dx, part) }
    };
    check(shape, &sums, call(std::ptr::null()));
    let gate = random.floats(shape.x_len());
    let gated: Vec<f32> =
        sums.iter().zip(&gate).map(|(sum, gate)| if *gate > 0.0 { *sum } else { 0.0 }).collect();
    check(shape, &gated, call(gate.as_ptr()));
}

fn check_weight_grad(shape: &ConvShape, random: &mut Random) {
    let (x, dy) = (random.floats(shape.x_len()), random.floats(shape.y_len()));
    let n = shape.weights_len();
    let (mut total, mut exact) = (vec![0.0f32; n], vec![0.0f64; n]);
    let image_len = shape.y_len() / shape.batch.max(1);
    let chain_of = |term: &Term| term.y / image_len / shape.images_per_chain();
    let terms = terms(shape);
    for (idx, chain) in terms.chunk_by(|a, b| chain_of(a) == chain_of(b)).enumerate() {
        let mut sums = vec![0.0f32; n];
        for term in chain {
            let x = term.x.map_or(0.0, |at| x[at]);
            sums[term.weight] = x.mul_add(dy[term.y], sums[term.weight]);
            exact[term.weight] += f64::from(x) * f64::from(dy[term.y]);
        }
        for (total, sum) in total.iter_mut().zip(sums) {
            *total = if idx == 0 { sum } else { *total + sum };
        }
    }
    near(&total, &exact);
    check(shape, &total, |isa, part, dw| {
        let mut scratch = vec![f32::NAN; shape.weight_grad_scratch_len()];
        // SAFETY: the lengths are the shape's own.
        unsafe { weight_grad(isa, shape, x.as_ptr(), dy.as_ptr(), dw, &mut scratch, part) }
    });
}

fn check_all(shape: &ConvShape) {
    let mut random = Random(5);
    check_forward(shape, &mut random);
    check_input_grad(shape, &mut random);
    check_weight_grad(shape, &mut random);
}

/// Both axes alike.
fn square(batch: usize, axis: Axis, in_channels: usize, out_channels: usize) -> ConvShape {
    ConvShape { batch, rows: axis, cols: axis, in_channels, out_channels, groups: 1 }
}

#[test]
fn random_shapes_give_the_bits_of_plain_loops() {
    let mut random = Random(1);
    for _ in 0..80 {
        let shape = random.shape();
        check_all(&shape);
    }
}

#[test]
fn first_layer_of_an_image_network_has_the_right_bits() {
    check_all(&square(2, Axis::unpadded(13, 3), 1, 32));
}

#[test]
fn wide_layer_of_an_image_network_has_the_right_bits() {
    check_all(&square(2, Axis::unpadded(9, 3), 32, 64));
}

#[test]
fn strided_dilated_and_unevenly_padded_convolutions_have_the_right_bits() {
    let axis = Axis { stride: 2, dilation: 2, pad_low: 1, pad_high: 3, ..Axis::unpadded(9, 3) };
    check_all(&square(2, axis, 5, 19));
    check_all(&square(2, Axis { stride: 3, dilation: 1, ..axis }, 4, 16));
    check_all(&square(2, Axis { stride: 2, dilation: 4, kernel: 2, ..axis }, 4, 3));
}

#[test]
fn convolution_of_single_positions_has_the_right_bits() {
    check_all(&square(3, Axis::unpadded(6, 1), 20, 33));
    check_all(&square(40, Axis::unpadded(3, 3), 4, 6));
}

#[test]
fn grouped_and_depthwise_convolutions_have_the_right_bits() {
    let axis = Axis { pad_low: 1, pad_high: 1, ..Axis::unpadded(7, 3) };
    for (groups, in_channels, out_channels) in [(2, 8, 40), (4, 4, 12), (24, 24, 24), (16, 16, 32)]
    {
        check_all(&ConvShape { groups, ..square(2, axis, in_channels, out_channels) });
    }
}

#[test]
fn sequence_is_an_image_of_one_row() {
    let cols = Axis { stride: 2, pad_low: 3, ..Axis::unpadded(50, 5) };
    check_all(&ConvShape { rows: Axis::ONE, cols, ..square(1, cols, 6, 20) });
}

#[test]
fn window_that_sees_only_padding_gives_the_bias() {
    check_all(&square(1, Axis { pad_low: 4, pad_high: 4, ..Axis::unpadded(2, 2) }, 3, 5));
}

#[test]
fn weight_gradient_of_large_images_pauses_without_changing_bits() {
    let axis = Axis { pad_low: 1, pad_high: 0, ..Axis::unpadded(40, 2) };
    let shape = square(2, axis, 32, 33);
    assert!(shape.weight_grad_scratch_len() > 2 * shape.weights_len(), "it has several segments");
    check_weight_grad(&shape, &mut Random(3));
}

#[test]
fn empty_batch_has_zero_weight_gradient() {
    check_all(&square(0, Axis::unpadded(5, 3), 3, 4));
}

#[test]
fn padding_is_skipped_by_outputs_and_counts_as_zeros_in_the_weight_gradient() {
    let cols = Axis { pad_low: 1, ..Axis::unpadded(2, 2) };
    let shape = ConvShape { rows: Axis::ONE, ..square(1, cols, 1, 1) };
    let (x, infinite) = ([1.0f32, 1.0], [f32::INFINITY, 1.0]);
    let packed = packed(&shape, Direction::Forward, &infinite);
    for isa in Isa::available() {
        let (mut y, mut dw) = ([9.0f32; 2], [9.0f32; 2]);
        let (x, w, none) = (x.as_ptr(), packed.as_ptr(), std::ptr::null());
        // SAFETY: two inputs, two taps, two outputs.
        unsafe {
            forward(isa, &shape, x, w, none, false, y.as_mut_ptr(), Part::WHOLE);
            let mut scratch = vec![0.0; shape.weight_grad_scratch_len()];
            let (dy, dw) = (infinite.as_ptr(), dw.as_mut_ptr());
            weight_grad(isa, &shape, x, dy, dw, &mut scratch, Part::WHOLE);
        }
        assert_eq!(
            y,
            [1.0, f32::INFINITY],
            "the infinite weight meets padding in the first output"
        );
        assert!(dw[0].is_nan(), "zero times the infinite gradient");
        assert_eq!(dw[1], f32::INFINITY);
    }
}

#[test]
fn relu_keeps_nan_and_drops_negative_values() {
    let shape = square(1, Axis::unpadded(1, 1), 1, 4);
    let (x, weights) = ([1.0], [f32::NAN, -2.0, 3.0, -0.0]);
    let packed = packed_unchecked(&shape, &weights);
    for isa in Isa::available() {
        let mut y = [9.0; 4];
        let (x, w, none) = (x.as_ptr(), packed.as_ptr(), std::ptr::null());
        // SAFETY: the lengths are the shape's own.
        unsafe { forward(isa, &shape, x, w, none, true, y.as_mut_ptr(), Part::WHOLE) };
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [0.0, 3.0, 0.0]);
    }
}

fn packed_unchecked(shape: &ConvShape, weights: &[f32]) -> Vec<f32> {
    let mut packed = vec![0.0; shape.packed_len(Direction::Forward)];
    let to = packed.as_mut_ptr();
    // SAFETY: the lengths are the shape's own.
    unsafe { pack_weights(shape, Direction::Forward, weights.as_ptr(), to, Part::WHOLE) };
    packed
}
