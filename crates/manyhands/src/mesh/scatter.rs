//! Sums that are spread grain by grain: each member adds its shard of every grain along the one tree, in grain order.

use std::collections::HashMap;

use manyhands_device::Device;
use manyhands_net::mail::Mail;

use super::exchange::{Places, Segment, Trouble, add_segments, packed_bytes, segment_bytes};
use super::memory::Cell;

/// The shards of a step's sums while they grow.
#[derive(Default)]
pub(super) struct Shards {
    /// One for each level of the tree.
    pub(super) slots: Vec<Vec<u8>>,
    /// This member's own, of grains whose turn has not come.
    own: HashMap<usize, Vec<u8>>,
    /// Memory for those to come.
    spare: Vec<Vec<u8>>,
    pub(super) letter: Vec<u8>,
}

/// One thing that is done with shards.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShardAction {
    /// Takes the shard of a grain: it is written to a slot, or added to it.
    Take { grain: usize, member: usize, label: u64, slot: usize, adds: bool },
    /// Adds one slot to another.
    Merge { into: usize, from: usize },
}

/// One scatter, laid out.
pub(super) struct Scatter {
    pub(super) what: String,
    pub(super) members: Vec<usize>,
    pub(super) me: usize,
    /// This member's grain, its label, and where its sums lie.
    pub(super) own: Option<(usize, u64, Places)>,
    /// By member: what it owns.
    pub(super) owned: Vec<Vec<Segment>>,
    /// Which shards, of the plan's.
    pub(super) shards: usize,
    /// What has its turn now.
    pub(super) actions: Vec<ShardAction>,
    /// Where the totals go, after the last grain.
    pub(super) totals: Vec<Cell>,
}

impl Shards {
    /// Forgets what a step that failed has left.
    pub(super) fn begin_step(&mut self) {
        self.own.clear();
    }
}

impl Scatter {
    /// Carries it out.
    pub(super) fn run(
        &self,
        shards: &mut Shards,
        device: &mut dyn Device,
        mail: &mut Mail,
    ) -> Result<(), Trouble> {
        self.send(shards, device, mail)?;
        let segments = &self.owned[self.me];
        let n = packed_bytes(segments);
        for action in &self.actions {
            match *action {
                ShardAction::Take { grain, member, label, slot, adds } => {
                    let mut bytes = match shards.own.remove(&grain) {
                        Some(own) => own,
                        None => std::mem::take(&mut shards.letter),
                    };
                    bytes.resize(n, 0);
                    if member != self.me && n > 0 {
                        mail.take(self.members[member], label, &mut bytes, &self.what)?;
                    }
                    let into = slot_of(&mut shards.slots, slot, n);
                    match adds {
                        true => add_segments(segments, into, &bytes),
                        false => into.copy_from_slice(&bytes),
                    }
                    match member == self.me {
                        true => shards.spare.push(bytes),
                        false => shards.letter = bytes,
                    }
                }
                ShardAction::Merge { into, from } => {
                    let right = std::mem::take(&mut shards.slots[from]);
                    add_segments(segments, &mut shards.slots[into], &right);
                    shards.slots[from] = right;
                }
            }
        }
        let mut at = 0;
        for (cell, segment) in self.totals.iter().zip(segments) {
            device.write(cell.buffer, &shards.slots[0][at..at + segment.bytes.len()])?;
            at += segment.bytes.len();
        }
        Ok(())
    }

    /// Sends every other owner its shard of this member's grain, and keeps the own.
    fn send(
        &self,
        shards: &mut Shards,
        device: &dyn Device,
        mail: &mut Mail,
    ) -> Result<(), Trouble> {
        let Some((grain, label, places)) = &self.own else { return Ok(()) };
        for (owner, segments) in self.owned.iter().enumerate() {
            let parts = segments.iter().map(|one| segment_bytes(device, places, one));
            let parts = parts.collect::<Result<Vec<&[u8]>, _>>()?;
            if owner == self.me {
                let mut own = shards.spare.pop().unwrap_or_default();
                own.clear();
                parts.iter().for_each(|part| own.extend_from_slice(part));
                shards.own.insert(*grain, own);
            } else if packed_bytes(segments) > 0 {
                mail.post(self.members[owner], *label, &parts)?;
            }
        }
        Ok(())
    }
}

pub(super) fn slot_of(slots: &mut Vec<Vec<u8>>, slot: usize, n: usize) -> &mut Vec<u8> {
    if slots.len() <= slot {
        slots.resize_with(slot + 1, Vec::new);
    }
    slots[slot].resize(n, 0);
    &mut slots[slot]
}
