//! The loop: epochs, steps, and what happens between them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use manyhands_data::{Batch, Order, Part};
use manyhands_device::KERNEL_SET;

use super::event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
use super::fault::first_not_finite;
use super::judge::Judge;
use super::measure::{Measures, measure};
use super::recipe::Recipe;
use super::records::Records;
use super::saver::Saver;
use super::session::Session;
use super::set_up::{Trial, Verdict, candidates};
use super::{Opened, Purpose, Trainer, make_absolute};
use crate::checkpoint::{Checkpoint, CheckpointWriter, Keep, Measured, NamedTensor, State};
use crate::energy::EnergyMeter;
use crate::error::Error;
use crate::job::Job;
use crate::machine::{Machine, peak_memory_bytes};
use crate::registry::Registry;
use crate::report::{FinalMetrics, Memory, REPORT_FORMAT, Report, Seconds, Setup};
use crate::schedules::{Position, warm_up};

/// Trains what a trainer was given.
pub(super) fn run(mut trainer: Trainer) -> Result<Report, Error> {
    let start = Instant::now();
    let energy = EnergyMeter::start();
    trainer.job.check()?;
    make_absolute(&mut trainer.job.data, &trainer.folder);
    let opened = Opened::new(&trainer)?;
    let encoding_json = opened.encoding_json()?;
    if let Some(resumed) = &trainer.resumed
        && resumed.checkpoint.encoding_json != encoding_json
    {
        return Err(Error::DataChanged { folder: trainer.out.clone() });
    }
    let writer = Arc::new(trainer.writer()?);
    let job_text = trainer.job.to_toml()?;
    let fingerprint = trainer.job.fingerprint();
    let keep = Keep { last: trainer.job.output.keep, best: trainer.job.train.keep_best };
    let is_resumed = trainer.resumed.is_some();
    let (tensors, state, warnings) = match trainer.resumed.take() {
        Some(resumed) => {
            let Checkpoint { tensors, state, .. } = resumed.checkpoint;
            (Some(tensors), state, resumed.warnings)
        }
        None => (None, State { seed: trainer.job.train.seed, ..State::default() }, Vec::new()),
    };
    let first_sample = state.samples;
    let judge = judge(&trainer.job, &trainer.registry)?;
    let mut run = Run {
        planned: opened.planned(&trainer.job, state.step as usize),
        monitored: judge.monitored(&state.history),
        judge,
        job: &trainer.job,
        registry: &trainer.registry,
        recipe: &opened.recipe,
        opened: &opened,
        saver: Saver::new(Arc::clone(&writer), keep),
        records: Records::new(&trainer.job, &writer, &state, is_resumed)?,
        callbacks: std::mem::take(&mut trainer.callbacks),
        should_stop: &|| trainer.stop.load(Ordering::Relaxed),
        writer: &writer,
        job_text,
        fingerprint,
        encoding_json,
        state,
        split: Seconds { reading: opened.seconds, ..Seconds::default() },
        start,
        saved_at: Instant::now(),
        wants_stop: false,
        first_sample,
    };
    warnings.iter().for_each(|warning| run.warn(warning));
    run.train(tensors, energy)
}

/// What "best" is judged by, and which way.
fn judge(job: &Job, registry: &Registry) -> Result<Judge, Error> {
    let metrics = Recipe::metrics(job, registry)?;
    let monitored = metrics.iter().find(|(name, _)| *name == job.train.monitor);
    let higher = monitored.is_some_and(|(_, metric)| metric.higher_is_better());
    Ok(Judge::new(&job.train.monitor, higher, job.train.early_stopping))
}

