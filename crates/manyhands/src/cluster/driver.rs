//! The driver: steps of a run, done by the workers of a cluster.
//!
//! The run hands steps over ([`Steps::submit`]); workers ask for the inputs of their grains, which threads of this process serve from the steps at hand, and say when a step is
//! done. The same step may be said to be done by several, and again after a failure: it is the same step, with the same loss.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_data::Batch;
use manyhands_device::KERNEL_SET;
use manyhands_net::control::{Apart, Follower};
use manyhands_net::host::{host_id, random_number};
use manyhands_net::membership::driver::{Action, Driver, Event};
use manyhands_net::membership::identity::Instance;
use manyhands_net::membership::message::{Go, GrainCounts, Reach, Submit};
use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, Station};
use manyhands_net::transport::Link;
use rustix::event::{EventfdFlags, eventfd};

use super::outer::LocalRule;
use super::talk::{Talk, TalkError, Until};
use super::words::{
    FromDriver, FromWorker, Loss, PlanPrograms, Programs, StepInputs, WorkSeconds, heads, tensors,
};
use super::worker::public_address;
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::{DistributeSpec, LocalSpec, Strategy};
use crate::model::LABEL;
use crate::report::WorkerReport;
use crate::train::{Purpose, Recipe, Session, SetUp, Step, Steps};

/// Steps that are handed over before the first of them is done.
const DEPTH: usize = 4;
/// Steps that are kept after they were done: members may be one behind, and do grains of a lost one again.
const KEPT: u64 = 4;
/// How long the state may take to come before another worker is asked.
const STATE: Duration = Duration::from_secs(10);
/// How long nobody may be connected before people are told that workers are waited for.
const ALONE: Duration = Duration::from_secs(1);
/// How long a step is waited for before there is a look at the news.
const MOMENT: Duration = Duration::from_millis(200);
/// How often something that is waited for is looked at.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Where a cluster is, and how to get in.
#[derive(Clone, Debug)]
pub struct ClusterAddress {
    /// Where its coordinator is.
    pub coordinator: String,
    /// What must be proven.
    pub secret: Secret,
    /// The address of this machine on which workers reach the driver.
    pub bind: IpAddr,
    /// How workers link to the driver.
    pub route: Route,
}

/// What a driver knows of a run beyond its recipe.
pub(crate) struct DriverPlan {
    pub(crate) n_samples: usize,
    pub(crate) threads: Option<usize>,
    local: Option<LocalRule>,
}

impl DriverPlan {
    pub(crate) fn new(distribute: &DistributeSpec, n_samples: usize, n_steps: usize) -> DriverPlan {
        let local = (distribute.strategy == Strategy::Local).then(|| {
            let LocalSpec { steps, outer } = distribute.local.unwrap_or_default();
            LocalRule { every: steps as u64, outer, last_step: n_steps as u64 }
        });
        DriverPlan { n_samples, threads: distribute.threads, local }
    }
}

/// What the threads of a driver share.
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
    /// Rung when there is something for workers.
    bells: Mutex<Vec<Arc<OwnedFd>>>,
    stop: AtomicBool,
    programs: Programs,
}

/// What is known of the run.
#[derive(Default)]
struct Table {
    steps: BTreeMap<u64, Step>,
    losses: BTreeMap<u64, f32>,
    /// The highest step that is done.
    done: u64,
    /// The highest step whose loss was taken.
    finished: u64,
    /// The state that the job starts from.
    first_state: Option<(u64, Arc<Vec<NamedTensor>>)>,
    /// The state that is waited for, and, when it has come, itself.
    wanted: Option<u64>,
    state: Option<(u64, Vec<NamedTensor>)>,
    /// Workers that are connected, by number.
    talks: BTreeMap<u64, Connected>,
    members: Vec<String>,
    news: VecDeque<String>,
    /// Why the job cannot go on.
    ended: Option<String>,
    /// All who had the state are lost.
    lost_at: Option<u64>,
    /// What each worker did, by name.
    work: BTreeMap<String, (u64, WorkSeconds)>,
}

/// What is known of a worker that is connected.
#[derive(Default)]
struct Connected {
    name: String,
    /// The last step that it did.
    done: u64,
    /// Whether it was asked for the state.
    asked: bool,
}

