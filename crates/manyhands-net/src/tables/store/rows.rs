//! A shard of a sparse table: rows of a fixed width under u64 keys, made at the first push.
//!
//! A row is its values and then its slots, so that one look brings both. Rows lie in chunks of about two megabytes in the order in which they were made, and never
//! move: growing takes one chunk more, not twice the memory. Keys lie in chunks of their own, eight to a cache line.
//!
//! A look into a large table waits for memory three times (index, key, row). Where a list of keys is gone through, memory is therefore asked for ahead of its use:
//! the places of keys that come later, and the rows of keys that come soon.

use std::fmt;

use super::block::{Block, HUGE_PAGE, prefetch};
use super::row_index::{Found, RowIndex, hash};
use super::row_init::RowInit;
use super::{StoreError, check_length, check_slots};
use crate::tables::rules::{At, Rule, RuleError};

/// So many keys before it is used, a row is asked for. More at a time, and rows of several cache lines push each other out.
const NEAR: usize = 8;
/// So many keys before it is used, its place in the index is asked for.
const FAR: usize = 32;
/// Rows of the first chunk at first.
const FIRST_ROWS: usize = 16;
/// Floats of a cache line.
const LINE: usize = 16;

/// Rows under keys.
#[derive(Clone)]
pub struct RowShard {
    table: u64,
    width: usize,
    n_slots: usize,
    init: RowInit,
    index: RowIndex,
    chunks: Vec<Chunk>,
    n_rows: usize,
    /// Rows of a chunk, as a power of two.
    chunk_bits: u32,
}

#[derive(Clone)]
struct Chunk {
    keys: Block<u64>,
    floats: Block<f32>,
}

impl RowShard {
    /// No rows yet. What new ones have depends on the table, so that equal keys of two tables differ.
    pub fn new(table: u64, width: usize, n_slots: usize, init: RowInit) -> RowShard {
        let row_bytes = (width * (1 + n_slots) * size_of::<f32>()).max(1);
        let chunk_bits = HUGE_PAGE.div_ceil(row_bytes).next_power_of_two().ilog2();
        let index = RowIndex::new();
        RowShard { table, width, n_slots, init, index, chunks: Vec::new(), n_rows: 0, chunk_bits }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.n_rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many slots stand beside each value.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// The most rows that a shard holds.
    pub fn most_rows() -> usize {
        RowIndex::most()
    }

    /// The number of the row of this key, which is made if there is none. Rows are numbered from 0 in the order in which they are made.
    pub fn get_or_make(&mut self, key: u64) -> Result<usize, StoreError> {
        let (row, is_new) = self.find_or_append(key)?;
        if is_new {
            let (table, init, width) = (self.table, self.init, self.width);
            init.fill(table, key, &mut self.row_mut(row)[..width]);
        }
        Ok(row)
    }

    /// The number of the row of this key, if there is one.
    pub fn find(&self, key: u64) -> Option<usize> {
        match self.index.find(hash(key), |row| self.key(row as usize) == key) {
            Found::Row(row) => Some(row as usize),
            Found::Empty(_) => None,
        }
    }

    /// Copies the values of these keys, one row after the other. A key without a row reads as the row that a push would make; reading makes none.
    pub fn read(&self, keys: &[u64], out: &mut [f32]) -> Result<(), StoreError> {
        check_length(self.n_values(keys), out.len())?;
        let mut ahead = Ahead::new(self, keys, self.width);
        for (idx, out) in out.chunks_exact_mut(self.width.max(1)).enumerate() {
            let likely = ahead.next(self, keys, idx);
            match self.settle(keys[idx], likely) {
                Some(row) => out.copy_from_slice(&self.row(row)[..self.width]),
                None => self.init.fill(self.table, keys[idx], out),
            }
        }
        Ok(())
    }

    /// Applies an update to the rows of these keys, one after the other; those that are not there are made first. A key may come twice.
    pub fn update(
        &mut self,
        rule: &mut dyn Rule,
        at: At,
        keys: &[u64],
        values: &[f32],
    ) -> Result<(), StoreError> {
        check_length(self.n_values(keys), values.len())?;
        check_slots(rule, self.n_slots)?;
        let most = RowIndex::most();
        if self.n_rows + keys.len() > most && self.n_rows + self.n_missing(keys) > most {
            return Err(StoreError::Full { most });
        }
        if rule.rows_at_once() > 1 {
            return self.update_together(rule, at, keys, values);
        }
        let width = self.width;
        let mut ahead = Ahead::new(self, keys, self.row_len());
        for (idx, update) in values.chunks_exact(width.max(1)).enumerate() {
            let (key, likely) = (keys[idx], ahead.next(self, keys, idx));
            let row = match self.settle(key, likely) {
                Some(row) => row,
                None => self.get_or_make(key)?,
            };
            let (values, slots) = self.row_mut(row).split_at_mut(width);
            apply(rule, At { first: key, ..at }, values, slots, update)?;
        }
        Ok(())
    }

    /// As [`RowShard::update`], of several rows at a time: they are put together, updated, and put back.
    fn update_together(
        &mut self,
        rule: &mut dyn Rule,
        at: At,
        keys: &[u64],
        values: &[f32],
    ) -> Result<(), StoreError> {
        let (width, n_slots, most) = (self.width, self.n_slots, rule.rows_at_once());
        let (mut rows, mut together) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < keys.len() {
            // Keys that rise are different ones: no row is put together twice.
            let rising = keys[start..].windows(2).take(most - 1);
            let n = 1 + rising.take_while(|pair| pair[0] < pair[1]).count();
            rows.clear();
            for key in &keys[start..start + n] {
                rows.push(self.get_or_make(*key)?);
            }
            together.resize(n * self.row_len(), 0.0);
            for (idx, row) in rows.iter().enumerate() {
                let kinds = self.row(*row).chunks_exact(width).zip(0..);
                for (from, kind) in kinds {
                    together[(kind * n + idx) * width..][..width].copy_from_slice(from);
                }
            }
            let (own, slots) = together.split_at_mut(n * width);
            let mut slots: Vec<&mut [f32]> = slots.chunks_exact_mut((n * width).max(1)).collect();
            let at = At { first: keys[start], ..at };
            rule.apply(at, own, &mut slots, &values[start * width..(start + n) * width])?;
            for (idx, row) in rows.iter().enumerate() {
                for kind in 0..1 + n_slots {
                    let from = &together[(kind * n + idx) * width..][..width];
                    self.row_mut(*row)[kind * width..][..width].copy_from_slice(from);
                }
            }
            start += n;
        }
        Ok(())
    }

    /// How many rows an update of these keys would make; a key that comes twice may count twice.
    pub fn n_missing(&self, keys: &[u64]) -> usize {
        let mut ahead = Ahead::new(self, keys, 0);
        let mut is_missing = |idx: &usize| {
            let likely = ahead.next(self, keys, *idx);
            self.settle(keys[*idx], likely).is_none()
        };
        (0..keys.len()).filter(|idx| is_missing(idx)).count()
    }

    /// Bytes of memory that it takes, reserves included.
    pub fn n_bytes(&self) -> usize {
        let chunk = |chunk: &Chunk| chunk.keys.n_bytes() + chunk.floats.n_bytes();
        self.index.n_bytes() + self.chunks.iter().map(chunk).sum::<usize>()
    }

    /// Bytes of memory that it takes after so many rows more, at most.
    pub fn n_bytes_with(&self, n_more: usize) -> usize {
        let n_rows = self.n_rows.saturating_add(n_more);
        let (row_bytes, chunk_rows) = (self.row_len() * size_of::<f32>() + 8, 1 << self.chunk_bits);
        let n_reserved = match n_rows <= chunk_rows {
            true => n_rows.next_power_of_two().max(FIRST_ROWS),
            false => n_rows.div_ceil(chunk_rows) * chunk_rows,
        };
        let rows = n_reserved.saturating_mul(row_bytes);
        rows.saturating_add(RowIndex::n_bytes_for(n_rows)).max(self.n_bytes())
    }

    /// All keys, in the order in which their rows were made: the same on all that applied the same pushes.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let keys = self.chunks.iter().flat_map(|chunk| chunk.keys.iter().copied());
        keys.take(self.n_rows)
    }

