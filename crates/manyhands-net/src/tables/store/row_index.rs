//! Finds the row of a key: open addressing, with four bytes a place.
//!
//! The upper bits of a key's hash say where to begin looking; from there on one goes from place to place. With 2^b places there are fewer than 2^b rows, so
//! the lower b bits of an entry name a row (counted from 1: 0 is an empty place) and the upper 32 - b bits hold a *tag*, more of the hash. A tag that
//! differs saves a look at the key, which lies elsewhere: of 2^20 places all but one in 4,096 wrong looks.
//!
//! An index that is full is thrown away and made again from the keys, at twice the size: the old one and the new one are never there at the same time.

use super::block::{Block, prefetch};

/// The fewest places, as a power of two.
const FEWEST_BITS: u32 = 4;
/// The most places, as a power of two: entries have 32 bits, and a tag at least one.
const MOST_BITS: u32 = 31;
/// Keys whose places are asked for before the first of them is needed.
const AHEAD: usize = 16;

/// Places, each empty or with a row.
#[derive(Clone)]
pub(super) struct RowIndex {
    entries: Block<u32>,
    bits: u32,
}

/// What a search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The key has this row.
    Row(u32),
    /// The key has none; here it would stand.
    Empty(usize),
}

impl RowIndex {
    pub(super) fn new() -> RowIndex {
        RowIndex { entries: Block::zeroed(1 << FEWEST_BITS), bits: FEWEST_BITS }
    }

    /// How many rows fit in before the index must grow: three of four places.
    pub(super) fn capacity(&self) -> usize {
        capacity(self.bits)
    }

    /// How many rows any index holds.
    pub(super) fn most() -> usize {
        capacity(MOST_BITS)
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.entries.n_bytes()
    }

    /// Bytes of an index for so many rows.
    pub(super) fn n_bytes_for(n_rows: usize) -> usize {
        size_of::<u32>() << bits_for(n_rows)
    }

    /// The place where a search for this hash begins will be needed soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.entries, self.place(hash));
    }

    /// The first row with the tag of this hash: nearly always the right one, if there is one.
    #[inline(always)]
    pub(super) fn likely(&self, hash: u64) -> Option<u32> {
        match self.find(hash, |_| true) {
            Found::Row(row) => Some(row),
            Found::Empty(_) => None,
        }
    }

    /// The row that has this hash and of which `is_it` is true.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Found {
        let (entries, mask) = (&*self.entries, self.entries.len() - 1);
        let row_mask = mask as u32;
        let tag = self.tag(hash);
        let mut place = self.place(hash);
        // There is always an empty place.
        loop {
            let entry = entries[place & mask];
            if entry == 0 {
                return Found::Empty(place & mask);
            }
            let row = (entry & row_mask).wrapping_sub(1);
            if entry & !row_mask == tag && is_it(row) {
                return Found::Row(row);
            }
            place += 1;
        }
    }

    /// Puts a row at the empty place that a search for its hash came to.
    pub(super) fn put(&mut self, place: usize, hash: u64, row: u32) {
        self.entries[place] = self.tag(hash) | (row + 1);
    }

    /// Makes room for so many rows. `hashes` are those of all rows that are there, in their order.
    pub(super) fn grow(&mut self, n_rows: usize, hashes: impl Iterator<Item = u64>) {
        self.bits = bits_for(n_rows).max(self.bits);
        // The old one goes before the new one comes.
        self.entries = Block::zeroed(0);
        self.entries = Block::zeroed(1 << self.bits);
        let mut waiting = [0u64; AHEAD];
        let mut n = 0u32;
        for hash in hashes {
            self.prefetch(hash);
            if n as usize >= AHEAD {
                self.add(waiting[n as usize % AHEAD], n - AHEAD as u32);
            }
            waiting[n as usize % AHEAD] = hash;
            n += 1;
        }
        for row in n.saturating_sub(AHEAD as u32)..n {
            self.add(waiting[row as usize % AHEAD], row);
        }
    }

    /// A row whose key is known to be new.
    fn add(&mut self, hash: u64, row: u32) {
        if let Found::Empty(place) = self.find(hash, |_| false) {
            self.put(place, hash, row);
        }
    }

    /// How many places a search for this hash looks at, if it has to come to an empty one.
    #[cfg(test)]
    pub(super) fn n_looks(&self, hash: u64) -> usize {
        let Found::Empty(place) = self.find(hash, |_| false) else { return 0 };
        place.wrapping_sub(self.place(hash)) & (self.entries.len() - 1)
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        (hash >> (64 - self.bits)) as usize
    }

    /// The lower bits of the hash, above those of the row.
    #[inline(always)]
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32) << self.bits
    }
}

fn capacity(bits: u32) -> usize {
    (1usize << bits) / 4 * 3
}

fn bits_for(n_rows: usize) -> u32 {
    let fits = |bits: &u32| capacity(*bits) >= n_rows;
    (FEWEST_BITS..MOST_BITS).find(fits).unwrap_or(MOST_BITS)
}

/// Spreads keys over all 64 bits (the finaliser of MurmurHash3): two keys never have one hash.
#[inline(always)]
pub(super) fn hash(key: u64) -> u64 {
    let x = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
