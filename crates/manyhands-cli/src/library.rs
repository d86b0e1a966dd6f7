//! The calls of the library: the only file that knows how jobs are read, trained, measured and asked.

#![allow(dead_code)] // until training is connected, nothing makes a report

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use manyhands::catalog::Catalog;
use manyhands::train::{Callback, SetUp};
use manyhands::{Error, Registry};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{Machine, Resume, Train};
use crate::exit::{Class, Failure};

/// The class of an error of the library.
pub(crate) fn class(error: &Error) -> Class {
    match error {
        Error::Grain { .. } => Class::Job,
        Error::Program(_) => Class::Model,
        _ => Class::Other,
    }
}

/// What a training came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Where the results are.
    pub folder: PathBuf,
    /// Whether training went to its end, early stopping included; false where it was interrupted.
    pub complete: bool,
    /// Why it ended early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Epochs done.
    pub epochs: usize,
    /// Steps done, those of resumed runs included.
    pub steps: usize,
    /// Steps that there would be in all.
    pub n_steps: usize,
    /// The mean loss of the last epoch.
    pub loss: f64,
    /// `validation` and `test`: values by name.
    pub metrics: BTreeMap<String, BTreeMap<String, f64>>,
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

/// What a model scores.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Evaluation {
    /// Samples measured.
    pub samples: usize,
    /// Values by name, `loss` among them.
    pub values: BTreeMap<String, f64>,
    /// More than a number, by name: the confusion matrix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, Value>,
    /// The names of the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
}

/// What a job would do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plan {
    /// Samples to train, validate and test on.
    pub samples: usize,
    pub validation: usize,
    pub test: usize,
    /// What goes into the model: `features f32 [784]`.
    pub inputs: Vec<String>,
    /// How many classes there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
    /// The layers, in order.
    pub layers: Vec<PlannedLayer>,
    /// Numbers that are trained.
    pub weights: usize,
    pub batch: usize,
    pub grain: usize,
    pub steps_per_epoch: usize,
    pub epochs: usize,
    pub steps: usize,
    /// How the machine would be used, as a sentence.
    pub set_up: String,
    /// Where the results would go.
    pub folder: PathBuf,
}

/// A layer of a plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlannedLayer {
    /// The name of its weights: `dense0`.
    pub name: String,
    /// As the job writes it: `dense 512 relu`.
    pub layer: String,
    /// The shape that a sample has behind it.
    pub shape: Vec<usize>,
    pub weights: usize,
}

/// How predictions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredictionFormat {
    Csv,
    Jsonl,
    Parquet,
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
    _follower: Box<dyn Callback>,
    _stop: Arc<AtomicBool>,
) -> Result<Report, Failure> {
    Err(absent("train"))
}

/// Goes on with a training.
pub(crate) fn resume(
    _arguments: &Resume,
    _follower: Box<dyn Callback>,
    _stop: Arc<AtomicBool>,
) -> Result<Report, Failure> {
    Err(absent("resume"))
}

/// Sets how the machine is used.
fn use_machine(_machine: &Machine) {}

/// Measures a trained model.
pub(crate) fn evaluate(_dir: &Path, _data: Option<&str>) -> Result<Evaluation, Failure> {
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

/// Says what a job would do.
pub(crate) fn plan(_job: &Path, _set: &[String]) -> Result<Plan, Failure> {
    Err(absent("check"))
}

fn absent(command: &str) -> Failure {
    Failure::new(Class::Other, format!("this build cannot `{command}` yet"))
}
