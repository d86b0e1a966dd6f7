//! All-reduce by direct exchange: every rank owns a part of the elements, gets all partial sums of it, adds them in tree
//! order (N3), and gives the result to all.

use std::ops::Range;

use super::call::Call;
use super::element::Element;
use super::error::CollectiveError;
use super::exchange::Exchange;
use super::group::Group;
use super::run::{Buffers, Looks, Run};

/// The partial sums that a rank brings to an exchange.
#[derive(Debug)]
pub struct Brought<'a, T> {
    /// The leaves that each is the sum of: complete subtrees of the tree over all.
    pub subtrees: &'a [Range<usize>],
    /// The sums, all of the same length.
    pub sums: &'a [&'a [T]],
}

impl Group {
    /// Carries out an exchange.
    ///
    /// # Safety
    /// As [`Run::pass`] asks of the buffers, which stay where they are.
    pub(super) unsafe fn exchange<T: Element>(
        &mut self,
        call: Call,
        exchange: &Exchange,
        buffers: &Buffers<T>,
    ) -> Result<(), CollectiveError> {
        let mut progress = std::mem::take(&mut self.progress);
        progress.begin::<T>(exchange, self.rank, &self.ports, Looks::Waited);
        let mut run = Run { exchange, call, rank: self.rank, buffers, progress: &mut progress };
        // SAFETY: the progress was begun for it, and the caller vouches for the buffers.
        let outcome = self.drive(call, |ports, interests| unsafe { run.pass(ports, interests) });
        self.progress = progress;
        outcome
    }
}
