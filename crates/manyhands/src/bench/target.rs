//! What a measurement of consistencies can be asked for.

use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;
use crate::train::Recipe;

/// What is to be reached on the validation data.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The loss, or a metric of the job.
    pub measure: String,
    /// Its value.
    pub value: f64,
    higher_is_better: bool,
}

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
pub enum NoMeasurement {
    /// The text is no target.
    #[error("--target {text}: it should be a measure and a number, such as accuracy=0.85")]
    NoTarget {
        /// What was said.
        text: String,
    },
    /// The job does not measure it.
    #[error("--target {text}: the job measures {}, not {measure}", known.join(", "))]
    NotMeasured {
        /// What was said.
        text: String,
        /// The name in it.
        measure: String,
        /// What the job measures.
        known: Vec<String>,
    },
    /// The job keeps nothing for it.
    #[error(
        "the job has no validation data to measure on: `data.validation = 0.1` keeps a tenth of the training data for it"
    )]
    NoValidation,
    /// A number of processes that cannot be.
    #[error("{option} {n}: it must be from 1 to {most}")]
    Processes {
        /// The option.
        option: &'static str,
        /// What was said.
        n: usize,
        /// The most.
        most: usize,
    },
    /// Bursts that are too short or too long.
    #[error("--burst {steps}: it must be from {least} to {most} steps")]
    Burst {
        /// What was said.
        steps: f64,
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
    /// Too few glimpses for a target.
    #[error(
        "--glimpses: the model would be looked at {n} times in all, and a target is reached by the mean of {least} times"
    )]
    Glimpses {
        /// In all epochs.
        n: usize,
        /// The least.
        least: usize,
    },
    /// A metric of the job cannot be.
    #[error(transparent)]
    Job(#[from] Error),
}

impl Target {
    /// A target of a job, from a text such as `accuracy=0.85`.
    pub fn of(job: &Job, text: &str) -> Result<Target, NoMeasurement> {
        let split = text.split_once('=');
        let parsed = split.and_then(|(name, value)| Some((name, value.parse::<f64>().ok()?)));
        let Some((measure, value)) = parsed.filter(|(_, value)| value.is_finite()) else {
            return Err(NoMeasurement::NoTarget { text: text.to_string() });
        };
        let metrics = Recipe::metrics(job, &Registry::default())?;
        let found = metrics.iter().find(|(name, _)| name == measure);
        if found.is_none() && measure != "loss" {
            let names = metrics.iter().map(|(name, _)| name.clone());
            let known = std::iter::once("loss".to_string()).chain(names).collect();
            let (text, measure) = (text.to_string(), measure.to_string());
            return Err(NoMeasurement::NotMeasured { text, measure, known });
        }
        let higher_is_better = found.is_some_and(|(_, metric)| metric.higher_is_better());
        Ok(Target { measure: measure.to_string(), value, higher_is_better })
    }

    /// Whether a value is as good as the target.
    pub(super) fn is_reached(&self, value: f64) -> bool {
        if self.higher_is_better { value >= self.value } else { value <= self.value }
    }
}
