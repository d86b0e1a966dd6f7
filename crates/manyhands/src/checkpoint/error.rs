//! Why a checkpoint cannot be written or read.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::FORMAT;
use crate::files::FileError;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is a file; an output folder is needed here", path.display())]
    NotAFolder { path: PathBuf },
    #[error("there is no folder {}", folder.display())]
    NoFolder { folder: PathBuf },
    #[error(
        "{} is not the output folder of a training run: it has neither checkpoints nor model.safetensors",
        folder.display()
    )]
    NotARun { folder: PathBuf },
    #[error("{} was not written by a training run and would be overwritten; choose another output folder", path.display())]
    Foreign { path: PathBuf },
    #[error("{} has no checkpoint yet, so there is nothing to resume from", folder.display())]
    NoCheckpoint { folder: PathBuf },
    #[error(
        "none of the {n_checkpoints} checkpoint(s) of {} is whole; the newest: {newest}",
        folder.display()
    )]
    NoneWhole { folder: PathBuf, n_checkpoints: usize, newest: Box<CheckpointError> },
    #[error("{} is damaged: {damage}", path.display())]
    Damaged { path: PathBuf, damage: Damage },
    #[error(
        "{} was written by a newer version of manyhands (format {found}; this one knows formats up to {FORMAT})",
        path.display()
    )]
    Newer { path: PathBuf, found: u64 },
    #[error(
        "{} belongs to another job (its data, model or training settings differ); use the job.toml in it, or another folder",
        path.display()
    )]
    OtherJob { path: PathBuf },
    #[error(
        "{} is in use by another run{}; wait for it or choose another output folder",
        folder.display(),
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse { folder: PathBuf, pid: Option<u32> },
    #[error("two tensors of a checkpoint are named \"{name}\"")]
    DuplicateName { name: String },
    #[error("a tensor of a checkpoint cannot be named \"{name}\"")]
    ReservedName { name: String },
    #[error("there are more or longer tensor names than the header of a safetensors file can hold")]
    TooManyNames,
}

impl CheckpointError {
    /// Whether an older checkpoint may still be whole.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, CheckpointError::Damaged { .. })
    }
}

/// What is wrong with a file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It has another length than the manifest says.
    Length {
        /// What the manifest says.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// It has the right length and other bytes.
    Checksum,
    /// It cannot be read as what it should be.
    Content {
        /// What it should be, such as `a ledger`.
        expected: &'static str,
        /// What the reader of that says.
        reason: String,
    },
    /// The manifest does not name it.
    Unlisted,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Missing => f.write_str("it is missing"),
            Damage::Length { expected, found } if found < expected => {
                write!(f, "it is cut off after {found} of {expected} bytes")
            }
            Damage::Length { expected, found } => {
                write!(f, "it has {found} bytes instead of {expected}")
            }
            Damage::Checksum => f.write_str(
                "its checksum is not the one in manifest.json, so its bytes changed after it was written",
            ),
            Damage::Content { expected, reason } => {
                write!(f, "it does not read as {expected} ({reason})")
            }
            Damage::Unlisted => f.write_str("manifest.json does not list it"),
        }
    }
}

/// Something that went another way than hoped and that the user should hear of.
#[derive(Debug)]
pub enum Warning {
    /// A checkpoint is not whole; an older one is used.
    Skipped {
        /// The step of the damaged one.
        step: u64,
        /// What is wrong with it.
        reason: CheckpointError,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Skipped { step, reason } => {
                write!(f, "the checkpoint of step {step} is skipped: {reason}")
            }
        }
    }
}
