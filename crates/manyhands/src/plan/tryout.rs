//! Some steps of the job itself, done as training does them: with its samples, its threads and its ways to hand steps over. Nothing tells better how long steps take.

use std::time::{Duration, Instant};

use manyhands_data::{Order, Part};

use crate::error::Error;
use crate::train::{EpochBatches, Recipe, Step, Steps};

/// Steps that find cold caches and are not measured, or fewer that take as long as this.
const COLD: usize = 3;
const LONG_COLD: Duration = Duration::from_secs(1);
/// So many are measured at least, and no more once that has taken so long.
const LEAST: usize = 4;
const ENOUGH: Duration = Duration::from_millis(400);
/// Nor once all of it has taken so long: where epochs are short, most of the time goes into beginning them.
const ENOUGH_IN_ALL: Duration = Duration::from_millis(1200);
/// Of long steps fewer are enough.
const LEAST_LONG: usize = 2;
const LONG: Duration = Duration::from_secs(2);
/// The steps are measured in so many runs, of which the median counts: others may use the machine for a moment.
const RUNS: usize = 5;
/// The rate of steps that are to change nothing that matters.
const RATE: f64 = 1e-6;
/// The seed of chance, which makes no difference to times.
const SEED: u64 = 1;

/// The samples that steps are tried with.
pub(crate) struct Tryout<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) part: &'a Part,
    pub(crate) order: Order,
    /// Whether somebody wants it to end.
    pub(crate) should_stop: &'a dyn Fn() -> bool,
}

/// When steps ended.
#[derive(Debug, Default)]
struct Ends {
    began: Option<Instant>,
    n_cold: usize,
    last: Option<Instant>,
    /// From the end of one to that of the next, where both are of one epoch: what an epoch begins with is not theirs.
    intervals: Vec<Duration>,
    measured: Duration,
}

impl Tryout<'_> {
    /// Whether an epoch has steps that follow one another.
    pub(super) fn is_possible(&self) -> bool {
        self.steps_per_epoch() > 1
    }

    fn steps_per_epoch(&self) -> usize {
        self.part.n_samples() / self.recipe.batch.max(1)
    }

    /// The seconds of a full step; nothing where there are too few samples to know.
    pub(super) fn seconds(&self, steps: &mut dyn Steps<'_>) -> Result<Option<f64>, Error> {
        let (mut ends, mut n_submitted) = (Ends::default(), 0);
        ends.began = Some(Instant::now());
        while self.is_possible() && !ends.are_enough(Instant::now()) {
            let mut batches = EpochBatches::new(self.part, self.order, self.recipe.batch, 0);
            let mut under_way = 0;
            for _ in 0..self.steps_per_epoch() {
                if (self.should_stop)() {
                    return Err(Error::StoppedBefore);
                }
                let Some(batch) = batches.next(steps.wants_samples()) else { return Ok(None) };
                n_submitted += 1;
                let (number, batch) = (n_submitted, batch?);
                steps.submit(&Step { number, batch, rate: RATE, seed: SEED })?;
                under_way += 1;
                if under_way >= steps.depth() {
                    steps.finish()?;
                    under_way -= 1;
                    ends.note(Instant::now());
                }
                if ends.are_enough(Instant::now()) {
                    break;
                }
            }
            for _ in 0..under_way {
                steps.finish()?;
                ends.note(Instant::now());
            }
            ends.last = None;
        }
        Ok(median_of_runs(&ends.intervals))
    }
}

impl Ends {
    /// A step has ended.
    fn note(&mut self, now: Instant) {
        let since_start = self.began.map_or(Duration::ZERO, |began| now - began);
        let is_cold = self.n_cold < COLD && (self.n_cold == 0 || since_start < LONG_COLD);
        let last = self.last.replace(now);
        if is_cold {
            self.n_cold += 1;
        } else if let Some(last) = last {
            self.intervals.push(now - last);
            self.measured += now - last;
        }
    }

    fn are_enough(&self, now: Instant) -> bool {
        let n = self.intervals.len();
        let in_all = self.began.map_or(Duration::ZERO, |began| now - began);
        let is_enough = self.measured >= ENOUGH || in_all >= ENOUGH_IN_ALL;
        (n >= LEAST && is_enough) || (n >= LEAST_LONG && self.measured >= LONG)
    }
}

/// The seconds of an interval: the median over the means of runs of them.
fn median_of_runs(intervals: &[Duration]) -> Option<f64> {
    let run = intervals.len().div_ceil(RUNS).max(1);
    let mean = |run: &[Duration]| run.iter().sum::<Duration>().as_secs_f64() / run.len() as f64;
    let mut means: Vec<f64> = intervals.chunks(run).map(mean).collect();
    means.sort_by(f64::total_cmp);
    means.get(means.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_millis(ms)
    }

    /// The milliseconds of a step of those that end at these, in epochs; whether they are enough.
    fn check(epochs: &[&[u64]], expected: Option<f64>, are_enough: bool) {
        let mut ends = Ends { began: Some(at(0)), ..Ends::default() };
        for epoch in epochs {
            epoch.iter().for_each(|ms| ends.note(at(*ms)));
            ends.last = None;
        }
        let found = median_of_runs(&ends.intervals).map(|seconds| (seconds * 1e4).round() / 10.0);
        let last = epochs.iter().copied().flatten().max().map_or(at(0), |ms| at(*ms));
        assert_eq!((found, ends.are_enough(last)), (expected, are_enough), "{ends:?}");
    }

    #[test]
    fn cold_steps_and_beginnings_of_epochs_are_left_out() {
        check(&[&[500, 700, 710]], None, false);
        check(&[&[500, 700, 710, 720, 730], &[990, 1000, 1010]], Some(10.0), false);
        let many: Vec<u64> = (0..60).map(|step| 10 * step).collect();
        check(&[&many], Some(10.0), true);
    }

    #[test]
    fn short_epochs_come_to_an_end() {
        let epoch = |first: u64| vec![first, first + 10];
        let epochs: Vec<Vec<u64>> = (0..6).map(|epoch_idx| epoch(210 * epoch_idx)).collect();
        let epochs: Vec<&[u64]> = epochs.iter().map(Vec::as_slice).collect();
        check(&epochs, Some(10.0), false);
        check(&[&epochs[..], &[&[1260, 1270]]].concat(), Some(10.0), true);
    }

    #[test]
    fn a_pause_in_the_midst_does_not_count() {
        let paused: Vec<u64> = (0..60).map(|step| 10 * step + 500 * (step / 20)).collect();
        check(&[&paused], Some(10.0), true);
    }

    #[test]
    fn of_long_steps_few_are_done() {
        check(&[&[3000, 6000]], Some(3000.0), false);
        check(&[&[3000, 6000, 9000]], Some(3000.0), true);
    }
}
