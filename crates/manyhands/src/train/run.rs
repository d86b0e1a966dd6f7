//! The loop: epochs, steps, and what happens between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use manyhands_data::{Batch, Order, Part};
use manyhands_device::KERNEL_SET;

use super::epoch::{EpochBatches, order_of};
use super::event::{Callback, Control, Evaluated, Event, Planned, SetUp, StepDone};
use super::fault::first_not_finite;
use super::glimpses::Glimpses;
use super::judge::Judge;
use super::measure::{Measures, measure};
use super::pace::Pace;
use super::recipe::Recipe;
use super::records::Records;
use super::saver::Saver;
use super::session::Session;
use super::set_up::{Trial, Verdict, candidates};
use super::step_times::StepTimes;
use super::steps::{Here, Step, Steps};
use super::{Opened, Purpose, Trainer, make_absolute};
use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, CheckpointWriter, Keep, Measured, NamedTensor,
    State,
};
use crate::cluster::{ClusterAddress, DataOffer, DriverPlan, PlanPrograms, Remote, plan_programs};
use crate::energy::EnergyMeter;
use crate::error::Error;
use crate::job::{Job, MeshPlan, Strategy};
use crate::mesh::{MeshHere, Team, linked, spread};
use crate::registry::Registry;
use crate::report::{Report, Seconds};
use crate::schedules::{Position, warm_up};
use crate::timeline::{TIMELINE_STEPS, Timeline};

/// A step that is under way has at least so long to end when the user wants to stop.
const STOPPING: Duration = Duration::from_secs(10);

/// Trains what a trainer was given. Where all workers of a cluster are lost, it goes on from the last checkpoint when there are others.
pub(super) fn run_to_the_end(mut trainer: Trainer) -> Result<Report, Error> {
    loop {
        match run(&mut trainer) {
            Err(Error::WorkersLost { step }) if trainer.stop.load(Ordering::Relaxed) => {
                let (step, folder) = (step as usize, trainer.out.clone());
                return Err(Error::StoppedWithoutWorkers { step, folder });
            }
            Err(Error::ParametersLost { .. } | Error::StateLost { .. })
                if trainer.stop.load(Ordering::Relaxed) =>
            {
                let saved = CheckpointFolder::open(&trainer.out)?.steps()?;
                let (step, folder) =
                    (saved.last().map_or(0, |step| *step as usize), trainer.out.clone());
                return Err(Error::StoppedWithoutWorkers { step, folder });
            }
            Err(
                lost @ (Error::WorkersLost { .. }
                | Error::ParametersLost { .. }
                | Error::StateLost { .. }),
            ) => {
                let sentence = match lost {
                    Error::WorkersLost { step } => {
                        format!("all workers are lost after step {step}")
                    }
                    lost => lost.to_string(),
                };
                let saved = CheckpointFolder::open(&trainer.out)?.steps()?;
                let from = match saved.last() {
                    Some(step) => format!("going on from the last checkpoint, after step {step}"),
                    None => "beginning anew, since there is no checkpoint yet".to_string(),
                };
                let sentence = format!("{sentence}; {from}");
                for callback in &mut trainer.callbacks {
                    callback.on_event(&Event::Warned(&sentence));
                }
                trainer.resumes = !saved.is_empty();
                trainer.discards_unfinished = true;
            }
            outcome => return outcome,
        }
    }
}

