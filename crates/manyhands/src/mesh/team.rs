//! All workers of a mesh as threads of this process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use manyhands_device::CpuDevice;
use manyhands_net::mail::Mail;
use manyhands_net::transport::{Link, in_process};
use manyhands_program::mesh::WorkerProgram;

use super::error::MeshError;
use super::part::{HeldPart, whole_tensors};
use super::worker::{MeshWorker, Span, StepInput, StepOutcome};
use crate::checkpoint::NamedTensor;

/// Room of a link between threads, in bytes, where there are few: values of most layers have room at once, so that nobody waits for a worker that computes.
const CAPACITY: usize = 4 << 20;
/// Room of all links of a worker, where there are many, and the least of one.
const ALL_CAPACITY: usize = 12 << 20;
const LEAST_CAPACITY: usize = 256 << 10;

/// The links of all workers: by worker, one to each other.
pub type AllLinks = Vec<Vec<Option<Box<dyn Link>>>>;

/// What a step's workers take from outside: bytes of the inputs of grains.
pub trait GrainInputs: Send + Sync {
    /// The little-endian bytes of an input of a grain.
    fn bytes(&self, grain: usize, name: &str) -> Option<&[u8]>;
}

impl GrainInputs for HashMap<(usize, String), Vec<u8>> {
    fn bytes(&self, grain: usize, name: &str) -> Option<&[u8]> {
        self.get(&(grain, name.to_string())).map(Vec::as_slice)
    }
}

/// A step to be done by all workers.
#[derive(Clone)]
pub struct TeamStep {
    /// Which of the programs that each worker has.
    pub plan: usize,
    /// Which step it is, from 1.
    pub step: u64,
    /// The rate of its update.
    pub rate: f32,
    /// The seed of its random operations.
    pub seed: u64,
    /// The inputs of its grains.
    pub inputs: Arc<dyn GrainInputs>,
}

/// What came of a step on all workers.
#[derive(Clone, Debug, Default)]
pub struct TeamOutcome {
    /// The mean loss.
    pub loss: Option<f32>,
    /// By worker: its part of it.
    pub outcomes: Vec<StepOutcome>,
    /// By worker: when each of its actions ran.
    pub spans: Vec<Vec<Span>>,
}

/// What a worker is told.
enum Command {
    Init(u64),
    Load(Arc<Vec<NamedTensor>>),
    Step(TeamStep),
    Held,
}

/// What a worker says.
enum Reply {
    Done,
    Step(StepOutcome, Vec<Span>),
    Held(Vec<HeldPart>),
    Failed(MeshError),
}

/// All workers of a mesh, each in a thread with a device of its own.
pub struct Team {
    commands: Vec<Sender<Command>>,
    replies: Receiver<(usize, Reply)>,
    threads: Vec<JoinHandle<()>>,
    abort: Arc<AtomicBool>,
    /// Steps that were handed over and are not done.
    n_open: usize,
    /// What workers said of steps that others have not done yet, by worker.
    early: Vec<VecDeque<Reply>>,
}

impl Team {
    /// Starts a thread for each worker. `programs` are those of each worker, one for each size of a step; each device has so many threads.
    pub fn start(
        programs: Vec<Vec<WorkerProgram>>,
        n_threads: usize,
        links: AllLinks,
    ) -> Result<Team, MeshError> {
        let abort: Arc<AtomicBool> = Arc::default();
        let (say, replies) = channel();
        let (mut commands, mut threads) = (Vec::new(), Vec::new());
        let early = programs.iter().map(|_| VecDeque::new()).collect();
        let mut team = Team {
            commands: Vec::new(),
            replies,
            threads: Vec::new(),
            abort: Arc::clone(&abort),
            n_open: 0,
            early,
        };
        for (worker, (programs, links)) in programs.into_iter().zip(links).enumerate() {
            let (command, told) = channel();
            commands.push(command);
            let (say, abort) = (say.clone(), Arc::clone(&abort));
            let work = move || {
                let _last_word = LastWord { worker, say: say.clone() };
                if let Err(error) = work(worker, programs, n_threads, links, abort, &told, &say) {
                    // Whoever started the team may be gone.
                    let _ = say.send((worker, Reply::Failed(error)));
                }
            };
            let thread = std::thread::Builder::new().name(format!("worker {worker}")).spawn(work);
            threads.push(thread.map_err(|source| MeshError::NoThread { worker, source })?);
        }
        // Once all threads have ended nobody says anything more.
        drop(say);
        team.threads = threads;
        team.commands = commands;
        team.await_all(|_, _| {})?;
        Ok(team)
    }

    /// How many workers there are.
    pub fn size(&self) -> usize {
        self.commands.len()
    }

    /// Gives parameters their first values.
    pub fn init(&mut self, seed: u64) -> Result<(), MeshError> {
        self.tell(|| Command::Init(seed));
        self.await_all(|_, _| {})
    }

