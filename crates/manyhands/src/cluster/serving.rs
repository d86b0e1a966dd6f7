//! The driver's threads that serve workers: programs, inputs of the steps at hand, the state, and what workers say.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_data::Batch;
use manyhands_net::membership::driver::Event;
use manyhands_net::station::Station;
use manyhands_net::transport::Link;
use rustix::event::{EventfdFlags, eventfd};

use super::servers::refuse_servers;
use super::table::{Connected, Shared};
use super::talk::{Talk, TalkError, Until};
use super::words::{FromDriver, FromWorker, Programs, StepInputs, heads, tensors};
use crate::error::Error;
use crate::train::Step;

/// Steps that are kept after they were done: members may be one behind, and do grains of a lost one again.
pub(super) const KEPT: u64 = 4;
/// The most steps whose inputs a worker may wait for.
const MOST_WANTED: usize = 1 << 10;
/// A worker that was asked to be a server is asked for another one after this at the earliest.
const TO_SERVE: Duration = Duration::from_secs(5);
/// How often there is a look at whether the driver ends.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Lets workers in until the driver ends.
pub(super) fn accept(shared: &Arc<Shared>, station: &Station) {
    let mut threads = Vec::new();
    let mut number = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.programs.table.is_none() {
            refuse_servers(station, &shared.stop);
        }
        let Some((key, link)) = station.next_call("driver/", LOOK_UP) else { continue };
        let name = key.splitn(3, '/').nth(2).unwrap_or_default().to_string();
        let Ok(link) = link else { continue };
        let shared = Arc::clone(shared);
        number += 1;
        threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
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
    let (talk, wanted) = (Talk::of_driver(link), VecDeque::new());
    let mut serving = Serving { shared, talk, number, name, wanted, asked_to_serve: None };
    // A worker that is gone is the coordinator's business.
    let _ = serving.run(&bell);
    let mut table = shared.table();
    table.talks.remove(&number);
    table.turns.iter_mut().for_each(|turns| turns.lose(number));
    table.mesh.iter_mut().for_each(|mesh| mesh.lose(number));
    if table.talks.is_empty() {
        table.readiness.none_is_left();
    }
    drop(table);
    let mut bells = shared.bells.lock().unwrap_or_else(PoisonError::into_inner);
    bells.retain(|one| !Arc::ptr_eq(one, &bell));
}

struct Serving<'a> {
    shared: &'a Shared,
    talk: Talk,
    number: u64,
    name: String,
    wanted: VecDeque<Wanted>,
    /// When it was last asked to be a server too.
    asked_to_serve: Option<Instant>,
}

/// What a worker asked for.
struct Wanted {
    step: u64,
    grains: Vec<Range<usize>>,
    /// Whether it reads the samples itself.
    reads: bool,
}

