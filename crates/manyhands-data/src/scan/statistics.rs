//! Means, spreads and extremes of the numbers of the training part.
//!
//! Sums run over stretches of a fixed number of training rows, from the first value of the stretch, and stretches are joined
//! in order (Chan, Golub and LeVeque). The result depends on the rows alone, not on how files were cut or who read them; a
//! constant column has a spread of exactly zero.

use crate::encoding::Scale;
use crate::layout::{Field, Scalar};
use crate::spec::Normalise;

/// Rows a stretch.
const STRETCH: u64 = 4096;

/// What is known of the numbers of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// How many there are, missing ones left out.
    pub(crate) n: u64,
    pub(crate) mean: f64,
    /// The sum of squared distances from the mean.
    squares: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    const NONE: Self =
        Self { n: 0, mean: 0.0, squares: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY };

    /// The standard deviation of the numbers as a whole population.
    pub(crate) fn deviation(&self) -> f64 {
        // Rounding may leave something of a constant after a stretch that starts with a missing number.
        match self.min < self.max {
            true => (self.squares / self.n as f64).sqrt(),
            false => 0.0,
        }
    }

    /// How the job wants such numbers scaled. What does not vary is not divided.
    pub(crate) fn scale(&self, normalise: Normalise) -> Scale {
        let mean = self.mean;
        let (offset, spread) = match normalise {
            Normalise::Standard => (mean, self.deviation()),
            Normalise::Range => (self.min, self.max - self.min),
            Normalise::None => (0.0, 1.0),
        };
        let inverse = 1.0 / spread;
        let inverse = if spread > 0.0 && inverse.is_finite() { inverse } else { 1.0 };
        Scale { mean, offset, inverse }
    }

    fn join(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        let n = self.n + other.n;
        let (ours, theirs) = (self.n as f64, other.n as f64);
        let distance = other.mean - self.mean;
        // From nothing the mean is taken over as it is, so that a constant stays exactly what it is.
        self.mean =
            if self.n == 0 { other.mean } else { self.mean + distance * (theirs / n as f64) };
        self.squares += other.squares;
        if self.n > 0 {
            self.squares += distance * distance * (ours * theirs / n as f64);
        }
        self.n = n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// Collects the statistics of the number fields of records.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    runs: Vec<Run>,
    n_stretch: u64,
}

/// Fields of one type that lie side by side.
#[derive(Debug)]
struct Run {
    offset: usize,
    scalar: Scalar,
    slots: Slots,
    done: Vec<Summary>,
}

/// The sums of the current stretch, slot by slot.
#[derive(Debug, Default)]
struct Slots {
    shift: Vec<f64>,
    n: Vec<u64>,
    sum: Vec<f64>,
    squares: Vec<f64>,
    min: Vec<f64>,
    max: Vec<f64>,
}

impl Statistics {
    /// Statistics of these fields, whose slots follow each other in this order.
    pub(crate) fn new(fields: impl IntoIterator<Item = Field>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for field in fields {
            let joined = runs.last_mut().filter(|run| {
                run.scalar == field.scalar
                    && run.offset + run.done.len() * run.scalar.bytes() == field.offset
            });
            match joined {
                Some(run) => run.done.resize(run.done.len() + field.n, Summary::NONE),
                None => runs.push(Run {
                    offset: field.offset,
                    scalar: field.scalar,
                    slots: Slots::default(),
                    done: vec![Summary::NONE; field.n],
                }),
            }
        }
        Self { runs, n_stretch: 0 }
    }

    /// Adds a record of the training part.
    pub(crate) fn add(&mut self, record: &[u8]) {
        if self.n_stretch == STRETCH {
            self.end_stretch();
        }
        for run in &mut self.runs {
            let n = run.done.len();
            let bytes = &record[run.offset..run.offset + n * run.scalar.bytes()];
            let first = self.n_stretch == 0;
            match run.scalar {
                Scalar::U8 => run.slots.add(first, bytes.iter().map(|&b| f64::from(b))),
                Scalar::I32 => {
                    let numbers = bytes.as_chunks::<4>().0.iter();
                    run.slots.add(first, numbers.map(|&b| f64::from(i32::from_ne_bytes(b))));
                }
                Scalar::F32 => {
                    let numbers = bytes.as_chunks::<4>().0.iter();
                    run.slots.add(first, numbers.map(|&b| f64::from(f32::from_ne_bytes(b))));
                }
                Scalar::F64 => {
                    let numbers = bytes.as_chunks::<8>().0.iter();
                    run.slots.add(first, numbers.map(|&b| f64::from_ne_bytes(b)));
                }
            }
        }
        self.n_stretch += 1;
    }

    fn end_stretch(&mut self) {
        for Run { slots, done, .. } in &mut self.runs {
            for (at, done) in done.iter_mut().enumerate().take(slots.n.len()) {
                done.join(&slots.summary(at));
            }
        }
        self.n_stretch = 0;
    }

