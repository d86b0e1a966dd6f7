//! Jobs in Rust. Methods for the common keys, [`JobBuilder::set`] for every other; nothing is looked at before
//! [`JobBuilder::build`], which holds the job to the rules that a file is held to.

use manyhands_data::{ColumnKind, HeldOut, Source, TextSpec, WindowSpec};
use manyhands_program::Clip;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Draft, EarlyStopping, Job, JobError};
use crate::choice::Choice;

/// A job that is being put together; see [`Job::builder`].
#[derive(Debug, Default)]
pub struct JobBuilder {
    draft: Draft,
    /// The first thing that went wrong, kept for [`JobBuilder::build`] so that calls can be chained.
    failed: Option<JobError>,
}

impl Job {
    /// Begins a job.
    ///
    /// ```
    /// # use manyhands::Job;
    /// let job = Job::builder()
    ///     .train("houses.csv")
    ///     .label("price")
    ///     .layers(["dense 64 relu", "dense 1"])
    ///     .loss("squared_error")
    ///     .build()?;
    /// # assert_eq!(job.train.epochs, 5);
    /// # Ok::<(), manyhands::job::JobError>(())
    /// ```
    pub fn builder() -> JobBuilder {
        JobBuilder::default()
    }
}

/// Setters of keys whose type says all: `/// about` `name(type) = path`.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident($ty:ty) = $($step:literal).+;)*) => {
        $($(#[$meta])*
        pub fn $name(self, value: $ty) -> JobBuilder {
            self.put(&[$($step),+], value)
        })*
    };
}

impl JobBuilder {
    /// The files to train on: a path or glob, a list of them, or pairs of a column and its file.
    pub fn train(self, files: impl Into<Source>) -> JobBuilder {
        self.put(&["data", "train"], files.into())
    }

    /// The files to test on, or the share of the training data to hold out for it.
    pub fn test(self, part: impl Into<HeldOut>) -> JobBuilder {
        self.put(&["data", "test"], part.into())
    }

    /// The files to validate on, or the share of the training data to hold out for it.
    pub fn validation(self, part: impl Into<HeldOut>) -> JobBuilder {
        self.put(&["data", "validation"], part.into())
    }

    /// The columns to predict from.
    pub fn features<S: Into<String>>(self, columns: impl IntoIterator<Item = S>) -> JobBuilder {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        self.put(&["data", "features"], columns)
    }

    /// What a column is, where it is not what it looks like.
    pub fn column(self, name: &str, kind: ColumnKind) -> JobBuilder {
        self.put(&["data", "columns", name], kind)
    }

    /// The layers of the model, each fed by the one before.
    pub fn layers<C: Into<Choice>>(self, layers: impl IntoIterator<Item = C>) -> JobBuilder {
        let layers: Vec<Choice> = layers.into_iter().map(Into::into).collect();
        self.put(&["model", "layers"], layers)
    }

    /// Adds a node to a model that is a graph. No inputs: the node before.
    pub fn node(self, name: &str, layer: impl Into<Choice>, inputs: &[&str]) -> JobBuilder {
        let node = json!({ "name": name, "layer": layer.into(), "inputs": inputs });
        let n_nodes =
            self.draft.get(&["model", "node"]).and_then(Value::as_array).map_or(0, Vec::len);
        self.put(&["model", "node", &n_nodes.to_string()], node)
    }

    /// What is made small.
    pub fn loss(self, loss: impl Into<Choice>) -> JobBuilder {
        self.put(&["train", "loss"], loss.into())
    }

    /// How weights follow their gradients.
    pub fn optimizer(self, optimizer: impl Into<Choice>) -> JobBuilder {
        self.put(&["train", "optimizer"], optimizer.into())
    }

    /// How the rate changes over the steps.
    pub fn schedule(self, schedule: impl Into<Choice>) -> JobBuilder {
        self.put(&["train", "schedule"], schedule.into())
    }

    /// What is measured on the validation and the test data.
    pub fn metrics<C: Into<Choice>>(self, metrics: impl IntoIterator<Item = C>) -> JobBuilder {
        let metrics: Vec<Choice> = metrics.into_iter().map(Into::into).collect();
        self.put(&["train", "metrics"], metrics)
    }

    setters! {
        /// The column to predict.
        label(&str) = "data"."label";
        /// The shape that the features of a sample form together.
        shape(&[usize]) = "data"."shape";
        /// Cuts a table into windows over time.
        window(WindowSpec) = "data"."window";
        /// How text is cut into tokens and sequences.
        text(TextSpec) = "data"."text";
        /// Steps over which the rate first rises.
        warm_up(usize) = "train"."warm_up";
        /// How gradients are kept small.
        clip(Clip) = "train"."clip";
        /// Samples per step.
        batch(usize) = "train"."batch";
        /// Samples per grain.
        grain(usize) = "train"."grain";
        /// How often each sample is visited.
        epochs(usize) = "train"."epochs";
        /// Ends training after so many steps.
        steps(usize) = "train"."steps";
        /// The number that all randomness follows from.
        seed(u64) = "train"."seed";
        /// Ends training when nothing gets better.
        early_stopping(EarlyStopping) = "train"."early_stopping";
        /// Whether the best model is the result, instead of the last.
        keep_best(bool) = "train"."keep_best";
        /// What "best" is judged by.
        monitor(&str) = "train"."monitor";
        /// Workers in this process.
        workers(usize) = "distribute"."workers";
        /// Threads of each worker.
        threads(usize) = "distribute"."threads";
        /// The folder of the results.
        folder(&str) = "output"."folder";
    }

    /// Sets any key, as `--set` does: `.set("output.keep=3")`; see [`Draft::set`].
    pub fn set(mut self, text: &str) -> JobBuilder {
        if self.failed.is_none() {
            self.failed = self.draft.set(text).err();
        }
        self
    }

    /// The job, checked.
    pub fn build(self) -> Result<Job, JobError> {
        match self.failed {
            Some(failed) => Err(failed),
            None => self.draft.job(),
        }
    }

    fn put(mut self, path: &[&str], value: impl Serialize) -> JobBuilder {
        let value = serde_json::to_value(value)
            .map_err(|problem| JobError::Value { place: Default::default(), problem });
        let put = value.and_then(|value| self.draft.put(path, value));
        if self.failed.is_none() {
            self.failed = put.err();
        }
        self
    }
}
