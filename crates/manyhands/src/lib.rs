//! manyhands: train models with as many machines as they deserve.
//!
//! This crate is the facade: what users of the library see. So far it builds and measures training steps; jobs, layers and
//! strategies come on top.

pub mod bench;
pub mod catalog;
mod choice;
mod error;
mod initial;
pub mod job;
pub mod layers;
pub mod losses;
pub mod metrics;
pub mod predictions;
mod registry;
pub mod schedules;
pub mod train;

pub use choice::Choice;
pub use error::Error;
pub use initial::initial_value;
pub use job::Job;
pub use manyhands_data as data;
pub use manyhands_device as device;
pub use manyhands_program as program;
pub use registry::Registry;

/// The code of README.md, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
