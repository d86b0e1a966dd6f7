//! Windows that slide along one axis: the geometry that convolution and pooling share.

/// One axis of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// Length of the input along this axis.
    pub input: usize,
    /// Taps of the window.
    pub kernel: usize,
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Distance between neighbouring taps of one window.
    pub dilation: usize,
    /// Positions added before the input.
    pub pad_low: usize,
    /// Positions added after the input.
    pub pad_high: usize,
}

impl Axis {
    /// An axis of length one, which a one-dimensional convolution has in the place of its rows.
    pub(crate) const ONE: Axis = Axis::unpadded(1, 1);

    /// Windows of `kernel` neighbouring taps at every position, without padding.
    pub(crate) const fn unpadded(input: usize, kernel: usize) -> Axis {
        Axis { input, kernel, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 }
    }

    /// Positions from the first tap of a window to one past its last.
    pub(crate) fn extent(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// How many windows fit; none where the padded input is shorter than a window.
    pub(crate) fn output(&self) -> usize {
        let padded = self.input + self.pad_low + self.pad_high;
        if padded < self.extent() { 0 } else { (padded - self.extent()) / self.stride + 1 }
    }

    /// Whether any padding is asked for.
    pub(crate) fn is_padded(&self) -> bool {
        self.pad_low + self.pad_high > 0
    }

    /// The taps of window `output` that lie inside the input.
    pub(crate) fn taps_inside(&self, output: usize) -> std::ops::Range<usize> {
        let start = output * self.stride;
        let first = self.pad_low.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.input + self.pad_low).saturating_sub(start).div_ceil(self.dilation);
        let end = end.min(self.kernel);
        first.min(end)..end
    }

    /// The input position of a tap that lies inside the input.
    pub(crate) fn position(&self, output: usize, tap: usize) -> usize {
        output * self.stride + tap * self.dilation - self.pad_low
    }
}
