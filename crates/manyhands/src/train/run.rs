//! The loop: epochs, steps, and what happens between them.

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
use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointWriter, Keep, Measured, NamedTensor, State,
};
use crate::energy::EnergyMeter;
use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;
use crate::report::{Report, Seconds};
use crate::schedules::{Position, warm_up};

/// Trains what a trainer was given.
pub(super) fn run(mut trainer: Trainer) -> Result<Report, Error> {
    let start = Instant::now();
    let energy = EnergyMeter::start();
    trainer.job.check()?;
    trainer.refuse_unfinished()?;
    make_absolute(&mut trainer.job.data, &trainer.folder);
    let opened = Opened::new(&trainer)?;
    if trainer.stop.load(Ordering::Relaxed) {
        return Err(Error::StoppedBefore);
    }
    let (job_text, fingerprint) = (trainer.job.to_toml()?, trainer.job.fingerprint());
    let writer = Arc::new(trainer.writer()?);
    // Only now that nobody else writes here is the newest checkpoint the one to go on from.
    let resumed = match trainer.resumes {
        true => Some(writer.folder().latest(Some(&fingerprint))?),
        false => None,
    };
    let encoding_json = opened.encoding_json()?;
    let digests = opened.digests();
    let mut warnings = opened.warnings();
    let (tensors, state, records) = match resumed {
        Some((checkpoint, damaged)) => {
            let records = Records::resume(&trainer.job, &writer, &checkpoint.state)?;
            let is_same = checkpoint.encoding_json == encoding_json && records.digests() == digests;
            if !is_same {
                return Err(Error::DataChanged { folder: trainer.out.clone() });
            }
            warnings.extend(damaged.iter().map(ToString::to_string));
            (Some(checkpoint.tensors), checkpoint.state, records)
        }
        None => {
            let state = State { seed: trainer.job.train.seed, ..State::default() };
            (None, state, Records::new(&trainer.job, &writer, digests)?)
        }
    };
    let keep = Keep { last: trainer.job.output.keep, best: trainer.job.train.keep_best };
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
        records,
        callbacks: std::mem::take(&mut trainer.callbacks),
        should_stop: &|| trainer.stop.load(Ordering::Relaxed),
        writer: &writer,
        job_text,
        fingerprint,
        encoding_json,
        first_sample: state.samples,
        state,
        split: Seconds { reading: opened.seconds, ..Seconds::default() },
        energy,
        start,
        saved_at: Instant::now(),
        wants_stop: false,
    };
    warnings.iter().for_each(|warning| run.warn(warning));
    run.train(tensors)
}

/// What "best" is judged by, and which way.
fn judge(job: &Job, registry: &Registry) -> Result<Judge, Error> {
    let monitor = &job.train.monitor;
    let metrics = Recipe::metrics(job, registry)?;
    let mut named = metrics.iter().zip(&job.train.metrics);
    // A metric may be named by its first word, or as the job writes it.
    let found =
        named.find(|(_, choice)| choice.name() == monitor || choice.to_string() == *monitor);
    let name = found.as_ref().map_or(monitor, |((name, _), _)| name);
    let higher = found.as_ref().is_some_and(|((_, metric), _)| metric.higher_is_better());
    Ok(Judge::new(name, higher, job.train.early_stopping))
}

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) job: &'a Job,
    pub(super) registry: &'a Registry,
    pub(super) recipe: &'a Recipe,
    pub(super) opened: &'a Opened,
    pub(super) writer: &'a CheckpointWriter,
    pub(super) saver: Saver,
    pub(super) records: Records,
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) should_stop: &'a dyn Fn() -> bool,
    pub(super) planned: Planned,
    pub(super) judge: Judge,
    /// What the judge saw after each epoch, for schedules.
    pub(super) monitored: Vec<f64>,
    pub(super) job_text: String,
    pub(super) fingerprint: String,
    pub(super) encoding_json: String,
    pub(super) state: State,
    pub(super) split: Seconds,
    pub(super) energy: EnergyMeter,
    pub(super) start: Instant,
    pub(super) saved_at: Instant,
    /// A callback wants training to end.
    pub(super) wants_stop: bool,
    /// Samples done before, by the run that is resumed.
    pub(super) first_sample: u64,
}

