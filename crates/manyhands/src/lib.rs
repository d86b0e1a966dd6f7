//! manyhands: train models with as many machines as they deserve.
//!
//! This crate is the facade: what users of the library see. So far it builds and measures training steps; jobs, layers and
//! strategies come on top.

pub mod bench;
pub mod checkpoint;
pub mod curve;
pub mod energy;
mod error;
mod files;
mod initial;
pub mod machine;
mod number;
pub mod report;
pub mod tensorboard;

pub use error::Error;
pub use files::FileError;
pub use initial::initial_value;
pub use manyhands_device as device;
pub use manyhands_program as program;

/// The code of README.md, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
