//! Where a training stands, put together from its events. Time is what the events say it is: there is no clock here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use manyhands::train::{Evaluated, Event, Planned, StepDone};

use crate::figures::{rate, seconds, value};
use crate::summary::measured;

/// Seconds over which the rate is taken, and between the marks that it is taken from.
const RATE_WINDOW: f64 = 5.0;
const MARK_EVERY: f64 = 0.5;

/// Where a training stands.
#[derive(Default)]
pub(crate) struct Course {
    pub planned: Option<Planned>,
    /// The last step.
    last: Option<StepDone>,
    /// Samples trained by this process.
    n_samples: usize,
    epoch: Sums,
    /// An epoch that still waits for its validation.
    waiting: Option<EpochDone>,
    validation: BTreeMap<String, f64>,
    /// Seconds and samples at some moments of the last seconds.
    marks: VecDeque<(f64, usize)>,
}

/// What happened in the epoch so far.
#[derive(Clone, Copy, Default)]
struct Sums {
    n_steps: usize,
    n_samples: usize,
    loss: f64,
    first_seconds: f64,
}

/// An epoch that is done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EpochDone {
    /// 1 for the first.
    pub epoch: usize,
    pub n_epochs: usize,
    pub step: usize,
    /// The mean over its samples.
    pub loss: f64,
    pub seconds: f64,
    pub samples_per_second: f64,
    /// Values by name; empty where there is no data to validate on.
    pub validation: BTreeMap<String, f64>,
}

impl Course {
    /// Takes in an event; returns an epoch when all is known about it.
    pub(crate) fn take(&mut self, event: &Event) -> Option<EpochDone> {
        match event {
            // Also where a run goes on from its last checkpoint: its seconds begin anew, and steps are done again.
            Event::Planned(planned) => {
                let late = self.waiting.take();
                *self = Course { planned: Some((*planned).clone()), ..Course::default() };
                late
            }
            Event::Step(step) => self.take_step(step),
            Event::Evaluated(evaluated) => self.take_evaluated(evaluated),
            _ => None,
        }
    }

    fn take_step(&mut self, step: &StepDone) -> Option<EpochDone> {
        let late = self.waiting.take();
        if self.last.is_none_or(|last| last.epoch != step.epoch) {
            self.epoch = Sums { first_seconds: step.seconds, ..Sums::default() };
        }
        self.epoch.n_steps += 1;
        self.epoch.n_samples += step.n_samples;
        self.epoch.loss += step.loss * step.n_samples as f64;
        self.n_samples += step.n_samples;
        self.last = Some(*step);
        if self.marks.back().is_none_or(|mark| step.seconds >= mark.0 + MARK_EVERY) {
            self.mark(step.seconds);
        }
        let planned = self.planned.as_ref()?;
        if step.step.is_multiple_of(planned.steps_per_epoch.max(1)) || step.step == planned.n_steps
        {
            let done = self.epoch_done(planned.n_epochs, step);
            if planned.n_validation == 0 {
                return Some(done);
            }
            self.waiting = Some(done);
        }
        late
    }

    fn take_evaluated(&mut self, evaluated: &Evaluated) -> Option<EpochDone> {
        // Training stood still meanwhile: its rate is taken anew.
        self.marks.clear();
        if evaluated.part != "validation" {
            return None;
        }
        self.validation.clone_from(&evaluated.values);
        let mut done = self.waiting.take()?;
        done.validation.clone_from(&evaluated.values);
        Some(done)
    }

    /// The epoch that still waits, when nothing more comes.
    pub(crate) fn finish(&mut self) -> Option<EpochDone> {
        self.waiting.take()
    }

    fn mark(&mut self, now: f64) {
        self.marks.push_back((now, self.n_samples));
        while self.marks.len() > 2 && now - self.marks[0].0 > RATE_WINDOW {
            self.marks.pop_front();
        }
    }

    fn epoch_done(&self, n_epochs: usize, step: &StepDone) -> EpochDone {
        let Sums { n_steps, n_samples, loss, first_seconds } = self.epoch;
        // The first step's own time is not known: what came before it may be a validation. The mean of the others stands in.
        let others = step.seconds - first_seconds;
        let seconds = match n_steps {
            0 | 1 => step.seconds / step.step.max(1) as f64,
            n => others * n as f64 / (n - 1) as f64,
        };
        EpochDone {
            epoch: step.epoch + 1,
            n_epochs,
            step: step.step,
            loss: loss / n_samples as f64,
            seconds,
            samples_per_second: n_samples as f64 / seconds,
            validation: BTreeMap::new(),
        }
    }

    /// The epoch being done, 1 for the first.
    pub(crate) fn epoch(&self) -> usize {
        self.last.map_or(1, |last| last.epoch + 1)
    }

    pub(crate) fn n_epochs(&self) -> usize {
        self.planned.as_ref().map_or(0, |planned| planned.n_epochs)
    }

    pub(crate) fn n_steps(&self) -> usize {
        self.planned.as_ref().map_or(0, |planned| planned.n_steps)
    }

    /// Samples a second over the last seconds; none before there are two moments to take it from.
    pub(crate) fn samples_per_second(&self) -> Option<f64> {
        let (last, (then, n_samples)) = (self.last?, self.marks.front()?);
        let time = last.seconds - then;
        (time > 0.0).then(|| (self.n_samples - n_samples) as f64 / time)
    }

    /// The time that is left, if it goes on as it went so far.
    pub(crate) fn left(&self) -> Option<Duration> {
        let (last, planned) = (self.last?, self.planned.as_ref()?);
        let done = last.step.checked_sub(planned.first_step).filter(|done| *done > 0)?;
        let left = planned.n_steps.saturating_sub(last.step);
        Duration::try_from_secs_f64(last.seconds / done as f64 * left as f64).ok()
    }

    /// The mean loss of the epoch so far.
    pub(crate) fn loss(&self) -> f64 {
        self.epoch.loss / self.epoch.n_samples as f64
    }

    /// What is known besides position and bar: rate, time left, loss, metric.
    pub(crate) fn details(&self) -> String {
        let mut parts = Vec::new();
        if let Some(per_second) = self.samples_per_second() {
            parts.push(format!("{} samples/s", rate(per_second)));
        }
        if let Some(left) = self.left() {
            parts.push(format!("ETA {}", crate::figures::clock(left)));
        }
        if self.epoch.n_samples > 0 {
            parts.push(format!("loss {}", value(self.loss())));
        }
        // One metric is enough here: a line must fit, and that of the epoch has them all.
        let metric = self.validation.iter().find(|(name, _)| *name != "loss");
        if let Some((name, x)) = metric.or(self.validation.first_key_value()) {
            parts.push(format!("validation {name} {}", value(*x)));
        }
        parts.join("  ")
    }
}

impl EpochDone {
    /// The line that stays.
    pub(crate) fn line(&self) -> String {
        let validation = match self.validation.is_empty() {
            true => String::new(),
            false => format!("  validation {}", measured(&self.validation)),
        };
        format!(
            "epoch {}/{}  loss {}{validation}  {}  {} samples/s",
            self.epoch,
            self.n_epochs,
            value(self.loss),
            seconds(self.seconds),
            rate(self.samples_per_second),
        )
    }
}
