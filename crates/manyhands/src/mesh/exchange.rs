//! Sums of several workers: each owns a range of all elements, gets what the others have of it, adds in one order, and gives the result to whoever wants it.
//!
//! Additions are those of the device, element by element, so the order alone decides on the bits.

use std::ops::Range;

use half::{bf16, f16};
use manyhands_device::{Device, DeviceError, GroupId};
use manyhands_net::mail::{Mail, MailError};
use manyhands_program::DType;

use super::memory::{Cell, scratch_of};

/// Why a step's action failed.
#[derive(Debug)]
pub(super) enum Trouble {
    Device(DeviceError),
    Mail(MailError),
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Self {
        Trouble::Device(error)
    }
}

impl From<MailError> for Trouble {
    fn from(error: MailError) -> Self {
        Trouble::Mail(error)
    }
}

/// Some elements of one tensor of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Which tensor of the set.
    pub(super) tensor: usize,
    /// Its bytes.
    pub(super) bytes: Range<usize>,
    pub(super) dtype: DType,
}

/// Where the tensors of a set begin.
pub(super) type Places = Vec<(GroupId, usize)>;

/// Where the result goes.
pub(super) enum Goal {
    /// All of it, on every member.
    Whole(Places),
    /// Each member's own range, tensor by tensor.
    Shard(Vec<Cell>),
}

/// An exchange among members, laid out.
pub(super) struct Exchange {
    pub(super) label: u64,
    pub(super) what: String,
    pub(super) members: Vec<usize>,
    /// Which of them this is.
    pub(super) me: usize,
    /// How many sets each member brings.
    pub(super) n_sets: Vec<usize>,
    /// Where this member's sets lie.
    pub(super) own: Vec<Places>,
    /// By member: what of a set it owns.
    pub(super) owned: Vec<Vec<Segment>>,
    /// Sets, numbered member by member, that are added to others: (into, from).
    pub(super) joins: Vec<(usize, usize)>,
    /// The set that holds the result at the end.
    pub(super) result: usize,
    pub(super) goal: Goal,
}

/// The bytes of segments, packed.
pub(super) fn packed_bytes(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.bytes.len()).sum()
}

impl Exchange {
    /// The bytes that it needs for the owned range of all sets, and later for what others own of the result.
    pub(super) fn scratch_bytes(&self) -> usize {
        let n_sets: usize = self.n_sets.iter().sum();
        let longest = match &self.goal {
            Goal::Whole(_) => self.owned.iter().map(|one| packed_bytes(one)).max().unwrap_or(0),
            Goal::Shard(_) => 0,
        };
        longest.max(n_sets * packed_bytes(&self.owned[self.me]))
    }

    /// Carries it out.
    pub(super) fn run(
        &self,
        device: &mut dyn Device,
        mail: &mut Mail,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let staging = scratch_of(scratch, self.scratch_bytes());
        self.send_sets(device, mail)?;
        self.take_sets(device, mail, staging)?;
        let total = self.add_up(staging);
        self.give_total(device, total)?;
        if let Goal::Whole(places) = &self.goal {
            if !total.is_empty() {
                for &to in self.members.iter().filter(|&&to| to != self.members[self.me]) {
                    mail.post(to, self.label, &[total])?;
                }
            }
            self.gather(places, device, mail, staging)?;
        }
        Ok(())
    }

    /// What it does by itself.
    pub(super) fn rehearse(
        &self,
        device: &mut dyn Device,
        scratch: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        let total = self.add_up(scratch_of(scratch, self.scratch_bytes()));
        self.give_total(device, total)
    }

