//! Shows how a training goes: a bar on a terminal, plain lines elsewhere, JSON for machines, or nothing.
//!
//! Steps can come a hundred thousand times a second. Each costs a few additions and one comparison with the time that the
//! event itself carries; text is made only when something is shown.

mod bar;
mod course;
mod json;
mod lines;

pub(crate) use json::plan as plan_as_json;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use manyhands::train::{Callback, Control, Event};

use self::bar::Bar;
use self::course::{Course, EpochDone};
use self::json::JsonLines;
use self::lines::Lines;
use crate::arguments::Show;

/// What is said when the first signal arrives.
const STOPPING: &str = "stopping after this step; once more to stop at once";

/// A way to show a training.
trait View: Send {
    /// Something happened; the course already knows it.
    fn event(&mut self, event: &Event, course: &Course);

    /// An epoch is done, and validated where there is data for it.
    fn epoch(&mut self, done: &EpochDone, course: &Course);

    /// The user wants it to stop.
    fn stopping(&mut self);

    /// Nothing more comes.
    fn end(&mut self);
}

/// Follows a training and shows it. Clones follow the same one.
#[derive(Clone)]
pub(crate) struct Progress {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

struct State {
    course: Course,
    view: Option<Box<dyn View>>,
    told_stopping: bool,
}

impl Progress {
    /// Shows what was asked for, as standard error allows; `stop` is the flag of the signals.
    pub(crate) fn new(show: Show, stop: Arc<AtomicBool>) -> Progress {
        let view: Option<Box<dyn View>> = if show.json {
            Some(Box::new(JsonLines::new(std::io::stdout())))
        } else if show.quiet {
            None
        } else if std::io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        {
            Some(Box::new(Bar::new()))
        } else {
            Some(Box::new(Lines::new(std::io::stderr())))
        };
        Progress::with_view(view, stop)
    }

    fn with_view(view: Option<Box<dyn View>>, stop: Arc<AtomicBool>) -> Progress {
        let state = State { course: Course::default(), view, told_stopping: false };
        Progress { state: Arc::new(Mutex::new(state)), stop }
    }

    /// Training is over, well or badly: shows what is left to show, and leaves the terminal clean.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { course, view, .. } = &mut *state;
        if let Some(view) = view {
            if let Some(done) = course.finish() {
                view.epoch(&done, course);
            }
            view.end();
        }
    }
}

impl Callback for Progress {
    fn on_event(&mut self, event: &Event) -> Control {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { course, view, told_stopping } = &mut *state;
        if let Some(view) = view {
            let done = course.take(event);
            // An epoch that went without its validation is over before the next one's first step is shown.
            if let (Some(done), Event::Step(_)) = (&done, event)
                && done.epoch != course.epoch()
            {
                view.epoch(done, course);
                view.event(event, course);
            } else {
                view.event(event, course);
                if let Some(done) = &done {
                    view.epoch(done, course);
                }
            }
            if !*told_stopping && self.stop.load(Ordering::Relaxed) {
                *told_stopping = true;
                view.stopping();
            }
        }
        Control::Continue
    }
}

#[cfg(test)]
mod tests;
