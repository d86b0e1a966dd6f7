//! What a worker of a mesh takes of memory: counted from its layout, so that it is known before there is any.

use std::collections::{HashMap, HashSet};

use manyhands_device::{DeviceError, ExecutableId, PaperDevice};
use manyhands_program::Role;
use manyhands_program::mesh::WorkerProgram;
use serde::Serialize;

use super::error::MeshError;
use super::exchange::packed_bytes;
use super::layout::{Instruction, Plan};
use super::part::held_type;
use super::scatter::ShardAction;
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
}

impl Room {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parameters + self.state + self.sums + self.values + self.temporaries
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
        MeshWorker::laid_out(programs, Box::new(device), true)?.room()
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
        let shards: usize = self.plans.iter().map(shard_bytes).sum();
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
            sums: (memory.n_sum_bytes() + shards) as u64,
            values: (values + self.resources.n_staged) as u64,
            temporaries: temporaries as u64,
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

    fn executables(&self) -> HashSet<ExecutableId> {
        let instructions = self.plans.iter().flat_map(|plan| &plan.instructions);
        let all = instructions.filter_map(|(_, instruction)| match instruction {
            Instruction::Launch(launch) => Some(launch.executable),
            _ => None,
        });
        all.collect()
    }
}

/// Bytes of a plan's shards of sums that are scattered: the slots of the tree, the own shards whose turn has not come, and one letter.
fn shard_bytes(plan: &Plan) -> usize {
    /// By tree: bytes of a shard, slots, own shards that wait, and the most of them.
    #[derive(Default)]
    struct Tree {
        n_bytes: usize,
        n_slots: usize,
        n_waiting: usize,
        most_waiting: usize,
    }
    let mut trees: HashMap<usize, Tree> = HashMap::new();
    for (_, instruction) in &plan.instructions {
        let Instruction::Scatter(scatter) = instruction else { continue };
        let tree = trees.entry(scatter.shards).or_default();
        tree.n_bytes = tree.n_bytes.max(packed_bytes(&scatter.owned[scatter.me]));
        tree.n_waiting += usize::from(scatter.own.is_some());
        tree.most_waiting = tree.most_waiting.max(tree.n_waiting);
        for action in &scatter.actions {
            if let ShardAction::Take { member, slot, .. } = *action {
                tree.n_slots = tree.n_slots.max(slot + 1);
                if member == scatter.me {
                    tree.n_waiting = tree.n_waiting.saturating_sub(1);
                }
            }
        }
    }
    trees.values().map(|tree| tree.n_bytes * (tree.n_slots + tree.most_waiting + 1)).sum()
}
