//! The calls of the library: the only file that knows how jobs are read, trained, measured and asked.

#![allow(dead_code)] // until training is connected, nothing makes a report

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use manyhands::catalog::Catalog;
use manyhands::predictions::PredictionFormat;
use manyhands::train::{Planned, SetUp};
use manyhands::{Error, Registry};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{Resume, Train};
use crate::exit::{Class, Failure};
use crate::progress::Progress;

/// The class of an error of the library.
pub(crate) fn class(error: &Error) -> Class {
    match error {
        Error::Grain { .. } => Class::Job,
        Error::Program(_) => Class::Model,
        _ => Class::Other,
    }
}

/// What a training came to, and where its results are.
pub(crate) struct Ended {
    pub report: Report,
    pub folder: PathBuf,
}

/// What a training came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Why it ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Epochs done.
    pub epochs: usize,
    /// Steps done, those of resumed runs included.
    pub steps: usize,
    /// Values by name, on the validation data.
    pub validation: BTreeMap<String, f64>,
    /// Values by name, on the test data.
    pub test: BTreeMap<String, f64>,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Samples trained per second.
    pub samples_per_second: f64,
    /// Seconds by what they were spent on.
    pub time: BTreeMap<String, f64>,
    /// How the machine was used.
    pub set_up: SetUp,
    /// The most memory that the process held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Energy of the processor's packages, where the machine tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measures {
    /// How many samples were measured.
    pub n_samples: usize,
    /// Values by name, `loss` among them.
    pub values: BTreeMap<String, f64>,
    /// What some metrics have to say beyond a number, such as a confusion matrix.
    pub details: BTreeMap<String, Value>,
}

/// Everything that a job can name.
pub(crate) fn registry() -> Registry {
    Registry {
        layers: Catalog::new("layer"),
        losses: Catalog::new("loss"),
        metrics: Catalog::new("metric"),
        optimizers: Catalog::new("optimizer"),
        schedules: Catalog::new("schedule"),
    }
}

/// The JSON Schema of a job.
pub(crate) fn job_schema() -> Value {
    schemars::schema_for!(manyhands::Job).to_value()
}

/// Trains a job.
pub(crate) fn train(
    _arguments: &Train,
    _progress: Progress,
    _stop: Arc<AtomicBool>,
) -> Result<Ended, Failure> {
    Err(absent("train"))
}

/// Goes on with a training.
pub(crate) fn resume(
    _arguments: &Resume,
    _progress: Progress,
    _stop: Arc<AtomicBool>,
) -> Result<Ended, Failure> {
    Err(absent("resume"))
}

/// Measures a trained model; returns the names of its classes too.
pub(crate) fn evaluate(
    _dir: &Path,
    _data: Option<&str>,
) -> Result<(Measures, Vec<String>), Failure> {
    Err(absent("evaluate"))
}

/// Answers new data; returns how many samples there were.
pub(crate) fn predict(
    _dir: &Path,
    _data: &str,
    _format: PredictionFormat,
    _to: &mut (dyn Write + Send),
) -> Result<usize, Failure> {
    Err(absent("predict"))
}

/// Says what a job would do: the plan, and the layers as text.
pub(crate) fn plan(_job: &Path, _set: &[String]) -> Result<(Planned, String), Failure> {
    Err(absent("check"))
}

fn absent(command: &str) -> Failure {
    Failure::new(Class::Other, format!("this build cannot `{command}` yet"))
}
