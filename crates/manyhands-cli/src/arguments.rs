//! What can be written on the command line. Doc comments here are the help that users read; examples, files and exit codes
//! come behind them from `pages`.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use manyhands::bench::Case;
use manyhands::job::bytes_of;

use crate::pages;

/// Train models with as many machines as they deserve.
///
/// A job is a file in TOML or JSON: where the data is, the model, how to train. `train` turns it into a folder with the
/// trained model, which `evaluate` and `predict` use and `resume` goes on with. Results are the same to the last bit for any
/// number of workers and threads.
#[derive(Parser)]
#[command(name = "manyhands", version, disable_help_subcommand = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Train(Train),
    Resume(Resume),
    Evaluate(Evaluate),
    Predict(Predict),
    Check(Check),
    Plan(Plan),
    Doctor(Doctor),
    Coordinator(Coordinator),
    Worker(Worker),
    Server(Server),
    Status(Status),
    #[command(subcommand)]
    Bench(Bench),
    Help(Help),
    Completions(Completions),
    Manual(Manual),
}

/// Train the model of a job.
///
/// Reads the data, builds the model, chooses how to use the machine (or does as told), trains, and leaves everything in one
/// folder. Checkpoints are written at the end of every epoch and once a minute, so that nothing is lost but the last minute
/// when the machine goes down: `manyhands resume` then ends in the same model, to the last bit.
///
/// Progress goes to standard error: a bar on a terminal, plain lines elsewhere. The summary goes to standard output.
///
/// Ctrl-C finishes the step, saves, says how to go on, and ends with exit code 130. A second Ctrl-C ends at once.
#[derive(Args)]
pub(crate) struct Train {
    /// The job: a TOML or JSON file. `manyhands help job` lists its keys.
    #[arg(value_name = "JOB", value_hint = ValueHint::FilePath)]
    pub job: PathBuf,
    #[command(flatten)]
    pub machine: Machine,
    /// The number that all randomness follows from; instead of the job's `train.seed`.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// The folder of the results; instead of the job's `output.folder`. Made if it is not there.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Begin anew where the folder holds an unfinished run, which is lost. Refused unless said.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub show: Show,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Write what every worker did when, in the first 50 steps, as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub timeline: Option<PathBuf>,
}

/// Go on with a training that was interrupted.
///
/// Starts at the newest whole checkpoint of the folder and ends in the same bits as a training that was never interrupted,
/// also with another number of workers or threads, or under another strategy or mesh. Data and job must be what they were:
/// the job is the one saved in the folder.
#[derive(Args)]
pub(crate) struct Resume {
    /// The folder of the results that `train` named.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Overrides a key of the saved job that does not change the model, as how it is distributed; a whole table at once where
    /// other keys of it are to go. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub machine: Machine,
    #[command(flatten)]
    pub show: Show,
}