impl<'a> Run<'a> {
    fn train(mut self, tensors: Option<Vec<NamedTensor>>) -> Result<Report, Error> {
        let n_grains = self.recipe.n_grains(self.full_batch());
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
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        self.records.begin(self.recipe, self.planned.n_steps)?;
        let mut session = Session::new(self.recipe, &set_up)?;
        session.plan(Purpose::Train, self.full_batch())?;
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
        self.finish(session, set_up, reason)
    }

    /// Samples of every step but an epoch's last.
    fn full_batch(&self) -> usize {
        self.recipe.batch.min(self.planned.n_samples)
    }

    /// All epochs that are left; the reason where training ends early. What to do next follows from the state alone, so
    /// that a run that is resumed does the same.
    fn epochs(
        &mut self,
        session: &mut Session<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<Option<String>, Error> {
        loop {
            let state = &self.state;
            let is_measured = state.history.last().is_some_and(|past| past.step == state.step);
            let epoch_is_done = state.batch as usize >= self.planned.steps_per_epoch;
            let steps_are_done = state.step as usize >= self.planned.n_steps;
            if !is_measured && (epoch_is_done || steps_are_done) {
                self.close_epoch(session, epoch_is_done)?;
                continue;
            }
            if state.epoch as usize >= self.planned.n_epochs {
                return Ok(None);
            }
            if steps_are_done {
                return Ok(Some(format!("{} steps are done", state.step)));
            }
            if let Some(reason) = self.judge.stop(&state.history) {
                return Ok(Some(reason));
            }
            if self.wants_stop {
                self.save(session, true)?;
                return Ok(Some("a callback asked for it".to_string()));
            }
            self.epoch(session, trial, set_up)?;
        }
    }

    /// One epoch, or what is left of it, or less where training ends in the midst.
    fn epoch(
        &mut self,
        session: &mut Session<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<(), Error> {
        let order = self.order(self.state.epoch);
        let first = self.state.batch as usize;
        let batches = self.opened.data.train.batches(order, self.recipe.batch, first);
        let mut chosen = trial.is_decided() || !set_up.reason.is_empty();
        let mut waiting = Instant::now();
        for batch in batches {
            let batch = batch?;
            let compute = self.step(session, &batch, waiting)?;
            if !chosen && batch.n_samples() == self.recipe.batch {
                chosen = self.try_set_up(session, trial, set_up, compute)?;
            }
            self.poll_saver()?;
            if (self.should_stop)() {
                return Err(self.interrupted(session)?);
            }
            let steps_are_done = self.state.step as usize >= self.planned.n_steps;
            if self.wants_stop || steps_are_done {
                return Ok(());
            }
            let due = self.saved_at.elapsed().as_secs_f64() >= self.job.output.checkpoint_seconds;
            if due && (self.state.batch as usize) < self.planned.steps_per_epoch {
                self.save(session, false)?;
            }
            waiting = Instant::now();
        }
        Ok(())
    }

    /// The order in which an epoch visits the samples.
    fn order(&self, epoch: u64) -> Order {
        match self.job.data.shuffle {
            true => Order::Shuffled { seed: self.job.train.seed, epoch },
            false => Order::Stored,
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
            return Err(self.not_finite(batch, &session.set_up().clone())?);
        }
        let n_samples = batch.n_samples();
        self.state.step = number;
        self.state.batch += 1;
        self.state.epoch_samples += n_samples as u64;
        self.state.samples += n_samples as u64;
        let is_last = number as usize == self.planned.n_steps;
        self.records.step(number, loss, n_samples, rate, is_last)?;
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
            session.move_to(&next)?;
        }
        *set_up = next;
        if chosen {
            self.tell(&Event::SetUp(set_up));
        }
        Ok(chosen)
    }

    /// After an epoch, or the last step: measures, judges, saves. Nothing of the state changes before all is measured.
    fn close_epoch(&mut self, session: &mut Session<'a>, is_whole: bool) -> Result<(), Error> {
        let mut values = self.records.epoch_values();
        if let Some(part) = &self.opened.data.validation {
            let measures = match self.measure(session, part, "validation") {
                Err(Error::Stopped) => return Err(self.interrupted(session)?),
                measures => measures?,
            };
            let named = measures.values.into_iter();
            values.extend(named.map(|(name, value)| (format!("validation/{name}"), value)));
        }
        if is_whole {
            (self.state.epoch, self.state.batch) = (self.state.epoch + 1, 0);
            self.state.epoch_samples = 0;
        }
        self.records.begin_epoch();
        let measured = Measured { epoch: self.state.epoch, step: self.state.step, values };
        self.records.epoch(&measured, || session.tensors())?;
        self.state.history.push(measured);
        self.monitored = self.judge.monitored(&self.state.history);
        let best = self.judge.best(&self.state);
        let is_better = best != self.state.best;
        self.state.best = best;
        self.save(session, is_better && self.job.train.keep_best)
    }

    pub(super) fn measure(
        &mut self,
        session: &mut Session<'a>,
        part: &Part,
        name: &'static str,
    ) -> Result<Measures, Error> {
        let start = Instant::now();
        let metrics = Recipe::metrics(self.job, self.registry)?;
        let measures = measure(session, self.recipe, part, metrics, self.should_stop)?;
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

    pub(super) fn checkpoint(&self, session: &Session) -> Result<Checkpoint, Error> {
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
        self.energy.sample();
        self.saved_at = Instant::now();
        self.split.checkpoints += start.elapsed().as_secs_f64();
        self.poll_saver()
    }

    pub(super) fn poll_saver(&mut self) -> Result<(), Error> {
        for saved in self.saver.done() {
            let saved = saved?;
            self.tell(&Event::Checkpointed { step: saved.step, folder: &saved.folder });
        }
        Ok(())
    }

    /// The user wants to stop: saves, and says so.
    fn interrupted(&mut self, session: &Session) -> Result<Error, Error> {
        self.save(session, true)?;
        Ok(self.interruption())
    }

    pub(super) fn interruption(&self) -> Error {
        let (step, folder) = (self.state.step as usize, self.writer.folder().path().to_path_buf());
        Error::Interrupted { step, folder }
    }

    /// The loss of the step at hand is not finite: finds out where that began.
    fn not_finite(&mut self, batch: &Batch, set_up: &SetUp) -> Result<Error, Error> {
        let step = self.state.step as usize + 1;
        self.warn(&format!(
            "the loss of step {step} is not a finite number; the steps since the last checkpoint are done again to find out \
             where that began"
        ));
        self.saver.flush();
        self.poll_saver()?;
        let seed = self.job.train.seed;
        let mut session = Session::new(self.recipe, set_up)?;
        session.plan(Purpose::Train, self.full_batch())?;
        let mut state = match self.writer.folder().latest(Some(&self.fingerprint)) {
            Ok((checkpoint, _)) => {
                session.load(&checkpoint.tensors)?;
                checkpoint.state
            }
            Err(CheckpointError::NoCheckpoint { .. }) => {
                session.initialise(seed)?;
                State::default()
            }
            Err(error) => return Err(error.into()),
        };
        // The same steps again, to the one before.
        while state.step < self.state.step {
            let first = state.batch as usize;
            let order = self.order(state.epoch);
            for batch in self.opened.data.train.batches(order, self.recipe.batch, first) {
                if state.step == self.state.step || (self.should_stop)() {
                    break;
                }
                let before = state.step;
                let history = self.state.history.iter().filter(|past| past.step <= before);
                let monitored = self.judge.monitored(&history.cloned().collect::<Vec<_>>());
                let rate = self.rate(before as usize, &monitored);
                let plan = session.prepare_step(&batch?, rate, seed, before + 1)?;
                session.step(plan)?;
                state.step += 1;
            }
            (state.epoch, state.batch) = (state.epoch + 1, 0);
            if (self.should_stop)() {
                let place = "where it began was not looked for to the end".to_string();
                return Ok(Error::NotFinite {
                    step,
                    place,
                    rate: self.rate(step - 1, &self.monitored),
                });
            }
        }
        let place = first_not_finite(&mut session, batch, (seed, step as u64))?;
        Ok(Error::NotFinite { step, place, rate: self.rate(step - 1, &self.monitored) })
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
}
