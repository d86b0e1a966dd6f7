//! The messages between a driver and its workers. A worker gets programs, not a job: it needs no layers, no data and no names of its own.

use std::ops::Range;

use manyhands_program::{Program, Role, Tensor, TensorType};
use serde::{Deserialize, Serialize};

use super::outer::LocalRule;
use crate::checkpoint::NamedTensor;
use crate::error::Error;

/// Said by workers to the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// It needs the state that the job starts from.
    NeedState,
    /// It is about to do these grains of a step, from 1.
    Want { step: u64, grains: Vec<Range<usize>> },
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
    /// What a step needs beside inputs; the inputs of the grains are beside it, grain by grain.
    Inputs { step: u64, grains: Vec<Range<usize>>, inputs: StepInputs },
    /// The state after so many steps; its tensors are beside it.
    State { steps: u64, tensors: Vec<TensorHead> },
    /// The state after so many steps is wanted.
    GiveState { steps: u64 },
}

/// The programs of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Programs {
    /// One for each number of samples that a step can have.
    pub(super) plans: Vec<PlanPrograms>,
    /// What a grain reads, with the bytes of one sample, in the order in which they come.
    pub(super) inputs: Vec<(String, usize)>,
    /// Where the driver finds them in a batch, the target aside.
    #[serde(skip)]
    pub(super) places: Vec<usize>,
    /// Samples of a grain, but for a step's last.
    pub(super) grain: usize,
    /// For the strategy `local`.
    pub(super) local: Option<LocalRule>,
    /// Threads of a worker, where the job says so.
    pub(super) threads: Option<usize>,
}

/// The programs of steps of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlanPrograms {
    pub(super) n_samples: usize,
    pub(super) n_grains: usize,
    pub(super) program: Program,
    pub(super) last: Option<Program>,
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
