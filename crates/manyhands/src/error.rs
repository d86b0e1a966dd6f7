//! The errors of the facade, and the classes that commands map to exit codes.

use std::path::PathBuf;

use manyhands_data::DataError;
use manyhands_device::DeviceError;
use manyhands_program::{ProgramError, TensorError};
use thiserror::Error;

use crate::catalog::ChoiceError;
use crate::checkpoint::CheckpointError;
use crate::files::FileError;
use crate::job::{CheckError, JobError};
use crate::metrics::MetricError;
use crate::model::ModelError;

/// Why something that was asked for cannot be done.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("a grain of {grain} samples does not divide a batch of {batch}; {} would", largest_divisor(*batch, *grain))]
    Grain { grain: usize, batch: usize },
    #[error(transparent)]
    Job(Box<JobError>),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("`{key}`: {error}")]
    Choice { key: &'static str, error: Box<ChoiceError> },
    #[error(transparent)]
    Data(Box<DataError>),
    #[error(transparent)]
    Model(Box<ModelError>),
    #[error(transparent)]
    Metric(#[from] MetricError),
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    #[error(transparent)]
    Device(Box<DeviceError>),
    #[error(transparent)]
    Program(Box<ProgramError>),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A worker of a mesh cannot go on.
    #[error(transparent)]
    Mesh(Box<crate::mesh::MeshError>),
    #[error("`train.class_weights` weighs classes, but there are none to predict")]
    NoClasses,
    #[error("`train.class_weights` names the class `{class}`, but the classes are {}", classes.join(", "))]
    ClassWeight { class: String, classes: Vec<String> },
    #[error("the data has no labels, without which nothing can be measured")]
    NoLabels,
    /// All workers that had the state are lost.
    #[error("all workers are lost after step {step}")]
    WorkersLost {
        /// The last step that they did.
        step: u64,
    },
    /// A run is to go on under a job that trains another model.
    #[error(
        "`{settings}` would change what is trained in {}; a run goes on only with other workers, another strategy or other outputs; train anew for another model",
        folder.display()
    )]
    OtherModel {
        /// The folder of the run.
        folder: PathBuf,
        /// What was set.
        settings: String,
    },
    /// Parts of the state that nobody else had are lost with workers of a mesh.
    #[error("{reason}")]
    StateLost {
        /// What is lost.
        reason: String,
    },
    /// The cluster ended the job.
    #[error("the cluster ended the job: {reason}")]
    Cluster {
        /// Why.
        reason: String,
    },
    /// A worker holds other sums of a step than all agreed on. Never seen; going on would give wrong bits.
    #[error(
        "a mistake of manyhands: sums of grains {held:?} are held where {wanted:?} were to be done"
    )]
    OtherSums {
        /// The grains of the sums that are held.
        held: Vec<std::ops::Range<usize>>,
        /// Those that were to be done.
        wanted: Vec<std::ops::Range<usize>>,
    },
    /// No parameter can live on servers as the job wants it.
    #[error("`distribute.tables.parameters` names nothing that can live on servers: {reason}")]
    NothingOnServers {
        /// Why.
        reason: String,
    },
    /// A name that is no parameter's.
    #[error(
        "`distribute.tables.parameters` names {pattern}, and no parameter is named so; there are {known}"
    )]
    UnknownOnServers {
        /// What was said.
        pattern: String,
        /// Names that would be right, the first few.
        known: String,
    },
    /// An update that needs all workers at every step.
    #[error("`distribute.consistency` must be \"bsp\" for this job: {reason}")]
    OnlySynchronous {
        /// What needs all workers.
        reason: String,
    },
    /// Statistics would be rounded or held back as if they were gradients.
    #[error(
        "`distribute.traffic` must not change values for this job: a variance that is off by a little can be below zero, and `{name}` is a running statistic. Leave out `values` and \
         `significance`, or use layer_norm instead of batch_norm"
    )]
    StatisticsNotExact {
        /// One of them.
        name: String,
    },
    /// What a job asks for does not fit in the memory that workers may take.
    #[error("{way} needs {needs}, and `distribute.memory` allows each worker {limit}; {fitting}")]
    DoesNotFit {
        /// What was asked for.
        way: String,
        /// Its memory, and what it is made of.
        needs: String,
        /// What a worker may take.
        limit: String,
        /// What would fit, as a clause.
        fitting: String,
    },
    /// No strategy fits in the memory that workers may take.
    #[error("{advice}")]
    NothingFits {
        /// What would help, as a sentence.
        advice: String,
    },
    /// A sample asks for a row that a table does not have.
    #[error("a sample asks for row {index} of `{table}`, which has {n_rows} rows")]
    NoSuchRow {
        /// The table.
        table: String,
        /// The index, from 0.
        index: i64,
        /// How many rows there are.
        n_rows: usize,
    },
    /// Parameters were lost with the servers that held them.
    #[error("parameters are lost: {reason}")]
    ParametersLost {
        /// Which, and with whom.
        reason: String,
    },
    /// Something went wrong with parameters that live on servers.
    #[error(transparent)]
    Tables(Box<manyhands_net::tables::error::TableError>),
    /// A worker cannot read what it must read itself.
    #[error(
        "worker {worker} cannot read the training data, as `distribute.read = \"workers\"` asks: {reason}"
    )]
    WorkerCannotRead {
        /// Its name.
        worker: String,
        /// Why, with the file.
        reason: String,
    },
    /// The coordinator will not be reached, however often it is tried.
    #[error("the cluster cannot be joined: {reason}")]
    NoCoordinator {
        /// Why.
        reason: String,
    },
    /// The user stopped a run that waited for workers, or for servers.
    #[error(
        "stopped after step {step}, since nobody did the next one; `manyhands resume {}` goes on from the last checkpoint, if there is one",
        folder.display()
    )]
    StoppedWithoutWorkers {
        /// Steps that were done.
        step: usize,
        /// Where the checkpoints are.
        folder: PathBuf,
    },
    /// A worker process cannot be started.
    #[error("cannot start a worker ({program}): {source}")]
    StartWorker {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A rank of a launch failed.
    #[error("rank {rank}: {source}")]
    Rank {
        /// Which.
        rank: usize,
        /// What failed there.
        source: Box<Error>,
    },
    /// This process has no place in the network.
    #[error(transparent)]
    Station(#[from] crate::cluster::StationError),
    /// There is no coordinator.
    #[error(transparent)]
    Coordinator(#[from] crate::cluster::CoordinatorError),
    /// What a launcher says of this process cannot be understood.
    #[error(transparent)]
    Launch(#[from] manyhands_net::launch::LaunchError),
    /// The ranks of a launch did not meet.
    #[error(transparent)]
    World(#[from] manyhands_net::world::WorldError),
    /// The ranks of a launch lost each other.
    #[error(transparent)]
    Collective(#[from] manyhands_net::collective::CollectiveError),
    /// A link cannot be measured.
    #[error(transparent)]
    Measure(#[from] manyhands_net::measure::MeasureError),
    /// The coordinator cannot be asked.
    #[error(transparent)]
    Control(#[from] crate::cluster::ControlError),
    /// The secret of the cluster cannot be used.
    #[error(transparent)]
    Secret(#[from] crate::cluster::SecretError),
    /// The system reported an error.
    #[error("the system refused: {0}")]
    System(#[from] std::io::Error),
    /// A step was waited for that nobody had been given.
    #[error("no training step is under way")]
    NoStep,
    #[error("the job of this model has no test data; say which with `--data`")]
    NoTest,
    #[error(
        "the saved model has no parameter `{name}`, which the job's model needs; is it of another job?"
    )]
    MissingParameter { name: String },
    #[error(
        "the loss of step {step} is not a finite number; {place}. Try a smaller rate (it was {rate:.3e}), `train.clip = \
         {{ global_norm = 1.0 }}` (`{{ value = 1.0 }}` where workers do not wait for each other), `train.warm_up`, or look at the data for extreme values"
    )]
    NotFinite { step: usize, place: String, rate: f64 },
    #[error(
        "stopped after step {step}, everything saved; go on with `manyhands resume {}`",
        folder.display()
    )]
    Interrupted { step: usize, folder: PathBuf },
    #[error(
        "the model needs {} MB for its parameters and their gradients alone, but {} MB are free; make it smaller",
        needed / 1_000_000, free / 1_000_000
    )]
    TooLarge { needed: u64, free: u64 },
    #[error("stopped before the first step; nothing was written")]
    StoppedBefore,
    #[error(
        "the weight `{name}` is not finite after the last step ({step}), so there is no model; try a smaller rate"
    )]
    NotFiniteWeight { name: String, step: usize },
    #[error(
        "the run in {} was computed by the kernels `{found}`; those here are `{own}`, which would not give the same bits",
        folder.display()
    )]
    OtherKernels { folder: PathBuf, found: String, own: &'static str },
    /// Measuring was cut short; whoever measures says more.
    #[error("stopped")]
    Stopped,
    #[error(
        "{} holds an unfinished run; go on with `manyhands resume {}`, or give `--overwrite` to begin anew",
        folder.display(), folder.display()
    )]
    Unfinished { folder: PathBuf },
    #[error("the checkpoint in {} is of another job than the one beside it", folder.display())]
    OtherJob { folder: PathBuf },
    #[error(
        "the training data is not what it was when the run in {} began, so going on would not give the same model",
        folder.display()
    )]
    DataChanged { folder: PathBuf },
    /// The timeline cannot be written.
    #[error("{}: the timeline cannot be written: {source}", path.display())]
    Timeline {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    #[error("the predictions could not be written: {reason}")]
    Predictions { reason: String },
    #[error("{what} could not be written as JSON: {reason}")]
    Json { what: &'static str, reason: String },
}

/// Errors with many facts are boxed: results are small where nothing goes wrong.
macro_rules! boxed {
    ($($variant:ident($error:ty)),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::$variant(Box::new(error))
            }
        })*
    };
}

