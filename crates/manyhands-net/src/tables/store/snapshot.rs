//! A shard as bytes and back: for copies, moves and checkpoints.
//!
//! A *head* says what the shard is; *pieces* follow, each with its place, its length and a digest, so that a large shard goes in bounded messages. Numbers are little-endian.
//!
//! ```text
//! head   magic and version (8 bytes) | kind | first element, or width | slots | items      (u64 each)
//! piece  first item | items | digest | of a dense shard: values, then the slots of each kind
//!                                    | of rows: keys, then each row with its slots
//! ```
//!
//! A piece is cut from the shard as it is at that moment: who sends a shard that goes on changing must see to it that the changes follow.

use bytemuck::Pod;

use super::{DenseShard, Shard, StoreError};
use crate::tables::digest;

/// What every snapshot begins with. The last byte is the version.
const MAGIC: [u8; 8] = *b"mhshard\x01";
/// Bytes of a head.
pub const HEAD_BYTES: usize = 5 * 8;
/// Bytes of a piece before its numbers.
const PIECE_HEAD_BYTES: usize = 4 * 8;

/// What a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// A run of elements, or rows.
    pub kind: Kind,
    /// Slots beside each value.
    pub n_slots: u64,
    /// How many elements or rows follow.
    pub n_items: u64,
}

/// Of which kind a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A run of elements.
    Dense {
        /// The first of them.
        first: u64,
    },
    /// Rows under keys.
    Rows {
        /// Values of a row.
        width: u64,
    },
}

impl Head {
    /// The head of a shard as it is now.
    pub fn of(shard: &Shard) -> Head {
        let (kind, n_slots) = match shard {
            Shard::Dense(dense) => (Kind::Dense { first: dense.first() }, dense.n_slots()),
            Shard::Rows(rows) => (Kind::Rows { width: rows.width() as u64 }, rows.n_slots()),
        };
        Head { kind, n_slots: n_slots as u64, n_items: shard.n_items() }
    }

    /// As bytes.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let (kind, number) = match self.kind {
            Kind::Dense { first } => (0, first),
            Kind::Rows { width } => (1, width),
        };
        let words = [u64::from_le_bytes(MAGIC), kind, number, self.n_slots, self.n_items];
        let mut bytes = [0; HEAD_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From the bytes that a snapshot begins with.
    pub fn from_bytes(bytes: &[u8]) -> Result<Head, SnapshotError> {
        let Some(bytes) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Err(SnapshotError::WrongLength { expected: HEAD_BYTES, found: bytes.len() });
        };
        let [magic, kind, number, n_slots, n_items] = words(bytes);
        if magic != u64::from_le_bytes(MAGIC) {
            return Err(SnapshotError::NoSnapshot { found: magic.to_le_bytes() });
        }
        let kind = match kind {
            0 => Kind::Dense { first: number },
            1 => Kind::Rows { width: number },
            kind => return Err(SnapshotError::UnknownKind { kind }),
        };
        Ok(Head { kind, n_slots, n_items })
    }
}

/// Adds to `out` a piece of the shard from an item on, of about so many bytes but at least one item. Returns the item after its last; at the end nothing is added.
pub fn piece(shard: &Shard, from: u64, n_bytes: usize, out: &mut Vec<u8>) -> u64 {
    let n_left = shard.n_items().saturating_sub(from);
    let n_fit = (n_bytes.saturating_sub(PIECE_HEAD_BYTES) / item_bytes(shard)).max(1);
    let n = n_left.min(n_fit as u64);
    if n == 0 {
        return shard.n_items();
    }
    let start = out.len();
    out.resize(start + PIECE_HEAD_BYTES, 0);
    let items = from as usize..(from + n) as usize;
    match shard {
        Shard::Dense(dense) => {
            append(&dense.values()[items.clone()], out);
            (0..dense.n_slots()).for_each(|idx| append(&dense.slots(idx)[items.clone()], out));
        }
        Shard::Rows(rows) => {
            items.clone().for_each(|row| append(&[rows.key(row)], out));
            items.for_each(|row| append(rows.row(row), out));
        }
    }
    let (head, body) = out[start..].split_at_mut(PIECE_HEAD_BYTES);
    head[..8].copy_from_slice(&from.to_le_bytes());
    head[8..16].copy_from_slice(&n.to_le_bytes());
    head[16..].copy_from_slice(&digest::of_bytes(body).to_le_bytes());
    from + n
}

/// A shard that is being filled with pieces, in their order.
#[derive(Debug)]
pub struct Filling {
    shard: Shard,
    n_items: u64,
    n_filled: u64,
}

impl Filling {
    /// Fills a shard that was made for the same table, from a snapshot with this head. The memory that it takes is that of the shard and of the pieces that come,
    /// whatever the head says.
    pub fn new(shard: Shard, head: Head) -> Result<Filling, SnapshotError> {
        let own = Head::of(&shard);
        // A run of elements has its length from the start; rows come.
        let n_items = match own.kind {
            Kind::Dense { .. } => own.n_items,
            Kind::Rows { .. } => head.n_items,
        };
        let is_empty = own.n_items == 0 || matches!(own.kind, Kind::Dense { .. });
        if (Head { n_items, ..own }) != head || !is_empty {
            return Err(SnapshotError::OtherShard { expected: own, found: head });
        }
        Ok(Filling { shard, n_items, n_filled: 0 })
    }

