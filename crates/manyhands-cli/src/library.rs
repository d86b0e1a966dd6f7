//! The calls of the library: the only file that knows how jobs are read, trained, measured and asked.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use manyhands::bench::{BenchSetup, ConsistencyBench};
use manyhands::cluster::{
    ClusterAddress, Launched, LocalCluster, LocalWorkers, Route, Secret, launched,
};
use manyhands::data::Source;
use manyhands::job::Draft;
use manyhands::net::host::bind_towards;
use manyhands::plan::Plan as StrategyPlan;
use manyhands::predictions::{Predicted, PredictionFormat, PredictionWriter};
use manyhands::train::{Measures, Planned};
use manyhands::{Error, ErrorClass, Job, Prediction, Report, Trained, Trainer};

use crate::arguments::{self, BenchConsistency, Machine, Resume, Train, Transport};
use crate::exit::{Class, Failure};
use crate::progress::Progress;

/// The class of an error of the library.
pub(crate) fn class(error: &Error) -> Class {
    match error.class() {
        ErrorClass::Other => Class::Other,
        ErrorClass::Job => Class::Job,
        ErrorClass::Data => Class::Data,
        ErrorClass::Model => Class::Model,
        ErrorClass::Training => Class::Training,
        ErrorClass::Output => Class::Output,
        ErrorClass::Cluster => Class::Cluster,
        ErrorClass::Interrupted => Class::Interrupted,
    }
}

/// What a training came to, and where its results are.
pub(crate) struct Ended {
    pub report: Report,
    pub folder: PathBuf,
}

/// Reads a job with what the command line says beyond it.
fn job(path: &Path, set: &[String], seed: Option<u64>) -> Result<Job, Failure> {
    let mut draft = Draft::from_file(path).map_err(Error::from)?;
    for text in set {
        draft.set(text).map_err(Error::from)?;
    }
    if let Some(seed) = seed {
        draft.set(&format!("train.seed={seed}")).map_err(Error::from)?;
    }
    Ok(draft.job().map_err(Error::from)?)
}

/// A measurement of consistencies with a job in a file, to which something is set, and a target.
pub(crate) fn consistency_bench(
    arguments: &BenchConsistency,
    path: &Path,
    set: &[String],
    target: Option<&str>,
) -> Result<ConsistencyBench, Failure> {
    // Keys of parameter servers can be set, whatever the job's own strategy is. Each setting has a consistency of its own.
    let before =
        ["distribute={}", "distribute.strategy=parameter_server", "distribute.consistency=ssp"];
    let before = before.map(String::from).into_iter();
    // None at all are refused below, by the option's name.
    let servers = format!("distribute.servers={}", arguments.servers.max(1));
    let set: Vec<String> = before.chain(set.iter().cloned()).chain([servers]).collect();
    let job = job(path, &set, None)?;
    let setup = BenchSetup {
        folder: path.parent().unwrap_or(Path::new("")).to_path_buf(),
        scratch: std::env::temp_dir().join(format!("manyhands-bench-{}", std::process::id())),
        n_workers: arguments.workers,
        n_servers: arguments.servers,
        burst_steps: arguments.burst,
        glimpses_per_epoch: arguments.glimpses,
    };
    ConsistencyBench::new(job, setup, target)
        .map_err(|error| Failure { class: Class::Job, error: error.into() })
}

/// The most servers that are started on one machine.
const MOST_SERVERS_HERE: usize = 64;