impl Table {
    /// Takes note that a worker has done a step. Sums are exchanged at every step, so that one speaks for all; under the strategy `local` each
    /// goes its own way, and a step is done when all have done it.
    fn done(&mut self, number: u64, loss: Loss, is_local: bool) {
        let step = loss.step;
        if let Some(connected) = self.talks.get_mut(&number) {
            connected.done = connected.done.max(step);
        }
        let all = self.slowest().unwrap_or(step);
        let done = if is_local { all.min(step) } else { step };
        // One that was cut off tells of a step after others have told of those that follow.
        if let Some(loss) = loss.value().filter(|_| step > self.finished) {
            self.losses.insert(step, loss);
        }
        self.done = self.done.max(done);
    }

    /// Whether a step is done, and its loss known.
    fn is_done(&self, step: u64) -> bool {
        self.done >= step && self.losses.contains_key(&step)
    }

    /// The last step that all members have done who did any.
    fn slowest(&self) -> Option<u64> {
        let members = self.talks.values().filter(|one| self.members.contains(&one.name));
        members.filter(|one| one.done > 0).map(|one| one.done).min()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in bells.iter() {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }
}

/// Steps that are done by workers.
pub(crate) struct Remote<'a> {
    recipe: &'a Recipe,
    shared: Arc<Shared>,
    follower: Follower<Event>,
    accepting: Option<JoinHandle<()>>,
    submitted: VecDeque<u64>,
    /// Since when no worker is connected, and whether people were told.
    alone: Option<(Instant, bool)>,
    /// What people were told last of the coordinator's absence.
    told_apart: Option<Apart>,
    answering: Session<'a>,
    /// The step whose parameters the session has.
    answers_for: Option<u64>,
    /// The newest state that came, by its step.
    newest: Option<(u64, Vec<NamedTensor>)>,
    set_up: SetUp,
}

