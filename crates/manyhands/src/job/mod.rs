//! A job: what the user asks for, as data. TOML, JSON and the Rust builder all make this struct, and its doc comments are
//! the documentation of every key (`manyhands help job`, docs/job.md).

mod builder;
pub(crate) mod byte_size;
mod check;
mod error;
mod fingerprint;
mod keys;
mod mesh;
mod parse;
mod path;
mod places;
pub(crate) mod schema;
mod tables;
mod traffic;

pub use builder::JobBuilder;
pub use byte_size::{bytes_in_words, bytes_of};
pub use check::CheckError;
pub use error::{Advice, JobError, Place};
pub(crate) use keys::sentence;
pub use keys::{Key, Name};
pub use mesh::{MeshPlan, MeshSpec, PipelineSchedule, Recompute, SplitAxis};
pub use parse::Draft;
pub(crate) use tables::matches;
pub use tables::{Consistency, OnServers, OnServersWord, TablesSpec};
pub use traffic::{PushedValues, TrafficSpec};

use std::collections::BTreeMap;

use manyhands_data::DataSpec;
use manyhands_program::Clip;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::choice::Choice;

/// What to train, on what, how and with how many workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Where the data is and how it is read.
    pub data: DataSpec,
    /// What is trained.
    pub model: ModelSpec,
    /// How it is trained.
    #[serde(default)]
    pub train: TrainSpec,
    /// On how many workers, and how they share the work. Left out: measured, and said with the reason.
    #[serde(default)]
    pub distribute: DistributeSpec,
    /// What is written, and when.
    #[serde(default)]
    pub output: OutputSpec,
}

/// What is trained: a list of layers, or nodes that name their inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSpec {
    /// Layers, each fed by the one before: `["dense 512 relu", "dense 10"]`. See `manyhands help layers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Choice>,
    /// Nodes of a graph of layers; the last is the output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<NodeSpec>,
}

/// One node of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name, by which others take it as input; also the name of its weights.
    pub name: String,
    /// The layer: `"dense 512 relu"`, `"add"`, `"concatenate"`, ...
    pub layer: Choice,
    /// What goes in: names of nodes or of inputs of the data (`features`, `tokens`, a column). The node before unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
}

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSpec {
    /// What is made small. See `manyhands help losses`.
    pub loss: Choice,
    /// How weights follow their gradients: `{ adam = { rate = 0.001 } }`. See `manyhands help optimizers`.
    pub optimizer: Choice,
    /// How the rate changes over the steps. See `manyhands help schedules`.
    pub schedule: Choice,
    /// Steps over which the rate first rises, in equal parts, to what the schedule says.
    pub warm_up: usize,
    /// How gradients are kept small: `{ value = 1.0 }` or `{ global_norm = 1.0 }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
    /// Samples per step, over all workers.
    pub batch: usize,
    /// Samples per grain, the unit of work that is given to workers; it must divide the batch. Unless said, a batch is cut
    /// into eight grains, or into the most below that which are equal and have at least 16 samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grain: Option<usize>,
    /// How often each sample is visited.
    pub epochs: usize,
    /// Ends training after so many steps, if that is earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// What is measured on the validation and the test data. See `manyhands help metrics`.
    pub metrics: Vec<Choice>,
    /// The number that all randomness follows from.
    pub seed: u64,
    /// How much each class weighs in the loss: `"balanced"`, or a table from class to weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<ClassWeights>,
    /// Ends training when nothing gets better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// Whether the model that did best on the validation data is the result, instead of the last.
    pub keep_best: bool,
    /// What "best" is judged by: `loss`, or the name of a metric. Measured on the validation data.
    pub monitor: String,
}