/// A run in progress.
struct Run<'a> {
    job: &'a Job,
    registry: &'a Registry,
    recipe: &'a Recipe,
    opened: &'a Opened,
    writer: &'a CheckpointWriter,
    saver: Saver,
    records: Records,
    callbacks: Vec<Box<dyn Callback>>,
    should_stop: &'a dyn Fn() -> bool,
    planned: Planned,
    judge: Judge,
    /// What the judge saw after each epoch, for schedules.
    monitored: Vec<f64>,
    job_text: String,
    fingerprint: String,
    encoding_json: String,
    state: State,
    split: Seconds,
    start: Instant,
    saved_at: Instant,
    /// A callback wants training to end.
    wants_stop: bool,
    /// Samples done before, by the run that is resumed.
    first_sample: u64,
}

/// How an epoch ended.
enum EpochEnd {
    /// All its batches are done.
    Whole,
    /// Training ends in the midst of it.
    Early(String),
}

impl<'a> Run<'a> {
    fn train(
        mut self,
        tensors: Option<Vec<NamedTensor>>,
        energy: EnergyMeter,
    ) -> Result<Report, Error> {
        let n_grains = self.recipe.n_grains(self.recipe.batch.min(self.planned.n_samples));
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut trial = Trial::new(candidates(&self.job.distribute, n_cores, n_grains));
        let mut set_up = trial.first().clone();
        if set_up.workers > n_grains {
            let (workers, idle) = (set_up.workers, set_up.workers - n_grains);
            self.warn(&format!(
                "a step has {n_grains} grain(s), so {idle} of the {workers} workers have nothing to do; a smaller \
                 `train.grain` gives more"
            ));
        }
        self.recipe.model.warnings().iter().for_each(|warning| self.warn(warning));
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        self.records.graph(self.recipe)?;
        let mut session = Session::new(self.recipe, &set_up)?;
        session.plan(Purpose::Train, self.recipe.batch.min(self.planned.n_samples))?;
        match tensors {
            Some(tensors) => session.load(&tensors)?,
            None => session.initialise(self.job.train.seed)?,
        }
        if trial.is_decided() {
            self.tell(&Event::SetUp(&set_up));
        }
        let reason = self.epochs(&mut session, &mut trial, &mut set_up)?;
        if set_up.reason.is_empty() {
            set_up.reason = "there were too few steps to measure which is faster".to_string();
            self.tell(&Event::SetUp(&set_up));
        }
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        self.finish(session, set_up, reason, energy)
    }

