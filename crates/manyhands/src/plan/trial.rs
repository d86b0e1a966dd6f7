//! Some steps of the job itself, done as training does them: with its samples, its threads and its ways to hand steps over. Nothing tells better how long steps take.

use std::time::{Duration, Instant};

use manyhands_data::{Order, Part};

use crate::error::Error;
use crate::train::{EpochBatches, Recipe, Step, Steps};

/// Steps that find cold caches, and are not measured.
const COLD: usize = 3;
/// So many are measured at least, and no more once that has taken so long.
const LEAST: usize = 4;
const ENOUGH: Duration = Duration::from_millis(400);
/// The steps are measured in so many runs, of which the median counts: others may use the machine for a moment.
const RUNS: usize = 5;
/// The rate of steps that are to change nothing that matters.
const RATE: f64 = 1e-6;
/// The seed of chance, which makes no difference to times.
const SEED: u64 = 1;

/// The samples that steps are tried with.
pub(crate) struct Trial<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) part: &'a Part,
    pub(crate) order: Order,
}

impl Trial<'_> {
    /// The seconds of a full step; nothing where there are too few samples to do one.
    pub(super) fn seconds(&self, steps: &mut dyn Steps<'_>) -> Result<Option<f64>, Error> {
        let batch = self.recipe.batch;
        let steps_per_epoch = self.part.n_samples() / batch.max(1);
        if steps_per_epoch == 0 {
            return Ok(None);
        }
        let (mut n_submitted, mut under_way) = (0, 0);
        let mut ends: Vec<Instant> = Vec::new();
        'epochs: loop {
            let mut batches = EpochBatches::new(self.part, self.order, batch, 0);
            for _ in 0..steps_per_epoch {
                let Some(batch) = batches.next(steps.wants_samples()) else { break };
                n_submitted += 1;
                steps.submit(&Step {
                    number: n_submitted,
                    batch: batch?,
                    rate: RATE,
                    seed: SEED,
                })?;
                under_way += 1;
                if under_way >= steps.depth() {
                    steps.finish()?;
                    under_way -= 1;
                    ends.push(Instant::now());
                }
                let n_measured = ends.len().saturating_sub(COLD);
                if n_measured >= LEAST && ends[COLD - 1].elapsed() >= ENOUGH {
                    break 'epochs;
                }
            }
        }
        for _ in 0..under_way {
            steps.finish()?;
        }
        Ok(Some(median_of_runs(&ends[COLD - 1..])))
    }
}

/// The seconds from one end to the next: the median over runs of them.
fn median_of_runs(ends: &[Instant]) -> f64 {
    let run = (ends.len() - 1).div_ceil(RUNS).max(1);
    let marks: Vec<&Instant> = ends.iter().step_by(run).collect();
    let each = marks.windows(2).map(|two| (*two[1] - *two[0]).as_secs_f64() / run as f64);
    let mut each: Vec<f64> = each.collect();
    each.sort_by(f64::total_cmp);
    each.get(each.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_in_the_midst_does_not_count() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let steady: Vec<Instant> = (0..=20).map(|step| at(10 * step)).collect();
        assert!((median_of_runs(&steady) - 0.01).abs() < 1e-9);
        let pause = |step: u64| if step < 7 { at(10 * step) } else { at(500 + 10 * step) };
        let paused: Vec<Instant> = (0..=20).map(pause).collect();
        assert!((median_of_runs(&paused) - 0.01).abs() < 1e-9);
        assert!((median_of_runs(&[at(0), at(7)]) - 0.007).abs() < 1e-9);
    }
}
