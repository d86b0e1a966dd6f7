//! Why a worker of a mesh cannot go on.

use manyhands_device::DeviceError;
use manyhands_net::mail::MailError;
use manyhands_net::transport::LinkError;
use manyhands_program::mesh::{AlongError, CutError, Fault, LowerError, ShardError, SplitError};
use manyhands_program::{ProgramError, TensorError, TensorType};

/// Why a worker of a mesh cannot go on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MeshError {
    /// The device cannot do an action.
    #[error("worker {worker}, {action}: {source}")]
    Device { worker: usize, action: String, source: Box<DeviceError> },
    /// A letter did not come.
    #[error("worker {worker}, {action}: {source}")]
    Mail { worker: usize, action: String, source: Box<MailError> },
    /// Letters cannot be exchanged at all.
    #[error(transparent)]
    NoMail(Box<MailError>),
    /// A program of it cannot be rewritten.
    #[error(transparent)]
    Program(Box<ProgramError>),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Nothing gives what an action takes.
    #[error("worker {worker}, {action}: nothing gives `{name}` before")]
    NothingGives { worker: usize, action: String, name: String },
    /// No piece says which type a value has.
    #[error(
        "worker {worker}, {action}: no piece takes or gives `{name}`, so its type is not known"
    )]
    NoType { worker: usize, action: String, name: String },
    /// A parameter that the worker does not hold.
    #[error("worker {worker} does not hold the parameter `{name}`")]
    NotHeld { worker: usize, name: String },
    /// Something of the program that cannot be done, in words.
    #[error("worker {worker}, {action}: {why}")]
    CannotDo { worker: usize, action: String, why: String },
    /// An input was not handed in.
    #[error("the input `{name}` of grain {grain} was not handed to worker {worker}")]
    NoInput { worker: usize, grain: usize, name: String },
    /// A parameter is missing among those that are loaded.
    #[error("the parameter `{name}` is missing")]
    Missing { name: String },
    /// A parameter has another type than the program says.
    #[error("the parameter `{name}` is {expected}, not {found}")]
    ParameterType { name: String, expected: TensorType, found: TensorType },
    /// Parts of a parameter are not what they should be.
    #[error("the parameter `{name}`: {source}")]
    Part { name: String, source: Box<AlongError> },
    /// A plan that the worker does not have.
    #[error("worker {worker} has {n} plans, and none with the number {plan}")]
    NoPlan { worker: usize, plan: usize, n: usize },
    /// A worker's thread ended without a word.
    #[error("the thread of worker {worker} ended")]
    ThreadEnded { worker: usize },
    /// The system does not start a thread.
    #[error("cannot start a thread for worker {worker}: {source}")]
    NoThread { worker: usize, source: std::io::Error },
    /// The system does not make a link.
    #[error("cannot link worker {a} and worker {b}: {source}")]
    NoLink { a: usize, b: usize, source: LinkError },
    /// No step was handed over.
    #[error("no step was handed over")]
    NoStep,
    /// The program cannot be split over parts.
    #[error(transparent)]
    Split(Box<SplitError>),
    /// The program cannot be cut into chunks.
    #[error(transparent)]
    Cut(Box<CutError>),
    /// The chunks cannot be laid out over the mesh.
    #[error(transparent)]
    Lower(Box<LowerError>),
    /// The state cannot be spread over replicas.
    #[error(transparent)]
    Shard(Box<ShardError>),
    /// The workers' programs do not fit together, which is a fault of this crate.
    #[error("the programs of the mesh's workers do not fit together: {0}")]
    Fault(Box<Fault>),
    /// A pattern that no weight has the name of.
    #[error(
        "`distribute.split` names \"{pattern}\", and no weight is called that: `manyhands check` lists them"
    )]
    NothingToSplit { pattern: String },
    /// The workers' programs do not belong together, in words.
    #[error("the workers' programs do not belong together: {why}")]
    Programs { why: String },
}

impl MeshError {
    /// Whether the model cannot be spread as the job says, whoever takes part.
    pub(crate) fn is_of_the_model(&self) -> bool {
        use MeshError::{Cut, Lower, NothingToSplit, Shard, Split};
        matches!(self, Cut(_) | Lower(_) | NothingToSplit { .. } | Shard(_) | Split(_))
    }

    /// The worker because of which it failed, where letters tell.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            MeshError::Mail { source, .. } => source.culprit(),
            _ => None,
        }
    }

    /// How far from the cause the one who says it is: what failed on the worker itself, what another's failure did to it, and being told to stop.
    pub(super) fn distance(&self) -> u8 {
        match self {
            MeshError::Mail { source, .. } if matches!(**source, MailError::Aborted { .. }) => 2,
            MeshError::Mail { .. } => 1,
            _ => 0,
        }
    }
}

/// Errors of what is used here, each of them as one of these.
macro_rules! from {
    ($($source:ident => $variant:ident),* $(,)?) => {
        $(impl From<$source> for MeshError {
            fn from(error: $source) -> MeshError {
                MeshError::$variant(Box::new(error))
            }
        })*
    };
}

from! {
    CutError => Cut,
    Fault => Fault,
    LowerError => Lower,
    MailError => NoMail,
    ProgramError => Program,
    ShardError => Shard,
    SplitError => Split,
}
