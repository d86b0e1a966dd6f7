//! The loop: epochs, steps, and what happens between them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use manyhands_data::{Order, Part};
use manyhands_device::KERNEL_SET;

use super::Opened;
use super::epoch::{EpochBatches, order_of};
use super::event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
use super::glimpses::Glimpses;
use super::judge::Judge;
use super::measure::{Measures, measure};
use super::pace::Pace;
use super::recipe::Recipe;
use super::records::Records;
use super::saver::Saver;
use super::session::Session;
use super::set_up::{Trial, Verdict};
use super::step_times::StepTimes;
use super::steps::{Step, Steps};
use crate::checkpoint::{Checkpoint, CheckpointWriter, Measured, NamedTensor, State};
use crate::cluster::ClusterAddress;
use crate::energy::EnergyMeter;
use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;
use crate::report::Seconds;
use crate::schedules::{Position, warm_up};

/// A step that is under way has at least so long to end when the user wants to stop.
const STOPPING: Duration = Duration::from_secs(10);

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) job: &'a Job,
    pub(super) registry: &'a Registry,
    pub(super) recipe: &'a Recipe,
    pub(super) opened: &'a Opened,
    pub(super) writer: &'a CheckpointWriter,
    pub(super) saver: Saver,
    pub(super) records: Records,
    pub(super) callbacks: &'a mut Vec<Box<dyn Callback>>,
    /// Who does the steps, where it is not this process.
    pub(super) cluster: Option<&'a ClusterAddress>,
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
    /// Where what every worker did when is written.
    pub(super) timeline: Option<StepTimes>,
    /// How long steps take.
    pub(super) pace: Pace,
    /// How long they should take, where that was predicted.
    pub(super) predicted_seconds: Option<f64>,
    /// What is set aside to be measured when training is over.
    pub(super) glimpses: Glimpses,
    /// Samples done before, by the run that is resumed.
    pub(super) first_sample: u64,
}

impl<'a> Run<'a> {
    /// Samples of every step but an epoch's last.
    pub(super) fn full_batch(&self) -> usize {
        self.recipe.batch.min(self.planned.n_samples)
    }

