//! A training as plain lines: for log files, pipes, and terminals that cannot redraw.

use std::io::Write;

use manyhands::train::{Event, Planned, SetUp};

use super::course::{Course, EpochDone};
use super::{STOPPING, View};
use crate::figures::{count, counted};

/// Seconds between lines about steps.
const EVERY: f64 = 10.0;

/// Writes lines.
pub(crate) struct Lines<W> {
    to: W,
    /// When the next line about steps is due.
    due: f64,
}

impl<W: Write> Lines<W> {
    pub(crate) fn new(to: W) -> Lines<W> {
        Lines { to, due: EVERY }
    }

    /// There is nowhere to report it when progress cannot be shown, and training goes on.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.to, "{line}");
    }
}

impl<W: Write + Send> View for Lines<W> {
    fn event(&mut self, event: &Event, course: &Course) {
        match event {
            Event::Step(step) if step.seconds < self.due => {}
            Event::Step(step) => {
                self.due = step.seconds + EVERY;
                let (steps, epochs) = (count(course.n_steps()), course.n_epochs());
                let at =
                    format!("epoch {}/{epochs}  step {}/{steps}", step.epoch + 1, count(step.step));
                self.say(&format!("{at}  {}", course.details()));
            }
            event => {
                if let Some(line) = line(event) {
                    self.say(&line);
                }
            }
        }
    }

    fn epoch(&mut self, done: &EpochDone, _course: &Course) {
        self.say(&done.line());
    }

    fn stopping(&mut self) {
        self.say(STOPPING);
    }

    fn end(&mut self) {}
}

/// The line about an event, for those that a person wants to read.
pub(crate) fn line(event: &Event) -> Option<String> {
    match event {
        Event::Planned(planned) => Some(planned_line(planned)),
        Event::Strategies(plan) => Some(crate::plan::describe(plan)),
        Event::SetUp(set_up) => Some(set_up_line(set_up)),
        Event::Cluster(news) => Some(format!("cluster: {news}")),
        Event::Warned(warning) => Some(format!("warning: {warning}")),
        Event::Stopped(reason) => Some(format!("ended early: {reason}")),
        _ => None,
    }
}

fn planned_line(planned: &Planned) -> String {
    let mut text = counted(planned.n_samples, "sample");
    let others = [(planned.n_validation, "validate"), (planned.n_test, "test")];
    let others = others.iter().filter(|(n, _)| *n > 0);
    let others: Vec<String> =
        others.map(|(n, purpose)| format!("{} to {purpose} on", count(*n))).collect();
    if !others.is_empty() {
        text += &format!(" (and {})", others.join(", "));
    }
    text += &format!(
        ", {}, {} of {}",
        counted(planned.n_weights, "weight"),
        counted(planned.n_epochs, "epoch"),
        counted(planned.steps_per_epoch, "step"),
    );
    if planned.first_step > 0 {
        text += &format!(", going on after step {}", count(planned.first_step));
    }
    text
}

fn set_up_line(set_up: &SetUp) -> String {
    let (workers, threads) = (counted(set_up.workers, "worker"), counted(set_up.threads, "thread"));
    format!("{workers} x {threads}: {}", set_up.reason)
}
