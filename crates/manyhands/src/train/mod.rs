//! Training: from a job to a model in a folder.
//!
//! [`Trainer`] opens the data, builds the model and runs the loop (`run.rs`). The loop's parts are small and each in a file:
//! what a job comes to (`recipe.rs`), the samples of an epoch (`epoch.rs`), who does the steps (`steps.rs`), the model on a device (`session.rs`), how many workers (`set_up.rs`), measuring
//! (`measure.rs`), judging (`judge.rs`), saving (`saver.rs`), what the model was meanwhile (`glimpses.rs`), and finding where a NaN came from (`fault.rs`).

mod begin;
mod epoch;
mod event;
mod fault;
mod finish;
mod glimpses;
mod judge;
mod measure;
mod pace;
mod places;
mod recipe;
mod records;
mod run;
mod saver;
mod session;
mod set_up;
mod step_times;
mod steps;
mod strategy;

pub(crate) use epoch::{EpochBatches, StepBatch, order_of};
pub use event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
pub use measure::Measures;
pub(crate) use measure::measure;
pub(crate) use pace::{MeasuredSteps, Pace};
pub(crate) use recipe::{Purpose, Recipe, target_of};
pub(crate) use session::Session;
pub(crate) use steps::{Here, Step, Steps};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use manyhands_data::{Data, DataSpec, Encoding, HeldOut, Order, Part, Source, is_url};
use manyhands_device::KERNEL_SET;

use crate::checkpoint::{CheckpointError, CheckpointFolder, CheckpointWriter, Damage};
use crate::cluster::{ClusterAddress, plan_programs};
use crate::error::Error;
use crate::job::{Draft, Job, Strategy};
use crate::plan::{Plan, Tryout, Workload, plan};
use crate::registry::Registry;
use crate::report::Report;

