//! Training: from a job to a model in a folder.
//!
//! [`Trainer`] opens the data, builds the model and runs the loop (`run.rs`). The loop's parts are small and each in a file:
//! what a job comes to (`recipe.rs`), the model on a device (`session.rs`), how many workers (`set_up.rs`), measuring
//! (`measure.rs`), judging (`judge.rs`), saving (`saver.rs`), and finding where a NaN came from (`fault.rs`).

mod event;
mod fault;
mod judge;
mod measure;
mod recipe;
mod records;
mod run;
mod saver;
mod session;
mod set_up;

pub use event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
pub use measure::Measures;
pub(crate) use measure::measure;
pub(crate) use recipe::{Purpose, Recipe, target_of};
pub(crate) use session::Session;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use manyhands_data::{Data, DataSpec, Encoding, HeldOut, Order, Part, Source};

use crate::checkpoint::{Checkpoint, CheckpointFolder, CheckpointWriter};
use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;
use crate::report::Report;

/// Trains a job.
///
/// ```no_run
/// # use manyhands::{Job, train::Trainer};
/// let job = Job::from_file("examples/fashion.toml")?;
/// let report = Trainer::new(job, "examples").out("runs/fashion").run()?;
/// println!("{}", report.metrics.test["accuracy"]);
/// # Ok::<(), manyhands::Error>(())
/// ```
pub struct Trainer {
    job: Job,
    /// Where relative paths of the job start.
    folder: PathBuf,
    out: PathBuf,
    registry: Registry,
    callbacks: Vec<Box<dyn Callback>>,
    stop: Arc<AtomicBool>,
    /// What an earlier run left, to go on from.
    resumed: Option<Resumed>,
    discards_unfinished: bool,
}

struct Resumed {
    checkpoint: Checkpoint,
    warnings: Vec<String>,
}

impl Trainer {
    /// A trainer for a job, whose relative paths start at a folder.
    pub fn new(job: Job, folder: impl Into<PathBuf>) -> Trainer {
        let out = job.output.folder.clone().unwrap_or_else(|| "runs/job".to_string());
        Trainer {
            job,
            folder: folder.into(),
            out: out.into(),
            registry: Registry::default(),
            callbacks: Vec::new(),
            stop: Arc::default(),
            resumed: None,
            discards_unfinished: false,
        }
    }

    /// A trainer that goes on with the run that left its checkpoints in a folder.
    pub fn resume(out: impl Into<PathBuf>) -> Result<Trainer, Error> {
        let out = out.into();
        let folder = CheckpointFolder::open(&out)?;
        let (checkpoint, warnings) = folder.latest(None)?;
        let mut job = Job::from_toml(&checkpoint.job_text)?;
        job.train.seed = checkpoint.state.seed;
        if job.fingerprint() != checkpoint.fingerprint {
            return Err(Error::OtherJob { folder: out });
        }
        let warnings = warnings.iter().map(ToString::to_string).collect();
        let mut trainer = Trainer::new(job, ".").out(out);
        trainer.resumed = Some(Resumed { checkpoint, warnings });
        Ok(trainer)
    }

    /// The folder of the results.
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.out = folder.into();
        self
    }

    /// Workers in this process; measured unless said.
    pub fn workers(mut self, n_workers: usize) -> Trainer {
        self.job.distribute.workers = Some(n_workers);
        self
    }

    /// Threads of each worker.
    pub fn threads(mut self, n_threads: usize) -> Trainer {
        self.job.distribute.threads = Some(n_threads);
        self
    }

    /// What the job can name, in place of what the crate brings.
    pub fn registry(mut self, registry: Registry) -> Trainer {
        self.registry = registry;
        self
    }

    /// Lets something follow the training.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Trainer {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// A flag that ends training when it is set: the step is finished and a checkpoint saved.
    pub fn stop_flag(mut self, stop: Arc<AtomicBool>) -> Trainer {
        self.stop = stop;
        self
    }

    /// Whether an unfinished run in the folder may be overwritten; refused unless said.
    pub fn discard_unfinished(mut self, discards: bool) -> Trainer {
        self.discards_unfinished = discards;
        self
    }

    /// Trains, and says how it went. The model lies in the folder then.
    pub fn run(self) -> Result<Report, Error> {
        run::run(self)
    }

    /// What would happen, without training: reads the data and builds the model.
    pub fn plan(&self) -> Result<(Planned, String), Error> {
        self.job.check()?;
        let opened = Opened::new(self)?;
        let recipe = &opened.recipe;
        let planned = opened.planned(&self.job, 0);
        recipe.program(Purpose::Train, recipe.grain)?;
        Ok((planned, recipe.model.describe().to_string()))
    }

    /// Refuses to lose what an unfinished run left.
    fn writer(&self) -> Result<CheckpointWriter, Error> {
        if self.resumed.is_some() {
            return Ok(CheckpointWriter::resume(&self.out)?);
        }
        let writer = CheckpointWriter::create(&self.out)?;
        let is_finished = self.out.join(REPORT).exists();
        if !is_finished && !self.discards_unfinished && !writer.folder().steps()?.is_empty() {
            return Err(Error::Unfinished { folder: self.out.clone() });
        }
        writer.clear()?;
        Ok(writer)
    }
}

