//! The messages between a driver and its workers. A worker gets programs, not a job: it needs no layers and no names of its own, and no data unless it can read it.

use std::ops::Range;

use manyhands_net::membership::identity::ViewId;
use manyhands_net::membership::message::GrainCounts;
use manyhands_net::tables::message::Reach;
use manyhands_program::mesh::WorkerProgram;
use manyhands_program::{Program, Role, Tensor, TensorType};
use serde::{Deserialize, Serialize};

use super::meshes::{MOST_SPANS, Standing, Unit};
use super::offer::DataOffer;
use super::outer::LocalRule;
use super::servers::{JobTable, ServerTraffic};
use super::talk::Checked;
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::Overlap;
use crate::mesh::{ShownSpan, TrainingOf};

/// Said by workers to the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// It needs the state that the job starts from.
    NeedState,
    /// It is about to do these grains of a step, from 1; it may read their samples itself.
    Want { step: u64, grains: Vec<Range<usize>>, reads: bool },
    /// It has opened the data that was offered, and reads it itself.
    Reads,
    /// It cannot read the data that was offered, or not any more.
    CannotRead { reason: String },
    /// Parameters were lost with the servers that held them.
    LostParameters { reason: String },
    /// It wants turns, in a round of its own. What it had is not done.
    WantsTurns { round: u64 },
    /// Where it stands in a view, if it holds a place's state of a mesh.
    Stands { view: ViewId, standing: Option<Standing> },
    /// These units of the state after so many steps, which are beside it.
    Parts { formation: u64, steps: u64, units: Vec<Unit>, tensors: Vec<TensorHead> },
    /// A turn of a round is computed, in so many seconds, and on its way to the servers. The driver says which is next, or that there is none.
    TurnComputed { round: u64, seconds: f64 },
    /// The servers have what it computed in a turn, with the mean loss of its grains.
    TurnDone { round: u64, loss: Loss, work: Work },
    /// What it held back as too small to matter is with the servers.
    Released { round: u64 },
    /// What its place in a mesh did when in a step, before that is said to be done.
    Spans { step: u64, place: usize, spans: Vec<ShownSpan> },
    /// A step is done, and this is what it took here.
    Done { loss: Loss, work: Work },
    /// The state after so many steps, with the losses of the last of them; its tensors are beside it.
    State { steps: u64, tensors: Vec<TensorHead>, losses: Vec<Loss> },
}

/// The loss of a step, where there is one. Its bits, since numbers of JSON are finite and a loss need not be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Loss {
    pub(super) step: u64,
    bits: Option<u32>,
}

impl Loss {
    pub(super) fn new(step: u64, loss: Option<f32>) -> Loss {
        Loss { step, bits: loss.map(f32::to_bits) }
    }

    pub(super) fn value(self) -> Option<f32> {
        self.bits.map(f32::from_bits)
    }
}

/// What a worker did of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) n_grains: u64,
    pub(super) seconds: WorkSeconds,
    /// Steps whose update read the sums of another where they lie.
    #[serde(default)]
    pub(super) n_seen: u64,
    /// Bytes that it moved to and from servers since it told of them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) traffic: Option<ServerTraffic>,
}

/// Where a worker's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkSeconds {
    /// Waiting for inputs.
    pub input: f64,
    /// Running grains.
    pub compute: f64,
    /// Exchanging sums, waiting for others included.
    pub exchange: f64,
    /// The update.
    pub update: f64,
}

impl WorkSeconds {
    pub(crate) fn add(&mut self, other: WorkSeconds) {
        self.input += other.input;
        self.compute += other.compute;
        self.exchange += other.exchange;
        self.update += other.update;
    }
}

