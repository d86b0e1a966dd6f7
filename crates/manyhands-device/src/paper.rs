//! A device on paper: it compiles, and hands out numbers for buffers that have no memory. What is laid out on it says what it would take.

use std::collections::HashMap;

use manyhands_program::{Program, TensorType};

use crate::cpu::{CpuDevice, Isa};
use crate::device::{
    BufferGroup, BufferId, Device, DeviceDescription, ExecutableId, GroupId, Launch, Lent,
    MemoryPlan, Moment, ReadGroups,
};
use crate::error::DeviceError;

/// A device without memory, on which nothing can be run.
pub struct PaperDevice {
    compiler: CpuDevice,
    buffers: HashMap<u64, TensorType>,
    groups: HashMap<u64, Vec<BufferId>>,
    n_given: u64,
}

impl PaperDevice {
    /// One that compiles for so many lanes and threads.
    pub fn new(n_lanes: usize, threads_each: usize) -> Result<PaperDevice, DeviceError> {
        let compiler = CpuDevice::with_lanes(n_lanes, threads_each, Isa::detect())?;
        let (buffers, groups) = (HashMap::new(), HashMap::new());
        Ok(PaperDevice { compiler, buffers, groups, n_given: 0 })
    }

    fn number(&mut self) -> u64 {
        self.n_given += 1;
        self.n_given
    }

    fn has_none<T>(buffer: BufferId) -> Result<T, DeviceError> {
        Err(DeviceError::NoSuchBuffer { id: buffer.0 })
    }
}

impl Device for PaperDevice {
    fn describe(&self) -> DeviceDescription {
        self.compiler.describe()
    }

    fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        self.compiler.compile(program)
    }

    fn memory(&self, executable: ExecutableId) -> Result<MemoryPlan, DeviceError> {
        self.compiler.memory(executable)
    }

    fn release(&mut self, executable: ExecutableId) -> Result<(), DeviceError> {
        self.compiler.release(executable)
    }

    fn allocate(&mut self, ty: &TensorType) -> Result<BufferId, DeviceError> {
        let buffer = BufferId(self.number());
        self.buffers.insert(buffer.0, ty.clone());
        Ok(buffer)
    }

    fn allocate_group(&mut self, types: &[TensorType]) -> Result<BufferGroup, DeviceError> {
        let id = GroupId(self.number());
        let buffers: Vec<BufferId> = types
            .iter()
            .map(|ty| {
                let buffer = BufferId(self.number());
                self.buffers.insert(buffer.0, ty.clone());
                buffer
            })
            .collect();
        self.groups.insert(id.0, buffers.clone());
        Ok(BufferGroup { id, buffers })
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        match self.buffers.remove(&buffer.0) {
            Some(_) => Ok(()),
            None => PaperDevice::has_none(buffer),
        }
    }

    fn free_group(&mut self, group: GroupId) -> Result<(), DeviceError> {
        let known = self.groups.remove(&group.0);
        for buffer in known.ok_or(DeviceError::NoSuchGroup { id: group.0 })? {
            self.buffers.remove(&buffer.0);
        }
        Ok(())
    }

    fn buffer_type(&self, buffer: BufferId) -> Result<TensorType, DeviceError> {
        match self.buffers.get(&buffer.0) {
            Some(ty) => Ok(ty.clone()),
            None => PaperDevice::has_none(buffer),
        }
    }

    fn write(&mut self, _: BufferId, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&self, buffer: BufferId, _: &mut [u8]) -> Result<(), DeviceError> {
        PaperDevice::has_none(buffer)
    }

    fn host_bytes(&self, group: GroupId) -> Result<&[u8], DeviceError> {
        Err(DeviceError::NoSuchGroup { id: group.0 })
    }

    fn with_host_bytes(
        &mut self,
        _: &[GroupId],
        written: GroupId,
        _: &mut dyn FnMut(&dyn ReadGroups, &mut [u8]),
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchGroup { id: written.0 })
    }

    fn run(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        let executable = launches.first().map_or(0, |launch| launch.executable.0);
        Err(DeviceError::NoSuchExecutable { id: executable })
    }

    fn run_lent(&mut self, launch: &Launch, _: Lent<'_>) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchExecutable { id: launch.executable.0 })
    }

    fn run_announcing(
        &mut self,
        launch: &Launch,
        _: &mut dyn FnMut(Moment<'_>),
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoSuchExecutable { id: launch.executable.0 })
    }
}