/// Measure a trained model.
///
/// Computes the loss and the metrics of the job on its test data, or on other data of the same columns. Categories and
/// scales are those that were learned from the training data.
#[derive(Args)]
pub(crate) struct Evaluate {
    /// The folder of the results that `train` named.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// The data to measure on: a path or glob, or `image=FILE,label=FILE` where the job has a file per column. The test data of
    /// the job unless said.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub data: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Answer new data with a trained model.
///
/// Writes one row per sample, in the order of the data. For classes: the column `class` and one column `p_NAME` with the
/// probability of each class; for numbers: the column `prediction`; for plain text: the column `text` with the most likely next
/// token after each. The label column may be absent.
#[derive(Args)]
pub(crate) struct Predict {
    /// The folder of the results that `train` named.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// The data to answer: a path or glob.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub data: String,
    /// Where the answers go: CSV, JSON lines or Parquet by the name (.csv, .jsonl, .ndjson, .json, .parquet). Standard output,
    /// as CSV, unless said.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// Say what a job would do, without training.
///
/// Reads the job and the data, builds the model, and says how many samples, weights and steps there are, what each layer
/// makes of its input, and where the results would go. Finds every mistake that `train` would find before its first step, and
/// writes nothing.
#[derive(Args)]
pub(crate) struct Check {
    /// The job: a TOML or JSON file. `manyhands help job` lists its keys.
    #[arg(value_name = "JOB", value_hint = ValueHint::FilePath)]
    pub job: PathBuf,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Say what each strategy would take of memory and time, without training.
///
/// Reads the job and the data, builds the model, and measures this machine: some steps of the job with each strategy, for about a second each, with up to 16 workers; a matrix product, memory, a link. Then
/// a line for each strategy and mesh: bytes of the worker that takes most (parameters, the optimizer's state, gradients, what lies between), whether that fits, and the milliseconds of a step, the cores of this machine shared out among the workers;
/// and one sentence: which to take, or that one worker is enough.
///
/// With --json one object: `n_workers`, `n_cores`, `n_grains`, `memory_limit`, `rates` (`products`, `others` in operations a second, `memory`, `link` in bytes a second, `link_seconds`), `is_measured`,
/// `predictions` (each `candidate` with `name`, `strategy`, `mesh`, `level`; `memory` with `parameters`, `state`, `gradients`, `activations`; `memory_bytes`, `fits`, `seconds`, `sent_bytes`, `reason`),
/// `chosen` (the place of one of them, or null) and `advice`.
#[derive(Args)]
pub(crate) struct Plan {
    /// The job: a TOML or JSON file. `manyhands help job` lists its keys.
    #[arg(value_name = "JOB", value_hint = ValueHint::FilePath)]
    pub job: PathBuf,
    /// Workers that the strategies are for. Those of the job unless said, else as many as there are cores.
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroUsize>,
    /// The memory that each worker may take, such as 2GiB. That of the job unless said.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub memory: Option<u64>,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// An amount of memory.
fn amount(text: &str) -> Result<u64, String> {
    bytes_of(text)
        .ok_or_else(|| "an amount is a number with a unit, such as 2GiB or 800MB".to_string())
}

/// Say what this machine has, and what would be used.
///
/// Cores and memory with the limits set on this process, the instruction set and kernels, free disk space here, energy
/// counters, and accelerators that are present.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Hold a cluster together.
///
/// Workers join it, jobs are given to it, and it decides who takes part in what. It says every decision with its reason. When it is killed,
/// training goes on; started again with the same log it goes on where it was.
///
/// It creates the secret of the cluster where there is none, and prints the command with which workers join.
#[derive(Args)]
pub(crate) struct Coordinator {
    /// Where it listens. Only this machine can reach it unless an address of the network is said, such as 0.0.0.0:7070.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// The file with the secret of the cluster; made if it is not there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub secret: Option<PathBuf>,
    /// The file from which it goes on when it is started again; made if it is not there.
    #[arg(long, value_name = "FILE", default_value = "manyhands-coordinator.log", value_hint = ValueHint::FilePath)]
    pub log: PathBuf,
    /// Show errors only.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Lend this machine to a cluster.
///
/// Joins a coordinator, at any time, and does the grains of whatever job there is. It needs neither the job nor its data: programs come from
/// the one who trains, and samples too where it does not find the data itself, the state from other workers. Ctrl-C, or `--drain`, ends it after the step at hand, and nothing is lost when it is killed.
#[derive(Args)]
pub(crate) struct Worker {
    /// Where the coordinator is.
    #[arg(long, value_name = "ADDRESS")]
    pub join: String,
    /// The file with the secret of the cluster; the variable MANYHANDS_SECRET unless said.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub secret: Option<PathBuf>,
    /// The address of this machine on which other workers reach it. The one from which it reaches the coordinator unless said.
    #[arg(long, value_name = "IP")]
    pub bind: Option<IpAddr>,
    /// What people call it. The name of the machine and the number of the process unless said.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Threads that it computes with. One for each core unless said.
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// A folder below which the data of jobs lies on this machine, where it is not where jobs say: of a path such as
    /// /elsewhere/data/x.csv it takes the longest end (data/x.csv, x.csv) that is there.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// How it links to other workers.
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub transport: Transport,
    /// Ask the worker of this name, which runs elsewhere, to leave after the step at hand.
    #[arg(long)]
    pub drain: bool,
    /// End when the process that started it ends.
    #[arg(long, hide = true)]
    pub with_parent: bool,
    /// Show errors only.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Lend this machine's memory to a cluster.
///
/// Joins a coordinator, at any time, and holds parameters of jobs whose strategy is `parameter_server`: workers push gradients to it and pull the new
/// values. Parameters move to it while training goes on, and away from it before it leaves (Ctrl-C). When it is killed, other servers have what it had, unless the job says
/// `replication = 1`.
#[derive(Args)]
pub(crate) struct Server {
    /// Where the coordinator is.
    #[arg(long, value_name = "ADDRESS")]
    pub join: String,
    /// The file with the secret of the cluster; the variable MANYHANDS_SECRET unless said.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub secret: Option<PathBuf>,
    /// The address of this machine on which others reach it. The one from which it reaches the coordinator unless said.
    #[arg(long, value_name = "IP")]
    pub bind: Option<IpAddr>,
    /// What people call it. The name of the machine and the number of the process unless said.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Megabytes that parameters may take. Nine tenths of the memory that is free unless said.
    #[arg(long, value_name = "MB")]
    pub memory: Option<u64>,
    /// How it links to others.
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub transport: Transport,
    /// End when the process that started it ends.
    #[arg(long, hide = true)]
    pub with_parent: bool,
    /// Show errors only.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How workers are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Transport {
    /// Shared memory on one machine, encrypted TCP between machines.
    Auto,
    /// TCP everywhere, encrypted between machines.
    Tcp,
    /// TCP everywhere, encrypted everywhere.
    TcpEncrypted,
}

/// Say how a cluster stands.
///
/// Who is there, what each does, steps and rate, how long each waited, the last failure and its reason, and the latest decisions.
#[derive(Args)]
pub(crate) struct Status {
    /// Where the coordinator is.
    #[arg(long, value_name = "ADDRESS")]
    pub cluster: String,
    /// The file with the secret of the cluster; the variable MANYHANDS_SECRET unless said.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub secret: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Measure how fast things are on this machine.
#[derive(Subcommand)]
pub(crate) enum Bench {
    Train(BenchTrain),
    Collectives(BenchCollectives),
    Tables(BenchTables),
    History(BenchHistory),
    Consistency(BenchConsistency),
}

/// Measure how long a job takes with stragglers, by how its workers wait for each other.
///
/// Workers sleep three quarters of the time, a straggler two thirds of its time more, so that few cores hold four of them. One line for each case (no straggler, one
/// always, one after the other, in bursts) and setting (bsp with equal shares, ssp 1 to 16, adaptive, async): seconds, also relative to bsp, the share of the time in which workers
/// waited, and what was reached. With a target also the seconds until it was reached, known from glimpses of the model that are measured when the run is over.
/// What the job says under `[distribute]` is left out: `--set distribute.replication=1` and the like are kept.
/// Without a job, the two networks of examples/fashion.toml and examples/fashion_cnn.toml are measured: call it in the folder that holds `examples`.
#[derive(Args)]
pub(crate) struct BenchConsistency {
    /// The job: a TOML or JSON file, with validation data.
    #[arg(value_name = "JOB", value_hint = ValueHint::FilePath)]
    pub job: Option<PathBuf>,
    /// Worker processes.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub workers: usize,
    /// Servers of parameters.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub servers: usize,
    /// What is to be reached on the validation data, such as accuracy=0.85.
    #[arg(long, value_name = "METRIC=VALUE")]
    pub target: Option<String>,
    /// For how many steps one worker is the straggler before it is another, where it is not always the same: as long as workers that are not slow take for them, which
    /// is measured first.
    #[arg(long, value_name = "STEPS", default_value_t = 8.0)]
    pub burst: f64,
    /// How often in an epoch the model is looked at for the time to the target.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub glimpses: usize,
    /// Train so often for each line, with the job's seed and those after it, and print means: the steps to a target differ much from seed to seed. Settings take
    /// turns, so that what else happens on the machine happens to all of them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seeds: usize,
    /// Only settings whose names begin with this, such as ssp.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub only: String,
    /// Only this case: no, constant, rotating or bursty.
    #[arg(long, value_name = "CASE")]
    pub case: Option<String>,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Print one line of JSON for each job, case and setting, with its single runs.
    #[arg(long)]
    pub json: bool,
}

/// Check a history of parameter tables: whether every read had what its consistency promises, and nothing acknowledged was lost.
///
/// Workers and servers of `manyhands train --processes` append to the file that the variable MANYHANDS_HISTORY names.
#[derive(Args)]
pub(crate) struct BenchHistory {
    /// The history.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Measure the all-reduce among processes of this machine: time and bandwidth per size.
///
/// bench/collectives.py runs it beside gloo and OpenMPI.
#[derive(Args)]
pub(crate) struct BenchCollectives {
    /// What carries the bytes: tcp, tcp_encrypted, shm (shared memory) or inproc (threads of one process).
    #[arg(long, value_name = "KIND", default_value = "shm")]
    pub transport: String,
    /// Ranks.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub processes: usize,
    /// Bytes that each rank brings, one measurement each; several with commas or spaces between them.
    #[arg(long, value_name = "BYTES", num_args = 1.., value_delimiter = ',', default_values_t = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20])]
    pub sizes: Vec<usize>,
    /// How it is done: auto, direct, halving_doubling, hierarchical or ring.
    #[arg(long, value_name = "NAME", default_value = "direct")]
    pub algorithm: String,
    /// Blocks of ranks that are linked by TCP as if they were machines.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hosts: usize,
    /// Timed rounds of each size; fewer of large ones unless said.
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
    /// A process of a measurement.
    #[arg(long, hide = true)]
    pub child: bool,
}

/// Measure parameter tables: keys and bytes per second of pushes and pulls, dense and sparse, for each consistency.
///
/// Servers and workers are threads of this process over real links.
#[derive(Args)]
pub(crate) struct BenchTables {
    /// What carries the bytes: tcp, tcp_encrypted, shm (shared memory) or inproc (memory of this process).
    #[arg(long, value_name = "KIND", default_value = "tcp")]
    pub transport: String,
    /// Servers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub servers: usize,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub workers: usize,
    /// How many servers hold each shard.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub replication: usize,
    /// Keys of a batch.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub keys: usize,
    /// Rows of the sparse table.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub rows: u64,
    /// Measure instead how much memory the sparse table takes when all its rows are there, and how long a pull of --keys of them takes then.
    #[arg(long)]
    pub fill: bool,
    /// Elements of a row.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub width: usize,
    /// Bytes of the dense table.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub bytes: usize,
    /// Timed rounds.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub rounds: usize,
    /// How pushed values are rounded: none, f16 or eight_bit. Not under bsp, as the next.
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub rounding: String,
    /// Rows and blocks stay with a worker while what was pushed of them is below this.
    #[arg(long, value_name = "THRESHOLD")]
    pub significance: Option<f32>,
    /// Lists of keys that a server has seen go as digests.
    #[arg(long)]
    pub key_lists: bool,
    /// Runs of zeros go as their length.
    #[arg(long)]
    pub zero_runs: bool,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Measure the training step of a model: samples per second, milliseconds per step, memory.
///
/// The models, batches and optimizers are those of bench/peers/torch_train.py, so the two can be run side by side
/// (bench/train.py does it).
#[derive(Args)]
pub(crate) struct BenchTrain {
    /// The model: mlp (784-512-512-10, batch 128), tiny (10-64-64-10, batch 32), cnn (two convolutions, batch 64) or lm (a
    /// transformer of 2 blocks, batch 8 of 128 tokens).
    #[arg(long)]
    pub case: Case,
    /// Threads of each worker.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Workers in this process; each has the model's batch, and their gradients are summed at every step.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Samples per grain; must divide the batch. The whole batch unless said.
    #[arg(long, value_name = "SAMPLES")]
    pub grain: Option<usize>,
    /// Steps per group; the fastest of five groups counts.
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Explain a command, or what can be written in a job.
///
/// `manyhands help train` explains a command. `manyhands help job` lists every key of a job, and `layers`, `losses`,
/// `optimizers`, `schedules` and `metrics` what these keys can name. One more word narrows it down: `manyhands help job train`,
/// `manyhands help layers dense`.
#[derive(Args)]
pub(crate) struct Help {
    /// A command (train, bench train, ...) or a topic: job, layers, losses, optimizers, schedules, metrics, exit-codes.
    #[arg(value_name = "COMMAND OR TOPIC")]
    pub about: Vec<String>,
}

/// Print a script that completes commands in a shell.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Write the manual pages.
///
/// One page for each command, for man(1). Without a folder the main page goes to standard output.
#[derive(Args)]
pub(crate) struct Manual {
    /// The folder for the pages, such as ~/.local/share/man/man1. Made if it is not there.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// How the machine is used.
#[derive(Args)]
pub(crate) struct Machine {
    /// Workers in this process, each with a share of every step's grains. Measured during the first steps unless said here or
    /// in the job.
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroUsize>,
    /// Threads of each worker. The cores shared out evenly unless said here or in the job.
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Each worker is a process of its own. One that dies is replaced, and nothing is lost.
    #[arg(long)]
    pub processes: bool,
    /// How worker processes are linked.
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "processes")]
    pub transport: Transport,
    /// Train on the workers of the cluster whose coordinator is there, as many as there are at any time.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["processes", "workers"])]
    pub cluster: Option<String>,
    /// The file with the secret of the cluster; the variable MANYHANDS_SECRET unless said.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "cluster")]
    pub secret: Option<PathBuf>,
    /// The address of this machine on which the workers of the cluster reach it. The one from which it reaches the coordinator unless said.
    #[arg(long, value_name = "IP", requires = "cluster")]
    pub bind: Option<IpAddr>,
}

/// What is shown of a training.
#[derive(Args, Clone, Copy)]
pub(crate) struct Show {
    /// Print one JSON object a line on standard output, and nothing else there: `planned`, `set_up`, `step` (at most ten a
    /// second), `epoch`, `evaluated`, `checkpointed`, `warned`, `stopped`, `finished`.
    #[arg(long)]
    pub json: bool,
    /// Show errors only.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Keys of the job, from the command line.
#[derive(Args)]
pub(crate) struct Overrides {
    /// Sets a key of the job, as `train.epochs=3` or `model.layers='["dense 10"]'`. Can be given several times; the last counts.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// The whole command, with examples, files and exit codes behind the help of each part.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command().after_long_help(pages::text("manyhands"));
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |part| match pages::text(name) {
            empty if empty.is_empty() => part,
            text => part.after_long_help(text),
        })
    })
}