/// Said by the driver to workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromDriver {
    /// What steps are made of.
    Programs(Box<Programs>),
    /// What a step needs beside inputs; the inputs of the grains are beside it, grain by grain, unless the worker reads them.
    Inputs { step: u64, grains: Vec<Range<usize>>, inputs: StepInputs, reads: bool },
    /// The state after so many steps; its tensors are beside it.
    State { steps: u64, tensors: Vec<TensorHead> },
    /// The state after so many steps is wanted.
    GiveState { steps: u64 },
    /// There are too few servers: this worker is to be one too.
    BeServer,
    /// Where workers need not wait for each other: some grains of a step, from 1, and how many steps may be missing; for the round in which the worker asked. Inputs that are
    /// there follow without being asked for.
    Turn {
        round: u64,
        step: u64,
        grains: Range<usize>,
        n_grains: usize,
        bound: Option<u64>,
        has_inputs: bool,
    },
    /// What is said of a turn that was computed where there is no next one for now: it is waited for until the servers have it; for the round in which it asked.
    NoTurn { round: u64 },
    /// The state is wanted: what the worker holds back as too small to matter is to be with the servers; for the round in which it asked.
    Release { round: u64 },
    /// There is nothing of the steps before this one, from 1, for the worker.
    Advance { step: u64 },
    /// A place in a mesh. What it holds of the state follows, one by one.
    Place(Box<PlaceInMesh>),
    /// A part of the state of a formation, by its place among what the worker holds; it is beside this.
    Part { formation: u64, idx: usize, tensor: TensorHead },
    /// These units of the state of a formation after so many steps are wanted.
    GiveParts { formation: u64, steps: u64, units: Vec<Unit> },
    /// To a server: this is where the director of the job's tables is.
    Director(Reach),
    /// To a server: the job has no tables.
    NoServers,
}

/// A worker's place in a mesh: what it does there, and where it goes on from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlaceInMesh {
    /// Which formation it is of.
    pub(super) formation: u64,
    /// The view in which it holds.
    pub(super) view: ViewId,
    /// Which place; those of rank 0, 1, ... have places 0, 1, ...
    pub(super) place: usize,
    pub(super) n_places: usize,
    /// Steps behind the state.
    pub(super) steps: u64,
    /// Grains of the job's steps.
    pub(super) grains: GrainCounts,
    /// One for each number of samples that a step can have, the full one first.
    pub(super) programs: Vec<SizedProgram>,
}

/// What a place does in steps of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SizedProgram {
    pub(super) n_samples: usize,
    pub(super) n_grains: usize,
    pub(super) program: WorkerProgram,
}

/// The programs of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Programs {
    /// One for each number of samples that a step can have.
    pub(super) plans: Vec<PlanPrograms>,
    /// What a grain reads, with the bytes of one sample, in the order in which they come.
    pub(super) inputs: Vec<(String, usize)>,
    /// Where they are in a batch, the target aside.
    pub(super) places: Vec<usize>,
    /// Samples of a grain, but for a step's last.
    pub(super) grain: usize,
    /// For the strategy `local`.
    pub(super) local: Option<LocalRule>,
    /// Threads of a worker, where the job says so.
    pub(super) threads: Option<usize>,
    /// The data, for workers that can read it.
    pub(super) offer: Option<DataOffer>,
    /// Whether sums travel while others are computed.
    pub(super) overlap: Overlap,
    /// The parameters that live on servers, under the strategy `parameter_server`.
    pub(super) table: Option<JobTable>,
    /// Whether workers get places in a mesh: then there are no plans here.
    #[serde(default)]
    pub(super) is_meshed: bool,
}

/// The programs of steps of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlanPrograms {
    pub(super) n_samples: usize,
    pub(super) n_grains: usize,
    pub(super) program: Program,
    pub(super) last: Option<Program>,
    /// Where rows of tables are given: which ones grains need, and a shorter last grain.
    #[serde(default)]
    pub(super) indices: Option<Program>,
    #[serde(default)]
    pub(super) last_indices: Option<Program>,
}

impl PlanPrograms {
    /// What a mesh is made of.
    pub(crate) fn training(&self) -> TrainingOf<'_> {
        let PlanPrograms { n_samples, n_grains, program, last, .. } = self;
        TrainingOf { n_samples: *n_samples, n_grains: *n_grains, program, last: last.as_ref() }
    }
}

/// What all grains of a step share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StepInputs {
    pub(super) n_samples: usize,
    pub(super) rate: f32,
    pub(super) seed: u64,
}

/// What a tensor is; its bytes are elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TensorHead {
    name: String,
    role: Role,
    ty: TensorType,
}

/// The heads of tensors, and their bytes.
pub(super) fn heads(tensors: &[NamedTensor]) -> (Vec<TensorHead>, Vec<&[u8]>) {
    let head = |one: &NamedTensor| TensorHead {
        name: one.name.clone(),
        role: one.role,
        ty: one.tensor.ty().clone(),
    };
    (tensors.iter().map(head).collect(), tensors.iter().map(|one| one.tensor.bytes()).collect())
}

