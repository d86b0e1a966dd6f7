//! Sums that are spread grain by grain: each member adds its shard of every grain along the one tree, in grain order.

use manyhands_device::{Device, DeviceError, GROUP_ALIGNMENT, GroupId};
use manyhands_net::mail::Mail;

use super::exchange::{Places, Segment, Trouble, add, segment_bytes};
use super::memory::{Cell, scratch_of};

/// Where the shard of a grain comes from.
#[derive(Clone, Debug)]
pub(super) enum ShardOf {
    /// Another member sends it.
    Member { member: usize, label: u64 },
    /// It is part of this member's own sums, which are at hand.
    Own,
    /// It is this member's own, and was kept until its turn.
    Kept(Cell),
}

/// What lies between the tensors of a shard.
const BETWEEN: [u8; GROUP_ALIGNMENT] = [0; GROUP_ALIGNMENT];

/// One thing that is done with shards: one cell for each level of the tree. The tensors of a shard lie as in a group, in letters too, so that the last cell has the totals where the
/// update takes them.
#[derive(Clone, Debug)]
pub(super) enum ShardAction {
    /// Takes the shard of a grain: it is written to a cell, or added to it.
    Take { from: ShardOf, into: Cell, adds: bool },
    /// Adds one cell to another.
    Merge { into: Cell, from: Cell },
}

/// Takes the letter with a label of a member.
type Taking<'a, E> = dyn FnMut(usize, u64, &mut [u8]) -> Result<(), E> + 'a;

/// One scatter, laid out.
pub(super) struct Scatter {
    pub(super) what: String,
    pub(super) members: Vec<usize>,
    pub(super) me: usize,
    /// The label of this member's grain, and where its sums lie.
    pub(super) own: Option<(u64, Places)>,
    /// Where the own shard is kept, if its turn has not come.
    pub(super) kept: Option<Cell>,
    /// By member: what it owns.
    pub(super) owned: Vec<Vec<Segment>>,
    /// What has its turn now.
    pub(super) actions: Vec<ShardAction>,
}

/// The bytes of a shard, each tensor of which begins as in a group.
pub(super) fn shard_bytes(segments: &[Segment]) -> usize {
    segments.iter().map(aligned_bytes).sum()
}

fn aligned_bytes(segment: &Segment) -> usize {
    segment.bytes.len().next_multiple_of(GROUP_ALIGNMENT)
}

impl Scatter {
    /// Carries it out.
    pub(super) fn run(
        &self,
        device: &mut dyn Device,
        mail: &mut Mail,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        self.send(device, mail)?;
        for action in &self.actions {
            self.act(action, device, scratch, &mut |member, label, bytes| {
                Ok::<(), Trouble>(mail.take(self.members[member], label, bytes, &self.what)?)
            })?;
        }
        // Only now: what is kept may lie where something that had its turn was.
        Ok(self.keep(device)?)
    }

    /// The same without the others: letters bring whatever is there.
    pub(super) fn rehearse(
        &self,
        device: &mut dyn Device,
        scratch: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        for action in &self.actions {
            self.act(action, device, scratch, &mut |_, _, _| Ok::<(), DeviceError>(()))?;
        }
        self.keep(device)
    }

    /// Sends every other owner its shard of this member's grain.
    fn send(&self, device: &dyn Device, mail: &mut Mail) -> Result<(), Trouble> {
        let Some((label, places)) = &self.own else { return Ok(()) };
        for (owner, segments) in self.owned.iter().enumerate() {
            if owner != self.me && shard_bytes(segments) > 0 {
                let mut parts = Vec::with_capacity(2 * segments.len());
                for segment in segments {
                    parts.push(segment_bytes(device, places, segment)?);
                    parts.push(&BETWEEN[..aligned_bytes(segment) - segment.bytes.len()]);
                }
                mail.post(self.members[owner], *label, &parts)?;
            }
        }
        Ok(())
    }