/// Trains on this machine, or where it is said.
fn run_on(
    mut trainer: Trainer,
    machine: &Machine,
    stop: Arc<AtomicBool>,
) -> Result<Report, Failure> {
    if let Some(n_workers) = machine.workers {
        trainer = trainer.workers(n_workers.get());
    }
    if let Some(n_threads) = machine.threads {
        trainer = trainer.threads(n_threads.get());
    }
    if let Some(coordinator) = &machine.cluster {
        let cluster = ClusterAddress {
            coordinator: coordinator.clone(),
            secret: secret(machine.secret.as_deref())?,
            bind: machine.bind.unwrap_or_else(|| bind_towards(coordinator)),
            route: Route::Auto,
        };
        return Ok(trainer.cluster(cluster).run()?);
    }
    if !machine.processes {
        return run_launched(trainer, machine, stop);
    }
    let n_cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_workers =
        machine.workers.map(NonZeroUsize::get).or(trainer.n_workers()).unwrap_or(n_cores);
    let threads = machine.threads.map(NonZeroUsize::get).or(trainer.n_threads());
    let threads = threads.unwrap_or((n_cores / n_workers).max(1));
    let route = route(machine.transport);
    let n_servers = trainer.n_servers();
    if n_servers > MOST_SERVERS_HERE {
        let sentence = format!(
            "distribute.servers = {n_servers}: at most {MOST_SERVERS_HERE} are started on one machine; on a cluster (`--cluster`) there may be more"
        );
        return Err(Failure::new(Class::Job, sentence));
    }
    let workers =
        LocalWorkers { n_workers, n_servers, threads, program: None, route, stragglers: None };
    let cluster = LocalCluster::start(&workers)?;
    Ok(trainer.threads(threads).cluster(cluster.address()).run()?)
}

/// Trains here, unless a launcher started this process as one of several: then rank 0 trains, and the others work for it.
fn run_launched(
    trainer: Trainer,
    machine: &Machine,
    stop: Arc<AtomicBool>,
) -> Result<Report, Failure> {
    let threads = machine.threads.map(NonZeroUsize::get).or(trainer.n_threads());
    match launched(threads)? {
        None => Ok(trainer.run()?),
        Some(Launched::Driver(cluster)) => {
            let outcome = trainer.cluster(cluster.address()).run();
            // Whatever came of it, which this rank says.
            cluster.finish();
            Ok(outcome?)
        }
        Some(Launched::Worker(worker)) => {
            worker.run(stop)?;
            // The rank that has the job says what came of it.
            std::process::exit(Class::Done as i32)
        }
    }
}

/// The secret of a cluster: from a file, or from the environment.
pub(crate) fn secret(file: Option<&Path>) -> Result<Secret, Failure> {
    let secret = match file {
        Some(file) => Secret::read(file),
        None => Secret::from_environment(),
    };
    Ok(secret.map_err(Error::from)?)
}

pub(crate) fn route(transport: Transport) -> Route {
    match transport {
        Transport::Auto => Route::Auto,
        Transport::Tcp => Route::Tcp,
        Transport::TcpEncrypted => Route::TcpEncrypted,
    }
}

/// Trains a job.
pub(crate) fn train(
    arguments: &Train,
    progress: Progress,
    stop: Arc<AtomicBool>,
) -> Result<Ended, Failure> {
    let job = job(&arguments.job, &arguments.overrides.set, arguments.seed)?;
    let mut trainer = Trainer::of_file(job, &arguments.job)
        .discard_unfinished(arguments.overwrite)
        .callback(progress)
        .stop_flag(stop.clone());
    if let Some(out) = &arguments.out {
        trainer = trainer.out(out);
    }
    if let Some(path) = &arguments.timeline {
        trainer = trainer.timeline(path);
    }
    let folder = trainer.out_folder().to_path_buf();
    let report = run_on(trainer, &arguments.machine, stop)?;
    Ok(Ended { report, folder })
}

/// Goes on with a training.
pub(crate) fn resume(
    arguments: &Resume,
    progress: Progress,
    stop: Arc<AtomicBool>,
) -> Result<Ended, Failure> {
    let trainer = Trainer::resume(&arguments.dir)?.settings(&arguments.set)?;
    let trainer = trainer.callback(progress).stop_flag(stop.clone());
    let report = run_on(trainer, &arguments.machine, stop)?;
    Ok(Ended { report, folder: arguments.dir.clone() })
}

