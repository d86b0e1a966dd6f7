//! manyhands: train models with as many machines as they deserve.
//!
//! This crate is the facade: what users of the library see. A [`Job`] says what to train; a [`train::Trainer`] trains it
//! into a folder; [`Trained`] answers from there. What a job can name is in the [`Registry`], where users enter their own.

mod answer;
pub mod bench;
pub mod catalog;
pub mod checkpoint;
mod choice;
pub mod cluster;
pub mod curve;
pub mod docs;
pub mod energy;
mod error;
mod files;
mod initial;
pub mod job;
pub mod layers;
pub mod losses;
pub mod machine;
pub mod mesh;
pub mod metrics;
pub mod model;
mod number;
pub mod plan;
pub mod predictions;
mod registry;
pub mod report;
pub mod schedules;
pub mod tensorboard;
pub mod timeline;
pub mod train;

pub use answer::{Prediction, Trained};
pub use choice::Choice;
pub use error::{Error, ErrorClass};
pub use files::FileError;
pub use initial::initial_value;
pub use job::Job;
pub use manyhands_data as data;
pub use manyhands_device as device;
pub use manyhands_net as net;
pub use manyhands_program as program;
pub use model::Model;
pub use registry::Registry;
pub use report::Report;
pub use train::Trainer;

/// The code of README.md, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