impl Default for TrainSpec {
    fn default() -> TrainSpec {
        TrainSpec {
            loss: Choice::from("cross_entropy"),
            optimizer: Choice::from("adam"),
            schedule: Choice::from("constant"),
            warm_up: 0,
            clip: None,
            batch: 128,
            grain: None,
            epochs: 5,
            steps: None,
            metrics: Vec::new(),
            seed: 1,
            class_weights: None,
            early_stopping: None,
            keep_best: false,
            monitor: "loss".to_string(),
        }
    }
}

/// How much each class weighs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ClassWeights {
    /// `"balanced"`: inversely to how often a class occurs in the training part.
    Balanced(Balanced),
    /// Weights by class; 1 where a class is not named.
    Table(BTreeMap<String, f64>),
}

/// The word `balanced`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balanced {
    /// Inversely to how often a class occurs.
    Balanced,
}

/// When to stop early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    /// Epochs without an improvement before training ends.
    pub patience: usize,
    /// How much better counts as an improvement.
    #[serde(default)]
    pub least: f64,
}

/// On how many workers, and how they share the work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DistributeSpec {
    /// How workers share the work.
    pub strategy: Strategy,
    /// Workers in this process. One with all cores or one per core, whichever is measured faster, unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Threads of each worker. The cores shared out evenly unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// How often workers exchange parameters under the strategy `local`, and what becomes of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalSpec>,
    /// Who reads the samples that workers in other processes train on. The model is the same either way.
    pub read: ReadBy,
    /// Whether processes exchange gradients of some layers while those of others are still being computed. The model is the same.
    pub overlap: Overlap,
    /// How many servers hold parameters, under the strategy `parameter_server`; 1 unless said. Processes beside the workers on one machine; on
    /// a cluster those of `manyhands server`, and workers where there are too few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<usize>,
    /// What a worker may miss of what others did, under the strategy `parameter_server`.
    /// Where it may miss something, each push moves the model by its share of a step. Adam and its kin divide by how large gradients are, and those of shares are noisier: for as much progress
    /// in an epoch the rate can be larger, by up to the square root of the number of workers.
    #[serde(skip_serializing_if = "is_default")]
    pub consistency: Consistency,
    /// How many steps a worker may miss of what others did, under `consistency = "ssp"`; 4 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<i64>,
    /// Whether a worker that may miss something computes its gradients where the parameters are going to be when these arrive, judged by how they moved during its last turn; true
    /// unless said. With Adam or momentum gradients that come late cost more steps otherwise. Rows of tables are taken as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foresight: Option<bool>,
    /// How many servers hold each parameter, so that nothing is lost with one of them: 2 where there are 2 servers, unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<usize>,
    /// Which parameters live on servers, under the strategy `parameter_server` with `consistency = "bsp"`; under others all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<TablesSpec>,
    /// How fewer bytes move between workers and servers, under the strategy `parameter_server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficSpec>,
    /// How workers stand to each other: `{ data = 2, pipeline = 2, tensor = 2 }` is for 8. The model is spread along the axes together. With the strategies
    /// `pipeline`, `tensor` and `sharded`, or without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<MeshSpec>,
    /// Stages of a pipeline; as many as workers unless said. Where there are more workers, they are replicas of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<usize>,
    /// In which order the stages of a pipeline do the grains of a step; `1f1b` unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<PipelineSchedule>,
    /// Chunks of the model at each stage, under the schedule `interleaved`; 2 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<usize>,
    /// Names of the layers before which the stages of a pipeline begin, from the second stage on (of all chunks, under `interleaved`). Cut where the work is equal unless said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
    /// What replicas share of the state, under the strategy `sharded` or along the data axis of a mesh: 1 the optimizer's, 2 gradients too, 3 parameters too. With
    /// `sharded` 1 unless said, in a mesh nothing. Higher levels take less memory, and send more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<usize>,
    /// What is computed again on the way back instead of being kept, where the model is spread over workers. The model is the same.
    #[serde(skip_serializing_if = "is_default")]
    pub recompute: Recompute,
    /// Whether a neighbour keeps what one worker alone holds, so that nothing is lost with one of them. The last checkpoint is what is left otherwise.
    #[serde(skip_serializing_if = "is_default")]
    pub mirror: bool,
    /// Axes along which parameters are split, by names in which `*` stands for anything: `{ "dense1/*" = 1 }`. For layers that are split along the tensor axis otherwise
    /// than the planner would.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub split: BTreeMap<String, SplitAxis>,
    /// The memory that each worker may take, such as `"2GiB"`. A job that would take more is refused beforehand, and `auto` chooses among what fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Who reads the samples that workers in other processes train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadBy {
    /// A worker on another machine that finds the same files reads them itself; all others are sent their samples.
    #[default]
    Auto,
    /// The process that trains reads the files and sends each worker its samples.
    Driver,
    /// Every worker reads the files itself; one that cannot ends the run. Until it has opened them it is sent its samples.
    Workers,
}

