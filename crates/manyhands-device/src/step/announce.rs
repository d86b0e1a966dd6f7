//! Sums that are told as they become final, while the last grain of a worker's share still runs: they can travel meanwhile.
//!
//! The last launch of an assignment fills or updates one slot. What is added to others afterwards stays in parts: who
//! listens adds them, in the same pass over memory in which it takes them.

use std::ops::Range;

use super::{PlanId, StepExecutor};
use crate::device::{BufferGroup, Moment};
use crate::error::DeviceError;

/// The most parts of a sum: one for each level of the tree over the most grains, and one.
const MAX_PARTS: usize = 32;

/// Who follows the sums of a worker's last grains.
pub trait FollowSums {
    /// The sum with this place in [`SumLayout::sums`](super::SumLayout) is final in the set with this place among those that
    /// will be held when the grains are done. It is the sum of these parts, added from the right: of three parts the first plus
    /// the sum of the second and the third. Each sum of each set comes once.
    fn take(&mut self, set: usize, sum: usize, parts: &[&[u8]]);
}

/// Where the sums of an assignment are when its last launch makes them final.
pub(super) struct Ending {
    /// What the last launch writes.
    last: BufferGroup,
    /// For each set that is held afterwards the slots of its parts.
    sets: Vec<Vec<BufferGroup>>,
}

/// An addition of sums that follows the last launch.
pub(super) struct LateMerge {
    pub(super) into: BufferGroup,
    pub(super) from: BufferGroup,
}

impl Ending {
    /// The parts of each set, whose first slot is given, when these merges are still to come. None if they are not added from
    /// the right alone, or nothing waits for the last launch.
    pub(super) fn new(
        last: &BufferGroup,
        merges: &[LateMerge],
        sets: impl Iterator<Item = BufferGroup>,
    ) -> Option<Ending> {
        let mut chains: Vec<Vec<BufferGroup>> = Vec::new();
        let take = |chains: &mut Vec<Vec<BufferGroup>>, slot: &BufferGroup| {
            let found = chains.iter().position(|chain: &Vec<BufferGroup>| chain[0].id == slot.id);
            found.map_or_else(|| vec![slot.clone()], |idx| chains.swap_remove(idx))
        };
        for merge in merges {
            let (mut left, right) =
                (take(&mut chains, &merge.into), take(&mut chains, &merge.from));
            if left.len() > 1 {
                return None;
            }
            left.extend(right);
            chains.push(left);
        }
        let sets: Vec<_> = sets.map(|slot| take(&mut chains, &slot)).collect();
        let is_last = |slot: &BufferGroup| slot.id == last.id;
        let fits = sets.iter().any(|set| set.iter().any(is_last))
            && sets.iter().all(|set| set.len() <= MAX_PARTS);
        fits.then(|| Ending { last: last.clone(), sets })
    }

    /// Tells what is final at a moment of the last launch.
    fn tell(&self, moment: &Moment<'_>, follower: &mut dyn FollowSums) {
        for buffer in moment.finals() {
            let found = self.last.buffers.iter().position(|own| own == buffer);
            let Some(sum) = found else { continue };
            for (idx, set) in self.sets.iter().enumerate() {
                let mut parts: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
                for (part, slot) in parts.iter_mut().zip(set) {
                    // Parts are other slots than the last, which is final here, and the launch does not write to them.
                    *part = moment.bytes(slot.buffers[sum]).unwrap_or_default();
                }
                follower.take(idx, sum, &parts[..set.len()]);
            }
        }
    }
}

impl StepExecutor {
    /// As [`StepExecutor::run_grains_if`], for the last grains of a share: their sums, and those of what is held already,
    /// are told as they become final. That may be before the grains are done, so before `keeps` is asked: who follows must be ready
    /// to forget what it took. Without grains that is at once.
    pub fn run_grains_announcing(
        &mut self,
        plan: PlanId,
        grains: &[Range<usize>],
        follower: &mut dyn FollowSums,
        keeps: impl FnOnce() -> bool,
    ) -> Result<bool, DeviceError> {
        self.check_begun(plan)?;
        let laid_out = self.plans[plan.0].assignment(&mut self.resources, &self.held, grains)?;
        let assignment = laid_out.ok_or(DeviceError::NoStep { plan: plan.0 })?;
        let device = &mut self.resources.device;
        let is_told = match (&assignment.ending, assignment.rounds.split_last()) {
            (Some(ending), Some((last, rounds))) => {
                rounds.iter().try_for_each(|launches| device.run(launches))?;
                for launch in last {
                    device.run_announcing(launch, &mut |moment| ending.tell(&moment, follower))?;
                }
                true
            }
            _ => {
                assignment.rounds.iter().try_for_each(|launches| device.run(launches))?;
                false
            }
        };
        if !keeps() {
            return Ok(false);
        }
        self.keep(plan, grains)?;
        if !is_told {
            self.tell_held(plan, follower)?;
        }
        Ok(true)
    }

    /// Tells all that is held.
    fn tell_held(&self, plan: PlanId, follower: &mut dyn FollowSums) -> Result<(), DeviceError> {
        let layout = &self.plan(plan)?.sums;
        for (idx, sum) in layout.sums.iter().enumerate() {
            for (set, group) in self.held.groups.iter().enumerate() {
                let bytes = self.resources.device.host_bytes(*group)?;
                let n_bytes = sum.n_elements * sum.dtype.size();
                follower.take(set, idx, &[&bytes[sum.offset..sum.offset + n_bytes]]);
            }
        }
        Ok(())
    }
}