    /// All keys with their values and slots, in the order of [`RowShard::keys`].
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[f32], &[f32])> + '_ {
        (0..self.n_rows).map(|row| {
            let (values, slots) = self.row(row).split_at(self.width);
            (self.key(row), values, slots)
        })
    }

    /// The key of a row that is there.
    pub fn key(&self, row: usize) -> u64 {
        self.chunks[row >> self.chunk_bits].keys[row & self.mask()]
    }

    /// Values and then slots of a row that is there.
    pub fn row(&self, row: usize) -> &[f32] {
        let start = (row & self.mask()) * self.row_len();
        &self.chunks[row >> self.chunk_bits].floats[start..start + self.row_len()]
    }

    /// The same, to be filled from elsewhere.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let (len, start) = (self.row_len(), (row & self.mask()) * self.row_len());
        &mut self.chunks[row >> self.chunk_bits].floats[start..start + len]
    }

    /// Floats of a row, its slots included.
    pub(super) fn row_len(&self) -> usize {
        self.width * (1 + self.n_slots)
    }

    fn mask(&self) -> usize {
        (1 << self.chunk_bits) - 1
    }

    fn n_values(&self, keys: &[u64]) -> usize {
        keys.len().saturating_mul(self.width)
    }

    /// Asks for the key of a row, and for so many of its floats.
    #[inline(always)]
    fn prefetch(&self, row: u32, n_floats: usize) {
        let chunk = &self.chunks[row as usize >> self.chunk_bits];
        let within = row as usize & self.mask();
        prefetch(&chunk.keys, within);
        let start = within * self.row_len();
        (0..n_floats).step_by(LINE).for_each(|idx| prefetch(&chunk.floats, start + idx));
    }

    /// The row of a key, given the likely one.
    #[inline(always)]
    fn settle(&self, key: u64, likely: Option<u32>) -> Option<usize> {
        match likely {
            Some(row) if self.key(row as usize) == key => Some(row as usize),
            // Another key with the same tag, or a row that was made since.
            _ => self.find(key),
        }
    }

    /// The row of a key, and whether it was made just now, of zeros.
    pub(super) fn find_or_append(&mut self, key: u64) -> Result<(usize, bool), StoreError> {
        let hash = hash(key);
        let place = match self.index.find(hash, |row| self.key(row as usize) == key) {
            Found::Row(row) => return Ok((row as usize, false)),
            Found::Empty(place) => place,
        };
        let row = self.n_rows;
        if row < self.index.capacity() {
            self.index.put(place, hash, row as u32);
            self.append(key);
        } else if row < RowIndex::most() {
            self.append(key);
            self.make_index();
        } else {
            return Err(StoreError::Full { most: RowIndex::most() });
        }
        Ok((row, true))
    }

    /// A row of zeros under this key, which the index does not know yet.
    fn append(&mut self, key: u64) {
        let (row_len, within) = (self.row_len(), self.n_rows & self.mask());
        let chunk_rows = 1usize << self.chunk_bits;
        if self.n_rows >> self.chunk_bits == self.chunks.len() {
            // The first chunk begins small: a table may have many shards of few rows.
            let n = if self.chunks.is_empty() { chunk_rows.min(FIRST_ROWS) } else { chunk_rows };
            let (keys, floats) = (Block::zeroed(n), Block::zeroed(n * row_len));
            self.chunks.push(Chunk { keys, floats });
        }
        let chunk = &mut self.chunks[self.n_rows >> self.chunk_bits];
        if within == chunk.keys.len() {
            let n = (2 * within).min(chunk_rows);
            chunk.keys = chunk.keys.grown(n);
            chunk.floats = chunk.floats.grown(n * row_len);
        }
        chunk.keys[within] = key;
        self.n_rows += 1;
    }

    /// Makes the index again, with room for the rows that there are and as many more.
    fn make_index(&mut self) {
        let keys = self.chunks.iter().flat_map(|chunk| chunk.keys.iter().copied());
        self.index.grow(self.n_rows, keys.take(self.n_rows).map(hash));
    }
}