    /// The statistics of every slot.
    pub(crate) fn finish(mut self) -> Vec<Summary> {
        self.end_stretch();
        self.runs.into_iter().flat_map(|run| run.done).collect()
    }
}

impl Slots {
    /// Starts a stretch at these numbers.
    fn start(&mut self, numbers: impl Iterator<Item = f64>) {
        self.shift.clear();
        self.shift.extend(numbers.map(|number| if number.is_nan() { 0.0 } else { number }));
        let n = self.shift.len();
        for (sums, start) in [
            (&mut self.sum, 0.0),
            (&mut self.squares, 0.0),
            (&mut self.min, f64::INFINITY),
            (&mut self.max, f64::NEG_INFINITY),
        ] {
            sums.clear();
            sums.resize(n, start);
        }
        self.n.clear();
        self.n.resize(n, 0);
    }

    #[inline(always)]
    fn add(&mut self, first: bool, numbers: impl Iterator<Item = f64> + Clone) {
        if first {
            self.start(numbers.clone());
        }
        let n = self.shift.len();
        let (shift, counts) = (&self.shift[..n], &mut self.n[..n]);
        let (sum, squares) = (&mut self.sum[..n], &mut self.squares[..n]);
        let (min, max) = (&mut self.min[..n], &mut self.max[..n]);
        for (at, number) in numbers.enumerate().take(n) {
            // What is missing is not a number, and adds nothing.
            let is_there = !number.is_nan();
            let distance = if is_there { number - shift[at] } else { 0.0 };
            counts[at] += u64::from(is_there);
            sum[at] += distance;
            squares[at] += distance * distance;
            min[at] = if number < min[at] { number } else { min[at] };
            max[at] = if number > max[at] { number } else { max[at] };
        }
    }

    fn summary(&self, at: usize) -> Summary {
        let n = self.n[at];
        if n == 0 {
            return Summary::NONE;
        }
        let mean = self.sum[at] / n as f64;
        Summary {
            n,
            mean: self.shift[at] + mean,
            squares: (self.squares[at] - self.sum[at] * mean).max(0.0),
            min: self.min[at],
            max: self.max[at],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summaries(rows: &[Vec<f64>]) -> Vec<Summary> {
        let n = rows[0].len();
        let fields = (0..n).map(|i| Field { offset: i * 8, scalar: Scalar::F64, n: 1 });
        let mut statistics = Statistics::new(fields);
        assert_eq!(statistics.runs.len(), 1);
        for row in rows {
            let record: Vec<u8> = row.iter().flat_map(|x| x.to_ne_bytes()).collect();
            statistics.add(&record);
        }
        statistics.finish()
    }

    #[test]
    fn means_and_deviations_are_those_of_the_closed_form() {
        // 0, 1, ..., n-1 far from zero: mean (n-1)/2, variance (n^2-1)/12.
        let n = 20_000;
        let rows: Vec<Vec<f64>> =
            (0..n).map(|i| vec![f64::from(i) + 1e9, f64::from(i % 2), 0.1]).collect();
        let [far, half, constant] = summaries(&rows)[..] else { panic!() };
        let deviation = ((f64::from(n).powi(2) - 1.0) / 12.0).sqrt();
        assert!((far.mean - 1e9 - f64::from(n - 1) / 2.0).abs() < 1e-6);
        assert!((far.deviation() / deviation - 1.0).abs() < 1e-12);
        assert_eq!((far.min, far.max), (1e9, 1e9 + f64::from(n - 1)));
        assert_eq!((half.mean, half.deviation()), (0.5, 0.5));
        assert_eq!((constant.mean, constant.deviation()), (0.1, 0.0));
        assert_eq!(constant.scale(Normalise::Standard).inverse, 1.0);
        assert_eq!(far.scale(Normalise::Range).apply(1e9 + f64::from(n - 1)), 1.0);
        assert_eq!(far.scale(Normalise::None).apply(3.5), 3.5);
    }

    #[test]
    fn missing_numbers_add_nothing() {
        let rows: Vec<Vec<f64>> = (0..10_000)
            .map(|i| vec![if i % 3 == 0 { f64::NAN } else { f64::from(i % 3) }])
            .collect();
        let constant: Vec<Vec<f64>> =
            (0..50).map(|i| vec![if i == 0 { f64::NAN } else { 0.3 }]).collect();
        assert_eq!(summaries(&constant)[0].deviation(), 0.0);
        let [column] = summaries(&rows)[..] else { panic!() };
        assert_eq!((column.n, column.min, column.max), (6666, 1.0, 2.0));
        assert!((column.mean - 1.5).abs() < 1e-12);
        assert!((column.deviation() - 0.5).abs() < 1e-12);
    }
}
