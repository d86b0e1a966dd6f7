//! Meshes: workers that share one model, each with its own program.
//!
//! What a worker does is plain data (`manyhands_program::mesh`); here it is carried out. A [`MeshWorker`] lays the actions of its program out once, on a
//! device, and then runs step after step without taking memory. What goes to other workers goes as letters (`manyhands_net::mail`). [`Team`] runs
//! all workers of a mesh as threads of this process.
//!
//! A step's changes come after its commit, at which all workers meet: whoever fails before has changed nothing.

mod error;
mod exchange;
mod here;
mod labels;
mod layout;
mod measured;
mod memory;
mod part;
mod rehearsal;
mod room;
mod scatter;
mod spread;
mod team;
mod worker;

pub use error::MeshError;
pub(crate) use here::MeshHere;
pub(crate) use labels::{Clock, Label, ShownSpan, labels, shown};
pub(crate) use measured::{is_cut_by_costs, measure};
pub use part::{HeldPart, held_type, whole_tensors};
pub use room::Room;
pub(crate) use room::process_bytes;
pub(crate) use spread::{Spread, TrainingOf, part_of_state, spread};
pub use team::{AllLinks, GrainInputs, Team, TeamOutcome, TeamStep, linked};
pub(crate) use worker::GRACE;
pub use worker::{MeshWorker, SecondsByKind, Span, SpanKind, StepInput, StepOutcome};