impl Serving<'_> {
    fn run(&mut self, bell: &OwnedFd) -> Result<(), TalkError> {
        let mut programs = self.shared.programs.clone();
        if programs.is_meshed {
            // Each place has its own.
            programs.plans.clear();
        }
        self.talk.say(&FromDriver::Programs(Box::new(programs)), &[])?;
        let until = Until { deadline: None, stop: &self.shared.stop };
        loop {
            let mut moved = self.give_inputs()?;
            self.ask_state()?;
            self.ask_to_serve()?;
            self.give_turn()?;
            moved |= self.give_place()?;
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
            FromWorker::Reads => {
                self.note_reads(true);
                let sentence = format!("{} reads its samples itself", self.name);
                self.shared.table().news.push_back(sentence);
            }
            FromWorker::CannotRead { reason } => self.note_refusal(reason),
            FromWorker::LostParameters { reason } => {
                self.shared.table().failed.get_or_insert(Error::ParametersLost { reason });
                self.shared.changed.notify_all();
            }
            FromWorker::Want { step, grains, reads } => {
                let most = self.shared.programs.plans.iter().map(|plan| plan.n_grains).max();
                let within = |range: &Range<usize>| Some(range.end) <= most;
                if grains.len() > most.unwrap_or(0) || !grains.iter().all(within) {
                    let reason = "it wants grains that no step has".to_string();
                    return Err(TalkError::Impossible { reason });
                }
                if self.wanted.len() == MOST_WANTED {
                    let reason = "it wants more steps at a time than a worker can do".to_string();
                    return Err(TalkError::Impossible { reason });
                }
                self.shared.table().readiness.one_is_ready();
                self.wanted.push_back(Wanted { step, grains, reads });
            }
            FromWorker::Stands { view, standing } => {
                let mut table = self.shared.table();
                let number = self.number;
                table.mesh.iter_mut().for_each(|mesh| mesh.stands(number, view, standing));
                drop(table);
                self.shared.changed.notify_all();
            }
            FromWorker::Parts { formation, steps, units, tensors: heads } => {
                if let Ok(parts) = tensors(heads, self.talk.bytes()) {
                    let mut table = self.shared.table();
                    if let Some(mesh) = &mut table.mesh {
                        mesh.take_parts((formation, steps), units, parts);
                    }
                    drop(table);
                    self.shared.changed.notify_all();
                }
            }
            FromWorker::WantsTurns { round } => {
                let mut table = self.shared.table();
                table.readiness.one_is_ready();
                table.turns.iter_mut().for_each(|turns| turns.join(self.number, round));
                drop(table);
                self.shared.ring();
            }
            FromWorker::Released { round } => {
                let mut table = self.shared.table();
                table.turns.iter_mut().for_each(|turns| turns.released(self.number, round));
                self.shared.changed.notify_all();
            }
            FromWorker::TurnComputed { round, seconds } => {
                self.shared.table().turn_computed(self.number, round, seconds);
                self.shared.ring();
            }
            FromWorker::TurnDone { round, loss, work } => {
                let mut table = self.shared.table();
                table.note_work(&self.name, work);
                table.turn_done(self.number, round, loss);
                let left_out = table.left_out(self.number);
                drop(table);
                // For a turn that was on its way when it was left out it may have come to the servers again.
                self.shared.leave_out(left_out.as_slice());
                self.shared.ring();
            }
            FromWorker::Spans { step, place, spans } => {
                self.shared.table().spans.tell(step, place, spans);
            }
            FromWorker::Done { loss, work } => {
                let mut table = self.shared.table();
                table.note_work(&self.name, work);
                if table.done(self.number, loss) {
                    self.shared.changed.notify_all();
                }
            }
            FromWorker::State { steps, tensors: heads, .. } => {
                let state = tensors(heads, self.talk.bytes());
                if let Ok(state) = state {
                    let mut table = self.shared.table();
                    if table.holding == Some(steps) {
                        drop(table);
                        // Who waits for it finds it there as well.
                        self.shared.keep(steps, state);
                    } else if table.wanted == Some(steps) {
                        table.state = Some((steps, state));
                    }
                    self.shared.changed.notify_all();
                }
            }
        }
        Ok(())
    }

    /// Takes note of whether the worker reads samples itself.
    fn note_reads(&self, reads: bool) {
        if let Some(connected) = self.shared.table().talks.get_mut(&self.number) {
            connected.reads = reads;
        }
    }

    /// A worker cannot read what was offered: it is sent its samples, unless the job wants it to read.
    fn note_refusal(&self, reason: String) {
        self.note_reads(false);
        let worker = self.name.clone();
        let mut table = self.shared.table();
        match &self.shared.programs.offer {
            Some(offer) if offer.is_for_all => {
                table.failed = Some(Error::WorkerCannotRead { worker, reason });
            }
            _ => table.news.push_back(format!("{worker} is sent its samples: {reason}")),
        }
        self.shared.changed.notify_all();
    }

    /// Sends the inputs that were asked for and are there.
    fn give_inputs(&mut self) -> Result<bool, TalkError> {
        let mut moved = false;
        if self.shared.table().is_filling {
            self.shared.table().talks.entry(self.number).and_modify(|own| own.waits = true);
            return Ok(false);
        }
        let is_local = self.shared.programs.local.is_some();
        for _ in 0..self.wanted.len() {
            let Some(wanted) = self.wanted.pop_front() else { break };
            let mut table = self.shared.table();
            match table.steps.get(&wanted.step).cloned() {
                Some(step) => {
                    drop(table);
                    moved = true;
                    self.give(step, wanted)?;
                }
                // It will come; what is long done nobody needs.
                None if wanted.step + KEPT > table.done || is_local => {
                    table.talks.entry(self.number).and_modify(|own| own.waits = true);
                    self.wanted.push_back(wanted);
                }
                None => {}
            }
        }
        if self.wanted.is_empty() {
            self.shared.table().talks.entry(self.number).and_modify(|own| own.waits = false);
        }
        Ok(moved)
    }

    /// Sends a step, with the inputs of the grains unless the worker reads them.
    fn give(&mut self, step: Step, wanted: Wanted) -> Result<(), TalkError> {
        let Wanted { grains, reads, .. } = wanted;
        let n_samples = step.batch.n_samples();
        let inputs = StepInputs { n_samples, rate: step.rate as f32, seed: step.seed };
        // That can take long, and is not the link's fault.
        let is_read_now = !reads && !step.batch.is_read();
        if is_read_now {
            self.note_being_read(Some(step.number));
        }
        let samples = (!reads).then(|| step.batch.read());
        if is_read_now {
            self.note_being_read(None);
        }
        let parts = match samples {
            None => Vec::new(),
            Some(Ok(batch)) => parts(batch, &grains, &self.shared.programs),
            Some(Err(error)) => {
                self.shared.table().failed = Some(error);
                self.shared.changed.notify_all();
                return Ok(());
            }
        };
        let message = FromDriver::Inputs { step: step.number, grains, inputs, reads };
        self.talk.say(&message, &parts)
    }

    /// Has the coordinator know what inputs there are while samples are read for this worker, or no longer.
    fn note_being_read(&self, step: Option<u64>) {
        let mut table = self.shared.table();
        match step {
            Some(step) => table.being_read.insert(self.number, step),
            None => table.being_read.remove(&self.number),
        };
        if let Some(teller) = self.shared.teller.get() {
            teller.note(Event::InputsSent { steps: table.inputs_there() });
        }
    }

    /// Gives the worker its next turn, or moves its clock on.
    fn give_turn(&mut self) -> Result<(), TalkError> {
        let mut table = self.shared.table();
        let is_filling = table.is_filling;
        // A worker that reads asks when it has opened the data: it knows best what it has.
        let has_inputs = table.talks.get(&self.number).is_some_and(|own| !own.reads);
        let Some(turns) = table.turns.as_mut().filter(|_| !is_filling) else { return Ok(()) };
        let Some(message) = turns.message_for(self.number, has_inputs) else { return Ok(()) };
        drop(table);
        self.talk.say(&message, &[])?;
        if let FromDriver::Turn { step, grains, has_inputs: true, .. } = message {
            self.wanted.push_back(Wanted { step, grains: vec![grains], reads: false });
            self.give_inputs()?;
        }
        Ok(())
    }

    /// Gives the worker its place in a mesh and what it holds there, or asks it for parts of the state. Whether something was said.
    fn give_place(&mut self) -> Result<bool, TalkError> {
        let mut table = self.shared.table();
        let Some(mesh) = &mut table.mesh else { return Ok(false) };
        // What was said before has left first, so that little of the state is on the way.
        if !self.talk.is_sent()? {
            return Ok(false);
        }
        match mesh.message_for(self.number) {
            Ok(None) => Ok(false),
            Ok(Some((message, parts))) => {
                drop(table);
                let bytes: Vec<&[u8]> = parts.iter().map(|one| one.tensor.bytes()).collect();
                self.talk.say(&message, &bytes)?;
                Ok(true)
            }
            Err(error) => {
                table.failed = Some(error);
                self.shared.changed.notify_all();
                Ok(false)
            }
        }
    }

    /// Has this worker be a server too, where there are too few.
    fn ask_to_serve(&mut self) -> Result<(), TalkError> {
        let mut table = self.shared.table();
        let is_asked = self.asked_to_serve.is_some_and(|asked| asked.elapsed() < TO_SERVE);
        // One that is about to leave is not asked.
        if is_asked || table.n_servers_wanted == 0 || !table.is_of_view(self.number) {
            return Ok(());
        }
        self.asked_to_serve = Some(Instant::now());
        table.n_servers_wanted -= 1;
        let sentence = format!("{} holds parameters too, since a server is missing", self.name);
        table.news.push_back(sentence);
        drop(table);
        self.talk.say(&FromDriver::BeServer, &[])
    }

    /// Asks for the state, where it is wanted and no other worker was asked.
    fn ask_state(&mut self) -> Result<(), TalkError> {
        let mut table = self.shared.table();
        let Some(steps) = table.holding.or(table.wanted) else { return Ok(()) };
        if table.asks(self.number) {
            drop(table);
            self.talk.say(&FromDriver::GiveState { steps }, &[])?;
        }
        Ok(())
    }
}

/// The bytes of the inputs of these grains, one after the other.
fn parts<'b>(batch: &'b Batch, grains: &[Range<usize>], programs: &Programs) -> Vec<&'b [u8]> {
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