impl<'a> Remote<'a> {
    /// Submits a job that goes on from a state after so many steps, and serves whoever joins.
    pub(crate) fn start(
        recipe: &'a Recipe,
        name: &str,
        address: &ClusterAddress,
        (steps, state): (u64, Vec<NamedTensor>),
        plan: &DriverPlan,
        answering: Session<'a>,
    ) -> Result<Remote<'a>, Error> {
        let DriverPlan { n_samples, threads, .. } = *plan;
        let station = Station::open(address.bind, address.secret.clone(), address.route)?;
        let programs = programs(recipe, plan)?;
        let public = public_address(&address.coordinator, address.bind);
        let submit = Submit {
            name: name.to_string(),
            instance: Instance(random_number()?),
            grains: grain_counts(recipe, n_samples),
            kernel_set: KERNEL_SET.to_string(),
            driver: Reach { host: host_id().to_string(), addresses: station.addresses(public) },
            follows: None,
            previous: None,
        };
        let table = Table {
            done: steps,
            finished: steps,
            first_state: Some((steps, Arc::new(state.clone()))),
            ..Table::default()
        };
        let shared = Arc::new(Shared {
            table: Mutex::new(table),
            changed: Condvar::new(),
            bells: Mutex::default(),
            stop: AtomicBool::new(false),
            programs,
        });
        let told = Arc::clone(&shared);
        let driver = Driver::new(Duration::ZERO, submit, steps);
        let follower = Follower::start(
            address.coordinator.clone(),
            address.secret.clone(),
            driver,
            move |action| follow(&told, action),
        )?;
        let serving = Arc::clone(&shared);
        let accepting = std::thread::Builder::new().name("driver".into());
        let accepting = Some(accepting.spawn(move || accept(&serving, &station))?);
        let set_up = SetUp { workers: 0, threads: threads.unwrap_or(0), reason: String::new() };
        Ok(Remote {
            recipe,
            shared,
            follower,
            accepting,
            submitted: VecDeque::new(),
            alone: None,
            told_apart: None,
            answering,
            answers_for: None,
            newest: Some((steps, state)),
            set_up,
        })
    }

    /// Whether the job can go on.
    fn check(&self, table: &mut Table) -> Result<(), Error> {
        if let Some(step) = table.lost_at {
            return Err(Error::WorkersLost { step });
        }
        if let Some(Apart { reason, is_hopeless: true }) = self.follower.apart() {
            return Err(Error::NoCoordinator { reason });
        }
        match &table.ended {
            Some(reason) => Err(Error::Cluster { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until `take` finds what it looks for.
    fn wait<T>(&self, mut take: impl FnMut(&mut Table) -> Option<T>) -> Result<T, Error> {
        let mut table = self.shared.table();
        loop {
            if let Some(found) = take(&mut table) {
                return Ok(found);
            }
            self.check(&mut table)?;
            let waited = self.shared.changed.wait_timeout(table, LOOK_UP);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Remote<'_> {
    /// Has people told of what is missing: the coordinator, or workers.
    fn look_around(&mut self) {
        let apart = self.follower.apart();
        let mut table = self.shared.table();
        if apart != self.told_apart
            && let Some(Apart { reason, .. }) = &apart
        {
            table.news.push_back(format!("no connection to the coordinator: {reason}"));
        }
        self.told_apart = apart;
        if !table.talks.is_empty() {
            self.alone = None;
            return;
        }
        let (since, is_told) = self.alone.get_or_insert((Instant::now(), false));
        if !*is_told && since.elapsed() >= ALONE {
            *is_told = true;
            table.news.push_back("no worker is here, the job waits for some".to_string());
        }
    }
}

impl<'a> Steps<'a> for Remote<'a> {
    fn set_up(&self) -> SetUp {
        let table = self.shared.table();
        SetUp { workers: table.members.len(), ..self.set_up.clone() }
    }

    fn move_to(&mut self, _: &SetUp) -> Result<(), Error> {
        Ok(())
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let mut table = self.shared.table();
        self.check(&mut table)?;
        table.steps.insert(step.number, step.clone());
        drop(table);
        self.follower.tell(Event::InputsSent { steps: step.number });
        self.submitted.push_back(step.number);
        self.shared.ring();
        Ok(())
    }

    fn await_step(&mut self) -> Result<bool, Error> {
        let Some(number) = self.submitted.front().copied() else { return Ok(true) };
        let until = Instant::now() + MOMENT;
        let is_done = self.wait(|table| match table.is_done(number) {
            true => Some(true),
            false => (Instant::now() >= until).then_some(false),
        })?;
        if !is_done {
            self.look_around();
        }
        Ok(is_done)
    }

    fn has_workers(&self) -> bool {
        !self.shared.table().talks.is_empty()
    }

    fn finish(&mut self) -> Result<f32, Error> {
        let number = self.submitted.pop_front().ok_or(Error::NoStep)?;
        let loss = self.wait(|table| match table.is_done(number) {
            true => table.losses.remove(&number),
            false => None,
        })?;
        let mut table = self.shared.table();
        table.finished = number;
        let slowest = table.slowest().unwrap_or(number).min(number);
        table.steps.retain(|step, _| step + KEPT > slowest);
        Ok(loss)
    }

    fn tensors(&mut self) -> Result<Vec<NamedTensor>, Error> {
        let steps = self.shared.table().done;
        if let Some((at, tensors)) = &self.newest
            && *at == steps
        {
            return Ok(tensors.clone());
        }
        self.shared.table().wanted = Some(steps);
        let give_up = Instant::now() + 3 * STATE;
        let tensors = loop {
            if Instant::now() >= give_up {
                return Err(Error::WorkersLost { step: steps });
            }
            self.shared.table().talks.values_mut().for_each(|one| one.asked = false);
            self.shared.ring();
            let deadline = Instant::now() + STATE;
            let came = self.wait(|table| match table.state.take() {
                Some((at, tensors)) if at == steps => Some(Some(tensors)),
                _ if Instant::now() >= deadline => Some(None),
                _ => None,
            })?;
            if let Some(tensors) = came {
                break tensors;
            }
        };
        self.shared.table().wanted = None;
        self.newest = Some((steps, tensors.clone()));
        Ok(tensors)
    }

    fn answering(&mut self) -> Result<&mut Session<'a>, Error> {
        let steps = self.shared.table().done;
        if self.answers_for != Some(steps) {
            let tensors = self.tensors()?;
            let n_samples = self.recipe.batch;
            self.answering.plan(Purpose::Train, n_samples)?;
            self.answering.load(&tensors)?;
            self.answers_for = Some(steps);
        }
        Ok(&mut self.answering)
    }

    fn work(&self) -> Vec<WorkerReport> {
        let table = self.shared.table();
        let report = |(name, (grains, seconds)): (&String, &(u64, WorkSeconds))| WorkerReport {
            name: name.clone(),
            grains: *grains,
            seconds: *seconds,
        };
        table.work.iter().map(report).collect()
    }

    fn news(&mut self) -> Option<String> {
        self.shared.table().news.pop_front()
    }
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        self.follower.tell(Event::Finished);
        // The coordinator should hear of it, so that the workers are free; but nobody waits for long.
        let until = Instant::now() + Duration::from_secs(1);
        while self.shared.table().ended.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring();
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// Takes note of what the coordinator decides.
fn follow(shared: &Shared, action: Action) {
    let mut table = shared.table();
    match action {
        Action::Start { go } => {
            let is_holding = go.is_holding();
            let Go { members, steps, reason, .. } = *go;
            let names: Vec<String> = members.into_iter().map(|seat| seat.name).collect();
            let sentence = format!("{} workers from step {steps}: {reason}", names.len());
            table.news.push_back(sentence);
            table.members = names;
            let done = table.done;
            // Who is one behind does its step again; who is further behind has only what the job started from.
            if steps + 1 < done || is_holding {
                table.lost_at = Some(done);
            }
        }
        Action::End { reason } => table.ended = Some(reason),
        Action::Say(sentence) => table.news.push_back(sentence),
        _ => {}
    }
    drop(table);
    shared.ring();
}

/// Lets workers in until the driver ends.
fn accept(shared: &Arc<Shared>, station: &Station) {
    let mut threads = Vec::new();
    let mut number = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        let Some((key, link)) = station.next_call("driver/", LOOK_UP * 5) else { continue };
        let name = key.splitn(3, '/').nth(2).unwrap_or_default().to_string();
        let Ok(link) = link else { continue };
        let shared = Arc::clone(shared);
        number += 1;
        let serving = std::thread::Builder::new().name("driver-serves".into());
        threads.extend(serving.spawn(move || serve(&shared, link, number, name)));
    }
    threads.into_iter().for_each(|thread| {
        let _ = thread.join();
    });
}

/// Serves one worker until its link fails or the driver ends.
fn serve(shared: &Shared, link: Box<dyn Link>, number: u64, name: String) {
    let Ok(bell) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return };
    let bell = Arc::new(bell);
    shared.bells.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&bell));
    let connected = Connected { name: name.clone(), ..Connected::default() };
    shared.table().talks.insert(number, connected);
    let (talk, wanted) = (Talk::new(link), VecDeque::new());
    let mut serving = Serving { shared, talk, number, name, wanted };
    // A worker that is gone is the coordinator's business.
    let _ = serving.run(&bell);
    shared.table().talks.remove(&number);
    let mut bells = shared.bells.lock().unwrap_or_else(PoisonError::into_inner);
    bells.retain(|one| !Arc::ptr_eq(one, &bell));
}

