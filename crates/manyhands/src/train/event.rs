//! What happens during training, as one closed enum. The progress bar, JSON lines, TensorBoard files and a user's own
//! callbacks all see the same events.

use std::collections::BTreeMap;
use std::path::Path;

use crate::plan::Plan;

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The data was read and the model built; training begins.
    Planned(&'a Planned),
    /// What each strategy would take, of which one was chosen.
    Strategies(&'a Plan),
    /// Workers and threads were chosen.
    SetUp(&'a SetUp),
    /// A step was done.
    Step(&'a StepDone),
    /// Data that is not trained on was measured.
    Evaluated(&'a Evaluated),
    /// What the model was while it was trained is measured, training being over. Whoever wants to stop hears of no later ones.
    Glimpsed {
        /// Seconds of the run until then, without measurements and checkpoints.
        seconds: f64,
        /// What was found.
        found: &'a Evaluated,
    },
    /// A checkpoint is on disk.
    Checkpointed {
        /// The steps that it contains.
        step: usize,
        /// Where it is.
        folder: &'a Path,
    },
    /// Who does the steps has changed, or something happened to them; a sentence.
    Cluster(&'a str),
    /// Something that the user should know, though training goes on.
    Warned(&'a str),
    /// Training ends early; the reason as a sentence.
    Stopped(&'a str),
}

/// What is about to be trained.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Samples to train on.
    pub n_samples: usize,
    /// Samples to validate on.
    pub n_validation: usize,
    /// Samples to test on.
    pub n_test: usize,
    /// Numbers that are trained.
    pub n_weights: usize,
    /// Samples per step.
    pub batch: usize,
    /// Samples per grain.
    pub grain: usize,
    /// Steps per epoch.
    pub steps_per_epoch: usize,
    /// Epochs in all.
    pub n_epochs: usize,
    /// Steps in all.
    pub n_steps: usize,
    /// Steps that were done before, by the run that is resumed.
    pub first_step: usize,
}

/// How the machine is used.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetUp {
    /// Workers in this process.
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
    /// Why.
    pub reason: String,
}

/// A step that was done.
#[derive(Clone, Copy, Debug)]
pub struct StepDone {
    /// Steps done so far, this one included.
    pub step: usize,
    /// The epoch that it belongs to, 0 at the first.
    pub epoch: usize,
    /// Samples in the step.
    pub n_samples: usize,
    /// The mean loss.
    pub loss: f64,
    /// The rate.
    pub rate: f64,
    /// Seconds since training began.
    pub seconds: f64,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// Epochs done.
    pub epoch: usize,
    /// Steps done.
    pub step: usize,
    /// `validation` or `test`.
    pub part: &'static str,
    /// Values by name, `loss` among them.
    pub values: BTreeMap<String, f64>,
}

/// What a callback wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// To go on.
    Continue,
    /// To end training after this step, with a checkpoint.
    Stop,
}

/// Something that follows training.
pub trait Callback {
    /// Called for every event, on the training thread.
    fn on_event(&mut self, event: &Event) -> Control;
}
