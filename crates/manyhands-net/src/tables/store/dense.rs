//! A shard of a dense table: a run of elements, each with its slots.

use std::fmt;
use std::ops::Range;

use super::block::Block;
use super::{StoreError, check_length, check_slots};
use crate::tables::rules::{At, Rule};

/// The elements of a dense table from `first` on. Values, and the slots of each kind, lie side by side, each run at the edge of a cache line.
#[derive(Clone)]
pub struct DenseShard {
    first: u64,
    values: Block<f32>,
    slots: Vec<Block<f32>>,
}

impl DenseShard {
    /// So many zeros, with zeros as slots.
    pub fn new(first: u64, len: usize, n_slots: usize) -> DenseShard {
        let slots = (0..n_slots).map(|_| Block::zeroed(len)).collect();
        DenseShard { first, values: Block::zeroed(len), slots }
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
        &mut self.values
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
        Ok(rule.apply(at, &mut self.values[range], &mut slots, update)?)
    }

    /// Bytes of memory that it takes.
    pub fn n_bytes(&self) -> usize {
        self.values.n_bytes() * (1 + self.slots.len())
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

impl fmt::Debug for DenseShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DenseShard");
        shown.field("first", &self.first).field("len", &self.len());
        shown.field("n_slots", &self.n_slots()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
