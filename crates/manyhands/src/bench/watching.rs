//! What is seen of a run while it is measured: how long it took, when it had reached a target, what was decided.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::target::Target;
use crate::train::{Callback, Control, Evaluated, Event};

/// So many glimpses in a row are averaged: each is better or worse by luck, and the first that is as good as a target tells of luck as much as of training.
pub(super) const AVERAGED: usize = 5;

/// What was seen of a run.
#[derive(Default)]
pub(super) struct Seen {
    /// When the first step and the last were done, in seconds of the run.
    first: Option<f64>,
    last: f64,
    last_step: Option<Instant>,
    /// Steps that were done.
    pub(super) n_steps: usize,
    /// How long was measured between steps, and since the last of them.
    measuring: Duration,
    measuring_now: Duration,
    glimpses: VecDeque<Glimpse>,
    /// Seconds and steps until the target was reached.
    pub(super) to_target: Option<(f64, f64)>,
    /// What was measured last on the validation data.
    pub(super) value: Option<f64>,
    /// What was decided about bounds.
    pub(super) decisions: Vec<String>,
}

/// What the model was at a moment.
struct Glimpse {
    seconds: f64,
    step: usize,
    value: f64,
}

impl Seen {
    /// From the first step to the last, without measurements.
    pub(super) fn seconds(&self) -> f64 {
        self.last - self.first.unwrap_or(0.0) - self.measuring.as_secs_f64()
    }

    fn step_done(&mut self, seconds: f64, now: Instant) {
        self.first.get_or_insert(seconds);
        (self.last, self.last_step) = (seconds, Some(now));
        self.n_steps += 1;
        // What is measured after the last step of all is no part of the time until then.
        self.measuring += std::mem::take(&mut self.measuring_now);
    }

    fn measured(&mut self, value: Option<f64>, now: Instant) {
        self.value = value;
        if let Some(last_step) = self.last_step {
            self.measuring_now = now - last_step;
        }
    }

    /// Whether the last glimpses are as good as the target on average. The middle one of them is when that was.
    fn glimpsed(&mut self, glimpse: Glimpse, target: &Target) -> bool {
        self.glimpses.push_back(glimpse);
        if self.glimpses.len() < AVERAGED {
            return false;
        }
        let mean = self.glimpses.iter().map(|one| one.value).sum::<f64>() / AVERAGED as f64;
        if target.is_reached(mean) {
            let Glimpse { seconds, step, .. } = self.glimpses[AVERAGED / 2];
            self.to_target = Some((seconds - self.first.unwrap_or(0.0), step as f64));
        }
        self.glimpses.pop_front();
        self.to_target.is_some()
    }
}

/// Hears what happens in a run.
pub(super) struct Watching {
    target: Option<Target>,
    seen: Arc<Mutex<Seen>>,
}

impl Watching {
    pub(super) fn new(target: Option<Target>, seen: Arc<Mutex<Seen>>) -> Watching {
        Watching { target, seen }
    }

    fn value(&self, found: &Evaluated) -> Option<f64> {
        let name = self.target.as_ref().map_or("loss", |target| target.measure.as_str());
        found.values.get(name).copied()
    }
}

impl Callback for Watching {
    fn on_event(&mut self, event: &Event) -> Control {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(done) => seen.step_done(done.seconds, Instant::now()),
            Event::Evaluated(found) if found.part == "validation" => {
                seen.measured(self.value(found), Instant::now());
            }
            Event::Glimpsed { seconds, found } => {
                let (Some(target), Some(value)) = (&self.target, self.value(found)) else {
                    return Control::Continue;
                };
                let glimpse = Glimpse { seconds: *seconds, step: found.step, value };
                if seen.glimpsed(glimpse, target) {
                    return Control::Stop;
                }
            }
            Event::Cluster(sentence) if is_of_bounds(sentence) => {
                seen.decisions.push(sentence.to_string());
            }
            _ => {}
        }
        Control::Continue
    }
}

/// Whether a sentence is one of those of `cluster/dispatch/adaptive.rs`.
fn is_of_bounds(sentence: &str) -> bool {
    ["ahead of the slowest", "bounds are halved"].iter().any(|words| sentence.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;

    fn check(values: &[f64], expected: Option<(f64, f64)>) {
        let builder = Job::builder().train("a.csv").label("b").layers(["dense 2"]);
        let job = builder.loss("cross_entropy").metrics(["accuracy"]).build().expect("a job");
        let target = Target::of(&job, "accuracy=0.5").expect("a target");
        let mut seen = Seen { first: Some(1.0), ..Seen::default() };
        let mut glimpses = values.iter().enumerate().map(|(idx, value)| Glimpse {
            seconds: 2.0 + idx as f64,
            step: 10 * (idx + 1),
            value: *value,
        });
        let is_reached = glimpses.any(|glimpse| seen.glimpsed(glimpse, &target));
        assert_eq!(is_reached, expected.is_some());
        assert_eq!(seen.to_target, expected, "{values:?}");
    }

    #[test]
    fn a_target_is_reached_by_the_mean_of_glimpses_and_not_by_a_lucky_one() {
        check(&[], None);
        check(&[0.9; 4], None);
        check(&[0.5; 5], Some((3.0, 30.0)));
        check(&[0.1, 0.4, 0.8, 0.4, 0.4, 0.4, 0.4], None);
        check(&[0.1, 0.4, 0.7, 0.4, 0.4, 0.4, 0.5, 0.9], Some((6.0, 60.0)));
    }

    #[test]
    fn measurements_between_steps_do_not_count() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        seen.step_done(1.0, at(1.0));
        seen.step_done(2.0, at(2.0));
        seen.measured(Some(0.5), at(5.0));
        seen.step_done(6.0, at(6.0));
        seen.measured(Some(0.75), at(9.0));
        assert_eq!((seen.seconds(), seen.value), (2.0, Some(0.75)));
    }
}
