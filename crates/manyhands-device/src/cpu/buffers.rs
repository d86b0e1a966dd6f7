//! The buffers that callers hold: each with memory of its own, or as a member of a group that lies in one piece.

use std::sync::Arc;

use manyhands_program::{DType, TensorType};

use super::aligned::AlignedBytes;
use super::table::{Others, Table};
use crate::device::{
    BufferGroup, BufferId, GroupId, GroupMemory, ReadGroups, ShownMemory, group_offsets,
};
use crate::error::DeviceError;

/// All buffers of a device, and their groups.
pub(super) struct Buffers {
    table: Table<Buffer>,
    groups: Table<Group>,
}

/// One buffer.
pub(super) struct Buffer {
    pub(super) ty: TensorType,
    memory: Memory,
    /// The last run that used it, and whether that wrote it.
    pub(super) used: (u64, bool),
}

enum Memory {
    Own(AlignedBytes),
    /// A member of a group, and where it begins there.
    Member(GroupId, usize),
}

struct Group {
    bytes: AlignedBytes,
    members: Vec<BufferId>,
    /// The last run that was noted to write here.
    written_in: u64,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { table: Table::new(), groups: Table::new() }
    }

    pub(super) fn allocate(&mut self, ty: &TensorType) -> Result<BufferId, DeviceError> {
        let bytes = zeros(ty.n_bytes())?;
        Ok(self.insert(ty, Memory::Own(bytes)))
    }

    fn insert(&mut self, ty: &TensorType, memory: Memory) -> BufferId {
        BufferId(self.table.insert(Buffer { ty: ty.clone(), memory, used: (0, false) }))
    }

    pub(super) fn allocate_group(
        &mut self,
        types: &[TensorType],
        memory: Option<&Arc<dyn GroupMemory>>,
    ) -> Result<BufferGroup, DeviceError> {
        // Callers write a group's bytes unchecked, and not every byte is a truth value.
        if types.iter().any(|ty| ty.dtype == DType::Bool) {
            return Err(DeviceError::GroupOfTruthValues);
        }
        let n_bytes = group_offsets(types).1;
        let bytes = match memory.and_then(|memory| AlignedBytes::in_memory(memory, n_bytes)) {
            Some(bytes) => bytes,
            None => zeros(n_bytes)?,
        };
        Ok(self.insert_group(types, bytes))
    }

    /// A group that lies in memory of somebody else, and is not written.
    pub(super) fn show_group(
        &mut self,
        types: &[TensorType],
        memory: &Arc<dyn ShownMemory>,
    ) -> Result<Option<BufferGroup>, DeviceError> {
        // Nobody vouches for what its bytes are.
        if types.iter().any(|ty| ty.dtype == DType::Bool) {
            return Err(DeviceError::GroupOfTruthValues);
        }
        let bytes = AlignedBytes::shown(memory, group_offsets(types).1);
        Ok(bytes.map(|bytes| self.insert_group(types, bytes)))
    }

    fn insert_group(&mut self, types: &[TensorType], bytes: AlignedBytes) -> BufferGroup {
        let (offsets, _) = group_offsets(types);
        let id = GroupId(self.groups.insert(Group { bytes, members: Vec::new(), written_in: 0 }));
        let members = types.iter().zip(offsets);
        let members: Vec<BufferId> =
            members.map(|(ty, offset)| self.insert(ty, Memory::Member(id, offset))).collect();
        if let Some(group) = self.groups.get_mut(id.0) {
            group.members.clone_from(&members);
        }
        BufferGroup { id, buffers: members }
    }

    pub(super) fn free(&mut self, id: BufferId) -> Result<(), DeviceError> {
        if let Memory::Member(..) = self.get(id)?.memory {
            return Err(DeviceError::GroupMember { id: id.0 });
        }
        self.table.remove(id.0);
        Ok(())
    }

    pub(super) fn free_group(&mut self, id: GroupId) -> Result<(), DeviceError> {
        let group = self.groups.remove(id.0).ok_or(no_such_group(id))?;
        for member in group.members {
            self.table.remove(member.0);
        }
        Ok(())
    }

    pub(super) fn get(&self, id: BufferId) -> Result<&Buffer, DeviceError> {
        self.table.get(id.0).ok_or(DeviceError::NoSuchBuffer { id: id.0 })
    }

    /// A buffer and the address of its bytes.
    pub(super) fn get_mut(&mut self, id: BufferId) -> Result<(&mut Buffer, *mut u8), DeviceError> {
        let missing = DeviceError::NoSuchBuffer { id: id.0 };
        let Some(buffer) = self.table.get_mut(id.0) else { return Err(missing) };
        let address = match &mut buffer.memory {
            Memory::Own(bytes) => bytes.as_mut_ptr(),
            Memory::Member(group, offset) => {
                let group = self.groups.get_mut(group.0).ok_or(missing)?;
                group.bytes.as_mut_ptr().wrapping_add(*offset)
            }
        };
        Ok((buffer, address))
    }

    /// Notes that a run writes a buffer which it was bound to.
    pub(super) fn note_written(&mut self, id: BufferId, run: u64) {
        if let Some(Buffer { memory: Memory::Member(group, _), .. }) = self.table.get(id.0)
            && let Some(group) = self.groups.get_mut(group.0)
        {
            group.written_in = run;
        }
    }

    /// Whether a run writes a buffer, or others that lie in one piece of memory with it, as far as was noted.
    pub(super) fn is_written(&self, id: BufferId, run: u64) -> bool {
        let Some(buffer) = self.table.get(id.0) else { return false };
        match buffer.memory {
            Memory::Own(_) => buffer.used == (run, true),
            Memory::Member(group, _) => {
                self.groups.get(group.0).is_some_and(|group| group.written_in == run)
            }
        }
    }

    pub(super) fn bytes(&self, id: BufferId) -> Result<&[u8], DeviceError> {
        let buffer = self.get(id)?;
        Ok(match &buffer.memory {
            Memory::Own(bytes) => bytes.as_slice(),
            Memory::Member(group, offset) => {
                &self.group_bytes(*group)?[*offset..*offset + buffer.ty.n_bytes()]
            }
        })
    }

    /// An error where a buffer lies in memory that is only shown.
    pub(super) fn check_writable(&self, id: BufferId) -> Result<(), DeviceError> {
        match self.get(id)?.memory {
            Memory::Own(_) => Ok(()),
            Memory::Member(group, _) => self.check_group_writable(group),
        }
    }

    fn check_group_writable(&self, id: GroupId) -> Result<(), DeviceError> {
        match self.groups.get(id.0).is_some_and(|group| group.bytes.is_shown()) {
            true => Err(DeviceError::ShownGroup { id: id.0 }),
            false => Ok(()),
        }
    }

    pub(super) fn bytes_mut(&mut self, id: BufferId) -> Result<&mut [u8], DeviceError> {
        self.check_writable(id)?;
        let missing = DeviceError::NoSuchBuffer { id: id.0 };
        let Some(buffer) = self.table.get_mut(id.0) else { return Err(missing) };
        Ok(match &mut buffer.memory {
            Memory::Own(bytes) => bytes.as_mut_slice(),
            Memory::Member(group, offset) => {
                let group = self.groups.get_mut(group.0).ok_or(missing)?;
                &mut group.bytes.as_mut_slice()[*offset..*offset + buffer.ty.n_bytes()]
            }
        })
    }

    pub(super) fn group_bytes(&self, id: GroupId) -> Result<&[u8], DeviceError> {
        let group = self.groups.get(id.0).ok_or(no_such_group(id))?;
        Ok(group.bytes.as_slice())
    }

    /// Shows groups to read beside one to write.
    pub(super) fn with_groups(
        &mut self,
        read: &[GroupId],
        written: GroupId,
        then: &mut dyn FnMut(&dyn ReadGroups, &mut [u8]),
    ) -> Result<(), DeviceError> {
        self.check_group_writable(written)?;
        let (own, others) = self.groups.split_mut(written.0).ok_or(no_such_group(written))?;
        if read.contains(&written) {
            return Err(DeviceError::SharedGroup { id: written.0 });
        }
        if let Some(&id) = read.iter().find(|id| others.get(id.0).is_none()) {
            return Err(no_such_group(id));
        }
        then(&Reader { read, others }, own.bytes.as_mut_slice());
        Ok(())
    }
}

/// Groups to read, all of which exist, while another is written.
struct Reader<'a> {
    read: &'a [GroupId],
    others: Others<'a, Group>,
}

impl ReadGroups for Reader<'_> {
    fn bytes(&self, idx: usize) -> &[u8] {
        let group = self.others.get(self.read[idx].0);
        group.expect("the group was found before").bytes.as_slice()
    }
}

fn zeros(n_bytes: usize) -> Result<AlignedBytes, DeviceError> {
    let missing = DeviceError::OutOfMemory { what: "a buffer", bytes: n_bytes };
    AlignedBytes::zeroed(n_bytes).ok_or(missing)
}

fn no_such_group(id: GroupId) -> DeviceError {
    DeviceError::NoSuchGroup { id: id.0 }
}