/// Trains a job.
///
/// ```no_run
/// # use manyhands::Trainer;
/// let report = Trainer::from_file("examples/fashion.toml")?.run()?;
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
    /// Whether it goes on from what an earlier run left.
    resumes: bool,
    /// Who does the steps, where it is not this process.
    cluster: Option<ClusterAddress>,
    discards_unfinished: bool,
    /// Where what every worker did when is written.
    timeline: Option<PathBuf>,
    glimpses_per_epoch: usize,
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
            resumes: false,
            cluster: None,
            discards_unfinished: false,
            timeline: None,
            glimpses_per_epoch: 0,
        }
    }

    /// A trainer for the job in a file. Relative paths start at its folder, and the results go where it says, else into
    /// `runs/` and the name of the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Trainer, Error> {
        let path = path.as_ref();
        Ok(Trainer::of_file(Job::from_file(path)?, path))
    }

    /// As [`Trainer::from_file`], for a job that was read from the file and changed since.
    pub fn of_file(job: Job, path: impl AsRef<Path>) -> Trainer {
        let path = path.as_ref();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let out = match &job.output.folder {
            Some(said) => folder.join(said),
            None => Path::new("runs").join(path.file_stem().unwrap_or_default()),
        };
        Trainer::new(job, folder).out(out)
    }

    /// A trainer that goes on with the run that left its checkpoints in a folder.
    pub fn resume(out: impl Into<PathBuf>) -> Result<Trainer, Error> {
        let out = out.into();
        let (checkpoint, _) = CheckpointFolder::open(&out)?.latest(None)?;
        let job = Job::from_toml(&checkpoint.job_text)?;
        if job.fingerprint() != checkpoint.fingerprint {
            return Err(Error::OtherJob { folder: out });
        }
        if checkpoint.kernel_set != KERNEL_SET {
            let found = checkpoint.kernel_set;
            return Err(Error::OtherKernels { folder: out, found, own: KERNEL_SET });
        }
        let mut trainer = Trainer::new(job, ".").out(out);
        trainer.resumes = true;
        Ok(trainer)
    }

    /// Overrides keys of the job, as `--set` does. Of a run that goes on, only those that do not change the model.
    pub fn settings(mut self, settings: &[String]) -> Result<Trainer, Error> {
        let before = self.job.fingerprint();
        let mut draft = Draft::from_toml(&self.job.to_toml()?)?;
        for text in settings {
            draft.set(text)?;
        }
        let job = draft.job()?;
        if self.resumes && job.fingerprint() != before {
            let settings = settings.join("`, `");
            return Err(Error::OtherModel { folder: self.out, settings });
        }
        self.job = job;
        Ok(self)
    }

    /// Where the results go.
    pub fn out_folder(&self) -> &Path {
        &self.out
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

    /// The workers that were asked for.
    pub fn n_workers(&self) -> Option<usize> {
        self.job.distribute.workers
    }

    /// Servers that hold parameters beside workers, where the strategy has any.
    pub fn n_servers(&self) -> usize {
        match self.job.distribute.strategy {
            Strategy::ParameterServer => self.job.distribute.n_servers(),
            _ => 0,
        }
    }

    /// The threads of each worker that were asked for.
    pub fn n_threads(&self) -> Option<usize> {
        self.job.distribute.threads
    }

    /// Threads of each worker.
    pub fn threads(mut self, n_threads: usize) -> Trainer {
        self.job.distribute.threads = Some(n_threads);
        self
    }

    /// Has the steps done by the workers of a cluster.
    pub fn cluster(mut self, cluster: ClusterAddress) -> Trainer {
        self.cluster = Some(cluster);
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

    /// Writes what every worker did when, in the first steps, as a Chrome trace.
    pub fn timeline(mut self, path: impl Into<PathBuf>) -> Trainer {
        self.timeline = Some(path.into());
        self
    }

    /// Whether an unfinished run in the folder may be overwritten; refused unless said.
    pub fn discard_unfinished(mut self, discards: bool) -> Trainer {
        self.discards_unfinished = discards;
        self
    }

    /// Has the model of so many moments of an epoch measured on the validation data when training is over ([`Event::Glimpsed`]), where workers do not wait for each other.
    pub(crate) fn glimpses(mut self, per_epoch: usize) -> Trainer {
        self.glimpses_per_epoch = per_epoch;
        self
    }

    /// Trains, and says how it went. The model lies in the folder then. To go on with a run that is finished does nothing
    /// but say again how it went.
    pub fn run(self) -> Result<Report, Error> {
        let report = self.out.join(REPORT);
        match std::fs::read(&report) {
            Ok(bytes) if self.resumes => serde_json::from_slice(&bytes).map_err(|error| {
                let (expected, reason) = ("a report", error.to_string());
                let damage = Damage::Content { expected, reason };
                CheckpointError::Damaged { path: report, damage }.into()
            }),
            _ => begin::run_to_the_end(self),
        }
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

    /// What each strategy would take of memory and time on so many workers, without training: reads the data, builds the model, and measures
    /// this machine with it. As many workers as the job says unless said, else as there are cores; the memory of each as the job says unless said.
    pub fn plan_strategies(
        &self,
        n_workers: Option<usize>,
        memory_limit: Option<u64>,
    ) -> Result<Plan, Error> {
        self.job.check()?;
        let opened = Opened::new(self)?;
        let distribute = &self.job.distribute;
        let sizes = plan_programs(&opened.recipe, opened.data.train.n_samples())?;
        let should_stop = || self.stop.load(Ordering::Relaxed);
        let tryout = opened.tryout(&self.job, &should_stop);
        let workload = Workload::new(distribute, &sizes).tried_with(tryout);
        let n_workers = n_workers.or(distribute.n_workers_said()).unwrap_or(workload.n_cores);
        plan(&workload, n_workers, memory_limit.or(distribute.memory_bytes()))
    }

    /// Refuses to lose what an unfinished run left, before anything is read or written.
    fn refuse_unfinished(&self) -> Result<(), Error> {
        if self.resumes || self.discards_unfinished || !self.out.join("checkpoints").is_dir() {
            return Ok(());
        }
        let is_finished = self.out.join(REPORT).exists();
        match !is_finished && !CheckpointFolder::open(&self.out)?.steps()?.is_empty() {
            true => Err(Error::Unfinished { folder: self.out.clone() }),
            false => Ok(()),
        }
    }

    fn writer(&self) -> Result<CheckpointWriter, Error> {
        if self.resumes {
            return Ok(CheckpointWriter::resume(&self.out)?);
        }
        let writer = CheckpointWriter::create(&self.out)?;
        self.refuse_unfinished()?;
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
    /// The samples that the planner tries steps with.
    fn tryout<'a>(&'a self, job: &Job, should_stop: &'a dyn Fn() -> bool) -> Tryout<'a> {
        let order = order_of(&job.data, job.train.seed, 0);
        Tryout { recipe: &self.recipe, part: &self.data.train, order, should_stop }
    }
}

impl Opened {
    fn new(trainer: &Trainer) -> Result<Opened, Error> {
        let start = std::time::Instant::now();
        let job = &trainer.job;
        let loss =
            trainer.registry.losses.make(&job.train.loss).map_err(Error::choice("train.loss"))?;
        // What does not need the data is checked before it is read.
        trainer
            .registry
            .optimizers
            .make(&job.train.optimizer)
            .map_err(Error::choice("train.optimizer"))?
            .check()?;
        trainer
            .registry
            .schedules
            .make(&job.train.schedule)
            .map_err(Error::choice("train.schedule"))?;
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

    /// Samples of the training, validation and test part.
    fn counts(&self) -> [usize; 3] {
        let n = |part: &Option<Part>| part.as_ref().map_or(0, Part::n_samples);
        [self.data.train.n_samples(), n(&self.data.validation), n(&self.data.test)]
    }

    /// What stands for the training, validation and test part: other data has others.
    fn digests(&self) -> [u64; 3] {
        let of = |part: &Option<Part>| part.as_ref().map_or(0, Part::digest);
        [self.data.train.digest(), of(&self.data.validation), of(&self.data.test)]
    }

    /// What the user should know before training starts.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.recipe.model.warnings();
        let (n_dropped, n_rows) = (self.data.summary.n_dropped, self.data.summary.n_rows);
        if n_dropped > 0 {
            let sentence =
                format!("{n_dropped} of {n_rows} rows have empty cells, and are left out");
            warnings.push(sentence);
        }
        warnings
    }

    fn planned(&self, job: &Job, first_step: usize) -> Planned {
        let [n_samples, n_validation, n_test] = self.counts();
        let steps_per_epoch = n_samples.div_ceil(self.recipe.batch);
        let n_steps = steps_per_epoch.saturating_mul(job.train.epochs);
        Planned {
            n_samples,
            n_validation,
            n_test,
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

/// Makes the paths of a job independent of the folder of its file: the saved job lies elsewhere. URLs are so already.
fn make_absolute(data: &mut DataSpec, folder: &Path) {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let absolute = |path: &mut String| {
        if is_url(path) {
            return;
        }
        // In a pattern the folder stands for itself.
        let is_pattern = path.contains(['*', '?', '[']);
        let text = folder.to_string_lossy();
        let above = if is_pattern { escaped(&text) } else { text.into_owned() };
        *path = Path::new(&above).join(&*path).to_string_lossy().into_owned();
    };
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

/// A text as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    let one = |c: char| if "*?[]".contains(c) { format!("[{c}]") } else { c.to_string() };
    text.chars().map(one).collect()
}

/// The nearest folder above that exists: temporary files go there before the output folder is made.
pub(crate) fn existing_ancestor(folder: &Path) -> PathBuf {
    let mut above = folder.ancestors().filter(|one| one.is_dir());
    above.next().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
