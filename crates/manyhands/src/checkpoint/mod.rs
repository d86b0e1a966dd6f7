//! Checkpoints: everything that a killed run needs to go on and end in the bits of the undisturbed one.
//!
//! The output folder of a run:
//!
//! ```text
//! DIR/model.safetensors job.toml data.json manifest.json   the model for use by others (`publish`)
//! DIR/report.json, ...                                     other files of the run (`write_file`)
//! DIR/checkpoints/step-00001234/                           one checkpoint (`save`)
//!       model.safetensors       weights and statistics
//!       optimizer.safetensors   slots of the optimizer
//!       job.toml  data.json     the job; what was learned from the data
//!       state.json              the ledger: how far the run is
//!       manifest.json           format, kernel set, job, checksum and length of every file
//! DIR/.lock                                                held by the run that writes here
//! ```
//!
//! Invariants: **C1** a folder named `step-N` was written and synced as a whole before it got that name; **C2** the
//! checkpoint with the highest step is the one saved last; **C3** no checkpoint is removed before a newer one is whole;
//! **C4** one process writes to a folder at a time, readers need no lock.

mod error;
mod folder;
mod lock;
mod manifest;
mod state;
mod tensors;
mod writer;

pub use error::{CheckpointError, Damage, Warning};
pub use folder::CheckpointFolder;
pub use state::{Best, Measured, State};
pub use tensors::NamedTensor;
pub use writer::{CheckpointWriter, Keep};

/// The version of the format that is written here, and the newest that can be read.
pub const FORMAT: u64 = 1;

/// Everything about a run after one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The parameters of the program, of every role.
    pub tensors: Vec<NamedTensor>,
    /// The job, as TOML.
    pub job_text: String,
    /// Stands for the parts of the job that change the result.
    pub fingerprint: String,
    /// The kernels that computed it.
    pub kernel_set: String,
    /// What was learned from the training data, as JSON.
    pub encoding_json: String,
    /// How far the run is.
    pub state: State,
}

/// A trained model, as `publish` leaves it for use.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its weights and statistics.
    pub tensors: Vec<NamedTensor>,
    /// The job that trained it, as TOML.
    pub job_text: String,
    /// What was learned from the training data, as JSON.
    pub encoding_json: String,
}

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const JOB: &str = "job.toml";
const ENCODING: &str = "data.json";
const STATE: &str = "state.json";

#[cfg(test)]
mod tests;