    /// All epochs that are left; the reason where training ends early. What to do next follows from the state alone, so
    /// that a run that is resumed does the same.
    pub(super) fn epochs(
        &mut self,
        steps: &mut dyn Steps<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<Option<String>, Error> {
        loop {
            let state = &self.state;
            let is_measured = state.history.last().is_some_and(|past| past.step == state.step);
            let epoch_is_done = state.batch as usize >= self.planned.steps_per_epoch;
            let steps_are_done = state.step as usize >= self.planned.n_steps;
            if !is_measured && (epoch_is_done || steps_are_done) {
                self.close_epoch(steps, epoch_is_done)?;
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
                self.save(steps, true)?;
                return Ok(Some("a callback asked for it".to_string()));
            }
            self.epoch(steps, trial, set_up)?;
        }
    }

    /// One epoch, or what is left of it, or less where training ends in the midst.
    fn epoch(
        &mut self,
        steps: &mut dyn Steps<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<(), Error> {
        let order = self.order(self.state.epoch);
        let first = self.state.batch as usize;
        let part = &self.opened.data.train;
        let mut batches = EpochBatches::new(part, order, self.recipe.batch, first);
        let mut under_way = VecDeque::with_capacity(steps.depth());
        let mut waiting = Instant::now();
        while let Some(batch) = batches.next(steps.wants_samples()) {
            let number = self.state.step + under_way.len() as u64 + 1;
            let rate = self.rate(number as usize - 1, &self.monitored);
            let step = Step { number, batch: batch?, rate, seed: self.job.train.seed };
            steps.submit(&step)?;
            self.split.input += waiting.elapsed().as_secs_f64();
            if let Some(timeline) = &mut self.timeline {
                timeline.input_since(waiting);
            }
            under_way.push_back(step);
            let is_last = number as usize >= self.planned.n_steps;
            // With none to follow, or something to do between steps, those under way are finished first.
            let depth = if is_last || self.is_due(steps.depth() > 1) { 1 } else { steps.depth() };
            while under_way.len() >= depth
                && let Some(step) = under_way.pop_front()
            {
                self.finish_step(steps, &step, trial, set_up)?;
            }
            if under_way.is_empty() && self.between_steps(steps)? {
                return Ok(());
            }
            waiting = Instant::now();
        }
        for step in under_way {
            self.finish_step(steps, &step, trial, set_up)?;
        }
        self.between_steps(steps)?;
        Ok(())
    }

    /// Whether something is to be done between steps: a stop, or a checkpoint. `looks` is false where every step is followed
    /// by a look anyway.
    fn is_due(&self, looks: bool) -> bool {
        looks && (self.wants_stop || (self.should_stop)() || self.checkpoint_is_due())
    }

    fn checkpoint_is_due(&self) -> bool {
        self.saved_at.elapsed().as_secs_f64() >= self.job.output.checkpoint_seconds
    }

    /// What happens where no step is under way. Whether the epoch ends here.
    fn between_steps(&mut self, steps: &mut dyn Steps<'a>) -> Result<bool, Error> {
        if (self.should_stop)() {
            return Err(self.interrupted(steps)?);
        }
        let steps_are_done = self.state.step as usize >= self.planned.n_steps;
        if self.wants_stop || steps_are_done {
            return Ok(true);
        }
        let within_epoch = (self.state.batch as usize) < self.planned.steps_per_epoch;
        if within_epoch && self.checkpoint_is_due() {
            self.save(steps, false)?;
        }
        Ok(false)
    }

    /// The order in which an epoch visits the samples.
    pub(super) fn order(&self, epoch: u64) -> Order {
        order_of(&self.job.data, self.job.train.seed, epoch)
    }

    /// Waits for a step, and takes note of it.
    fn finish_step(
        &mut self,
        steps: &mut dyn Steps<'a>,
        step: &Step,
        trial: &mut Trial,
        set_up: &mut SetUp,
    ) -> Result<(), Error> {
        let computing = Instant::now();
        let mut stopping: Option<Instant> = None;
        loop {
            // What happened is told also where it is the end.
            let waited = steps.await_step();
            self.tell_news(steps);
            if waited? {
                break;
            }
            // Workers that are connected may all be silent: they are waited for as long as steps take, and no longer.
            let is_patient = (self.should_stop)()
                && stopping.get_or_insert_with(Instant::now).elapsed() < self.stopping_patience();
            if (self.should_stop)() && !(is_patient && steps.has_workers()) {
                let folder = self.writer.folder().path().to_path_buf();
                return Err(Error::StoppedWithoutWorkers {
                    step: self.state.step as usize,
                    folder,
                });
            }
        }
        let loss = f64::from(steps.finish()?);
        self.tell_news(steps);
        let done = Instant::now();
        if let Some(timeline) = &mut self.timeline {
            timeline.step(step.number, computing, done, steps)?;
        }
        let waited = (done - computing).as_secs_f64();
        let without_workers = steps.without_workers().min(waited);
        let compute = waited - without_workers;
        self.split.workers += without_workers;
        self.split.compute += compute;
        if !loss.is_finite() {
            // Threads of workers elsewhere are not known, and say nothing of this machine.
            let set_up = steps.set_up();
            let here = SetUp { threads: set_up.threads.max(1), ..set_up };
            return Err(self.not_finite(step.batch.read()?, &here)?);
        }
        let n_samples = step.batch.n_samples();
        self.pace.step(done, n_samples == self.recipe.batch);
        self.state.step = step.number;
        self.state.batch += 1;
        self.state.epoch_samples += n_samples as u64;
        self.state.samples += n_samples as u64;
        let is_last = step.number as usize == self.planned.n_steps;
        self.records.step(step.number, loss, n_samples, step.rate, is_last)?;
        let done = StepDone {
            step: step.number as usize,
            epoch: self.state.epoch as usize,
            n_samples,
            loss,
            rate: step.rate,
            seconds: (done - self.start).as_secs_f64(),
        };
        self.tell(&Event::Step(&done));
        self.glimpse(steps)?;
        self.poll_saver()?;
        let is_chosen = trial.is_decided() || !set_up.reason.is_empty();
        if !is_chosen && n_samples == self.recipe.batch {
            self.try_set_up(steps, trial, set_up, compute)?;
        }
        Ok(())
    }

    fn tell_news(&mut self, steps: &mut dyn Steps<'a>) {
        while let Some(news) = steps.news() {
            self.tell(&Event::Cluster(&news));
        }
    }

    /// The rate of a step, 0 being the first, given what was monitored before it.
    pub(super) fn rate(&self, step: usize, monitored: &[f64]) -> f64 {
        let (planned, train) = (&self.planned, &self.job.train);
        let (n_steps, steps_per_epoch) = (planned.n_steps, planned.steps_per_epoch);
        let at = Position { step, n_steps, steps_per_epoch, monitored };
        let factor = self.recipe.schedule.factor(&at) * warm_up(train.warm_up, step);
        self.recipe.rule.rate() * factor
    }

    /// Goes on with another set-up where the trial says so: the parameters move, the bits stay.
    fn try_set_up(
        &mut self,
        steps: &mut dyn Steps<'a>,
        trial: &mut Trial,
        set_up: &mut SetUp,
        seconds: f64,
    ) -> Result<(), Error> {
        let (next, chosen) = match trial.step(seconds) {
            Verdict::Stay => return Ok(()),
            Verdict::Try(next) => (next, false),
            Verdict::Choose(next) => (next, true),
        };
        if (next.workers, next.threads) != (set_up.workers, set_up.threads) {
            steps.move_to(&next)?;
        }
        *set_up = next;
        if chosen {
            self.tell(&Event::SetUp(set_up));
        }
        Ok(())
    }

    /// After an epoch, or the last step: measures, judges, saves. Nothing of the state changes before all is measured.
    fn close_epoch(&mut self, steps: &mut dyn Steps<'a>, is_whole: bool) -> Result<(), Error> {
        self.pace.pause();
        let mut values = self.records.epoch_values();
        if let Some(part) = &self.opened.data.validation {
            let measures = match self.measure(steps.answering()?, part, "validation") {
                Err(Error::Stopped) => return Err(self.interrupted(steps)?),
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
        self.records.epoch(&measured, || steps.tensors())?;
        self.state.history.push(measured);
        self.monitored = self.judge.monitored(&self.state.history);
        let best = self.judge.best(&self.state);
        let is_better = best != self.state.best;
        self.state.best = best;
        self.save(steps, is_better && self.job.train.keep_best)
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

    pub(super) fn checkpoint(&self, tensors: Vec<NamedTensor>) -> Checkpoint {
        let mut state = self.state.clone();
        state.extra = self.records.kept();
        Checkpoint {
            tensors,
            job_text: self.job_text.clone(),
            fingerprint: self.fingerprint.clone(),
            kernel_set: KERNEL_SET.to_string(),
            encoding_json: self.encoding_json.clone(),
            state,
        }
    }

    /// Saves a checkpoint: in the background, or, where it must be this one, now.
    fn save(&mut self, steps: &mut dyn Steps<'a>, now: bool) -> Result<(), Error> {
        self.pace.pause();
        let start = Instant::now();
        let checkpoint = self.checkpoint(steps.tensors()?);
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

    /// How long a step that is under way may take to end when the user wants to stop.
    fn stopping_patience(&self) -> Duration {
        let mean_step = self.split.compute / (self.state.step as f64).max(1.0);
        STOPPING.max(Duration::try_from_secs_f64(4.0 * mean_step).unwrap_or(STOPPING))
    }

    /// The user wants to stop: saves, and says so.
    fn interrupted(&mut self, steps: &mut dyn Steps<'a>) -> Result<Error, Error> {
        self.save(steps, true)?;
        Ok(self.interruption())
    }

    pub(super) fn interruption(&self) -> Error {
        let (step, folder) = (self.state.step as usize, self.writer.folder().path().to_path_buf());
        Error::Interrupted { step, folder }
    }

    pub(super) fn warn(&mut self, sentence: &str) {
        self.tell(&Event::Warned(sentence));
    }

    pub(super) fn tell(&mut self, event: &Event) {
        for callback in &mut *self.callbacks {
            if callback.on_event(event) == Control::Stop {
                self.wants_stop = true;
            }
        }
    }
}
