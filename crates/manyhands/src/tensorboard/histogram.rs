//! Histograms with TensorFlow's buckets: each limit 1.1 times the one before, both signs, zero between them.

use std::sync::LazyLock;

use super::message::Message;

/// The distribution of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Histogram {
    min: f64,
    max: f64,
    n_values: usize,
    sum: f64,
    square_sum: f64,
    limits: Vec<f64>,
    counts: Vec<f64>,
}

/// The upper limits of all buckets.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut positive = Vec::new();
    let mut limit = 1e-12;
    while limit < 1e20 {
        positive.push(limit);
        limit *= 1.1;
    }
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|limit| -limit);
    negative.chain([0.0]).chain(positive.iter().copied()).collect()
});

impl Histogram {
    /// The distribution of the finite ones among the values.
    pub(super) fn of(values: &[f64]) -> Histogram {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let mut counts = vec![0.0; LIMITS.len()];
        for value in finite() {
            let bucket = LIMITS.partition_point(|&limit| limit < value);
            counts[bucket.min(LIMITS.len() - 1)] += 1.0;
        }
        let used = |count: &f64| *count > 0.0;
        let (first, last) = (counts.iter().position(used), counts.iter().rposition(used));
        let (limits, counts) = match (first, last) {
            // One empty bucket before the first tells where that one begins.
            (Some(first), Some(last)) => {
                let range = first.saturating_sub(1)..last + 1;
                (LIMITS[range.clone()].to_vec(), counts[range].to_vec())
            }
            _ => (vec![f64::MAX], vec![0.0]),
        };
        let n_values = finite().count();
        Histogram {
            min: finite().reduce(f64::min).unwrap_or(0.0),
            max: finite().reduce(f64::max).unwrap_or(0.0),
            n_values,
            sum: finite().sum(),
            square_sum: finite().map(|value| value * value).sum(),
            limits,
            counts,
        }
    }

    /// As `HistogramProto`.
    pub(super) fn to_message(&self) -> Message {
        Message::new()
            .double(1, self.min)
            .double(2, self.max)
            .double(3, self.n_values as f64)
            .double(4, self.sum)
            .double(5, self.square_sum)
            .doubles(6, &self.limits)
            .doubles(7, &self.counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_finite_value_is_counted_once_in_its_bucket(
            values in prop::collection::vec(any::<f64>(), 0..50),
        ) {
            let histogram = Histogram::of(&values);
            let n_finite = values.iter().filter(|value| value.is_finite()).count();
            prop_assert_eq!(histogram.counts.iter().sum::<f64>(), n_finite as f64);
            prop_assert_eq!(histogram.limits.len(), histogram.counts.len());
            for (idx, &count) in histogram.counts.iter().enumerate() {
                let lower = match idx {
                    0 => f64::NEG_INFINITY,
                    _ => histogram.limits[idx - 1],
                };
                let inside = |value: &&f64| {
                    value.is_finite() && **value > lower && **value <= histogram.limits[idx]
                };
                prop_assert_eq!(count, values.iter().filter(inside).count() as f64);
            }
        }
    }

    #[test]
    fn nothing_finite_is_an_empty_histogram() {
        let histogram = Histogram::of(&[f64::NAN, f64::INFINITY]);
        assert_eq!((histogram.n_values, histogram.min, histogram.max), (0, 0.0, 0.0));
    }
}