    fn keep(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        match &self.kept {
            Some(cell) => self.take_own(device, cell, false),
            None => Ok(()),
        }
    }

    fn act<E: From<DeviceError>>(
        &self,
        action: &ShardAction,
        device: &mut dyn Device,
        scratch: &mut Vec<u8>,
        take: &mut Taking<'_, E>,
    ) -> Result<(), E> {
        let segments = &self.owned[self.me];
        let n = shard_bytes(segments);
        match action {
            _ if n == 0 => Ok(()),
            ShardAction::Take { from: ShardOf::Own, into, adds } => {
                Ok(self.take_own(device, into, *adds)?)
            }
            ShardAction::Take { from: ShardOf::Kept(kept), into, adds: true }
            | ShardAction::Merge { into, from: kept } => {
                Ok(both(device, kept, into, |from, into| add_shards(segments, into, from))?)
            }
            ShardAction::Take { from: ShardOf::Kept(kept), into, adds: false } => {
                Ok(both(device, kept, into, |from, into| into.copy_from_slice(from))?)
            }
            ShardAction::Take { from: ShardOf::Member { member, label }, into, adds: true } => {
                let letter = scratch_of(scratch, n);
                take(*member, *label, letter)?;
                within(device, into, |into| {
                    add_shards(segments, into, letter);
                    Ok(())
                })
            }
            ShardAction::Take { from: ShardOf::Member { member, label }, into, adds: false } => {
                within(device, into, |into| take(*member, *label, into))
            }
        }
    }

    /// Writes this member's own shard to a cell, or adds it there.
    fn take_own(
        &self,
        device: &mut dyn Device,
        into: &Cell,
        adds: bool,
    ) -> Result<(), DeviceError> {
        let (Some((_, places)), Some((goal, _))) = (&self.own, into.group) else { return Ok(()) };
        let segments = &self.owned[self.me];
        let sources: Vec<GroupId> =
            segments.iter().map(|segment| places[segment.tensor].0).collect();
        device.with_host_bytes(&sources, goal, &mut |read, into| {
            let mut rest = into;
            for (idx, segment) in segments.iter().enumerate() {
                let offset = places[segment.tensor].1;
                let own = &read.bytes(idx)[offset..][segment.bytes.clone()];
                let (shard, after) = rest.split_at_mut(aligned_bytes(segment));
                rest = after;
                let shard = &mut shard[..own.len()];
                match adds {
                    true => add(segment.dtype, shard, own),
                    false => shard.copy_from_slice(own),
                }
            }
        })?;
        Ok(())
    }
}

/// Adds a shard to another; whatever lies between tensors may be added too.
fn add_shards(segments: &[Segment], into: &mut [u8], from: &[u8]) {
    let mut at = 0;
    for run in segments.chunk_by(|a, b| a.dtype == b.dtype) {
        let n = shard_bytes(run);
        add(run[0].dtype, &mut into[at..at + n], &from[at..at + n]);
        at += n;
    }
}

/// Does something with the bytes of two cells, which are alone in their groups.
fn both(
    device: &mut dyn Device,
    from: &Cell,
    into: &Cell,
    mut act: impl FnMut(&[u8], &mut [u8]),
) -> Result<(), DeviceError> {
    if let (Some((source, _)), Some((goal, _))) = (from.group, into.group) {
        let (n, m) = (from.ty.n_bytes(), into.ty.n_bytes());
        device.with_host_bytes(&[source], goal, &mut |read, into| {
            act(&read.bytes(0)[..n], &mut into[..m]);
        })?;
    }
    Ok(())
}

/// Does something with the bytes of a cell that is alone in its group.
fn within<E: From<DeviceError>>(
    device: &mut dyn Device,
    cell: &Cell,
    mut act: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut outcome = Ok(());
    if let Some((group, _)) = cell.group {
        let n = cell.ty.n_bytes();
        device.with_host_bytes(&[], group, &mut |_, bytes| outcome = act(&mut bytes[..n]))?;
    }
    outcome
}