struct Serving<'a> {
    shared: &'a Shared,
    talk: Talk,
    number: u64,
    name: String,
    wanted: VecDeque<(u64, Vec<std::ops::Range<usize>>)>,
}

impl Serving<'_> {
    fn run(&mut self, bell: &OwnedFd) -> Result<(), TalkError> {
        self.talk.say(&FromDriver::Programs(Box::new(self.shared.programs.clone())), &[])?;
        let until = Until { deadline: None, stop: &self.shared.stop };
        loop {
            let mut moved = self.give_inputs()?;
            self.ask_state()?;
            moved |= self.talk.push()?;
            if let Some(message) = self.talk.hear(&mut moved)? {
                self.take(message)?;
                continue;
            }
            self.talk.pause(moved, &until, Instant::now(), Some(bell.as_fd()))?;
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }

    fn take(&mut self, message: FromWorker) -> Result<(), TalkError> {
        match message {
            FromWorker::NeedState => {
                let first = self.shared.table().first_state.clone();
                if let Some((steps, state)) = first {
                    let (heads, bytes) = heads(&state);
                    self.talk.say(&FromDriver::State { steps, tensors: heads }, &bytes)?;
                }
            }
            FromWorker::Want { step, grains } => {
                let most = self.shared.programs.plans.iter().map(|plan| plan.n_grains).max();
                let within = |range: &std::ops::Range<usize>| Some(range.end) <= most;
                if grains.len() > most.unwrap_or(0) || !grains.iter().all(within) {
                    let reason = "it wants grains that no step has".to_string();
                    return Err(TalkError::Meaningless { n_bytes: 0, reason });
                }
                self.wanted.push_back((step, grains));
            }
            FromWorker::Done { loss, work } => {
                let mut table = self.shared.table();
                let own = table.work.entry(self.name.clone()).or_default();
                own.0 += work.n_grains;
                own.1.add(work.seconds);
                table.done(self.number, loss, self.shared.programs.local.is_some());
                self.shared.changed.notify_all();
            }
            FromWorker::State { steps, tensors: heads, .. } => {
                let state = tensors(heads, self.talk.bytes());
                if let Ok(state) = state {
                    let mut table = self.shared.table();
                    if table.wanted == Some(steps) {
                        table.state = Some((steps, state));
                        self.shared.changed.notify_all();
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the inputs that were asked for and are there.
    fn give_inputs(&mut self) -> Result<bool, TalkError> {
        let mut moved = false;
        for _ in 0..self.wanted.len() {
            let Some((number, grains)) = self.wanted.pop_front() else { break };
            let (step, done) = {
                let table = self.shared.table();
                (table.steps.get(&number).cloned(), table.done)
            };
            match step {
                Some(step) => {
                    moved = true;
                    let programs = &self.shared.programs;
                    let n_samples = step.batch.n_samples();
                    let inputs = StepInputs { n_samples, rate: step.rate as f32, seed: step.seed };
                    let parts = parts(&step.batch, &grains, programs);
                    let message = FromDriver::Inputs { step: number, grains, inputs };
                    self.talk.say(&message, &parts)?;
                }
                // It will come; what is long done nobody needs.
                None if number + KEPT > done || self.shared.programs.local.is_some() => {
                    self.wanted.push_back((number, grains))
                }
                None => {}
            }
        }
        Ok(moved)
    }

    /// Asks for the state, where it is wanted and this worker was not asked yet.
    fn ask_state(&mut self) -> Result<(), TalkError> {
        let mut table = self.shared.table();
        let Some(steps) = table.wanted else { return Ok(()) };
        let Some(connected) = table.talks.get_mut(&self.number) else { return Ok(()) };
        if !std::mem::replace(&mut connected.asked, true) {
            drop(table);
            self.talk.say(&FromDriver::GiveState { steps }, &[])?;
        }
        Ok(())
    }
}

/// The bytes of the inputs of these grains, one after the other.
fn parts<'b>(
    batch: &'b Batch,
    grains: &[std::ops::Range<usize>],
    programs: &Programs,
) -> Vec<&'b [u8]> {
    let mut parts = Vec::new();
    let n_inputs = programs.inputs.len() - 1;
    for grain in grains.iter().cloned().flatten() {
        let first = (grain * programs.grain).min(batch.n_samples());
        let samples = first..batch.n_samples().min(first + programs.grain);
        parts.extend(
            (0..n_inputs).map(|place| batch.input(programs.places[place], samples.clone())),
        );
        parts.extend(batch.target(samples));
    }
    parts
}

fn grain_counts(recipe: &Recipe, n_samples: usize) -> GrainCounts {
    let steps_per_epoch = n_samples.div_ceil(recipe.batch).max(1);
    let last = n_samples - (steps_per_epoch - 1) * recipe.batch;
    GrainCounts {
        full: recipe.n_grains(recipe.batch.min(n_samples)) as u32,
        last: recipe.n_grains(last) as u32,
        steps_per_epoch: steps_per_epoch as u64,
    }
}

/// The programs of full steps and of an epoch's last.
fn programs(recipe: &Recipe, plan: &DriverPlan) -> Result<Programs, Error> {
    let DriverPlan { n_samples, threads, local } = *plan;
    let full = recipe.batch.min(n_samples);
    let rest = n_samples % recipe.batch;
    let sizes = if rest == 0 || rest == full { vec![full] } else { vec![full, rest] };
    let plan = |n_samples: usize| {
        let (program, last) =
            recipe.grain_programs(n_samples, |grain| recipe.program(Purpose::Train, grain))?;
        Ok(PlanPrograms { n_samples, n_grains: recipe.n_grains(n_samples), program, last })
    };
    let plans = sizes.into_iter().map(plan).collect::<Result<Vec<_>, Error>>()?;
    let bytes = |input: &manyhands_data::Input| {
        input.shape.iter().product::<usize>() * input.element.size()
    };
    let encoded = recipe.encoding.inputs();
    let mut inputs = Vec::new();
    let mut places = Vec::new();
    for input in recipe.model.inputs() {
        if let Some(place) = encoded.iter().position(|one| one.name == input.name) {
            inputs.push((input.name.clone(), bytes(&encoded[place])));
            places.push(place);
        }
    }
    let target = recipe.encoding.target().ok_or(Error::NoLabels)?;
    inputs.push((LABEL.to_string(), bytes(target)));
    Ok(Programs { plans, inputs, places, grain: recipe.grain, local, threads })
}
