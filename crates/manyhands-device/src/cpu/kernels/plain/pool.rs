//! Max and average pooling with their gradients, from their definition.
//!
//! A NaN beats every number, and the last NaN of a window the others; among equals the first wins.

use manyhands_program::Pooling;

use super::convolution::window_at;
use super::element::Float;
use super::memory::Call;
use crate::cpu::kernels::window::Axis;

/// The sizes of a pooling over `[n, rows, columns, channels]`.
struct Geometry {
    axes: [Axis; 2],
    channels: usize,
}

impl Geometry {
    /// From the sizes of x.
    fn new(pooling: &Pooling, x: &[usize]) -> Geometry {
        let axis = |own: usize| Axis {
            input: x[own + 1],
            kernel: pooling.window[own],
            stride: pooling.stride[own],
            dilation: 1,
            pad_low: pooling.padding[own].0,
            pad_high: pooling.padding[own].1,
        };
        let axes = if x.len() == 3 { [Axis::ONE, axis(0)] } else { [axis(0), axis(1)] };
        Geometry { axes, channels: x[x.len() - 1] }
    }

    /// An index of the result taken apart: image, row, column, channel.
    fn output(&self, position: usize) -> [usize; 4] {
        split(position, self.axes.map(|axis| axis.output()), self.channels)
    }

    /// An index of x taken apart.
    fn input(&self, position: usize) -> [usize; 4] {
        split(position, self.axes.map(|axis| axis.input), self.channels)
    }

    fn output_at(&self, [image, row, column, channel]: [usize; 4]) -> usize {
        let [rows, columns] = self.axes.map(|axis| axis.output());
        ((image * rows + row) * columns + column) * self.channels + channel
    }

    /// The elements of x in a window, in order.
    fn window(&self, [image, row, column, channel]: [usize; 4]) -> impl Iterator<Item = usize> {
        let ([rows, columns], channels) = (self.axes, self.channels);
        rows.taps_inside(row).flat_map(move |a| {
            let first = (image * rows.input + rows.position(row, a)) * columns.input;
            columns
                .taps_inside(column)
                .map(move |b| (first + columns.position(column, b)) * channels + channel)
        })
    }

    /// The windows that hold an element of x, in order of their taps.
    fn windows_of(
        &self,
        [image, row, column, channel]: [usize; 4],
    ) -> impl Iterator<Item = [usize; 4]> {
        let [rows, columns] = self.axes;
        let along_rows = (0..rows.kernel).filter_map(move |a| window_at(&rows, row, a));
        along_rows.flat_map(move |y| {
            let along_columns =
                (0..columns.kernel).filter_map(move |b| window_at(&columns, column, b));
            along_columns.map(move |x| [image, y, x, channel])
        })
    }

    /// By how much the sum of a window is divided.
    fn divisor(&self, pooling: &Pooling, window: [usize; 4]) -> f64 {
        let n = if pooling.count_padding {
            self.axes[0].kernel * self.axes[1].kernel
        } else {
            self.window(window).count()
        };
        n as f64
    }
}

fn split(position: usize, [rows, columns]: [usize; 2], channels: usize) -> [usize; 4] {
    let place = position / channels;
    [place / columns / rows, place / columns % rows, place % columns, position % channels]
}

/// Where the winner of a window lies.
fn winner<T: Float>(x: &[T], window: impl Iterator<Item = usize>) -> Option<usize> {
    window.reduce(|best, own| if x[own] > x[best] || x[own].is_nan() { own } else { best })
}

pub(super) fn max<T: Float>(pooling: &Pooling, call: &Call<'_>) {
    let (x, g) = (call.operand::<T>(0), Geometry::new(pooling, call.sizes(0)));
    call.result::<T>(0).fill(|i| winner(x, g.window(g.output(i))).map_or(T::LEAST, |best| x[best]));
}

pub(super) fn max_grad<T: Float>(pooling: &Pooling, call: &Call<'_>) {
    let (x, dy) = (call.operand::<T>(0), call.operand::<T>(1));
    let g = Geometry::new(pooling, call.sizes(0));
    call.result::<T>(0).fill(|i| {
        let won = g.windows_of(g.input(i)).filter(|&own| winner(x, g.window(own)) == Some(i));
        T::narrow(won.fold(0.0, |sum, own| sum + dy[g.output_at(own)].wide()))
    });
}

pub(super) fn average<T: Float>(pooling: &Pooling, call: &Call<'_>) {
    let (x, g) = (call.operand::<T>(0), Geometry::new(pooling, call.sizes(0)));
    call.result::<T>(0).fill(|i| {
        let window = g.output(i);
        let sum = g.window(window).fold(0.0, |sum, own| sum + x[own].wide());
        T::narrow(sum / g.divisor(pooling, window))
    });
}

pub(super) fn average_grad<T: Float>(pooling: &Pooling, call: &Call<'_>) {
    let (dy, g) = (call.operand::<T>(0), Geometry::new(pooling, &call.result_type(0).shape));
    call.result::<T>(0).fill(|i| {
        let share = |own: [usize; 4]| dy[g.output_at(own)].wide() / g.divisor(pooling, own);
        T::narrow(g.windows_of(g.input(i)).fold(0.0, |sum, own| sum + share(own)))
    });
}
