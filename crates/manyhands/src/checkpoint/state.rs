//! The ledger of a run: which samples were used, and what later decisions depend on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::number;

/// How far a run is. With the job and the parameters it determines all that follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch in progress, 0 at first; the number of epochs when all are done.
    pub epoch: u64,
    /// Batches of that epoch that are done.
    pub batch: u64,
    /// Steps that are done, of all epochs.
    pub step: u64,
    /// Samples of that epoch that are done.
    pub epoch_samples: u64,
    /// Samples that are done, of all epochs.
    pub samples: u64,
    /// The best model so far, where one is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// What was measured so far, oldest first: schedules on plateau and early stopping look back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Measured>,
    /// What else the trainer or a user's callback must find again.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
}

/// The best model so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which it stood.
    pub step: u64,
    /// The name of the measure, such as `validation/loss`.
    pub measure: String,
    /// Its value.
    #[serde(with = "number::double")]
    pub value: f64,
}

/// Losses and metrics at one point of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The epoch.
    pub epoch: u64,
    /// The step.
    pub step: u64,
    /// Values by name, such as `train/loss`.
    #[serde(with = "number::by_name")]
    pub values: BTreeMap<String, f64>,
}
