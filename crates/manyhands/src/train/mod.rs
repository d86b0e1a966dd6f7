//! Training: the loop over epochs and steps, and what follows it.

mod event;

pub use event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