    /// Bytes that the shard takes.
    pub fn n_bytes(&self) -> usize {
        self.shard.n_bytes()
    }

    /// Takes the next piece, all of these bytes. After an error the shard is of no use.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        let Some((head, body)) = piece.split_first_chunk::<PIECE_HEAD_BYTES>() else {
            return Err(SnapshotError::WrongLength {
                expected: PIECE_HEAD_BYTES,
                found: piece.len(),
            });
        };
        let [first, n, low, high] = words(head);
        if first != self.n_filled || n > self.n_items - self.n_filled {
            let (expected, of) = (self.n_filled, self.n_items);
            return Err(SnapshotError::OutOfPlace { first, n, expected, of });
        }
        // What is left of a dense shard fits in memory, and of rows the bytes are there: this cannot be too large to count.
        let expected = (n as usize).saturating_mul(item_bytes(&self.shard));
        if body.len() != expected {
            return Err(SnapshotError::WrongLength { expected, found: body.len() });
        }
        if digest::of_bytes(body) != u128::from(high) << 64 | u128::from(low) {
            return Err(SnapshotError::Damaged { first, n });
        }
        match &mut self.shard {
            Shard::Dense(dense) => fill_elements(dense, first as usize, n as usize, body),
            Shard::Rows(rows) => {
                let (keys, floats) = body.split_at(n as usize * 8);
                let row_bytes = rows.row_len() * size_of::<f32>();
                for (idx, key) in keys.as_chunks::<8>().0.iter().enumerate() {
                    let key = u64::from_le_bytes(*key);
                    let (row, is_new) = rows.find_or_append(key)?;
                    if !is_new {
                        return Err(SnapshotError::Twice { key });
                    }
                    let from = &floats[idx * row_bytes..][..row_bytes];
                    bytemuck::cast_slice_mut(rows.row_mut(row)).copy_from_slice(from);
                }
            }
        }
        self.n_filled += n;
        Ok(())
    }

    /// Items that have come.
    pub fn n_filled(&self) -> u64 {
        self.n_filled
    }

    /// Whether all have.
    pub fn is_done(&self) -> bool {
        self.n_filled == self.n_items
    }

    /// The shard, when all of it has come.
    pub fn finish(self) -> Result<Shard, SnapshotError> {
        match self.is_done() {
            true => Ok(self.shard),
            false => Err(SnapshotError::CutShort { n_filled: self.n_filled, of: self.n_items }),
        }
    }
}

fn fill_elements(dense: &mut DenseShard, first: usize, n: usize, body: &[u8]) {
    let mut runs = body.chunks_exact((n * size_of::<f32>()).max(1));
    let mut fill = |to: &mut [f32]| {
        let to = bytemuck::cast_slice_mut(&mut to[first..first + n]);
        to.copy_from_slice(runs.next().unwrap_or_default());
    };
    fill(dense.values_mut());
    (0..dense.n_slots()).for_each(|idx| fill(dense.slots_mut(idx)));
}

/// Bytes of an element or row with its slots, and its key.
fn item_bytes(shard: &Shard) -> usize {
    match shard {
        Shard::Dense(dense) => (1 + dense.n_slots()) * size_of::<f32>(),
        Shard::Rows(rows) => 8 + rows.row_len() * size_of::<f32>(),
    }
}

fn append<T: Pod>(numbers: &[T], out: &mut Vec<u8>) {
    out.extend_from_slice(bytemuck::cast_slice(numbers));
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|idx| words.get(idx).map_or(0, |word| u64::from_le_bytes(*word)))
}

// Numbers are copied as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// Why bytes are no snapshot of this shard.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// Another length than what came before says.
    #[error("this part of a snapshot has {found} bytes, where there should be {expected}")]
    WrongLength {
        /// How many it should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Something else, or of another version.
    #[error("this is no snapshot of a shard, or one of another version: it begins with {found:?}")]
    NoSnapshot {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// Neither elements nor rows.
    #[error("this version knows no shards of kind {kind}")]
    UnknownKind {
        /// The number of the kind.
        kind: u64,
    },
    /// The snapshot of another shard, or a shard that has rows already.
    #[error("the snapshot is of another shard: {found:?}, where {expected:?} is to be filled")]
    OtherShard {
        /// What is to be filled.
        expected: Head,
        /// What the snapshot is of.
        found: Head,
    },
    /// A piece that is not the next, or too long.
    #[error("a piece has items {first} and {n} in all, where item {expected} of {of} is the next")]
    OutOfPlace {
        /// Its first item.
        first: u64,
        /// How many it has.
        n: u64,
        /// The item that is next.
        expected: u64,
        /// How many the snapshot has.
        of: u64,
    },
    /// Bytes have changed.
    #[error("the piece of items {first} and {n} in all was damaged on its way")]
    Damaged {
        /// Its first item.
        first: u64,
        /// How many it has.
        n: u64,
    },
    /// A key that has two rows.
    #[error("the snapshot has two rows for key {key}")]
    Twice {
        /// The key.
        key: u64,
    },
    /// The end came too early.
    #[error("the snapshot ends after {n_filled} of {of} items")]
    CutShort {
        /// Items that came.
        n_filled: u64,
        /// Items that should have come.
        of: u64,
    },
    /// The shard refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests;
