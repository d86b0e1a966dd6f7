//! A worker's memory: cells for values, which are used again once they are forgotten, and slots for sums.

use std::collections::HashMap;

use manyhands_device::{
    BufferGroup, BufferId, Device, DeviceError, GroupId, group_offsets, taken_bytes,
};
use manyhands_program::{DType, TensorType};

/// Where a value lies.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) buffer: BufferId,
    pub(super) ty: TensorType,
    /// The group that it is part of, and where it begins there. Truth values have none: their bytes are written checked.
    pub(super) group: Option<(GroupId, usize)>,
    /// Whether it is memory of the pool, and goes back there.
    is_pooled: bool,
}

impl Cell {
    /// All of a slot as bytes, which stays a slot. A slot without sums has none.
    pub(super) fn of_slot(slot: &BufferGroup, sums: &SumTypes) -> Option<Cell> {
        let types: Vec<TensorType> = sums.iter().map(|(_, ty)| ty.clone()).collect();
        let ty = TensorType::new(DType::U8, vec![group_offsets(&types).1]);
        let buffer = *slot.buffers.first()?;
        Some(Cell { buffer, ty, group: Some((slot.id, 0)), is_pooled: false })
    }
}

/// The types of a slot's sums, in order, by name.
pub(super) type SumTypes = Vec<(String, TensorType)>;

/// All memory of a worker for values and sums. What was given back is used again for values of the same type.
#[derive(Default)]
pub(super) struct Memory {
    free: HashMap<TensorType, Vec<Cell>>,
    slots: HashMap<(SumTypes, usize), BufferGroup>,
    n_bytes: usize,
    n_sum_bytes: usize,
    /// The most that one instruction needs while it is carried out.
    n_scratch_bytes: usize,
}

impl Memory {
    /// The bytes that were taken so far.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Those of them that are sums.
    pub(super) fn n_sum_bytes(&self) -> usize {
        self.n_sum_bytes
    }

    /// What instructions need while they are carried out, one after the other.
    pub(super) fn n_scratch_bytes(&self) -> usize {
        self.n_scratch_bytes
    }

    /// Takes note that an instruction needs so many bytes while it is carried out.
    pub(super) fn needs_scratch(&mut self, n_bytes: usize) {
        self.n_scratch_bytes = self.n_scratch_bytes.max(n_bytes);
    }

    /// A cell for a shard of sums, packed, that nothing else uses.
    pub(super) fn shard(
        &mut self,
        device: &mut dyn Device,
        n_bytes: usize,
    ) -> Result<Cell, DeviceError> {
        let before = self.n_bytes;
        let cell = self.cell(device, &TensorType::new(DType::U8, vec![n_bytes]))?;
        self.n_sum_bytes += self.n_bytes - before;
        Ok(cell)
    }

    /// A cell that nothing else uses.
    pub(super) fn cell(
        &mut self,
        device: &mut dyn Device,
        ty: &TensorType,
    ) -> Result<Cell, DeviceError> {
        if let Some(cell) = self.free.get_mut(ty).and_then(Vec::pop) {
            return Ok(cell);
        }
        self.n_bytes += taken_bytes(ty.n_bytes());
        if ty.dtype == DType::Bool {
            let buffer = device.allocate(ty)?;
            return Ok(Cell { buffer, ty: ty.clone(), group: None, is_pooled: true });
        }
        let group = device.allocate_group(std::slice::from_ref(ty))?;
        let (buffer, group) = (group.buffers[0], Some((group.id, 0)));
        Ok(Cell { buffer, ty: ty.clone(), group, is_pooled: true })
    }

    /// Has a cell used again for something else.
    pub(super) fn give_back(&mut self, cell: Cell) {
        if cell.is_pooled {
            self.free.entry(cell.ty.clone()).or_default().push(cell);
        }
    }

    /// Memory for parameters, which lie together: each by itself would end somewhere in a huge page.
    pub(super) fn parameters(
        &mut self,
        device: &mut dyn Device,
        types: &SumTypes,
    ) -> Result<Vec<Cell>, DeviceError> {
        if types.iter().any(|(_, ty)| ty.dtype == DType::Bool) {
            return types.iter().map(|(_, ty)| self.cell(device, ty)).collect();
        }
        let all: Vec<TensorType> = types.iter().map(|(_, ty)| ty.clone()).collect();
        let group = device.allocate_group(&all)?;
        self.n_bytes += taken_bytes(group_offsets(&all).1);
        Ok(cells_of_slot(&group, types))
    }

    /// Memory for a set of sums.
    pub(super) fn slot(
        &mut self,
        device: &mut dyn Device,
        sums: &SumTypes,
        slot: usize,
    ) -> Result<BufferGroup, DeviceError> {
        let key = (sums.clone(), slot);
        if let Some(group) = self.slots.get(&key) {
            return Ok(group.clone());
        }
        let types: Vec<TensorType> = sums.iter().map(|(_, ty)| ty.clone()).collect();
        let group = device.allocate_group(&types)?;
        let n_bytes = taken_bytes(group_offsets(&types).1);
        (self.n_bytes, self.n_sum_bytes) = (self.n_bytes + n_bytes, self.n_sum_bytes + n_bytes);
        self.slots.insert(key, group.clone());
        Ok(group)
    }
}

/// The sums of a slot as cells of their own, which stay with the slot.
pub(super) fn cells_of_slot(slot: &BufferGroup, sums: &SumTypes) -> Vec<Cell> {
    let types: Vec<TensorType> = sums.iter().map(|(_, ty)| ty.clone()).collect();
    let (offsets, _) = group_offsets(&types);
    let cells = slot.buffers.iter().zip(types).zip(offsets);
    cells
        .map(|((&buffer, ty), offset)| Cell {
            buffer,
            ty,
            group: Some((slot.id, offset)),
            is_pooled: false,
        })
        .collect()
}

/// So many bytes of the memory that instructions use one after the other. What is there is left from others.
pub(super) fn scratch_of(scratch: &mut Vec<u8>, n_bytes: usize) -> &mut [u8] {
    if scratch.len() < n_bytes {
        scratch.resize(n_bytes, 0);
    }
    &mut scratch[..n_bytes]
}

/// A cell's bytes, copied only where the device does not show them.
pub(super) fn bytes_of<'a>(
    device: &'a dyn Device,
    cell: &Cell,
    copied: &'a mut Vec<u8>,
) -> Result<&'a [u8], DeviceError> {
    let n = cell.ty.n_bytes();
    match cell.group {
        Some((group, offset)) => Ok(&device.host_bytes(group)?[offset..offset + n]),
        None => {
            copied.resize(n, 0);
            device.read(cell.buffer, copied)?;
            Ok(copied)
        }
    }
}

/// Fills a cell by writing to its bytes, which are copied only where the device does not show them.
pub(super) fn fill<E: From<DeviceError>>(
    device: &mut dyn Device,
    cell: &Cell,
    copied: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let n = cell.ty.n_bytes();
    match cell.group {
        Some((group, offset)) => {
            let mut outcome = Ok(());
            device.with_host_bytes(&[], group, &mut |_, bytes| {
                outcome = write(&mut bytes[offset..offset + n]);
            })?;
            outcome
        }
        None => {
            copied.resize(n, 0);
            write(copied)?;
            Ok(device.write(cell.buffer, copied)?)
        }
    }
}
