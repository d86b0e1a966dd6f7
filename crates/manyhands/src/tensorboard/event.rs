//! Events: what happened when, as TensorFlow's `event.proto` and `summary.proto` number it.

use manyhands_program::Program;

use super::graph::graph_definition;
use super::histogram::Histogram;
use super::message::Message;

const WALL_TIME: u32 = 1;
const STEP: u32 = 2;
const FILE_VERSION: u32 = 3;
const GRAPH_DEFINITION: u32 = 4;
const SUMMARY: u32 = 5;
const SESSION_LOG: u32 = 7;

/// The status of a session log that says that a run starts (again).
const START: i64 = 1;

/// One event.
#[derive(Clone, Debug)]
pub(super) struct Event(Message);

impl Event {
    /// The first event of every file.
    pub(super) fn version(time: f64) -> Event {
        Event(Message::new().double(WALL_TIME, time).text(FILE_VERSION, "brain.Event:2"))
    }

    /// Events from `step` on that were written before this one no longer count.
    pub(super) fn restart(time: f64, step: u64) -> Event {
        let log = Message::new().integer(1, START);
        Event(at(time, step).message(SESSION_LOG, &log))
    }

    pub(super) fn scalar(time: f64, step: u64, tag: &str, value: f64) -> Event {
        let value = Message::new().text(1, tag).float(2, value as f32);
        Event(at(time, step).message(SUMMARY, &Message::new().message(1, &value)))
    }

    pub(super) fn histogram(time: f64, step: u64, tag: &str, values: &[f64]) -> Event {
        let value = Message::new().text(1, tag).message(5, &Histogram::of(values).to_message());
        Event(at(time, step).message(SUMMARY, &Message::new().message(1, &value)))
    }

    pub(super) fn graph(time: f64, program: &Program) -> Event {
        Event(at(time, 0).message(GRAPH_DEFINITION, &graph_definition(program)))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

fn at(time: f64, step: u64) -> Message {
    Message::new().double(WALL_TIME, time).integer(STEP, step as i64)
}
