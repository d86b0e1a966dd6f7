//! Axes with round ticks.

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// From values to places on the picture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) ticks: Vec<f64>,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

/// Where values spread further than this from one another, and all are positive, equal ratios get equal lengths: a loss that
/// fell from 2000 to 3 would else be a line along the bottom.
const MOST_LINEAR_RATIO: f64 = 100.0;

impl Axis {
    /// An axis whose ends are round numbers around the values.
    pub(super) fn fitting(values: impl Iterator<Item = f64>, n_ticks: usize) -> Axis {
        let (low, high) = ends(values);
        if low > 0.0 && high / low > MOST_LINEAR_RATIO {
            return Axis::logarithmic(low, high);
        }
        let (low, high) = apart(low, high);
        let step = round_step((high - low) / n_ticks as f64);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks = multiples(first, last, step);
        Axis {
            scale: Scale::Linear,
            ticks,
            low: first * step,
            high: last * step,
            start: 0.0,
            end: 1.0,
        }
    }

    /// An axis that ends where the values end.
    pub(super) fn linear(values: impl Iterator<Item = f64>, n_ticks: usize) -> Axis {
        let (low, high) = ends(values);
        let (low, high) = apart(low, high);
        let step = round_step((high - low) / n_ticks as f64);
        let ticks = multiples((low / step).ceil(), (high / step).floor(), step);
        Axis { scale: Scale::Linear, ticks, low, high, start: 0.0, end: 1.0 }
    }

    /// An axis from a power of ten to a power of ten.
    fn logarithmic(low: f64, high: f64) -> Axis {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let every = ((last - first) as usize).div_ceil(6);
        let ticks = (first..=last).step_by(every.max(1)).map(power_of_ten).collect();
        let (low, high) = (power_of_ten(first), power_of_ten(last));
        Axis { scale: Scale::Logarithmic, ticks, low, high, start: 0.0, end: 1.0 }
    }

    /// Between two places on the picture.
    pub(super) fn span(self, start: f64, end: f64) -> Axis {
        Axis { start, end, ..self }
    }

    /// Without ticks between whole numbers, where only those mean something.
    pub(super) fn with_whole_ticks(mut self, whole: bool) -> Axis {
        self.ticks.retain(|tick| !whole || tick.fract() == 0.0);
        self
    }

    /// Where a value lies; those beyond the ends lie at the ends.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.start + share * (self.end - self.start)
    }
}

/// A tick as text, with as many digits as tell it from its neighbours, and from zero.
pub(super) fn tick_label(tick: f64, ticks: &[f64]) -> String {
    let gaps = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    let gap = gaps.reduce(f64::min).unwrap_or(tick.abs());
    let own_gaps = ticks.iter().map(|other| (other - tick).abs()).filter(|gap| *gap > 0.0);
    let own_gap = own_gaps.fold(tick.abs(), f64::min);
    let largest = ticks.iter().fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
    let scaled = |divisor: f64, unit: &str| {
        let digits = (divisor / gap).log10().ceil().clamp(0.0, 3.0) as usize;
        format!("{:.digits$}{unit}", tick / divisor)
    };
    match largest {
        _ if tick == 0.0 => "0".to_string(),
        largest if !(1e-3..1e10).contains(&largest) => format!("{tick:.0e}"),
        largest if largest >= 1e6 && gap >= 1e3 => scaled(1e6, "M"),
        largest if largest >= 1e4 && gap >= 1e1 => scaled(1e3, "k"),
        _ if tick.abs() < 1e-4 => format!("{tick:.0e}"),
        _ => {
            // Powers of ten lie nine tenths of themselves apart, which needs no digit more.
            let digits = (-own_gap.log10() - 0.05).ceil().clamp(0.0, 6.0) as usize;
            format!("{tick:.digits$}")
        }
    }
}

/// The lowest and the highest value; 0 and 1 where there is none.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let wider = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    match values.fold((f64::INFINITY, f64::NEG_INFINITY), wider) {
        (low, high) if low <= high => (low, high),
        _ => (0.0, 1.0),
    }
}

/// Two ends that differ enough for a scale between them.
fn apart(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs()).max(f64::MIN_POSITIVE * 1e6);
    match high - low {
        gap if !gap.is_finite() => (low / 4.0, high / 4.0),
        gap if gap <= size * 1e-9 && low == 0.0 => (0.0, 1.0),
        gap if gap <= size * 1e-9 => (low - size * 0.1, high + size * 0.1),
        _ => (low, high),
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is not below the wanted step.
fn round_step(wanted: f64) -> f64 {
    let power = power_of_ten(wanted.log10().floor() as i32);
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= wanted * 0.999_999);
    factor.unwrap_or(10.0) * power
}

fn power_of_ten(exponent: i32) -> f64 {
    // Parsing gives the nearest double; repeated multiplication does not.
    format!("1e{exponent}").parse().unwrap_or(1.0)
}

fn multiples(first: f64, last: f64, step: f64) -> Vec<f64> {
    let n_steps = (last - first).clamp(0.0, 100.0) as usize;
    (0..=n_steps).map(|idx| (first + idx as f64) * step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        let axis = Axis::fitting(values.iter().copied(), 5);
        axis.ticks.iter().map(|&tick| tick_label(tick, &axis.ticks)).collect()
    }

    #[test]
    fn ticks_are_round_numbers_around_the_values() {
        assert_eq!(labels(&[0.13, 2.31]), ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(labels(&[0.871, 0.893]), ["0.870", "0.875", "0.880", "0.885", "0.890", "0.895"]);
        assert_eq!(labels(&[3.0, 2500.0]), ["1", "10", "100", "1000", "10000"]);
        assert_eq!(labels(&[-2.0, 2.0]), ["-2", "-1", "0", "1", "2"]);
        assert_eq!(labels(&[4e-5, 4e5]), ["1e-5", "0.001", "0.1", "10", "1000", "100000"]);
        assert_eq!(labels(&[]), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[7.0, 7.0]).len(), 5);
    }

    #[test]
    fn large_counts_are_short() {
        let axis = Axis::linear([1.0, 23_450.0].into_iter(), 5);
        let labels: Vec<String> =
            axis.ticks.iter().map(|&tick| tick_label(tick, &axis.ticks)).collect();
        assert_eq!(labels, ["5k", "10k", "15k", "20k"]);
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_inside_and_ticks_are_few(
            values in prop::collection::vec(any::<f64>(), 1..20),
        ) {
            let finite = || values.iter().copied().filter(|value| value.is_finite());
            for axis in [Axis::fitting(finite(), 5), Axis::linear(finite(), 7)] {
                let axis = axis.span(100.0, 20.0);
                prop_assert!(axis.ticks.len() <= 12, "{:?}", axis);
                for value in finite() {
                    prop_assert!((20.0..=100.0).contains(&axis.place(value)), "{} {:?}", value, axis);
                }
                for &tick in &axis.ticks {
                    prop_assert!(tick_label(tick, &axis.ticks).len() <= 10, "{:?}", axis);
                }
            }
        }
    }
}
