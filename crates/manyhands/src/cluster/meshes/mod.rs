//! Models that are spread over the workers of a cluster: who takes which place of the mesh (`formation.rs`, `at_driver.rs`, `forming.rs`), and what a worker does in its place (`at_worker.rs`).
//!
//! To the coordinator such a job is one whose members stand still: views say who is there, and the driver decides what each does. A worker says where it stands, is
//! given a place with its programs and its part of the state, and does steps until a view stops it. State moves through the driver, which has the memory for all of it.

mod at_driver;
mod at_worker;
mod formation;
mod forming;
mod spans;

pub(super) use at_driver::Formations;
pub(super) use at_worker::MeshAtHand;
pub(super) use formation::{Standing, Unit};
pub(super) use spans::{MOST_SPANS, StepSpans};
