//! What the plans of an executor share: the device, compiled programs, parameters, buffers.

use std::collections::HashMap;
use std::sync::Arc;

use manyhands_program::{Program, TensorType};

use crate::device::{
    BufferGroup, BufferId, Device, ExecutableId, GroupId, GroupMemory, group_offsets,
};
use crate::error::DeviceError;

/// A device with what was compiled and allocated on it.
pub(super) struct Resources {
    pub(super) device: Box<dyn Device>,
    /// How many launches may run side by side.
    pub(super) n_lanes: usize,
    pub(super) parameters: HashMap<String, BufferId>,
    pub(super) compiled: Vec<(Program, ExecutableId)>,
    /// Buffers by what they are for. Plans run one after the other, so they may use the same.
    buffers: HashMap<(Purpose, String, TensorType), BufferId>,
    /// Memory for sets of sums, by what it is for.
    slots: HashMap<(SlotPurpose, Vec<TensorType>), BufferGroup>,
    pub(super) buffer_bytes: usize,
    /// Where partial sums are to lie, if somebody else wants to see them.
    pub(super) partial_memory: Option<Arc<dyn GroupMemory>>,
    /// Sets of sums in memory of others.
    pub(super) shown: Vec<BufferGroup>,
}

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Parameter,
    GrainInput { grain: usize },
    GrainOutput { grain: usize },
    StepInput,
    StepOutput,
}

/// What a slot, memory for one set of sums, is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SlotPurpose {
    /// A partial sum that goes into the update, or to other workers.
    Partial { idx: usize },
    /// A sum that is merged into another; a lane's spare slots serve all of its partial sums, one after the other.
    Spare { lane: usize, idx: usize },
    /// Sums over all grains, as they come from an exchange with other workers.
    Totals,
}

impl Resources {
    pub(super) fn new(device: Box<dyn Device>, n_lanes: usize) -> Resources {
        Resources {
            device,
            n_lanes,
            parameters: HashMap::new(),
            compiled: Vec::new(),
            buffers: HashMap::new(),
            slots: HashMap::new(),
            buffer_bytes: 0,
            partial_memory: None,
            shown: Vec::new(),
        }
    }

    /// Compiles a program, unless the same was compiled before.
    pub(super) fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        if let Some((_, executable)) = self.compiled.iter().find(|(known, _)| known == program) {
            return Ok(*executable);
        }
        let executable = self.device.compile(program)?;
        self.compiled.push((program.clone(), executable));
        Ok(executable)
    }

    pub(super) fn buffer(
        &mut self,
        purpose: Purpose,
        name: &str,
        ty: &TensorType,
    ) -> Result<BufferId, DeviceError> {
        let key = (purpose, name.to_string(), ty.clone());
        if let Some(&buffer) = self.buffers.get(&key) {
            return Ok(buffer);
        }
        let buffer = self.device.allocate(ty)?;
        self.buffer_bytes += ty.n_bytes();
        self.buffers.insert(key, buffer);
        Ok(buffer)
    }

    /// A slot for sums of these types.
    pub(super) fn slot(
        &mut self,
        purpose: SlotPurpose,
        types: &[TensorType],
    ) -> Result<BufferGroup, DeviceError> {
        let key = (purpose, types.to_vec());
        if let Some(slot) = self.slots.get(&key) {
            return Ok(slot.clone());
        }
        let slot = match (&self.partial_memory, purpose) {
            (Some(memory), SlotPurpose::Partial { .. }) => {
                self.device.allocate_group_in(types, memory)?
            }
            _ => self.device.allocate_group(types)?,
        };
        self.buffer_bytes += group_offsets(types).1;
        self.slots.insert(key, slot.clone());
        Ok(slot)
    }

    /// The slot whose group this is.
    pub(super) fn slot_of(&self, group: GroupId) -> Result<BufferGroup, DeviceError> {
        let slot = self.slots.values().chain(&self.shown).find(|slot| slot.id == group);
        slot.cloned().ok_or(DeviceError::NoSuchGroup { id: group.0 })
    }
}