    /// Gives parameters the values of whole tensors.
    pub fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), MeshError> {
        let tensors = Arc::new(tensors.to_vec());
        self.tell(|| Command::Load(Arc::clone(&tensors)));
        self.await_all(|_, _| {})
    }

    /// Hands over a step; several may be handed over before the first is done.
    pub fn submit(&mut self, step: &TeamStep) {
        self.tell(|| Command::Step(step.clone()));
        self.n_open += 1;
    }

    /// Waits for the oldest step that was handed over.
    pub fn finish(&mut self) -> Result<TeamOutcome, MeshError> {
        self.n_open = self.n_open.checked_sub(1).ok_or(MeshError::NoStep)?;
        let n = self.size();
        let mut all = TeamOutcome {
            loss: None,
            outcomes: vec![StepOutcome::default(); n],
            spans: vec![Vec::new(); n],
        };
        self.await_all(|worker, reply| {
            if let Reply::Step(outcome, spans) = reply {
                all.loss = all.loss.or(outcome.loss);
                (all.outcomes[worker], all.spans[worker]) = (outcome, spans);
            }
        })?;
        Ok(all)
    }

    /// Whole tensors, put together from what the workers hold after the last step; none is under way.
    pub fn tensors(&mut self) -> Result<Vec<NamedTensor>, MeshError> {
        self.tell(|| Command::Held);
        let mut parts: Vec<Vec<HeldPart>> = vec![Vec::new(); self.size()];
        self.await_all(|worker, reply| {
            if let Reply::Held(held) = reply {
                parts[worker] = held;
            }
        })?;
        whole_tensors(parts.iter().flatten())
    }

    /// A worker whose thread has ended says why in its last reply.
    fn tell(&self, command: impl Fn() -> Command) {
        for one in &self.commands {
            let _ = one.send(command());
        }
    }

    /// Takes the next reply of every worker. An error of one ends all.
    fn await_all(&mut self, mut take: impl FnMut(usize, Reply)) -> Result<(), MeshError> {
        let mut failed: Option<MeshError> = None;
        for worker in 0..self.early.len() {
            let reply = loop {
                if let Some(reply) = self.early[worker].pop_front() {
                    break reply;
                }
                match self.replies.recv() {
                    Ok((from, reply)) => self.early[from].push_back(reply),
                    Err(_) => break Reply::Failed(MeshError::ThreadEnded { worker }),
                }
                self.stop_if_failed();
            };
            match reply {
                // The one that failed first knows why; the others only know of it.
                Reply::Failed(error) => {
                    let is_nearer = |known: &MeshError| error.distance() < known.distance();
                    let is_better = failed.as_ref().is_none_or(is_nearer);
                    if is_better {
                        failed = Some(error);
                    }
                }
                reply => take(worker, reply),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Those who wait for one that failed need not wait longer.
    fn stop_if_failed(&self) {
        let newest = self.early.iter().filter_map(|replies| replies.back());
        if newest.into_iter().any(|reply| matches!(reply, Reply::Failed(_))) {
            self.abort.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.abort.store(true, Ordering::Relaxed);
        self.commands.clear();
        for thread in self.threads.drain(..) {
            // A panic was told as an end of the thread.
            let _ = thread.join();
        }
    }
}

/// Says that a thread has ended where it could not say so itself.
struct LastWord {
    worker: usize,
    say: Sender<(usize, Reply)>,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = MeshError::ThreadEnded { worker: self.worker };
            let _ = self.say.send((self.worker, Reply::Failed(error)));
        }
    }
}

/// What one worker's thread does: it lays its programs out, and then does what it is told until nobody tells it more.
fn work(
    worker: usize,
    programs: Vec<WorkerProgram>,
    n_threads: usize,
    links: Vec<Option<Box<dyn Link>>>,
    abort: Arc<AtomicBool>,
    told: &Receiver<Command>,
    say: &Sender<(usize, Reply)>,
) -> Result<(), MeshError> {
    let action = "at the start".to_string();
    let mail = Mail::new(worker, links);
    let mut mail = mail.map_err(|source| MeshError::Mail {
        worker,
        action: action.clone(),
        source: source.into(),
    })?;
    mail.set_abort_flag(abort);
    let device = CpuDevice::new(n_threads);
    let device =
        device.map_err(|source| MeshError::Device { worker, action, source: source.into() })?;
    let mut own = MeshWorker::new(programs, Box::new(device))?;
    let answer = |reply| {
        let _ = say.send((worker, reply));
    };
    answer(Reply::Done);
    while let Ok(command) = told.recv() {
        match command {
            Command::Init(seed) => {
                own.init(seed)?;
                answer(Reply::Done);
            }
            Command::Load(tensors) => {
                own.load(&tensors)?;
                answer(Reply::Done);
            }
            Command::Held => answer(Reply::Held(own.held()?)),
            Command::Step(TeamStep { plan, step, rate, seed, inputs }) => {
                let inputs = |grain: usize, name: &str| inputs.bytes(grain, name);
                let input = StepInput { step, rate, seed, inputs: &inputs };
                let mut spans = Vec::new();
                let outcome =
                    own.run_step(plan, &input, &mut mail, &mut |span| spans.push(span))?;
                answer(Reply::Step(outcome, spans));
            }
        }
    }
    Ok(())
}

/// In-process links between all of so many workers.
pub fn linked(n: usize) -> Result<AllLinks, MeshError> {
    let mut links: AllLinks = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    let capacity = (ALL_CAPACITY / n.max(1)).clamp(LEAST_CAPACITY, CAPACITY);
    // A ring has a power of two.
    let capacity = 1 << capacity.ilog2();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let pair = in_process::pair(capacity);
        let (one, other) = pair.map_err(|source| MeshError::NoLink { a, b, source })?;
        links[a][b] = Some(Box::new(one));
        links[b][a] = Some(Box::new(other));
    }
    Ok(links)
}
