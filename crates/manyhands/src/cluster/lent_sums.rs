//! Sums of a worker that lie where the other workers of its machine can read them: two of them add the other's from there, instead of sending (`manyhands_net`'s
//! `collective/seen.rs`).

use std::ptr::NonNull;
use std::sync::Arc;

use manyhands_device::{GroupMemory, StepExecutor};
use manyhands_net::transport::lending::Lending;

use super::words::PlanPrograms;

/// Sets of sums that there is room for. A worker holds a set for each complete subtree of its grains, and few of them are many grains; what has no room here is sent.
const SETS: usize = 8;
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