    /// Adds all sets up: the total of the owned range.
    fn add_up<'s>(&self, staging: &'s mut [u8]) -> &'s [u8] {
        let segments = &self.owned[self.me];
        let n = packed_bytes(segments);
        for &(into, from) in &self.joins {
            let (left, right) = two(staging, into * n, from * n, n);
            add_segments(segments, left, right);
        }
        &staging[self.result * n..(self.result + 1) * n]
    }

    /// Puts the total of the owned range where it goes here.
    fn give_total(&self, device: &mut dyn Device, total: &[u8]) -> Result<(), DeviceError> {
        let segments = &self.owned[self.me];
        match &self.goal {
            Goal::Whole(places) => unpack(device, places, segments, total)?,
            Goal::Shard(cells) => {
                let mut rest = total;
                for (segment, cell) in segments.iter().zip(cells) {
                    let (bytes, after) = rest.split_at(segment.bytes.len());
                    rest = after;
                    device.write(cell.buffer, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Sends every other owner its range of this member's sets.
    fn send_sets(&self, device: &dyn Device, mail: &mut Mail) -> Result<(), Trouble> {
        for (owner, segments) in self.owned.iter().enumerate() {
            if owner == self.me || self.own.is_empty() || packed_bytes(segments) == 0 {
                continue;
            }
            let mut parts = Vec::with_capacity(self.own.len() * segments.len());
            for places in &self.own {
                for segment in segments {
                    parts.push(segment_bytes(device, places, segment)?);
                }
            }
            mail.post(self.members[owner], self.label, &parts)?;
        }
        Ok(())
    }

    /// Has the own range of all sets in the staging memory.
    fn take_sets(
        &self,
        device: &dyn Device,
        mail: &mut Mail,
        staging: &mut [u8],
    ) -> Result<(), Trouble> {
        let segments = &self.owned[self.me];
        let n = packed_bytes(segments);
        let mut at = 0;
        for (member, &n_sets) in self.n_sets.iter().enumerate() {
            let into = &mut staging[at..at + n_sets * n];
            at += n_sets * n;
            if member != self.me {
                if !into.is_empty() {
                    mail.take(self.members[member], self.label, into, &self.what)?;
                }
                continue;
            }
            let mut rest = into;
            for places in &self.own {
                for segment in segments {
                    let (own, after) = rest.split_at_mut(segment.bytes.len());
                    own.copy_from_slice(segment_bytes(device, places, segment)?);
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// Takes what the other owners have added up.
    fn gather(
        &self,
        places: &Places,
        device: &mut dyn Device,
        mail: &mut Mail,
        staging: &mut [u8],
    ) -> Result<(), Trouble> {
        for (owner, segments) in self.owned.iter().enumerate() {
            let n = packed_bytes(segments);
            if owner == self.me || n == 0 {
                continue;
            }
            let from = self.members[owner];
            if let [segment] = &segments[..] {
                let (group, offset) = places[segment.tensor];
                let bytes = offset + segment.bytes.start..offset + segment.bytes.end;
                let mut outcome = Ok(());
                device.with_host_bytes(&[], group, &mut |_, all| {
                    outcome = mail.take(from, self.label, &mut all[bytes.clone()], &self.what);
                })?;
                outcome?;
                continue;
            }
            mail.take(from, self.label, &mut staging[..n], &self.what)?;
            unpack(device, places, segments, &staging[..n])?;
        }
        Ok(())
    }
}

/// The bytes of one segment of a set.
pub(super) fn segment_bytes<'a>(
    device: &'a dyn Device,
    places: &Places,
    segment: &Segment,
) -> Result<&'a [u8], DeviceError> {
    let (group, offset) = places[segment.tensor];
    Ok(&device.host_bytes(group)?[offset + segment.bytes.start..offset + segment.bytes.end])
}

/// Puts packed segments where they belong.
pub(super) fn unpack(
    device: &mut dyn Device,
    places: &Places,
    segments: &[Segment],
    packed: &[u8],
) -> Result<(), DeviceError> {
    let mut rest = packed;
    for segment in segments {
        let (own, after) = rest.split_at(segment.bytes.len());
        rest = after;
        let (group, offset) = places[segment.tensor];
        device.with_host_bytes(&[], group, &mut |_, all| {
            all[offset + segment.bytes.start..offset + segment.bytes.end].copy_from_slice(own);
        })?;
    }
    Ok(())
}

/// Two runs of `n` bytes that do not overlap, the first to be written.
pub(super) fn two(all: &mut [u8], first: usize, second: usize, n: usize) -> (&mut [u8], &[u8]) {
    if first < second {
        let (left, right) = all.split_at_mut(second);
        (&mut left[first..first + n], &right[..n])
    } else {
        let (left, right) = all.split_at_mut(first);
        (&mut right[..n], &left[second..second + n])
    }
}

/// Adds packed segments to others.
fn add_segments(segments: &[Segment], into: &mut [u8], from: &[u8]) {
    let mut at = 0;
    for run in segments.chunk_by(|a, b| a.dtype == b.dtype) {
        let n = packed_bytes(run);
        add(run[0].dtype, &mut into[at..at + n], &from[at..at + n]);
        at += n;
    }
}

/// Adds elements to others, one by one, as the device does.
pub(super) fn add(dtype: DType, into: &mut [u8], from: &[u8]) {
    match dtype {
        DType::F32 => {
            lanes(into, from, |a, b| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes())
        }
        DType::F64 => {
            lanes(into, from, |a, b| (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes())
        }
        DType::F16 => lanes(into, from, |a, b| {
            let sum = f16::from_le_bytes(a).to_f32() + f16::from_le_bytes(b).to_f32();
            f16::from_f32(sum).to_le_bytes()
        }),
        DType::Bf16 => lanes(into, from, |a, b| {
            let sum = bf16::from_le_bytes(a).to_f32() + bf16::from_le_bytes(b).to_f32();
            bf16::from_f32(sum).to_le_bytes()
        }),
        DType::I32 => lanes(into, from, |a, b| {
            i32::from_le_bytes(a).wrapping_add(i32::from_le_bytes(b)).to_le_bytes()
        }),
        DType::I64 => lanes(into, from, |a, b| {
            i64::from_le_bytes(a).wrapping_add(i64::from_le_bytes(b)).to_le_bytes()
        }),
        DType::U8 => lanes(into, from, |[a]: [u8; 1], [b]| [a.wrapping_add(b)]),
        // A sum of truth values is none; the layout refuses them.
        DType::Bool => {}
    }
}

fn lanes<const N: usize>(into: &mut [u8], from: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (into, _) = into.as_chunks_mut::<N>();
    let (from, _) = from.as_chunks::<N>();
    for (a, b) in into.iter_mut().zip(from) {
        *a = add(*a, *b);
    }
}

/// Two members that have each other's values become the sum of both: one letter each way.
pub(super) struct Swap {
    pub(super) label: u64,
    pub(super) what: String,
    pub(super) other: usize,
    /// Whether the other comes first.
    pub(super) other_is_first: bool,
    pub(super) places: Places,
    /// The whole of every value.
    pub(super) values: Vec<Segment>,
}

impl Swap {
    /// Carries it out.
    pub(super) fn run(
        &self,
        device: &mut dyn Device,
        mail: &mut Mail,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let staging = scratch_of(scratch, packed_bytes(&self.values));
        let parts = self.values.iter().map(|one| segment_bytes(device, &self.places, one));
        let parts = parts.collect::<Result<Vec<&[u8]>, _>>()?;
        mail.post(self.other, self.label, &parts)?;
        mail.take(self.other, self.label, staging, &self.what)?;
        Ok(self.add(device, staging)?)
    }

    /// What it does by itself.
    pub(super) fn rehearse(
        &self,
        device: &mut dyn Device,
        scratch: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        self.add(device, scratch_of(scratch, packed_bytes(&self.values)))
    }

    /// Adds what the other has, in the order of the two.
    fn add(&self, device: &mut dyn Device, staging: &mut [u8]) -> Result<(), DeviceError> {
        let mut rest = staging;
        for value in &self.values {
            let n = value.bytes.len();
            let (others, after) = rest.split_at_mut(n);
            rest = after;
            let (group, offset) = self.places[value.tensor];
            let other_is_first = self.other_is_first;
            device.with_host_bytes(&[], group, &mut |_, all| {
                let own = &mut all[offset..offset + n];
                if other_is_first {
                    add(value.dtype, others, own);
                    own.copy_from_slice(others);
                } else {
                    add(value.dtype, own, others);
                }
            })?;
        }
        Ok(())
    }
}