/// The report in the output folder; its presence says that a run is finished.
pub(crate) const REPORT: &str = "report.json";

/// A job with its data and what they come to.
struct Opened {
    data: Data,
    recipe: Recipe,
    seconds: f64,
}

impl Opened {
    fn new(trainer: &Trainer) -> Result<Opened, Error> {
        let start = std::time::Instant::now();
        let job = &trainer.job;
        let loss = trainer.registry.losses.make(&job.train.loss)?;
        // What does not need the data is checked before it is read.
        trainer.registry.optimizers.make(&job.train.optimizer)?.check()?;
        trainer.registry.schedules.make(&job.train.schedule)?;
        Recipe::metrics(job, &trainer.registry)?;
        let target = target_of(job, loss.as_ref());
        let spill = existing_ancestor(&trainer.out);
        let data = Data::open(&job.data, target, job.train.seed, &trainer.folder, &spill)?;
        let encoding = data.encoding.clone();
        let counts = || class_counts(&data.train, &encoding);
        let recipe = Recipe::new(job, &trainer.registry, encoding.clone(), &counts)?;
        Ok(Opened { data, recipe, seconds: start.elapsed().as_secs_f64() })
    }

    fn encoding_json(&self) -> Result<String, Error> {
        serde_json::to_string_pretty(&self.recipe.encoding).map_err(|error| Error::Json {
            what: "what was learned from the data",
            reason: error.to_string(),
        })
    }

    fn planned(&self, job: &Job, first_step: usize) -> Planned {
        let n_samples = self.data.train.n_samples();
        let steps_per_epoch = n_samples.div_ceil(self.recipe.batch);
        let n_steps = steps_per_epoch * job.train.epochs;
        Planned {
            n_samples,
            n_validation: self.data.validation.as_ref().map_or(0, Part::n_samples),
            n_test: self.data.test.as_ref().map_or(0, Part::n_samples),
            n_weights: self.recipe.model.describe().n_weights(),
            batch: self.recipe.batch,
            grain: self.recipe.grain,
            steps_per_epoch,
            n_epochs: job.train.epochs,
            n_steps: job.train.steps.map_or(n_steps, |most| most.min(n_steps)),
            first_step,
        }
    }
}

/// How often each class occurs.
fn class_counts(part: &Part, encoding: &Encoding) -> Result<Vec<u64>, Error> {
    const BATCH: usize = 4096;
    let mut counts = vec![0; encoding.classes().map_or(0, <[String]>::len)];
    for batch in part.batches(Order::Stored, BATCH, 0) {
        let batch = batch?;
        let target = batch.target(0..batch.n_samples()).ok_or(Error::NoLabels)?;
        for word in target.chunks_exact(4) {
            let class = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if let Some(count) = usize::try_from(class).ok().and_then(|idx| counts.get_mut(idx)) {
                *count += 1;
            }
        }
    }
    Ok(counts)
}

/// Makes the paths of a job independent of the folder of its file: the saved job lies elsewhere.
fn make_absolute(data: &mut DataSpec, folder: &Path) {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let absolute = |path: &mut String| *path = folder.join(&*path).to_string_lossy().into_owned();
    let all = |source: &mut Source| match source {
        Source::One(path) => absolute(path),
        Source::Many(paths) => paths.iter_mut().for_each(absolute),
        Source::Columns(columns) => columns.values_mut().for_each(absolute),
    };
    all(&mut data.train);
    for held_out in [&mut data.test, &mut data.validation].into_iter().flatten() {
        if let HeldOut::Files(source) = held_out {
            all(source);
        }
    }
}

/// The nearest folder above that exists: temporary files go there before the output folder is made.
pub(crate) fn existing_ancestor(folder: &Path) -> PathBuf {
    let mut above = folder.ancestors().filter(|one| one.is_dir());
    above.next().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
