//! Sums of a worker that lie where the other workers of its machine can read them: of two, each updates its parameters from its own sums and the other's, which are
//! added in the same pass over memory, and nothing is sent (`manyhands_net`'s `collective/seen.rs`).
//!
//! A step counts once both know where the other's sums are, so they are read after that. They stay as they are until both have shown those of the next step: sums lie in
//! two places by turns. Should one of them go on without the other meanwhile, which happens in another view only, it says so before it writes there; the other, if it was
//! still reading, finds that out and has no state any more: it copies that of those who went on.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use manyhands_device::{DeviceError, GroupId, GroupMemory, PlanId, ShownMemory, StepExecutor};
use manyhands_net::collective::SeenSums;
use manyhands_net::transport::lending::{Lending, Lent};

use super::words::PlanPrograms;

/// Sets of sums that there is room for. A worker holds a set for each complete subtree of its grains, and few of them are many grains; as many are still read. What has no
/// room here is sent.
const SETS: usize = 16;
/// Bytes of sums of a set beside those of parameters.
const REST: usize = 1 << 20;

#[derive(Debug)]
struct LentMemory(Arc<Lending>);

// SAFETY: `Lending` gives zeroed memory at cache lines, each byte once, and has it until it is dropped. Others can only read it.
unsafe impl GroupMemory for LentMemory {
    fn take(&self, n_bytes: usize) -> Option<NonNull<u8>> {
        self.0.take(n_bytes)
    }
}

/// Has the sums of all steps to come lie where others can read them. Where the system gives no such memory, sums are sent.
pub(super) fn lend_sums(
    executor: &mut StepExecutor,
    plans: &[PlanPrograms],
) -> Option<Arc<Lending>> {
    let n_bytes = |plan: &PlanPrograms| -> usize {
        let program = &plan.program;
        program.parameters().map(|(.., value)| program.ty(value).n_bytes()).sum()
    };
    // Sums are of parameters, and of a few numbers beside them.
    let n_bytes = plans.iter().map(n_bytes).max().unwrap_or(0).saturating_add(REST);
    let lending = Arc::new(Lending::new(SETS.saturating_mul(n_bytes)).ok()?);
    executor.hold_sums_in(Arc::new(LentMemory(Arc::clone(&lending))));
    Some(lending)
}

/// A set of sums of another worker.
#[derive(Debug)]
struct SeenSet {
    lent: Arc<Lent>,
    place: u64,
}

// SAFETY: `Lent` gives addresses at cache lines that can be read as long as it lives. What was read counts only if it stayed as it was
// ([`SeenSums::is_still_lent`]).
unsafe impl ShownMemory for SeenSet {
    fn start(&self, n_bytes: usize) -> Option<NonNull<u8>> {
        self.lent.at(self.place, n_bytes)
    }
}

/// The sums of the other of two workers, as this one's executor knows them.
#[derive(Default)]
pub(super) struct SeenByExecutor {
    /// By plan and place.
    groups: HashMap<(PlanId, u64), GroupId>,
    /// Those of the step at hand, once they are shown.
    now: Option<ShownSums>,
}

/// The sums of another worker in the step at hand.
struct ShownSums {
    seen: SeenSums,
    /// The grains of each set, and the set as the executor knows it.
    sets: Vec<(Range<usize>, GroupId)>,
}

impl SeenByExecutor {
    /// Takes note of the sums of the step at hand, which are of these grains.
    pub(super) fn show(
        &mut self,
        executor: &mut StepExecutor,
        plan: PlanId,
        seen: SeenSums,
        grains: &[Range<usize>],
    ) -> Result<(), DeviceError> {
        let mut sets = Vec::with_capacity(grains.len());
        for (place, grains) in seen.places().iter().zip(grains) {
            let key = (plan, *place);
            let group = match self.groups.get(&key) {
                Some(group) => *group,
                None => {
                    let lent = Arc::clone(seen.lent().ok_or(DeviceError::NotShown)?);
                    let memory: Arc<dyn ShownMemory> = Arc::new(SeenSet { lent, place: *place });
                    let group = executor.show_sums(plan, &memory)?.ok_or(DeviceError::NotShown)?;
                    self.groups.insert(key, group);
                    group
                }
            };
            sets.push((grains.clone(), group));
        }
        // Now, while the step can still be done again: what fails after it counts costs the state.
        executor.plan_joined_update(plan, &sets)?;
        self.now = Some(ShownSums { seen, sets });
        Ok(())
    }

    /// Runs the update of the step at hand, where the other's sums were shown for it. Whether the state that it makes is one: the other's sums stayed as they were.
    pub(super) fn update(
        &mut self,
        executor: &mut StepExecutor,
        plan: PlanId,
    ) -> Result<Option<bool>, DeviceError> {
        let Some(ShownSums { seen, sets }) = self.now.take() else { return Ok(None) };
        let done = executor.run_joined_update(plan, &sets);
        // What came of sums that were written meanwhile means nothing, an error neither.
        if !seen.is_still_lent() {
            return Ok(Some(false));
        }
        done.map(|()| Some(true))
    }

    /// Forgets all: another view begins, with other links.
    pub(super) fn forget(&mut self, executor: &mut StepExecutor) -> Result<(), DeviceError> {
        *self = SeenByExecutor::default();
        executor.hide_sums()
    }
}
