//! The driver: steps of a run, done by the workers of a cluster.
//!
//! The run hands steps over ([`Steps::submit`]); workers ask for the inputs of their grains, which threads of this process serve from the steps at hand, and say when a step is
//! done. The same step may be said to be done by several, and again after a failure: it is the same step, with the same loss.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_device::KERNEL_SET;
use manyhands_net::control::{Apart, Follower};
use manyhands_net::host::{host_id, random_number};
use manyhands_net::membership::assign::measured_again;
use manyhands_net::membership::driver::{Action, Driver, Event};
use manyhands_net::membership::identity::Instance;
use manyhands_net::membership::message::{Go, Reach, Submit};
use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, Station, public_address};

use super::meshes::Formations;
use super::pace::Pace;
use super::programs::{DriverPlan, ServersPlan, grain_counts, n_members, programs};
use super::servers::{ServerTraffic, TablesOfDriver};
use super::serving::{KEPT, accept};
use super::standstill::{Standstill, sentence};
use super::table::{Shared, Table};
use super::turns::Turns;
use super::words::{Programs, Work};
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::MeshPlan;
use crate::mesh::ShownSpan;
use crate::report::WorkerReport;
use crate::train::{Purpose, Recipe, Session, SetUp, Step, Steps};

/// A coordinator that was never reached is given up after this; until then it may still be starting.
const NEVER_CONNECTED: Duration = Duration::from_secs(30);
/// How long the state may take to come before another worker is asked.
const STATE: Duration = Duration::from_secs(10);
/// How long nobody may be connected before people are told that workers are waited for.
const ALONE: Duration = Duration::from_secs(1);
/// How long a step is waited for before there is a look at the news.
const MOMENT: Duration = Duration::from_millis(200);
/// How often something that is waited for is looked at.
const LOOK_UP: Duration = Duration::from_millis(20);
/// So many steps are measured together, or fewer that take as long as this.
const MEASURED_TOGETHER: u32 = 8;
const LONG_STEP: Duration = Duration::from_millis(100);

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