/// The tensors of these heads, whose bytes follow one another.
pub(super) fn tensors(heads: Vec<TensorHead>, bytes: &[u8]) -> Result<Vec<NamedTensor>, Error> {
    let mut rest = bytes;
    let one = |head: TensorHead| {
        let n = head.ty.n_bytes().min(rest.len());
        let (own, after) = rest.split_at(n);
        rest = after;
        let tensor = Tensor::from_bytes(head.ty, own.to_vec())?;
        Ok(NamedTensor { name: head.name, role: head.role, tensor })
    };
    heads.into_iter().map(one).collect()
}

/// The most grains of a step, as the coordinator bounds them.
const MAX_GRAINS: usize = manyhands_net::membership::message::MAX_GRAINS as usize;
/// The most bytes of one input of a grain.
const MAX_INPUT: usize = 1 << 40;
/// The most losses that go with a state.
const MAX_LOSSES: usize = 1 << 10;
/// The longest reason for which a worker cannot read.
const MAX_REASON: usize = 64 << 10;
/// The most threads that a job may ask a worker for.
const MAX_THREADS: usize = 1 << 12;

impl Checked for FromWorker {
    fn check(&self) -> Result<(), String> {
        match self {
            FromWorker::NeedState
            | FromWorker::Reads
            | FromWorker::WantsTurns { .. }
            | FromWorker::Released { .. } => Ok(()),
            FromWorker::Stands { standing, .. } => {
                standing.map_or(Ok(()), |standing| check_step(standing.steps))
            }
            FromWorker::Parts { steps, units, tensors, .. } => {
                check_step(*steps)?;
                match units.len() == tensors.len() {
                    true => Ok(()),
                    false => Err("as many units as tensors".to_string()),
                }
            }
            FromWorker::CannotRead { reason } | FromWorker::LostParameters { reason } => {
                bounded("the reason", reason.len(), MAX_REASON)
            }
            FromWorker::Want { step, grains, .. } => {
                if *step == 0 {
                    return Err("steps are counted from 1".to_string());
                }
                check_step(*step)?;
                check_grains(grains)
            }
            FromWorker::Done { loss, work } | FromWorker::TurnDone { loss, work, .. } => {
                check_step(loss.step)?;
                let WorkSeconds { input, compute, exchange, update } = work.seconds;
                match [input, compute, exchange, update].iter().all(|s| (0.0..=1e12).contains(s)) {
                    true => bounded("the grains of a step", work.n_grains as usize, MAX_GRAINS),
                    false => Err("its work took no number of seconds".to_string()),
                }
            }
            FromWorker::TurnComputed { seconds, .. } => match (0.0..=1e12).contains(seconds) {
                true => Ok(()),
                false => Err("a turn took no number of seconds".to_string()),
            },
            FromWorker::Spans { step, place, spans } => {
                check_step(*step)?;
                bounded("the place in a mesh", *place, 4096)?;
                bounded("the spans of a step", spans.len(), MOST_SPANS)?;
                match spans.iter().all(|span| span.start.is_finite() && span.end.is_finite()) {
                    true => Ok(()),
                    false => Err("a span has no times".to_string()),
                }
            }
            FromWorker::State { steps, losses, .. } => {
                bounded("the losses", losses.len(), MAX_LOSSES)?;
                losses.iter().try_for_each(|loss| check_step(loss.step))?;
                check_step(*steps)
            }
        }
    }
}

impl Checked for FromDriver {
    fn check(&self) -> Result<(), String> {
        match self {
            FromDriver::Programs(programs) => programs.check(),
            FromDriver::Inputs { step, grains, inputs, .. } => {
                check_step(*step)?;
                bounded("the samples of a step", inputs.n_samples, MAX_INPUT)?;
                check_grains(grains)
            }
            FromDriver::State { steps, .. } | FromDriver::GiveState { steps } => check_step(*steps),
            FromDriver::BeServer
            | FromDriver::Director(_)
            | FromDriver::NoServers
            | FromDriver::NoTurn { .. }
            | FromDriver::Release { .. } => Ok(()),
            FromDriver::Place(place) => place.check(),
            FromDriver::Part { .. } => Ok(()),
            FromDriver::GiveParts { steps, .. } => check_step(*steps),
            FromDriver::Advance { step: 0 } => Err("a move on to no step".to_string()),
            FromDriver::Advance { step } => check_step(*step),
            FromDriver::Turn { step, grains, n_grains, .. } => {
                check_step(*step)?;
                bounded("the grains of a step", *n_grains, MAX_GRAINS)?;
                bounded("the grains of a turn", grains.end, *n_grains)?;
                match *step == 0 || grains.start >= grains.end {
                    true => Err("a turn of no step or no grains".to_string()),
                    false => Ok(()),
                }
            }
        }
    }
}