boxed! {
    Job(JobError),
    Data(DataError),
    Model(ModelError),
    Checkpoint(CheckpointError),
    Device(DeviceError),
    Program(ProgramError),
}

impl Error {
    /// A choice that was not understood, with the key of the job that it stands at.
    pub(crate) fn choice(key: &'static str) -> impl FnOnce(ChoiceError) -> Error {
        move |error| Error::Choice { key, error: Box::new(error) }
    }
}

/// Classes of errors, one exit code each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Something else, such as a machine without enough memory.
    Other,
    /// The job: an unknown key, a value that cannot be.
    Job,
    /// The data: a missing file, a bad cell.
    Data,
    /// The model: shapes that do not fit.
    Model,
    /// Training itself: a loss that is not a number.
    Training,
    /// The output or a checkpoint: a full disk, a damaged file.
    Output,
    /// The cluster: a coordinator that does not answer, a wrong secret.
    Cluster,
    /// The user stopped it.
    Interrupted,
}

impl Error {
    /// The class of an error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Rank { source, .. } => source.class(),
            Error::Grain { .. }
            | Error::Job(_)
            | Error::Check(_)
            | Error::Metric(_)
            | Error::Choice { .. }
            | Error::NoClasses
            | Error::ClassWeight { .. }
            | Error::NothingOnServers { .. }
            | Error::UnknownOnServers { .. }
            | Error::OnlySynchronous { .. }
            | Error::DoesNotFit { .. }
            | Error::NothingFits { .. }
            | Error::OtherModel { .. }
            | Error::StatisticsNotExact { .. } => ErrorClass::Job,
            Error::Data(_)
            | Error::NoLabels
            | Error::NoSuchRow { .. }
            | Error::NoTest
            | Error::WorkerCannotRead { .. }
            | Error::DataChanged { .. } => ErrorClass::Data,
            Error::Model(error) if matches!(**error, ModelError::Choice { .. }) => ErrorClass::Job,
            Error::Program(error) if matches!(**error, ProgramError::Setting { .. }) => {
                ErrorClass::Job
            }
            Error::Model(_) | Error::Program(_) => ErrorClass::Model,
            Error::NotFinite { .. } | Error::NotFiniteWeight { .. } => ErrorClass::Training,
            Error::Checkpoint(_)
            | Error::File(_)
            | Error::MissingParameter { .. }
            | Error::Unfinished { .. }
            | Error::OtherJob { .. }
            | Error::OtherKernels { .. }
            | Error::Timeline { .. }
            | Error::Predictions { .. } => ErrorClass::Output,
            Error::Interrupted { .. }
            | Error::StoppedBefore
            | Error::StoppedWithoutWorkers { .. }
            | Error::Stopped => ErrorClass::Interrupted,
            Error::WorkersLost { .. }
            | Error::StateLost { .. }
            | Error::Cluster { .. }
            | Error::NoCoordinator { .. }
            | Error::StartWorker { .. }
            | Error::Station(_)
            | Error::Coordinator(_)
            | Error::Launch(_)
            | Error::World(_)
            | Error::Collective(_)
            | Error::Measure(_)
            | Error::Control(_)
            | Error::Secret(_)
            | Error::ParametersLost { .. }
            | Error::Tables(_)
            | Error::System(_) => ErrorClass::Cluster,
            Error::Mesh(error) if error.is_of_the_model() => ErrorClass::Model,
            Error::Mesh(_) => ErrorClass::Cluster,
            Error::NoStep
            | Error::OtherSums { .. }
            | Error::TooLarge { .. }
            | Error::Device(_)
            | Error::Tensor(_)
            | Error::Json { .. } => ErrorClass::Other,
        }
    }
}

impl From<crate::mesh::MeshError> for Error {
    fn from(error: crate::mesh::MeshError) -> Error {
        Error::Mesh(Box::new(error))
    }
}

impl From<manyhands_net::tables::error::TableError> for Error {
    fn from(error: manyhands_net::tables::error::TableError) -> Error {
        Error::Tables(Box::new(error))
    }
}

/// The largest grain not above the wanted one that divides the batch.
fn largest_divisor(batch: usize, wanted: usize) -> usize {
    (1..=wanted.clamp(1, batch)).rev().find(|grain| batch.is_multiple_of(*grain)).unwrap_or(1)
}
