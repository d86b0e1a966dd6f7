//! Steps that several workers share.
//!
//! Each worker begins the step, runs the grains that it is given, and holds one set of sums for each maximal complete subtree
//! of the grain tree that it has. Whoever moves the bytes adds these up along the tree (`manyhands_program::join_order`) and
//! writes the totals; then each worker runs the update. Or others show where their sums lie, and the update adds them on its
//! way. All this gives the bits of [`StepExecutor::run`].

use std::ops::Range;
use std::sync::Arc;

use super::{PlanId, StepExecutor, SumLayout};
use crate::device::{GroupId, GroupMemory, ReadGroups, ShownMemory};
use crate::error::DeviceError;

/// The partial sums that a worker holds, as bytes laid out by [`SumLayout`].
#[derive(Clone, Copy)]
pub struct HeldSums<'a> {
    grains: &'a [Range<usize>],
    read: &'a dyn ReadGroups,
}

impl<'a> HeldSums<'a> {
    /// The grains of each set of sums: complete subtrees, in grain order.
    pub fn grains(&self) -> &'a [Range<usize>] {
        self.grains
    }

    /// The bytes of the set of sums with this place among [`HeldSums::grains`]; panics, as a slice does, where there is
    /// none.
    pub fn bytes(&self, idx: usize) -> &'a [u8] {
        self.read.bytes(idx)
    }

    /// Grains and bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, &'a [u8])> + 'a {
        let read = self.read;
        self.grains.iter().enumerate().map(move |(idx, grains)| (grains.clone(), read.bytes(idx)))
    }
}

impl StepExecutor {
    /// Begins a step that is shared with other workers. What was held of another is forgotten.
    pub fn begin_step(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.plan(plan)?;
        self.forget_step();
        self.plans[plan.0].share(&mut self.resources)?;
        self.begun = Some(plan);
        Ok(())
    }

    /// Runs these grains of the step that was begun, on what their inputs hold, and keeps their sums beside those that are held
    /// already; where two halves of a subtree have come together they are added. In any number of calls each grain is run
    /// once. After the error of a grain what was held before is still there; where sums could not be added the step is
    /// forgotten. Allocates nothing when the same was asked before.
    pub fn run_grains(&mut self, plan: PlanId, grains: &[Range<usize>]) -> Result<(), DeviceError> {
        self.run_grains_if(plan, grains, || true).map(|_| ())
    }

    /// As [`StepExecutor::run_grains`], but asks when the grains are done whether their sums are kept; if not, what was held
    /// before is still there. Gives the answer.
    pub fn run_grains_if(
        &mut self,
        plan: PlanId,
        grains: &[Range<usize>],
        keeps: impl FnOnce() -> bool,
    ) -> Result<bool, DeviceError> {
        self.check_begun(plan)?;
        let laid_out = self.plans[plan.0].assignment(&mut self.resources, &self.held, grains)?;
        let assignment = laid_out.ok_or(DeviceError::NoStep { plan: plan.0 })?;
        for launches in &assignment.rounds {
            self.resources.device.run(launches)?;
        }
        if !keeps() {
            return Ok(false);
        }
        self.keep(plan, grains)?;
        Ok(true)
    }

    /// Adds what was run to what is held.
    pub(super) fn keep(
        &mut self,
        plan: PlanId,
        grains: &[Range<usize>],
    ) -> Result<(), DeviceError> {
        let laid_out = self.plans[plan.0].assignment(&mut self.resources, &self.held, grains)?;
        let assignment = laid_out.ok_or(DeviceError::NoStep { plan: plan.0 })?;
        for merge in &assignment.merges {
            if let Err(error) = self.resources.device.run(std::slice::from_ref(merge)) {
                self.forget_step();
                return Err(error);
            }
        }
        self.held.copy_from(&assignment.after);
        Ok(())
    }

    /// How a plan's sums lie in the bytes of a set of them.
    pub fn sum_layout(&self, plan: PlanId) -> Result<&SumLayout, DeviceError> {
        Ok(&self.plan(plan)?.sums)
    }

    /// Has the partial sums of shared steps that need memory from now on lie in this, as far as it has room.
    pub fn hold_sums_in(&mut self, memory: Arc<dyn GroupMemory>) {
        self.resources.partial_memory = Some(memory);
    }

    /// What is held of the step that was begun: the grains of each set of sums, complete subtrees in grain order.
    pub fn held(&self) -> &[Range<usize>] {
        &self.held.grains
    }

    /// The bytes of one set of sums, by its place among [`StepExecutor::held`].
    pub fn held_bytes(&self, idx: usize) -> Result<&[u8], DeviceError> {
        let (what, n) = ("held set of sums", self.held.groups.len());
        let group = self.held.groups.get(idx);
        self.resources.device.host_bytes(*group.ok_or(DeviceError::NoSuchIndex { what, idx, n })?)
    }