impl PlaceInMesh {
    fn check(&self) -> Result<(), String> {
        check_step(self.steps)?;
        if self.place >= self.n_places || self.programs.is_empty() {
            return Err(format!("there is no place {} of {}", self.place, self.n_places));
        }
        for one in &self.programs {
            bounded("the grains of a step", one.n_grains, MAX_GRAINS)?;
            if one.n_samples == 0 || one.program.n_grains != one.n_grains {
                return Err("a program for another number of grains".to_string());
            }
        }
        Ok(())
    }
}

impl Programs {
    fn check(&self) -> Result<(), String> {
        if self.grain == 0 {
            return Err("a grain of no samples".to_string());
        }
        if self.threads == Some(0) || self.local.is_some_and(|rule| rule.every == 0) {
            return Err("no threads, or an exchange after no steps".to_string());
        }
        bounded("the threads", self.threads.unwrap_or(1), MAX_THREADS)?;
        self.table.as_ref().map_or(Ok(()), JobTable::check)?;
        for (name, sample_bytes) in &self.inputs {
            let grain_bytes = self.grain.saturating_mul(*sample_bytes);
            bounded(&format!("the bytes of {name} in a grain"), grain_bytes, MAX_INPUT)?;
        }
        for plan in &self.plans {
            bounded("the grains of a step", plan.n_grains, MAX_GRAINS)?;
            if plan.n_samples == 0 || plan.n_samples.div_ceil(self.grain) != plan.n_grains {
                let (n_samples, n_grains) = (plan.n_samples, plan.n_grains);
                return Err(format!(
                    "{n_samples} samples are not {n_grains} grains of {}",
                    self.grain
                ));
            }
        }
        Ok(())
    }
}

/// Grains of a step must be in order.
fn check_grains(grains: &[Range<usize>]) -> Result<(), String> {
    let mut end = 0;
    for one in grains {
        if one.start < end || one.is_empty() || one.end > MAX_GRAINS {
            return Err(format!("grains {} to {} have no place there", one.start, one.end));
        }
        end = one.end;
    }
    Ok(())
}

fn check_step(step: u64) -> Result<(), String> {
    match step > manyhands_net::membership::message::MAX_COUNT {
        true => Err(format!("there is no step {step}")),
        false => Ok(()),
    }
}

fn bounded(what: &str, n: usize, most: usize) -> Result<(), String> {
    if n > most { Err(format!("{what}: {n} is more than {most}")) } else { Ok(()) }
}

/// Reads bytes as what a worker or a driver says: a line, and the bytes beside it. For fuzzing; what is said is dropped.
#[doc(hidden)]
pub fn read_words(bytes: &[u8]) {
    let line_end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, beside) = bytes.split_at(line_end);
    let beside = beside.get(1..).unwrap_or_default();
    if let Ok(message) = serde_json::from_slice::<FromWorker>(line)
        && message.check().is_ok()
        && let FromWorker::State { tensors: heads, .. } = message
    {
        // Whether they fit is theirs to say; that it is said is the point.
        let _ = tensors(heads, beside);
    }
    if let Ok(message) = serde_json::from_slice::<FromDriver>(line)
        && message.check().is_ok()
    {
        match message {
            FromDriver::State { tensors: heads, .. } => drop(tensors(heads, beside)),
            FromDriver::Programs(programs) => {
                // As a worker lays out the inputs of a step.
                for plan in &programs.plans {
                    let n_grains = plan.n_samples.div_ceil(programs.grain);
                    assert!(n_grains <= MAX_GRAINS && n_grains * programs.grain >= plan.n_samples);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
