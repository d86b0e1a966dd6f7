//! An exchange of few elements, in one round: all send everything to all, and all add alike.

use std::ops::Range;

use super::call::Header;
use super::element::Element;
use super::group::Pass;
use super::port::{Port, Trouble};
use super::run::{Run, waits_for};
use crate::transport::wait::Interest;

impl<T: Element> Run<'_, T> {
    /// # Safety
    /// As [`Run::pass`], of an exchange that goes in one round.
    pub(super) unsafe fn pass_flat(
        &mut self,
        ports: &mut [Option<Port>],
        interests: &mut [Interest],
    ) -> Result<Pass, (usize, Trouble)> {
        let (exchange, n) = (self.exchange, self.exchange.n);
        let own = exchange.slots_of(self.rank);
        let scratch = self.scratch();
        let body = self.flat_body(&own);
        let mut moved = false;
        for (other, port) in ports.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            let trouble = |trouble| (other, trouble);
            let left = &mut self.progress.left[other];
            if left[0] {
                // SAFETY: the sums of this rank side by side; nobody writes there before they have left.
                let body = unsafe { std::slice::from_raw_parts(body, own.len() * n) };
                let header = Header::new(self.call, 0, size_of_val(body));
                let body = bytemuck::cast_slice(body);
                left[0] = !port.send(&header, body, &mut moved).map_err(trouble)?;
            }
            if left[1] {
                let slots = exchange.slots_of(other);
                let (first, n) = (scratch.wrapping_add(slots.start * n), slots.len() * n);
                // SAFETY: the scratch memory has as many elements for each slot, and those of others are apart from the own ones.
                let body = unsafe { std::slice::from_raw_parts_mut(first, n) };
                let header = Header::new(self.call, 0, size_of_val(body));
                let body = bytemuck::cast_slice_mut(body);
                left[1] = !port.receive(&header, body, &mut moved).map_err(trouble)?;
            }
            interests[other] = waits_for(*left);
        }
        if self.progress.left.iter().flatten().any(|left| *left) {
            return Ok(if moved { Pass::Moved } else { Pass::Stuck });
        }
        if self.progress.n_added < n {
            let room = |slot: usize| scratch.wrapping_add(slot * n);
            let place = |slot: usize| match own.contains(&slot) {
                true => self.buffers.sums.at(slot - own.start).cast_const(),
                false => room(slot).cast_const(),
            };
            // SAFETY: sums, scratch memory and result have `n` elements; all was sent, so the result may be written.
            unsafe { exchange.add(n, place, room, |root| self.buffers.outs.at(root)) };
            self.progress.n_added = n;
        }
        Ok(Pass::Done)
    }

    /// Where the sums of this rank lie side by side, as they go in one frame: several are brought together first.
    fn flat_body(&mut self, own: &Range<usize>) -> *const T {
        let n = self.exchange.n;
        if own.len() == 1 {
            return self.buffers.sums.at(0);
        }
        let scratch = self.scratch();
        if !std::mem::replace(&mut self.progress.is_packed, true) {
            for (idx, slot) in own.clone().enumerate() {
                let from = self.buffers.sums.at(idx).cast_const();
                // SAFETY: every sum has `n` elements, and so has the scratch memory of each slot.
                unsafe { scratch.add(slot * n).copy_from_nonoverlapping(from, n) };
            }
        }
        scratch.wrapping_add(own.start * n)
    }
}