/// Steps that are done by workers.
pub(crate) struct Remote<'a> {
    recipe: &'a Recipe,
    pub(super) shared: Arc<Shared>,
    pub(super) follower: Follower<Event>,
    accepting: Option<JoinHandle<()>>,
    began: Instant,
    submitted: VecDeque<u64>,
    /// Since when no worker is connected, and whether people were told.
    alone: Option<(Instant, bool)>,
    /// How long a step is waited for.
    standstill: Standstill,
    /// What people were told last of the coordinator's absence.
    told_apart: Option<Apart>,
    answering: Session<'a>,
    /// The step whose parameters the session has.
    answers_for: Option<u64>,
    /// The newest state that came, by its step.
    newest: Option<(u64, Vec<NamedTensor>)>,
    set_up: SetUp,
    /// Since when steps that were found done are counted, and how many; and what a step takes.
    finished_at: Option<(Instant, u32)>,
    step_seconds: Option<f64>,
    /// Why the run ends before it is done.
    failure: Option<String>,
    /// Under the strategy `parameter_server`.
    tables: Option<TablesOfDriver>,
    /// What its director says.
    said: Receiver<String>,
    /// When the coordinator was last told how the job stands.
    stood: Option<Instant>,
    /// Where the model is spread over workers.
    pub(super) mesh: Option<MeshPlan>,
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
        let station = Arc::new(station);
        let mut programs = programs(recipe, plan)?;
        let mesh = plan.mesh.as_ref();
        programs.is_meshed = mesh.is_some();
        let public = public_address(&address.coordinator, address.bind)?;
        let (say, said) = channel();
        let (mut tables, sentence) = match &plan.servers {
            Some(plan) => {
                let say = move |sentence: &str| {
                    let _ = say.send(sentence.to_string());
                };
                let started = TablesOfDriver::start(&mut programs, plan, &station, public, say);
                let (tables, sentence) = started?;
                (tables, Some(sentence))
            }
            None => (None, None),
        };
        let submit = Submit {
            name: name.to_string(),
            instance: Instance(random_number()?),
            grains: match mesh {
                // Every place of a mesh is a member, whoever has which grains.
                Some(plan) => n_members(plan.mesh.n_workers()),
                None => grain_counts(recipe, n_samples),
            },
            kernel_set: KERNEL_SET.to_string(),
            driver: Reach { host: host_id().to_string(), addresses: station.addresses(public) },
            follows: None,
            previous: None,
        };
        let is_with_workers = |tensor: &&NamedTensor| {
            tables.as_ref().is_none_or(|tables| tables.is_with_workers(&tensor.name))
        };
        let of_workers = match mesh {
            // Places are given theirs.
            Some(_) => Vec::new(),
            None => state.iter().filter(is_with_workers).cloned().collect(),
        };
        let formations = |plan: &MeshPlan| {
            let grains = grain_counts(recipe, n_samples);
            Formations::new(plan.mesh, grains, (steps, state.clone()))
        };
        let table = Table {
            done: steps,
            finished: steps,
            is_local: programs.local.is_some(),
            first_state: Some((steps, Arc::new(of_workers))),
            is_filling: tables.is_some(),
            turns: plan.servers.as_ref().and_then(ServersPlan::drift).map(Turns::new),
            news: sentence.into_iter().collect(),
            mesh: mesh.map(formations),
            ..Table::default()
        };
        let shared = Arc::new(Shared {
            table: Mutex::new(table),
            changed: Condvar::new(),
            bells: Mutex::default(),
            stop: Arc::default(),
            programs,
            teller: OnceLock::new(),
            director: OnceLock::new(),
        });
        if let Some(tables) = &tables {
            let _ = shared.director.set(Arc::downgrade(&tables.director));
        }
        let told = Arc::clone(&shared);
        let driver = Driver::new(Duration::ZERO, submit, steps);
        let follower = Follower::start(
            address.coordinator.clone(),
            address.secret.clone(),
            driver,
            move |action| follow(&told, action),
        )?;
        let _ = shared.teller.set(follower.teller());
        if let Some(tables) = &mut tables {
            tables.fill(&shared, steps, state.clone())?;
        }
        let serving = Arc::clone(&shared);
        let accepting = std::thread::Builder::new().name("driver".into());
        let accepting = Some(accepting.spawn(move || accept(&serving, &station))?);
        let set_up = SetUp { workers: 0, threads: threads.unwrap_or(0), reason: String::new() };
        Ok(Remote {
            recipe,
            shared,
            follower,
            accepting,
            began: Instant::now(),
            submitted: VecDeque::new(),
            alone: None,
            standstill: Standstill::default(),
            told_apart: None,
            answering,
            answers_for: None,
            newest: Some((steps, state)),
            set_up,
            finished_at: None,
            step_seconds: None,
            failure: None,
            tables,
            said,
            stood: None,
            mesh: plan.mesh.clone(),
        })
    }

    /// The run ends before it is done: workers and `status` are told why.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.failure = Some(error.to_string());
    }

    /// Whether the job can go on.
    fn check(&self, table: &mut Table) -> Result<(), Error> {
        if let Some(step) = table.lost_at {
            return Err(Error::WorkersLost { step });
        }
        if let Some(error) = table.failed.take() {
            return Err(error);
        }
        if let Some(Apart { reason, is_hopeless, has_connected }) = self.follower.apart() {
            // One that was there may come back; where none ever was, the address is likely wrong.
            let is_over = !has_connected && self.began.elapsed() >= NEVER_CONNECTED;
            if is_hopeless || is_over {
                return Err(Error::NoCoordinator { reason });
            }
        }
        match &table.ended {
            Some(reason) => Err(Error::Cluster { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until `take` finds what it looks for.
    pub(super) fn wait<T>(
        &self,
        mut take: impl FnMut(&mut Table) -> Option<T>,
    ) -> Result<T, Error> {
        loop {
            self.form_mesh()?;
            let mut table = self.shared.table();
            if let Some(found) = take(&mut table) {
                return Ok(found);
            }
            self.check(&mut table)?;
            let waited = self.shared.changed.wait_timeout(table, LOOK_UP);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Remote<'_> {
    /// Waits until workers have brought what they hold back as too small to matter. One that does not answer is not waited for for ever.
    fn await_held(&self) -> Result<(), Error> {
        let of = |table: &mut Table| table.turns.as_mut().map_or(0, |turns| turns.n_holding());
        self.shared.table().turns.iter_mut().for_each(Turns::release);
        self.shared.ring();
        let give_up = Instant::now() + STATE;
        let n_left = self.wait(|table| match of(table) {
            0 => Some(0),
            n => (Instant::now() >= give_up).then_some(n),
        })?;
        if n_left > 0 {
            let seconds = STATE.as_secs();
            self.shared.table().news.push_back(format!(
                "{n_left} workers do not answer for {seconds} s: what they hold back is not in the state"
            ));
        }
        Ok(())
    }

    /// Has the coordinator know how a job with servers or a mesh stands: steps, servers and bounds are no worker's to tell.
    fn tell_standing(&mut self) {
        if self.tables.is_none() && self.mesh.is_none() {
            return;
        }
        if self.stood.is_some_and(|stood| stood.elapsed() < MOMENT) {
            return;
        }
        self.stood = Some(Instant::now());
        let table = self.shared.table();
        let of_servers = self.tables.as_ref().map(|tables| tables.standing(&table));
        let standing = of_servers.or_else(|| table.standing_of_mesh());
        drop(table);
        if let Some(standing) = standing {
            self.follower.note(Event::Stands(Box::new(standing)));
        }
    }

    /// Has people told of what is missing: the coordinator, or workers, or who holds a step up.
    fn look_around(&mut self, step: u64) {
        let apart = self.follower.apart();
        let stood = self.standstill.look(Instant::now(), step, self.step_seconds);
        let silent = || self.tables.as_ref().map_or_else(Vec::new, TablesOfDriver::silent);
        let stood = stood.map(|passed| (passed, silent()));
        let mut table = self.shared.table();
        if apart != self.told_apart
            && let Some(Apart { reason, .. }) = &apart
        {
            table.news.push_back(format!("no connection to the coordinator: {reason}"));
        }
        self.told_apart = apart;
        if !table.talks.is_empty() {
            self.alone = None;
            let told = stood.map(|(passed, silent)| sentence(passed, &silent, &table.members));
            table.news.extend(told);
            return;
        }
        let (since, is_told) = self.alone.get_or_insert((Instant::now(), false));
        if !*is_told && since.elapsed() >= ALONE && self.told_apart.is_none() {
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
        let Programs { inputs, .. } = &self.shared.programs;
        let sample_bytes: usize = inputs.iter().map(|(_, bytes)| *bytes).sum();
        let pace = Pace::of(self.step_seconds, self.recipe.batch.saturating_mul(sample_bytes));
        self.shared.table().turns.as_ref().map_or(pace.depth(), Turns::depth)
    }

    fn wants_samples(&self) -> bool {
        // Nobody may be here yet; who comes and cannot read is served all the same.
        let table = self.shared.table();
        self.shared.programs.offer.is_none() || table.talks.values().any(|one| !one.reads)
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let mut table = self.shared.table();
        self.check(&mut table)?;
        table.steps.insert(step.number, step.clone());
        table.submitted = step.number;
        if let Some(turns) = &mut table.turns {
            let n_grains = step.batch.n_samples().div_ceil(self.shared.programs.grain);
            turns.submit(step.number, n_grains);
            drop(table);
            self.submitted.push_back(step.number);
            self.shared.ring();
            return Ok(());
        }
        let is_waited_for = table.talks.values().any(|one| one.waits);
        // Before others can change what there is.
        self.follower.note(Event::InputsSent { steps: table.inputs_there() });
        drop(table);
        self.submitted.push_back(step.number);
        // Mostly nobody has asked for it yet, and nobody is woken: workers have their cores for themselves.
        if is_waited_for {
            self.shared.ring();
        }
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
            self.look_around(number);
        }
        self.tell_standing();
        Ok(is_done)
    }

    fn has_workers(&self) -> bool {
        !self.shared.table().talks.is_empty()
    }

    fn without_workers(&mut self) -> f64 {
        self.shared.table().readiness.take_unready()
    }

    fn finish(&mut self) -> Result<f32, Error> {
        let number = self.submitted.pop_front().ok_or(Error::NoStep)?;
        let loss = self.wait(|table| table.is_done(number).then(|| table.take_loss(number)))?;
        // Of the first step there is no loss to stand for it.
        let loss = loss.ok_or(Error::WorkersLost { step: number })?;
        // Workers tell of several short steps at a time, so several are measured together.
        let (since, n_finished) = match self.finished_at {
            Some((since, n)) => (since, n + 1),
            None => (Instant::now(), 0),
        };
        self.finished_at = Some((since, n_finished));
        let passed = since.elapsed();
        if n_finished > 0 && (n_finished >= MEASURED_TOGETHER || passed >= LONG_STEP) {
            let seconds = passed.as_secs_f64() / f64::from(n_finished);
            self.step_seconds = Some(measured_again(self.step_seconds, seconds));
            self.finished_at = Some((Instant::now(), 0));
        }
        let mut table = self.shared.table();
        let is_apart = table.turns.is_some() || table.mesh.is_some();
        let slowest = match is_apart {
            // Nobody does again what is done.
            true => number,
            false => table.slowest().unwrap_or(number).min(number),
        };
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
        // Apart from what follows, so that the table is not locked while servers are asked.
        let takes_turns = self.shared.table().turns.is_some();
        if let (Some(tables), Some((_, before)), true) = (&self.tables, &self.newest, takes_turns) {
            // Everything that changes is there, or comes now.
            if tables.workers_hold_back() {
                self.await_held()?;
            }
            let mut tensors = before.clone();
            tables.overlay(steps, &mut tensors)?;
            self.newest = Some((steps, tensors.clone()));
            return Ok(tensors);
        }
        if self.mesh.is_some() {
            let tensors = self.tensors_of_mesh(steps)?;
            self.newest = Some((steps, tensors.clone()));
            return Ok(tensors);
        }
        // What came before was for another step.
        self.shared.table().state = None;
        self.shared.table().wanted = Some(steps);
        let give_up = Instant::now() + 3 * STATE;
        let mut tensors = loop {
            if Instant::now() >= give_up {
                return Err(Error::WorkersLost { step: steps });
            }
            self.shared.table().asked = None;
            self.shared.ring();
            let deadline = Instant::now() + STATE;
            let came = self.wait(|table| match table.state_at(steps) {
                Some(tensors) => Some(Some(tensors)),
                None if Instant::now() >= deadline => Some(None),
                None => None,
            })?;
            if let Some(tensors) = came {
                break tensors;
            }
        };
        self.shared.table().wanted = None;
        if let Some(tables) = &self.tables {
            tables.overlay(steps, &mut tensors)?;
        }
        self.newest = Some((steps, tensors.clone()));
        Ok(tensors)
    }

    fn glimpse(&mut self) -> Result<Option<Vec<NamedTensor>>, Error> {
        let takes_turns = self.shared.table().turns.is_some();
        let (Some(tables), Some((_, before)), true) = (&self.tables, &self.newest, takes_turns)
        else {
            return Ok(None);
        };
        tables.glimpse(before)
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
        let report = |(name, work): (&String, &Work)| WorkerReport {
            name: name.clone(),
            grains: work.n_grains,
            steps_with_seen_sums: work.n_seen,
            seconds: work.seconds,
        };
        table.work.iter().map(report).collect()
    }

    fn has_spans(&self) -> bool {
        self.shared.table().mesh.is_some()
    }

    fn spans(&mut self) -> Vec<(u64, Vec<Vec<ShownSpan>>)> {
        let mut table = self.shared.table();
        let n_places = table.mesh.as_ref().and_then(|mesh| mesh.places()).map_or(0, <[u64]>::len);
        match n_places {
            0 => Vec::new(),
            n => table.spans.take_whole(n),
        }
    }

    fn traffic(&self) -> Option<ServerTraffic> {
        self.shared.table().traffic
    }

    fn servers(&self) -> Vec<String> {
        self.tables.as_ref().map_or_else(Vec::new, TablesOfDriver::described)
    }

    fn news(&mut self) -> Option<String> {
        self.said.try_recv().ok().or_else(|| self.shared.table().news.pop_front())
    }
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        self.follower.tell(match self.failure.take() {
            Some(reason) => Event::Failed { reason },
            None if std::thread::panicking() => Event::Failed { reason: "a panic".to_string() },
            None => Event::Finished,
        });
        // The coordinator should hear of it, so that the workers are free; but nobody waits for long.
        let until = Instant::now() + Duration::from_secs(1);
        while self.shared.table().ended.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring();
        self.tables = None;
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
            let is_holding = go.is_holding() && table.mesh.is_none();
            let Go { view, members, steps, reason, .. } = *go;
            let some_leave = members.iter().any(|seat| seat.is_leaving);
            table.mesh.iter_mut().for_each(|mesh| mesh.begin_view(view, some_leave));
            let names: Vec<String> = members.into_iter().map(|seat| seat.name).collect();
            let workers = if names.len() == 1 { "worker" } else { "workers" };
            // In a mesh their own steps mean nothing, and where they take turns they have none.
            let from = match table.mesh.is_some() || table.turns.is_some() {
                true => String::new(),
                false => format!(" from step {steps}"),
            };
            let sentence = format!("{} {workers}{from}: {reason}", names.len());
            table.news.push_back(sentence);
            (table.members, table.members_since) = (names, steps);
            let done = table.done;
            // Who is one behind does its step again; who is further behind has only what the job started from. But the members may have done
            // steps of this view, and told so, before this was heard.
            let has_told = table.members.iter().any(|name| table.told_by(name) >= done);
            if steps + 1 < done && !has_told && table.turns.is_none() && table.mesh.is_none() {
                table.lost_at = Some(done);
            }
            shared.leave_out(&table.take_turns_back());
            table.holding = is_holding.then_some(steps);
            if is_holding {
                table.asked = None;
            }
        }
        Action::Pause { .. } => table.holding = None,
        Action::End { reason } => table.ended = Some(reason),
        Action::Say(sentence) => table.news.push_back(sentence),
        _ => {}
    }
    drop(table);
    shared.ring();
}