    /// All epochs that are left; the reason where training ends early.
    fn epochs(
        &mut self,
        session: &mut Session<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<Option<String>, Error> {
        while (self.state.epoch as usize) < self.planned.n_epochs {
            if let Some(reason) = self.judge.stop(&self.state.history) {
                return Ok(Some(reason));
            }
            if self.state.step as usize >= self.planned.n_steps {
                break;
            }
            let end = self.epoch(session, trial, set_up)?;
            self.close_epoch(session, matches!(end, EpochEnd::Whole))?;
            if let EpochEnd::Early(reason) = end {
                return Ok(Some(reason));
            }
        }
        Ok(self.judge.stop(&self.state.history))
    }

    /// One epoch, or what is left of it.
    fn epoch(
        &mut self,
        session: &mut Session<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<EpochEnd, Error> {
        let order = match self.job.data.shuffle {
            true => Order::Shuffled { seed: self.job.train.seed, epoch: self.state.epoch },
            false => Order::Stored,
        };
        let first = self.state.batch as usize;
        let mut batches = self.opened.data.train.batches(order, self.recipe.batch, first);
        let mut chosen = trial.is_decided() || !set_up.reason.is_empty();
        loop {
            let waiting = Instant::now();
            let Some(batch) = batches.next() else { return Ok(EpochEnd::Whole) };
            let batch = batch?;
            let compute = self.step(session, &batch, waiting)?;
            if !chosen && batch.n_samples() == self.recipe.batch {
                chosen = self.try_set_up(session, trial, set_up, compute)?;
            }
            self.state.batch += 1;
            let epoch_done = self.state.batch as usize >= self.planned.steps_per_epoch;
            self.poll_saver()?;
            if (self.should_stop)() {
                return Err(self.interrupted(session)?);
            }
            if self.wants_stop {
                return Ok(EpochEnd::Early("a callback asked for it".to_string()));
            }
            if self.state.step as usize >= self.planned.n_steps && !epoch_done {
                return Ok(EpochEnd::Early(format!("{} steps are done", self.state.step)));
            }
            let due = self.saved_at.elapsed().as_secs_f64() >= self.job.output.checkpoint_seconds;
            if due && !epoch_done {
                self.save(session, false)?;
            }
        }
    }

    /// One step. Gives the seconds that the device took.
    fn step(
        &mut self,
        session: &mut Session<'a>,
        batch: &Batch,
        waiting: Instant,
    ) -> Result<f64, Error> {
        let rate = self.rate(self.state.step as usize, &self.monitored);
        let number = self.state.step + 1;
        let plan = session.prepare_step(batch, rate, self.job.train.seed, number)?;
        let computing = Instant::now();
        let loss = f64::from(session.step(plan)?);
        let done = Instant::now();
        let compute = (done - computing).as_secs_f64();
        self.split.input += (computing - waiting).as_secs_f64();
        self.split.compute += compute;
        if !loss.is_finite() {
            return Err(self.not_finite(batch)?);
        }
        let n_samples = batch.n_samples();
        self.state.step = number;
        self.state.epoch_samples += n_samples as u64;
        self.state.samples += n_samples as u64;
        self.records.step(number, loss, n_samples, rate)?;
        let done = StepDone {
            step: number as usize,
            epoch: self.state.epoch as usize,
            n_samples,
            loss,
            rate,
            seconds: (done - self.start).as_secs_f64(),
        };
        self.tell(&Event::Step(&done));
        Ok(compute)
    }

    /// The rate of a step, 0 being the first, given what was monitored before it.
    fn rate(&self, step: usize, monitored: &[f64]) -> f64 {
        let (planned, train) = (&self.planned, &self.job.train);
        let (n_steps, steps_per_epoch) = (planned.n_steps, planned.steps_per_epoch);
        let at = Position { step, n_steps, steps_per_epoch, monitored };
        let factor = self.recipe.schedule.factor(&at) * warm_up(train.warm_up, step);
        self.recipe.rule.rate() * factor
    }

    /// Goes on with another set-up where the trial says so: the parameters move, the bits stay.
    fn try_set_up(
        &mut self,
        session: &mut Session<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
        seconds: f64,
    ) -> Result<bool, Error> {
        let (next, chosen) = match trial.step(seconds) {
            Verdict::Stay => return Ok(false),
            Verdict::Try(next) => (next, false),
            Verdict::Choose(next) => (next, true),
        };
        if (next.workers, next.threads) != (set_up.workers, set_up.threads) {
            let tensors = session.tensors()?;
            let mut other = Session::new(self.recipe, &next)?;
            other.plan(Purpose::Train, self.recipe.batch)?;
            other.load(&tensors)?;
            *session = other;
        }
        *set_up = next;
        if chosen {
            self.tell(&Event::SetUp(set_up));
        }
        Ok(chosen)
    }

    /// After an epoch: measures, judges, saves. `is_whole` unless training ends in the midst of it.
    fn close_epoch(&mut self, session: &mut Session<'a>, is_whole: bool) -> Result<(), Error> {
        let mut values = self.records.close_epoch();
        if let Some(part) = &self.opened.data.validation {
            let measures = self.measure(session, part, "validation")?;
            let named = measures.values.into_iter();
            values.extend(named.map(|(name, value)| (format!("validation/{name}"), value)));
        }
        if is_whole {
            (self.state.epoch, self.state.batch) = (self.state.epoch + 1, 0);
            self.state.epoch_samples = 0;
        }
        let (epoch, step) = (self.state.epoch, self.state.step);
        self.state.history.push(Measured { epoch, step, values });
        self.monitored = self.judge.monitored(&self.state.history);
        let best = self.judge.best(&self.state);
        let is_better = best != self.state.best;
        self.state.best = best;
        if let Some(measured) = self.state.history.last() {
            self.records.epoch(measured, || session.tensors())?;
        }
        self.save(session, is_better && self.job.train.keep_best)
    }

    fn measure(
        &mut self,
        session: &mut Session<'a>,
        part: &Part,
        name: &'static str,
    ) -> Result<Measures, Error> {
        let start = Instant::now();
        let metrics = Recipe::metrics(self.job, self.registry)?;
        let measured = measure(session, self.recipe, part, metrics, self.should_stop);
        let measures = match measured {
            Err(Error::Stopped) => return Err(self.interrupted(session)?),
            measured => measured?,
        };
        self.split.evaluation += start.elapsed().as_secs_f64();
        let evaluated = Evaluated {
            epoch: self.state.epoch as usize + usize::from(name == "validation"),
            step: self.state.step as usize,
            part: name,
            values: measures.values.clone(),
        };
        self.tell(&Event::Evaluated(&evaluated));
        Ok(measures)
    }

    fn checkpoint(&self, session: &Session) -> Result<Checkpoint, Error> {
        let mut state = self.state.clone();
        state.extra = self.records.kept();
        Ok(Checkpoint {
            tensors: session.tensors()?,
            job_text: self.job_text.clone(),
            fingerprint: self.fingerprint.clone(),
            kernel_set: KERNEL_SET.to_string(),
            encoding_json: self.encoding_json.clone(),
            state,
        })
    }

    /// Saves a checkpoint: in the background, or, where it must be this one, now.
    fn save(&mut self, session: &Session, now: bool) -> Result<(), Error> {
        let start = Instant::now();
        let checkpoint = self.checkpoint(session)?;
        match now {
            true => self.saver.save(checkpoint),
            false => self.saver.offer(checkpoint),
        }
        self.saved_at = Instant::now();
        self.split.checkpoints += start.elapsed().as_secs_f64();
        self.poll_saver()
    }

    fn poll_saver(&mut self) -> Result<(), Error> {
        for saved in self.saver.done() {
            let saved = saved?;
            self.tell(&Event::Checkpointed { step: saved.step, folder: &saved.folder });
        }
        Ok(())
    }

    /// The user wants to stop: saves, and says so.
    fn interrupted(&mut self, session: &Session) -> Result<Error, Error> {
        self.save(session, true)?;
        let (step, folder) = (self.state.step as usize, self.writer.folder().path().to_path_buf());
        Ok(Error::Interrupted { step, folder })
    }

    /// The loss of the step at hand is not finite: finds out where that began.
    fn not_finite(&mut self, batch: &Batch) -> Result<Error, Error> {
        self.saver.flush();
        let step = self.state.step as usize + 1;
        let seed = self.job.train.seed;
        let set_up = SetUp { workers: 1, threads: 1, reason: String::new() };
        let mut session = Session::new(self.recipe, &set_up)?;
        session.plan(Purpose::Train, self.recipe.batch.min(self.planned.n_samples))?;
        let fingerprint = Some(self.fingerprint.as_str());
        let mut state = match self.writer.folder().latest(fingerprint) {
            Ok((checkpoint, _)) => {
                session.load(&checkpoint.tensors)?;
                checkpoint.state
            }
            Err(_) => {
                session.initialise(seed)?;
                State::default()
            }
        };
        // The same steps again, to the one before.
        while state.step < self.state.step {
            let order = match self.job.data.shuffle {
                true => Order::Shuffled { seed, epoch: state.epoch },
                false => Order::Stored,
            };
            let first = state.batch as usize;
            for batch in self.opened.data.train.batches(order, self.recipe.batch, first) {
                if state.step == self.state.step {
                    break;
                }
                let before = state.step;
                let history = self.state.history.iter().filter(|past| past.step <= before);
                let monitored = self.judge.monitored(&history.cloned().collect::<Vec<_>>());
                let rate = self.rate(before as usize, &monitored);
                let plan = session.prepare_step(&batch?, rate, seed, state.step + 1)?;
                session.step(plan)?;
                state.step += 1;
            }
            (state.epoch, state.batch) = (state.epoch + 1, 0);
        }
        let place = first_not_finite(&mut session, batch, (seed, step as u64))?;
        let rate = self.rate(step - 1, &self.monitored);
        Ok(Error::NotFinite { step, place, rate })
    }

    fn warn(&mut self, sentence: &str) {
        self.tell(&Event::Warned(sentence));
    }

    fn tell(&mut self, event: &Event) {
        for callback in &mut self.callbacks {
            if callback.on_event(event) == Control::Stop {
                self.wants_stop = true;
            }
        }
    }

    /// After the last step: the model that counts is tested and published, and the report written.
    fn finish(
        mut self,
        mut session: Session<'a>,
        set_up: SetUp,
        stopped: Option<String>,
        mut energy: EnergyMeter,
    ) -> Result<Report, Error> {
        self.saver.flush();
        self.poll_saver()?;
        if self.job.train.keep_best
            && let Some(best) = self.state.best.clone()
            && best.step != self.state.step
        {
            let kept = self.writer.folder().load(best.step, Some(&self.fingerprint))?;
            session.load(&kept.tensors)?;
        }
        let mut test = Measures::default();
        if let Some(part) = &self.opened.data.test {
            test = self.measure(&mut session, part, "test")?;
        }
        let start = Instant::now();
        self.writer.publish(&self.checkpoint(&session)?)?;
        self.split.checkpoints += start.elapsed().as_secs_f64();
        self.records.finish(&self.state, &test, self.writer)?;
        let planned_device_bytes = session.peak_bytes()? as u64;
        let mut report = self.report(set_up, stopped, test);
        report.memory = Memory { peak_bytes: peak_memory_bytes(), planned_device_bytes };
        report.energy = energy.joules().into();
        self.writer.write_file(super::REPORT, report.to_json().as_bytes())?;
        Ok(report)
    }

    fn report(&self, set_up: SetUp, stopped: Option<String>, test: Measures) -> Report {
        let last = self.state.history.last();
        let of = |part: &str| {
            let values = last.into_iter().flat_map(|measured| &measured.values);
            let own = values.filter_map(|(name, value)| Some((name.strip_prefix(part)?, *value)));
            own.map(|(name, value)| (name.to_string(), value)).collect()
        };
        let n_samples = self.state.samples - self.first_sample;
        let trained = self.split.compute + self.split.input;
        let layers = self.recipe.model.describe().layers.iter();
        Report {
            format: REPORT_FORMAT,
            job: name_of(self.writer.folder().path()),
            model: layers.map(|layer| layer.layer.clone()).collect::<Vec<_>>().join(", "),
            ending: stopped.unwrap_or_else(|| "all epochs are done".to_string()),
            resumed_from_step: (self.planned.first_step > 0)
                .then_some(self.planned.first_step as u64),
            n_parameters: self.planned.n_weights as u64,
            epochs: self.state.epoch,
            steps: self.state.step,
            samples: n_samples,
            samples_per_second: if trained > 0.0 { n_samples as f64 / trained } else { 0.0 },
            metrics: FinalMetrics {
                train: of("train/"),
                validation: of("validation/"),
                test: test.values,
            },
            details: test.details,
            seconds: Seconds { total: self.start.elapsed().as_secs_f64(), ..self.split }
                .with_other(),
            setup: Setup {
                workers: set_up.workers,
                threads: set_up.threads,
                batch: self.recipe.batch,
                grain: self.recipe.grain,
                grains: self.recipe.n_grains(self.recipe.batch),
                reason: set_up.reason,
                device: "cpu".to_string(),
                kernel_set: KERNEL_SET.to_string(),
            },
            memory: Memory::default(),
            energy: Err(String::new()).into(),
            machine: Machine::look(),
            model_path: self.writer.folder().path().join("model.safetensors"),
        }
    }
}

/// What a run is called: the name of its folder.
fn name_of(folder: &Path) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "job".to_string())
}
