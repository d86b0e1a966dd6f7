//! A training as JSON lines, one object per event: what other programs read.

use std::io::Write;

use manyhands::train::{Evaluated, Event, Planned, SetUp, StepDone};
use serde_json::{Value, json};

use super::View;
use super::course::{Course, EpochDone};

/// Seconds between events about steps.
const EVERY: f64 = 0.1;

/// Writes JSON lines.
pub(crate) struct JsonLines<W> {
    to: W,
    /// When the next event about a step is due.
    due: f64,
}

impl<W: Write> JsonLines<W> {
    pub(crate) fn new(to: W) -> JsonLines<W> {
        JsonLines { to, due: 0.0 }
    }

    /// A reader that went away must not end a training that may have run for hours.
    fn say(&mut self, event: &Value) {
        let _ = writeln!(self.to, "{event}");
    }
}

impl<W: Write + Send> View for JsonLines<W> {
    fn event(&mut self, event: &Event, course: &Course) {
        let value = match event {
            Event::Step(step) => {
                if step.seconds < self.due && step.step != course.n_steps() {
                    return;
                }
                self.due = step.seconds + EVERY;
                step_event(step)
            }
            Event::Planned(planned) => planned_event(planned),
            Event::Strategies(plan) => json!({ "event": "strategies", "plan": plan }),
            Event::SetUp(set_up) => set_up_event(set_up),
            Event::Evaluated(evaluated) => evaluated_event(evaluated),
            Event::Checkpointed { step, folder } => {
                json!({ "event": "checkpointed", "step": step, "folder": folder.display().to_string() })
            }
            Event::Cluster(news) => json!({ "event": "cluster", "news": news }),
            Event::Warned(warning) => json!({ "event": "warned", "warning": warning }),
            Event::Stopped(reason) => json!({ "event": "stopped", "reason": reason }),
            // Events of a newer library that this command does not know.
            _ => return,
        };
        self.say(&value);
    }

    fn epoch(&mut self, done: &EpochDone, _course: &Course) {
        self.say(&json!({
            "event": "epoch",
            "epoch": done.epoch,
            "epochs": done.n_epochs,
            "step": done.step,
            "loss": done.loss,
            "validation": done.validation,
            "seconds": done.seconds,
            "samples_per_second": done.samples_per_second,
        }));
    }

    fn stopping(&mut self) {}

    fn end(&mut self) {}
}

fn planned_event(planned: &Planned) -> Value {
    let mut event = plan(planned);
    event["event"] = "planned".into();
    event["first_step"] = planned.first_step.into();
    event
}

/// A plan as JSON, for the event and for `check`.
pub(crate) fn plan(planned: &Planned) -> Value {
    json!({
        "samples": planned.n_samples,
        "validation_samples": planned.n_validation,
        "test_samples": planned.n_test,
        "weights": planned.n_weights,
        "batch": planned.batch,
        "grain": planned.grain,
        "steps_per_epoch": planned.steps_per_epoch,
        "epochs": planned.n_epochs,
        "steps": planned.n_steps,
    })
}

fn set_up_event(set_up: &SetUp) -> Value {
    json!({
        "event": "set_up",
        "workers": set_up.workers,
        "threads": set_up.threads,
        "reason": set_up.reason,
    })
}

fn step_event(step: &StepDone) -> Value {
    json!({
        "event": "step",
        "step": step.step,
        "epoch": step.epoch + 1,
        "samples": step.n_samples,
        "loss": step.loss,
        "rate": step.rate,
        "seconds": step.seconds,
    })
}

fn evaluated_event(evaluated: &Evaluated) -> Value {
    json!({
        "event": "evaluated",
        "epoch": evaluated.epoch,
        "step": evaluated.step,
        "part": evaluated.part,
        "values": evaluated.values,
    })
}
