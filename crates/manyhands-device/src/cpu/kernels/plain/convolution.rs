//! Convolution and its two gradients, from their definition.
//!
//! One spatial axis is seen as two, the first of length one.

use manyhands_program::Window;

use super::element::{Float, total};
use super::memory::Call;
use crate::cpu::kernels::window::Axis;

/// The sizes of a convolution.
struct Geometry {
    /// Rows, then columns.
    axes: [Axis; 2],
    channels: usize,
    features: usize,
    groups: usize,
}

impl Geometry {
    /// From the spatial sizes of x and of the kernel.
    fn new(window: &Window, x: &[usize], kernel: &[usize], sizes: (usize, usize)) -> Geometry {
        let axis = |own: usize| Axis {
            input: x[own],
            kernel: kernel[own],
            stride: window.stride[own],
            dilation: window.dilation[own],
            pad_low: window.padding[own].0,
            pad_high: window.padding[own].1,
        };
        let axes = if x.len() == 1 { [Axis::ONE, axis(0)] } else { [axis(0), axis(1)] };
        Geometry { axes, channels: sizes.0, features: sizes.1, groups: window.groups }
    }

    fn channels_per_group(&self) -> usize {
        self.channels / self.groups
    }

    fn features_per_group(&self) -> usize {
        self.features / self.groups
    }

    fn x_at(&self, image: usize, [row, column]: [usize; 2], channel: usize) -> usize {
        let [rows, columns] = &self.axes;
        ((image * rows.input + row) * columns.input + column) * self.channels + channel
    }

    fn y_at(&self, image: usize, [row, column]: [usize; 2], feature: usize) -> usize {
        let [rows, columns] = &self.axes;
        ((image * rows.output() + row) * columns.output() + column) * self.features + feature
    }

    fn kernel_at(&self, [row, column]: [usize; 2], channel: usize, feature: usize) -> usize {
        let tap = row * self.axes[1].kernel + column;
        (tap * self.channels_per_group() + channel) * self.features + feature
    }

    /// The index of an element of `[n, rows, columns, last]`, taken apart.
    fn split(
        position: usize,
        rows: usize,
        columns: usize,
        last: usize,
    ) -> (usize, [usize; 2], usize) {
        let (place, own) = (position / last, position % last);
        (place / columns / rows, [place / columns % rows, place % columns], own)
    }
}

/// The window whose tap lies at a position, if there is one.
pub(super) fn window_at(axis: &Axis, position: usize, tap: usize) -> Option<usize> {
    let start = (position + axis.pad_low).checked_sub(tap * axis.dilation)?;
    let window = start / axis.stride;
    (start.is_multiple_of(axis.stride) && window < axis.output()).then_some(window)
}

pub(super) fn forward<T: Float>(window: &Window, call: &Call<'_>) {
    let (x, kernel) = (call.operand::<T>(0), call.operand::<T>(1));
    let (x_sizes, kernel_sizes) = (call.sizes(0), call.sizes(1));
    let n = window.stride.len();
    let sizes = (x_sizes[n + 1], kernel_sizes[n + 1]);
    let g = Geometry::new(window, &x_sizes[1..=n], &kernel_sizes[..n], sizes);
    let [rows, columns] = &g.axes;
    call.result::<T>(0).fill(|i| {
        let (image, [row, column], feature) =
            Geometry::split(i, rows.output(), columns.output(), g.features);
        let first = feature / g.features_per_group() * g.channels_per_group();
        let mut sum = 0.0;
        for a in rows.taps_inside(row) {
            for b in columns.taps_inside(column) {
                let place = [rows.position(row, a), columns.position(column, b)];
                for channel in 0..g.channels_per_group() {
                    let x = x[g.x_at(image, place, first + channel)].wide();
                    sum += x * kernel[g.kernel_at([a, b], channel, feature)].wide();
                }
            }
        }
        T::narrow(sum)
    });
}

pub(super) fn input_grad<T: Float>(window: &Window, call: &Call<'_>) {
    let (dy, kernel) = (call.operand::<T>(0), call.operand::<T>(1));
    let (x_sizes, kernel_sizes) = (&call.result_type(0).shape, call.sizes(1));
    let n = window.stride.len();
    let sizes = (x_sizes[n + 1], kernel_sizes[n + 1]);
    let g = Geometry::new(window, &x_sizes[1..=n], &kernel_sizes[..n], sizes);
    let [rows, columns] = &g.axes;
    call.result::<T>(0).fill(|i| {
        let (image, [row, column], channel) =
            Geometry::split(i, rows.input, columns.input, g.channels);
        let own = channel % g.channels_per_group();
        let first = channel / g.channels_per_group() * g.features_per_group();
        let mut sum = 0.0;
        for a in 0..rows.kernel {
            for b in 0..columns.kernel {
                let (Some(y), Some(x)) = (window_at(rows, row, a), window_at(columns, column, b))
                else {
                    continue;
                };
                for feature in first..first + g.features_per_group() {
                    let dy = dy[g.y_at(image, [y, x], feature)].wide();
                    sum += dy * kernel[g.kernel_at([a, b], own, feature)].wide();
                }
            }
        }
        T::narrow(sum)
    });
}

pub(super) fn kernel_grad<T: Float>(window: &Window, call: &Call<'_>) {
    let (x, dy) = (call.operand::<T>(0), call.operand::<T>(1));
    let (x_sizes, kernel_sizes) = (call.sizes(0), &call.result_type(0).shape);
    let n = window.stride.len();
    let sizes = (x_sizes[n + 1], kernel_sizes[n + 1]);
    let g = Geometry::new(window, &x_sizes[1..=n], &kernel_sizes[..n], sizes);
    let [rows, columns] = &g.axes;
    call.result::<T>(0).fill(|i| {
        let (tap, feature) = (i / g.features / g.channels_per_group(), i % g.features);
        let (a, b) = (tap / columns.kernel, tap % columns.kernel);
        let group = feature / g.features_per_group();
        let channel = group * g.channels_per_group() + i / g.features % g.channels_per_group();
        let inside = |y: usize, x: usize| {
            rows.taps_inside(y).contains(&a) && columns.taps_inside(x).contains(&b)
        };
        let places = (0..x_sizes[0] * rows.output() * columns.output()).filter_map(|place| {
            let (image, [y, x], _) = Geometry::split(place, rows.output(), columns.output(), 1);
            inside(y, x).then_some((image, [y, x]))
        });
        T::narrow(total(places.map(|(image, [row, column])| {
            let place = [rows.position(row, a), columns.position(column, b)];
            x[g.x_at(image, place, channel)].wide()
                * dy[g.y_at(image, [row, column], feature)].wide()
        })))
    });
}
