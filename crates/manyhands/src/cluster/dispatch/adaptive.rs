//! Bounds and turns that follow what is measured.
//!
//! Who waits may drift further; who does not is drawn back, since what is learned from old parameters is worth less. Nobody drifts beyond
//! [`MOST_BOUND`]: so often at least the slowest contributes. Where the loss rises, all are drawn back at once. Between the two ends lie BSP (a bound of 0) and asynchronous training.

use std::collections::BTreeMap;

use super::{Decision, Worker, WorkerNumber};
use crate::curve::short;

/// The bound that a worker begins with.
pub(super) const FIRST_BOUND: u64 = 4;
/// The furthest that a worker may drift: the slowest contributes at least once in so many steps.
pub(super) const MOST_BOUND: u64 = 32;
/// After so many steps there is a look at who waited.
const LOOK_EVERY: u64 = 4;
/// Who waits more than this share of its time may drift further.
const WAITS: f64 = 0.04;
/// Who waits less than this share of its time is drawn back.
const HARDLY_WAITS: f64 = 0.005;
/// So many looks in a row without waiting draw a worker back by one.
const PATIENCE: u64 = 8;
/// How much of the mean loss is kept at every step.
const KEPT: f64 = 0.95;
/// The loss has risen where its mean is so much above the lowest.
const RISEN: f64 = 1.25;
/// Before so many steps a mean says nothing.
const FIRST_STEPS: u64 = 20;

/// What adapts besides the workers' own bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Adaptive {
    n_steps: u64,
    mean_loss: Option<f64>,
    lowest: Option<f64>,
    /// Looks in a row at which a worker did not wait.
    calm: BTreeMap<WorkerNumber, u64>,
}

impl Adaptive {
    /// A worker is lost.
    pub(super) fn lose(&mut self, worker: WorkerNumber) {
        self.calm.remove(&worker);
    }

    /// A step is done: bounds follow where that is due. Gives what was decided.
    pub(super) fn step_done(
        &mut self,
        loss: f64,
        workers: &mut BTreeMap<WorkerNumber, Worker>,
    ) -> Vec<Decision> {
        self.n_steps += 1;
        let mean = self.mean_loss.map_or(loss, |mean| KEPT * mean + (1.0 - KEPT) * loss);
        self.mean_loss = Some(mean);
        let lowest = self.lowest.map_or(mean, |lowest| lowest.min(mean));
        self.lowest = Some(lowest);
        if self.n_steps >= FIRST_STEPS && mean > RISEN * lowest {
            self.lowest = Some(mean);
            for worker in workers.values_mut() {
                worker.bound /= 2;
                worker.told_bound = worker.bound;
            }
            let (lowest, mean) = (short(lowest), short(mean));
            let sentence = format!(
                "the loss rose from {lowest} to {mean}: all workers are held closer together, their bounds are halved"
            );
            return vec![Decision { worker: None, sentence }];
        }
        if !self.n_steps.is_multiple_of(LOOK_EVERY) {
            return Vec::new();
        }
        let looks = workers.iter_mut().filter_map(|(number, worker)| self.look(*number, worker));
        looks.collect()
    }

    /// Looks at how long a worker waited.
    fn look(&mut self, number: WorkerNumber, worker: &mut Worker) -> Option<Decision> {
        let (worked, waited) = (worker.worked, worker.waited);
        if worked + waited <= 0.0 {
            return None;
        }
        (worker.worked, worker.waited) = (0.0, 0.0);
        let share = waited / (worked + waited);
        let calm = self.calm.entry(number).or_default();
        *calm = if share < HARDLY_WAITS { *calm + 1 } else { 0 };
        let before = worker.bound;
        if share > WAITS {
            worker.bound = (2 * before).clamp(1, MOST_BOUND);
        } else if *calm >= PATIENCE {
            *calm = 0;
            worker.bound = before.saturating_sub(1);
        }
        // Who stands at an edge goes back and forth by one: a sentence for each would tell nothing.
        let (before, after) = (worker.told_bound, worker.bound);
        if after < 2 * before.max(1) && before < 2 * after.max(1) {
            return None;
        }
        worker.told_bound = after;
        let percent = 100.0 * share;
        let sentence = if after > before {
            format!(
                "waited {percent:.0} % of its time: it may be {after} steps ahead of the slowest, not {before}"
            )
        } else {
            format!(
                "hardly waits: it may be {after} steps ahead of the slowest, not {before}, and misses less"
            )
        };
        Some(Decision { worker: Some(number), sentence })
    }
}

/// How many grains a worker takes at a time: its share of a step by its speed, at least one.
pub(super) fn turn_size(
    n_grains: usize,
    number: WorkerNumber,
    workers: &BTreeMap<WorkerNumber, Worker>,
) -> usize {
    let speed = |worker: &Worker| worker.seconds_per_grain.map(|seconds| 1.0 / seconds.max(1e-9));
    let known: Vec<f64> = workers.values().filter_map(speed).collect();
    let own = workers.get(&number).and_then(speed);
    let (Some(own), false) = (own, known.is_empty()) else {
        return n_grains.div_ceil(workers.len().max(1));
    };
    // Those who are not measured count as the mean of the others.
    let all = known.iter().sum::<f64>() / known.len() as f64 * workers.len() as f64;
    ((n_grains as f64 * own / all).round() as usize).max(1)
}
