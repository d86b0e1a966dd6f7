//! A shard of a dense table: a run of elements, each with its slots.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::block::Block;
use super::{StoreError, check_length, check_slots};
use crate::tables::rules::{At, Rule};

/// The elements of a dense table from `first` on. Values, and the slots of each kind, lie side by side, each run at the edge of a cache line.
///
/// Values are read without a copy: a reader shares them, and who changes them while somebody still reads does so in other memory.
pub struct DenseShard {
    first: u64,
    values: Arc<Block<f32>>,
    /// Where values were before: while somebody reads there still, and one to be used again.
    former: Vec<Arc<Block<f32>>>,
    slots: Vec<Block<f32>>,
}

impl DenseShard {
    /// So many zeros, with zeros as slots.
    pub fn new(first: u64, len: usize, n_slots: usize) -> DenseShard {
        let slots = (0..n_slots).map(|_| Block::zeroed(len)).collect();
        DenseShard { first, values: Arc::new(Block::lendable(len)), former: Vec::new(), slots }
    }

    /// The first element of the table that is here.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// How many slots stand beside each value.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// All values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All values, to be filled from elsewhere.
    pub fn values_mut(&mut self) -> &mut [f32] {
        own(&mut self.values, &mut self.former)
    }

    /// The slots of one kind, one for each value.
    pub fn slots(&self, slot_idx: usize) -> &[f32] {
        &self.slots[slot_idx]
    }

    /// The same, to be filled from elsewhere.
    pub fn slots_mut(&mut self, slot_idx: usize) -> &mut [f32] {
        &mut self.slots[slot_idx]
    }

    /// The values of these elements of the table.
    pub fn read(&self, elements: Range<u64>) -> Result<&[f32], StoreError> {
        let range = self.within(elements)?;
        Ok(&self.values[range])
    }

    /// The same as they are now, whatever becomes of them: the memory, and the bytes in it.
    pub(in crate::tables) fn share(
        &self,
        elements: Range<u64>,
    ) -> Result<(Arc<Block<f32>>, Range<usize>), StoreError> {
        let range = self.within(elements)?;
        Ok((Arc::clone(&self.values), 4 * range.start..4 * range.end))
    }

    /// Applies an update to these elements of the table. `at.first` is set from the range.
    pub fn apply(
        &mut self,
        rule: &mut dyn Rule,
        at: At,
        elements: Range<u64>,
        update: &[f32],
    ) -> Result<(), StoreError> {
        let at = At { first: elements.start, ..at };
        let range = self.within(elements)?;
        check_length(range.len(), update.len())?;
        check_slots(rule, self.slots.len())?;
        let mut slots: Vec<&mut [f32]> =
            self.slots.iter_mut().map(|slots| &mut slots[range.clone()]).collect();
        let values = own(&mut self.values, &mut self.former);
        Ok(rule.apply(at, &mut values[range], &mut slots, update)?)
    }

    /// Bytes of memory that it takes. Values count twice from the beginning: the first change while somebody reads takes as much again. So does each of the next, while
    /// others read what was before.
    pub fn n_bytes(&self) -> usize {
        self.values.n_bytes() * (1 + self.former.len().max(1) + self.slots.len())
    }

    /// Lets go of values that nobody reads any more, but for those whose memory is to be used again.
    pub fn tidy(&mut self) {
        let mut is_first = true;
        self.former
            .retain_mut(|memory| Arc::get_mut(memory).is_none() || std::mem::take(&mut is_first));
    }

    /// Where these elements lie.
    fn within(&self, elements: Range<u64>) -> Result<Range<usize>, StoreError> {
        let Range { start: first, end } = elements;
        let shard_end = self.first.saturating_add(self.values.len() as u64);
        if first < self.first || end > shard_end || first > end {
            let shard_first = self.first;
            return Err(StoreError::Outside { first, end, shard_first, shard_end });
        }
        Ok((first - self.first) as usize..(end - self.first) as usize)
    }
}

/// Values that nobody else reads: where somebody does, their copy takes their place, in the memory of those before where some is free.
fn own<'a>(values: &'a mut Arc<Block<f32>>, former: &mut Vec<Arc<Block<f32>>>) -> &'a mut [f32] {
    if Arc::get_mut(values).is_none() {
        let mut free = former.extract_if(.., |memory| Arc::get_mut(memory).is_some());
        let copy = match free.next() {
            Some(mut memory) => {
                Arc::make_mut(&mut memory).copy_from_slice(values);
                memory
            }
            None => Arc::new(Block::clone(values)),
        };
        drop(free);
        former.push(std::mem::replace(values, copy));
    }
    let own: &mut Block<f32> = Arc::make_mut(values);
    own
}

impl Clone for DenseShard {
    fn clone(&self) -> DenseShard {
        let values = Arc::new(Block::clone(&self.values));
        DenseShard { first: self.first, values, former: Vec::new(), slots: self.slots.clone() }
    }
}

impl fmt::Debug for DenseShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DenseShard");
        shown.field("first", &self.first).field("len", &self.len());
        shown.field("n_slots", &self.n_slots()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
