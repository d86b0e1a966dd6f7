//! What a worker of a mesh takes of memory: counted from its layout, so that it is known before there is any.

use std::collections::HashSet;

use manyhands_device::{DeviceError, ExecutableId, PaperDevice};
use manyhands_net::station::RING;
use manyhands_program::Role;
use manyhands_program::mesh::WorkerProgram;
use serde::Serialize;

use super::error::MeshError;
use super::layout::{Instruction, Plan};
use super::part::held_type;
use super::scatter::shard_bytes;
use super::worker::MeshWorker;

/// The bytes that a worker takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Room {
    /// Weights and statistics that it holds.
    pub parameters: u64,
    /// What it holds of the optimizer's state.
    pub state: u64,
    /// Sums over grains, and shards of them while they grow.
    pub sums: u64,
    /// Values between pieces, weights that were gathered, and what exchanges hold.
    pub values: u64,
    /// Values inside the piece that needs most, and working space.
    pub temporaries: u64,
    /// What a process takes besides: the programs themselves, links to the others, and letters that come before they are asked for.
    pub process: u64,
}

/// A process without any model.
const BARE_PROCESS: usize = 2 << 20;
/// What a node of a program takes, as it was sent, laid out and compiled.
const BYTES_PER_NODE: usize = 2560;

impl Room {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parameters + self.state + self.sums + self.values + self.temporaries + self.process
    }
}

impl MeshWorker {
    /// What a worker with these programs would take on a device of so many threads. Nothing of it is taken.
    pub fn room_for(programs: Vec<WorkerProgram>, n_threads: usize) -> Result<Room, MeshError> {
        let worker = programs.first().map_or(0, |program| program.worker);
        let device = PaperDevice::new(1, n_threads);
        let action = "at the start".to_string();
        let device =
            device.map_err(|source| MeshError::Device { worker, action, source: source.into() })?;
        MeshWorker::new(programs, Box::new(device))?.room()
    }

    /// What it takes.
    pub fn room(&self) -> Result<Room, MeshError> {
        let held = |is_slot: bool| -> Result<usize, MeshError> {
            let own = self.holdings.iter().filter(|one| (one.role == Role::Slot) == is_slot);
            own.map(|holding| Ok(held_type(holding)?.n_bytes())).sum()
        };
        let (parameters, state) = (held(false)?, held(true)?);
        let memory = &self.resources.memory;
        let values = memory.n_bytes() - memory.n_sum_bytes() - parameters - state;
        let action = || "memory".to_string();
        let worker = self.worker();
        let temporaries = self.temporaries().map_err(|source| MeshError::Device {
            worker,
            action: action(),
            source: source.into(),
        })?;
        Ok(Room {
            parameters: parameters as u64,
            state: state as u64,
            sums: memory.n_sum_bytes() as u64,
            values: (values + memory.n_scratch_bytes()) as u64,
            temporaries: temporaries as u64,
            process: self.beside_values() as u64,
        })
    }

    /// The most that one piece needs inside, since pieces run one after the other, and the constants of all.
    fn temporaries(&self) -> Result<usize, DeviceError> {
        let (mut inside, mut scratch, mut constants) = (0, 0, 0);
        for executable in self.executables() {
            let plan = self.resources.device.memory(executable)?;
            inside = inside.max(plan.temporary_bytes);
            scratch = scratch.max(plan.scratch_bytes);
            constants += plan.constant_bytes;
        }
        Ok(inside + scratch + constants)
    }

    /// What the process of this worker takes beside values.
    fn beside_values(&self) -> usize {
        let compiled = self.resources.compiled().map(|program| program.nodes().len());
        let early = self.plans.iter().map(early_letters).max().unwrap_or(0);
        let others: HashSet<usize> =
            self.plans.iter().flat_map(|plan| peers(plan, self.worker())).collect();
        process_bytes(compiled.sum()) + others.len() * RING + early
    }

    fn executables(&self) -> HashSet<ExecutableId> {
        let instructions = self.plans.iter().flat_map(|plan| &plan.instructions);
        let all = instructions.filter_map(|(_, instruction)| match instruction {
            Instruction::Launch(launch) => Some(launch.executable),
            _ => None,
        });
        all.collect()
    }
}

/// What a process takes with programs of so many nodes.
pub(crate) fn process_bytes(n_nodes: usize) -> usize {
    BARE_PROCESS + n_nodes * BYTES_PER_NODE
}

/// Bytes of letters that may come before they are asked for: others are at most two pieces ahead of one who waits for no one.
fn early_letters(plan: &Plan) -> usize {
    let (mut gathered, mut run, mut scattered, mut received) = (0, 0, 0, 0);
    for (_, instruction) in &plan.instructions {
        run = match instruction {
            Instruction::Gather(gather) => run + gather.n_bytes.saturating_sub(gather.n_own),
            _ => 0,
        };
        gathered = gathered.max(run);
        match instruction {
            Instruction::Scatter(scatter) => {
                let n = shard_bytes(&scatter.owned[scatter.me]);
                scattered = scattered.max(n * (scatter.members.len() - 1));
            }
            Instruction::Receive { cell, .. } => received = received.max(cell.ty.n_bytes()),
            _ => {}
        }
    }
    2 * (gathered + scattered + received)
}

/// The workers that letters go to or come from.
fn peers(plan: &Plan, worker: usize) -> impl Iterator<Item = usize> {
    let of = |instruction: &Instruction| match instruction {
        Instruction::Send { to, .. } => vec![*to],
        Instruction::Receive { from, .. } => vec![*from],
        Instruction::Exchange(exchange) => exchange.members.clone(),
        Instruction::Scatter(scatter) => scatter.members.clone(),
        Instruction::Gather(gather) => gather.members.clone(),
        Instruction::Swap(swap) => vec![swap.other],
        _ => Vec::new(),
    };
    let all = plan.instructions.iter().flat_map(move |(_, instruction)| of(instruction));
    all.filter(move |other| *other != worker)
}