fn run(trainer: &mut Trainer) -> Result<Report, Error> {
    let start = Instant::now();
    let energy = EnergyMeter::start();
    trainer.job.check()?;
    trainer.refuse_unfinished()?;
    make_absolute(&mut trainer.job.data, &trainer.folder);
    let opened = Opened::new(trainer)?;
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
    let timeline = match &trainer.timeline {
        Some(path) => {
            let name = super::finish::name_of(&trainer.out);
            Some(StepTimes::new(Timeline::create(path, &name, TIMELINE_STEPS)?))
        }
        None => None,
    };
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
        callbacks: &mut trainer.callbacks,
        cluster: trainer.cluster.as_ref(),
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
        timeline,
        pace: Pace::default(),
        predicted_seconds: None,
        glimpses: Glimpses::new(trainer.glimpses_per_epoch),
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
    pub(super) callbacks: &'a mut Vec<Box<dyn Callback>>,
    /// Who does the steps, where it is not this process.
    cluster: Option<&'a ClusterAddress>,
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
    fn train(mut self, tensors: Option<Vec<NamedTensor>>) -> Result<Report, Error> {
        let decided = self.decide()?;
        self.predicted_seconds = decided.predicted;
        if let Some(cluster) = self.cluster {
            return self.train_on(cluster, decided.mesh, tensors);
        }
        if let Some(plan) = decided.mesh {
            return self.train_in_mesh(&plan, decided.set_up, tensors);
        }
        let strategy = self.job.distribute.strategy;
        if matches!(strategy, Strategy::Local | Strategy::ParameterServer) {
            self.warn(&format!(
                "the strategy `{}` is for several processes: within one, gradients are summed at every step",
                strategy.word()
            ));
        }
        let n_grains = self.recipe.n_grains(self.full_batch());
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut trial = Trial::new(match decided.set_up {
            Some(chosen) => vec![chosen],
            None => candidates(&self.job.distribute, n_cores, n_grains),
        });
        let mut set_up = trial.first().clone();
        self.warn_of_idle_workers(set_up.workers);
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        if self.timeline.is_some() {
            self.warn(&format!(
                "the timeline has the first {TIMELINE_STEPS} steps, and the workers of this process as one: they run side by side on one device, which does not tell them apart"
            ));
        }
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
        let mut steps = Here::new(session);
        let reason = self.epochs(&mut steps, &mut trial, &mut set_up)?;
        if set_up.reason.is_empty() {
            set_up.reason = "there were too few steps to measure which is faster".to_string();
            self.tell(&Event::SetUp(&set_up));
        }
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        self.finish(&mut steps, set_up, reason)
    }

    /// The same with a model that is spread over workers of this process.
    fn train_in_mesh(
        mut self,
        plan: &MeshPlan,
        chosen: Option<SetUp>,
        tensors: Option<Vec<NamedTensor>>,
    ) -> Result<Report, Error> {
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        let sizes = plan_programs(self.recipe, self.planned.n_samples)?;
        let spread = spread(plan, plan.mesh, sizes.iter().map(PlanPrograms::training))?;
        self.records.begin(self.recipe, self.planned.n_steps)?;
        let n_workers = plan.mesh.n_workers();
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.job.distribute.threads.unwrap_or((n_cores / n_workers).max(1));
        let reason = chosen.map_or_else(|| plan.to_string(), |chosen| chosen.reason);
        let mut set_up = SetUp { workers: n_workers, threads, reason };
        let here = SetUp { workers: 1, threads: n_cores, reason: String::new() };
        let mut answering = Session::new(self.recipe, &here)?;
        answering.plan(Purpose::Train, self.full_batch())?;
        let tensors = match tensors {
            Some(tensors) => tensors,
            None => {
                answering.initialise(self.job.train.seed)?;
                answering.tensors()?
            }
        };
        let of_worker = |worker: usize| {
            spread.iter().map(|one| one.workers[worker].clone()).collect::<Vec<_>>()
        };
        let programs = (0..n_workers).map(of_worker).collect();
        let mut team = Team::start(programs, threads, linked(n_workers)?)?;
        team.load(&tensors)?;
        self.tell(&Event::SetUp(&set_up));
        let sizes = spread.iter().map(|one| one.n_samples).collect();
        let mut steps = MeshHere::new(self.recipe, team, sizes, set_up.clone(), answering);
        if self.timeline.is_some() {
            steps.keep_spans(&spread);
            self.warn(&format!("the timeline has the first {TIMELINE_STEPS} steps"));
        }
        let mut trial = Trial::new(vec![set_up.clone()]);
        let reason = self.epochs(&mut steps, &mut trial, &mut set_up)?;
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        self.finish(&mut steps, set_up, reason)
    }

    fn warn_of_idle_workers(&mut self, workers: usize) {
        let n_grains = self.recipe.n_grains(self.full_batch());
        if workers > n_grains {
            let idle = workers - n_grains;
            self.warn(&format!(
                "a step has {n_grains} grain(s), so {idle} of the {workers} workers have nothing to do; a smaller \
                 `train.grain` gives more"
            ));
        }
    }

    /// The same with workers of a cluster.
    fn train_on(
        mut self,
        cluster: &ClusterAddress,
        mesh: Option<MeshPlan>,
        tensors: Option<Vec<NamedTensor>>,
    ) -> Result<Report, Error> {
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        if self.timeline.is_some() {
            let known = match mesh {
                Some(_) => "",
                None => {
                    "; of each worker it is known how long it did what in a step, not in which order with others"
                }
            };
            self.warn(&format!("the timeline has the first {TIMELINE_STEPS} steps{known}"));
        }
        self.records.begin(self.recipe, self.planned.n_steps)?;
        self.warn_of_idle_workers(self.job.distribute.workers.unwrap_or(0));
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let here = SetUp { workers: 1, threads: n_cores, reason: String::new() };
        let mut session = Session::new(self.recipe, &here)?;
        session.plan(Purpose::Train, self.full_batch())?;
        let tensors = match tensors {
            Some(tensors) => {
                session.load(&tensors)?;
                tensors
            }
            None => {
                session.initialise(self.job.train.seed)?;
                session.tensors()?
            }
        };
        let state = (self.state.step, tensors);
        let name = super::finish::name_of(self.writer.folder().path());
        let (n_samples, n_steps) = (self.planned.n_samples, self.planned.n_steps);
        // Places of a mesh are sent their samples.
        let offer = match mesh {
            Some(_) => None,
            None => DataOffer::new(self.job, self.recipe, &self.opened.data),
        };
        let plan = DriverPlan::new(&self.job.distribute, n_samples, n_steps, offer, mesh);
        let mut steps = Remote::start(self.recipe, &name, cluster, state, &plan, session)?;
        let outcome = self.train_with(&mut steps);
        if let Err(error) = &outcome {
            steps.fail(error);
        }
        outcome
    }

    fn train_with(mut self, steps: &mut Remote<'a>) -> Result<Report, Error> {
        let mut set_up = steps.set_up();
        set_up.reason = "processes, as many as there are".to_string();
        let mut trial = Trial::new(vec![set_up.clone()]);
        let reason = self.epochs(steps, &mut trial, &mut set_up)?;
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        let set_up = SetUp { reason: set_up.reason, ..steps.set_up() };
        self.finish(steps, set_up, reason)
    }

    /// Samples of every step but an epoch's last.
    fn full_batch(&self) -> usize {
        self.recipe.batch.min(self.planned.n_samples)
    }

    /// All epochs that are left; the reason where training ends early. What to do next follows from the state alone, so
    /// that a run that is resumed does the same.
    fn epochs(
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
    fn order(&self, epoch: u64) -> Order {
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

    pub(super) fn tell(&mut self, event: &Event) {
        for callback in &mut *self.callbacks {
            if callback.on_event(event) == Control::Stop {
                self.wants_stop = true;
            }
        }
    }
}