/// When gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// During the backward pass where workers are on several hosts, the gradients are large and a grain takes long; otherwise
    /// after it, which is faster then.
    #[default]
    Auto,
    /// During the backward pass.
    Always,
    /// After the backward pass.
    Never,
}

/// How workers share the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Each has the whole model and a share of the grains; gradients are summed at every step.
    #[default]
    AllReduce,
    /// Each trains on its own share for some steps, then they exchange parameters (`distribute.local`): for slow links between
    /// processes. The model depends on how many workers there are.
    Local,
    /// Parameters live on servers: workers push gradients to them and pull the new values. With several processes; within one, gradients are summed.
    ParameterServer,
    /// Each worker has some of the layers (`stages`), and grains stream through them. The model is that of one worker.
    Pipeline,
    /// Each worker has a part of every layer that can be split: columns, heads, channels. Sums are added in another order than on one worker.
    Tensor,
    /// As `all_reduce`, with the optimizer's state, gradients or parameters (`level`) spread over the workers. The model is that of one worker.
    Sharded,
    /// The fastest of what fits in memory, by steps that are tried; said with the alternatives. See `manyhands plan`.
    Auto,
}

impl Strategy {
    /// The word that a job has for it.
    pub fn word(&self) -> &'static str {
        match self {
            Strategy::AllReduce => "all_reduce",
            Strategy::Local => "local",
            Strategy::ParameterServer => "parameter_server",
            Strategy::Pipeline => "pipeline",
            Strategy::Tensor => "tensor",
            Strategy::Sharded => "sharded",
            Strategy::Auto => "auto",
        }
    }
}

/// How often workers exchange parameters under the strategy `local`, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LocalSpec {
    /// Steps between two exchanges.
    pub steps: usize,
    /// An optimizer on the exchanged parameters (DiLoCo). Their mean (local SGD) unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer: Option<OuterSpec>,
}

impl Default for LocalSpec {
    fn default() -> LocalSpec {
        LocalSpec { steps: 16, outer: None }
    }
}

/// Gradient descent with Nesterov's momentum along the way that the workers went between two exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OuterSpec {
    /// Its rate.
    pub rate: f64,
    /// Its momentum.
    pub momentum: f64,
}

impl Default for OuterSpec {
    fn default() -> OuterSpec {
        OuterSpec { rate: 0.7, momentum: 0.9 }
    }
}

/// What is written, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutputSpec {
    /// The folder of the results; `--out` overrides it. `runs/` and the name of the job file unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// A checkpoint is written at the end of every epoch, and when so many seconds have passed since the last.
    pub checkpoint_seconds: f64,
    /// How many checkpoints are kept.
    pub keep: usize,
    /// Whether TensorBoard event files are written (into `events/`).
    pub tensorboard: bool,
}

impl Default for OutputSpec {
    fn default() -> OutputSpec {
        OutputSpec { folder: None, checkpoint_seconds: 60.0, keep: 2, tensorboard: true }
    }
}

#[cfg(test)]
mod tests;