/// Data as named on the command line: a path or glob, or `column=path,column=path` where the job has a file per column.
fn source(text: &str, job: &Job) -> Source {
    let Source::Columns(columns) = &job.data.train else { return Source::One(text.to_string()) };
    let pairs: Option<BTreeMap<String, String>> = text
        .split(',')
        .map(|pair| pair.split_once('=').map(|(name, path)| (name.to_string(), path.to_string())))
        .collect();
    let known =
        |pairs: &BTreeMap<String, String>| pairs.keys().all(|one| columns.contains_key(one));
    match pairs.filter(known) {
        Some(pairs) => Source::Columns(pairs),
        None => {
            let is_label = |name: &String| job.data.label.as_ref() == Some(name);
            let first = columns.keys().find(|name| !is_label(name)).cloned().unwrap_or_default();
            Source::Columns(BTreeMap::from([(first, text.to_string())]))
        }
    }
}

/// Measures a trained model; returns the names of its classes too.
pub(crate) fn evaluate(dir: &Path, data: Option<&str>) -> Result<(Measures, Vec<String>), Failure> {
    let trained = Trained::open(dir)?;
    let data = data.map(|text| source(text, trained.job()));
    let measures = trained.evaluate(data.as_ref(), Path::new("."))?;
    Ok((measures, trained.classes().unwrap_or_default().to_vec()))
}

/// Answers new data; returns how many samples there were.
pub(crate) fn predict(
    dir: &Path,
    data: &str,
    format: PredictionFormat,
    to: &mut (dyn Write + Send),
) -> Result<usize, Failure> {
    let trained = Trained::open(dir)?;
    let data = source(data, trained.job());
    let unwritable = |error: std::io::Error| Error::Predictions { reason: error.to_string() };
    // What there is in a row is known with the first.
    let mut to = Some(to);
    let mut writer: Option<PredictionWriter<_>> = None;
    trained.predict(&data, Path::new("."), &mut |prediction| {
        if let Some(to) = to.take() {
            let predicted = match &prediction {
                Prediction::Class { .. } => {
                    Predicted::Classes(trained.classes().unwrap_or_default().to_vec())
                }
                Prediction::Numbers(numbers) => Predicted::Numbers(numbers.len()),
                Prediction::Text(_) => Predicted::Text,
            };
            writer = Some(PredictionWriter::new(to, format, predicted).map_err(unwritable)?);
        }
        let Some(writer) = &mut writer else { return Ok(()) };
        let written = match prediction {
            Prediction::Class { name, probabilities, .. } => writer.class(name, probabilities),
            Prediction::Numbers(numbers) => writer.numbers(numbers),
            Prediction::Text(text) => writer.text(text),
        };
        written.map_err(unwritable)
    })?;
    match writer {
        Some(writer) => Ok(writer.finish().map_err(unwritable)?),
        None => Ok(0),
    }
}

/// What a job would do.
pub(crate) struct Plan {
    pub planned: Planned,
    /// The layers as text.
    pub model: String,
    /// Where the results would go.
    pub folder: PathBuf,
}

/// Says what a job would do.
pub(crate) fn plan(path: &Path, set: &[String]) -> Result<Plan, Failure> {
    let trainer = Trainer::of_file(job(path, set, None)?, path);
    let (planned, model) = trainer.plan()?;
    Ok(Plan { planned, model, folder: trainer.out_folder().to_path_buf() })
}

/// Says what each strategy would take.
pub(crate) fn plan_strategies(arguments: &arguments::Plan) -> Result<StrategyPlan, Failure> {
    let job = job(&arguments.job, &arguments.overrides.set, None)?;
    let trainer = Trainer::of_file(job, &arguments.job);
    let n_workers = arguments.workers.map(NonZeroUsize::get);
    Ok(trainer.plan_strategies(n_workers, arguments.memory)?)
}
