//! A training as a bar on a terminal, redrawn at most ten times a second. What is worth keeping scrolls up above it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use manyhands::train::Event;

use super::course::{Course, EpochDone};
use super::lines::line;
use super::{STOPPING, View};

/// Seconds between drawings, and the same for the library that draws.
const EVERY: f64 = 0.1;
const PER_SECOND: u8 = 10;

/// Draws the bar.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// When the next drawing is due.
    due: f64,
}

impl Bar {
    /// A terminal that waits for the data to be read.
    pub(crate) fn new() -> Bar {
        let target = ProgressDrawTarget::stderr_with_hz(PER_SECOND);
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style("{spinner} {msg}"))
            .with_message("reading the data");
        // The one time that a thread draws: before the first step nothing else would.
        bar.enable_steady_tick(Duration::from_millis(100));
        Bar { bar, due: 0.0 }
    }

    fn begin(&mut self, n_steps: usize, first_step: usize) {
        self.bar.disable_steady_tick();
        self.bar.set_length(n_steps as u64);
        self.bar.set_position(first_step as u64);
        self.bar.set_message("");
        self.bar.set_style(
            style("epoch {prefix}  {bar:24.cyan}  {percent:>3} %  {wide_msg}")
                .progress_chars("━╸─"),
        );
    }

    fn draw(&self, step: usize, course: &Course) {
        self.bar.set_prefix(format!("{}/{}", course.epoch(), course.n_epochs()));
        self.bar.set_message(course.details());
        self.bar.set_position(step as u64);
    }
}

/// A style from a template of this file.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl View for Bar {
    fn event(&mut self, event: &Event, course: &Course) {
        match event {
            Event::Step(step) => {
                if step.seconds >= self.due || step.step == course.n_steps() {
                    self.due = step.seconds + EVERY;
                    self.draw(step.step, course);
                }
            }
            event => {
                if let Event::Planned(planned) = event {
                    self.begin(planned.n_steps, planned.first_step);
                }
                if let Some(line) = line(event) {
                    self.bar.println(line);
                }
            }
        }
    }

    fn epoch(&mut self, done: &EpochDone, course: &Course) {
        self.draw(done.step, course);
        self.bar.println(done.line());
    }

    fn stopping(&mut self) {
        self.bar.println(STOPPING);
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}