/// What is known of keys that come later in a list. Rows may be made meanwhile: none that is there moves.
struct Ahead {
    n_floats: usize,
    hashes: [u64; FAR],
    rows: [Option<u32>; FAR],
}

impl Ahead {
    /// Asks for the first keys; of rows, so many floats.
    #[inline(always)]
    fn new(shard: &RowShard, keys: &[u64], n_floats: usize) -> Ahead {
        let mut ahead = Ahead { n_floats, hashes: [0; FAR], rows: [None; FAR] };
        (0..FAR).for_each(|idx| ahead.ask_for_place(shard, keys, idx));
        (0..NEAR).for_each(|idx| ahead.ask_for_row(shard, keys, idx));
        ahead
    }

    /// The likely row of the next key, which is at this place of the list.
    #[inline(always)]
    fn next(&mut self, shard: &RowShard, keys: &[u64], idx: usize) -> Option<u32> {
        self.ask_for_place(shard, keys, idx + FAR);
        self.ask_for_row(shard, keys, idx + NEAR);
        self.rows[idx % FAR]
    }

    #[inline(always)]
    fn ask_for_place(&mut self, shard: &RowShard, keys: &[u64], idx: usize) {
        let Some(key) = keys.get(idx) else { return };
        let hash = hash(*key);
        shard.index.prefetch(hash);
        self.hashes[idx % FAR] = hash;
    }

    #[inline(always)]
    fn ask_for_row(&mut self, shard: &RowShard, keys: &[u64], idx: usize) {
        if idx >= keys.len() {
            return;
        }
        let likely = shard.index.likely(self.hashes[idx % FAR]);
        self.rows[idx % FAR] = likely;
        if let Some(row) = likely {
            shard.prefetch(row, self.n_floats);
        }
    }
}

/// One row through the rule. The usual numbers of slots need no memory.
#[inline(always)]
fn apply(
    rule: &mut dyn Rule,
    at: At,
    values: &mut [f32],
    slots: &mut [f32],
    update: &[f32],
) -> Result<(), RuleError> {
    let width = values.len();
    match slots.len() / width.max(1) {
        0 => rule.apply(at, values, &mut [], update),
        1 => rule.apply(at, values, &mut [slots], update),
        2 => {
            let (one, two) = slots.split_at_mut(width);
            rule.apply(at, values, &mut [one, two], update)
        }
        _ => {
            let mut slots: Vec<&mut [f32]> = slots.chunks_exact_mut(width).collect();
            rule.apply(at, values, &mut slots, update)
        }
    }
}

impl fmt::Debug for RowShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RowShard");
        shown.field("table", &self.table).field("n_rows", &self.n_rows);
        shown.field("width", &self.width).field("n_slots", &self.n_slots).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