    /// Shows what is held, and the totals to be written before the update; both are laid out by [`SumLayout`]. It may be
    /// called many times in a step: what was written stays until the next step's totals. Allocates and copies nothing on the CPU.
    pub fn exchange<R>(
        &mut self,
        plan: PlanId,
        exchange: impl FnOnce(HeldSums<'_>, &mut [u8]) -> R,
    ) -> Result<R, DeviceError> {
        self.check_begun(plan)?;
        let missing = DeviceError::NoStep { plan: plan.0 };
        let Some(shared) = &self.plans[plan.0].shared_step else { return Err(missing) };
        let grains = &self.held.grains[..];
        let (mut waiting, mut answer) = (Some(exchange), None);
        let mut then = |read: &dyn ReadGroups, totals: &mut [u8]| {
            answer = waiting.take().map(|exchange| exchange(HeldSums { grains, read }, totals));
        };
        let (read, written) = (&self.held.groups, shared.totals.id);
        self.resources.device.with_host_bytes(read, written, &mut then)?;
        answer.ok_or(missing)
    }

    /// Runs the update of the step that was begun on the totals that were written, which ends it.
    pub fn run_update(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.check_begun(plan)?;
        self.held.clear();
        self.run_update_and_hold(plan)
    }

    /// As [`StepExecutor::run_update`], and what was held can be read until another step begins.
    pub fn run_update_and_hold(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.check_begun(plan)?;
        self.begun = None;
        let shared = self.plans[plan.0].shared_step.as_ref();
        let update = shared.and_then(|shared| shared.update.as_ref());
        update.map_or(Ok(()), |update| self.resources.device.run(std::slice::from_ref(update)))
    }

    /// Has sets of sums of another worker, laid out as this one's, be inputs of [`StepExecutor::run_joined_update`] where they lie; `None` where the device cannot
    /// read them there.
    pub fn show_sums(
        &mut self,
        plan: PlanId,
        memory: &Arc<dyn ShownMemory>,
    ) -> Result<Option<GroupId>, DeviceError> {
        self.plan(plan)?;
        let types = &self.plans[plan.0].sum_types;
        let group = self.resources.device.show_group(types, memory)?;
        let id = group.as_ref().map(|group| group.id);
        self.resources.shown.extend(group);
        Ok(id)
    }

    /// Forgets all that was shown, and that this worker's own sums may still be read.
    pub fn hide_sums(&mut self) -> Result<(), DeviceError> {
        let gone: Vec<GroupId> = self.resources.shown.drain(..).map(|group| group.id).collect();
        self.plans.iter_mut().for_each(|plan| plan.forget_joined(&gone));
        self.held.lent.clear();
        gone.into_iter().try_for_each(|group| self.resources.device.free_group(group))
    }

    /// Lays out the update that [`StepExecutor::run_joined_update`] is to run, if that is the first of its kind.
    pub fn plan_joined_update(
        &mut self,
        plan: PlanId,
        shown: &[(Range<usize>, GroupId)],
    ) -> Result<(), DeviceError> {
        self.check_begun(plan)?;
        let sets = self.joined_sets(shown);
        self.plans[plan.0].joined_update(&mut self.resources, &sets).map(|_| ())
    }

    /// The sums that are held and those that others show, by their grains.
    fn joined_sets(&self, shown: &[(Range<usize>, GroupId)]) -> Vec<(Range<usize>, GroupId)> {
        let held = self.held.grains.iter().cloned().zip(self.held.groups.iter().copied());
        let mut sets: Vec<(Range<usize>, GroupId)> = held.chain(shown.iter().cloned()).collect();
        sets.sort_by_key(|(grains, _)| grains.start);
        sets
    }

    /// Runs the update of the step that was begun on the sums that are held and those of these grains that others show, added along the tree in the same pass over memory:
    /// together they are the sums of all grains. That ends the step. What was held is not written again before the step after the next.
    pub fn run_joined_update(
        &mut self,
        plan: PlanId,
        shown: &[(Range<usize>, GroupId)],
    ) -> Result<(), DeviceError> {
        self.check_begun(plan)?;
        let sets = self.joined_sets(shown);
        let update = self.plans[plan.0].joined_update(&mut self.resources, &sets)?;
        self.begun = None;
        self.held.lend();
        update.map_or(Ok(()), |update| self.resources.device.run(std::slice::from_ref(update)))
    }

    /// Forgets the shared step that was begun, if one was.
    pub fn forget_step(&mut self) {
        self.begun = None;
        self.held.clear();
    }

    pub(super) fn check_begun(&self, plan: PlanId) -> Result<(), DeviceError> {
        self.plan(plan)?;
        if self.begun == Some(plan) { Ok(()) } else { Err(DeviceError::NoStep { plan: plan.0 }) }
    }
}
