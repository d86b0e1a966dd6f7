//! Some steps of the job itself, done as training does them: with its samples, its threads and its ways to hand steps over. Nothing tells better how long steps take.

use std::time::{Duration, Instant};

use manyhands_data::{Order, Part};

use crate::error::Error;
use crate::train::{EpochBatches, MeasuredSteps, Pace, Recipe, Step, Steps};

/// So many steps are measured at least, and no more once they have taken so long.
const LEAST: u32 = 4;
const ENOUGH: Duration = Duration::from_millis(400);
/// Nor once all of it has taken so long: where epochs are short, most of the time goes into beginning them.
const ENOUGH_IN_ALL: Duration = Duration::from_millis(1200);
/// Of long steps fewer are enough.
const LEAST_LONG: u32 = 2;
const LONG: Duration = Duration::from_secs(2);
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
        let (began, mut pace, mut number) = (Instant::now(), Pace::default(), 0);
        while self.is_possible() && !is_enough(pace.measured(), began.elapsed()) {
            let mut batches = EpochBatches::new(self.part, self.order, self.recipe.batch, 0);
            let mut under_way = 0;
            for _ in 0..self.steps_per_epoch() {
                if (self.should_stop)() {
                    return Err(Error::StoppedBefore);
                }
                let Some(batch) = batches.next(steps.wants_samples()) else { return Ok(None) };
                number += 1;
                steps.submit(&Step { number, batch: batch?, rate: RATE, seed: SEED })?;
                under_way += 1;
                if under_way >= steps.depth() {
                    steps.finish()?;
                    under_way -= 1;
                    pace.step(Instant::now(), true);
                }
                if is_enough(pace.measured(), began.elapsed()) {
                    break;
                }
            }
            for _ in 0..under_way {
                steps.finish()?;
                pace.step(Instant::now(), true);
            }
            // What an epoch begins with is no step's.
            pace.pause();
        }
        Ok(pace.seconds())
    }
}

/// Whether what was measured is, after so long in all.
fn is_enough(measured: MeasuredSteps, passed: Duration) -> bool {
    let MeasuredSteps { n_steps, in_all } = measured;
    let is_long_enough = in_all >= ENOUGH || passed >= ENOUGH_IN_ALL;
    (n_steps >= LEAST && is_long_enough) || (n_steps >= LEAST_LONG && in_all >= LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(n_steps: u32, measured_ms: u64, passed_ms: u64, expected: bool) {
        let in_all = Duration::from_millis(measured_ms);
        let passed = Duration::from_millis(passed_ms);
        let found = is_enough(MeasuredSteps { n_steps, in_all }, passed);
        assert_eq!(found, expected, "{n_steps} steps in {measured_ms} of {passed_ms} ms");
    }

    #[test]
    fn steps_are_tried_until_enough_is_known_and_no_longer() {
        check(100, 300, 500, false);
        check(100, 400, 500, true);
        check(3, 600, 700, false);
        // Epochs of two short steps come to an end.
        check(300, 3, 1100, false);
        check(300, 3, 1200, true);
        // Of long ones few are done.
        check(1, 3000, 9000, false);
        check(2, 6000, 12_000, true);
    }
}
