//! Lists of keys that both sides have seen go as their digest: a worker that comes back to the same samples asks for the same keys again.
//!
//! Sender and receiver of one link remember the same lists, since each sees the same lists in the same order and forgets the one that was longest unused by the same count.
//! Where they differ after all (a link is new, a server was replaced), the receiver says [`TrafficError::UnknownKeys`] and the sender forgets and sends the list.
//!
//! ```text
//! list     form 0 | number of keys | keys          (u64 each, little-endian)
//! digest   form 1 | number of keys | digest, low half | high half
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Saved, TrafficError};
use crate::tables::digest;

const LIST: u64 = 0;
const DIGEST: u64 = 1;
/// Bytes before the keys.
const HEAD_BYTES: usize = 16;
/// Bytes of a digest with its head.
const DIGEST_BYTES: usize = HEAD_BYTES + 16;
/// Shorter lists go as they are and are not remembered.
const SHORTEST: usize = 8;

/// One side's memory of lists of keys.
#[derive(Clone, Debug)]
pub struct KeyCache {
    most_keys: usize,
    n_keys: usize,
    lists: HashMap<u128, Remembered>,
    by_use: BTreeMap<u64, u128>,
    n_uses: u64,
    saved: Saved,
    /// Whether a digest went since everything was forgotten.
    has_sent_digests: bool,
}

#[derive(Clone, Debug)]
struct Remembered {
    /// The sender has no need of them.
    keys: Option<Arc<[u64]>>,
    n_keys: usize,
    last_use: u64,
}

impl KeyCache {
    /// Remembers lists of so many keys in all. Both sides must have the same number.
    pub fn new(most_keys: usize) -> KeyCache {
        KeyCache {
            most_keys,
            n_keys: 0,
            lists: HashMap::new(),
            by_use: BTreeMap::new(),
            n_uses: 0,
            saved: Saved::default(),
            has_sent_digests: false,
        }
    }

    /// The sender's side: adds to `out` the list, or its digest if the other side has it.
    pub fn encode(&mut self, keys: &[u64], out: &mut Vec<u8>) {
        let digest = digest::of_words(keys.iter().copied());
        let is_known = self.is_remembered(keys.len()) && self.is_used(digest);
        let (form, n) = (if is_known { DIGEST } else { LIST }, keys.len() as u64);
        let start = out.len();
        out.extend_from_slice(&form.to_le_bytes());
        out.extend_from_slice(&n.to_le_bytes());
        if is_known {
            self.has_sent_digests = true;
            out.extend_from_slice(&digest.to_le_bytes());
        } else {
            out.extend_from_slice(bytemuck::cast_slice(keys));
            self.remember(digest, keys.len(), None);
        }
        self.saved.count(size_of_val(keys), out.len() - start);
    }

    /// The receiver's side: the keys of these bytes, all of which must be theirs.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Arc<[u64]>, TrafficError> {
        let wrong = |expected| TrafficError::WrongLength {
            what: "a list of keys",
            expected,
            found: bytes.len(),
        };
        let Some((head, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(wrong(HEAD_BYTES));
        };
        let [form, n] = halves(head);
        match form {
            LIST => {
                let (words, rest) = body.as_chunks::<8>();
                if words.len() as u64 != n || !rest.is_empty() {
                    return Err(wrong((n as usize).saturating_mul(8).saturating_add(HEAD_BYTES)));
                }
                let keys: Arc<[u64]> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
                if self.is_remembered(keys.len()) {
                    let digest = digest::of_words(keys.iter().copied());
                    // A sender that forgot sends a list that is still known here.
                    if !self.is_used(digest) {
                        self.remember(digest, keys.len(), Some(keys.clone()));
                    }
                }
                self.saved.count(body.len(), bytes.len());
                Ok(keys)
            }
            DIGEST => {
                let digest = body.try_into().map_err(|_| wrong(DIGEST_BYTES))?;
                let digest = u128::from_le_bytes(digest);
                let keys = self.lists.get(&digest).and_then(|list| list.keys.clone());
                let keys = keys.filter(|keys| keys.len() as u64 == n);
                let keys = keys.ok_or(TrafficError::UnknownKeys { digest })?;
                self.is_used(digest);
                self.saved.count(size_of_val(&*keys), bytes.len());
                Ok(keys)
            }
            form => Err(TrafficError::UnknownForm { form }),
        }
    }

    /// How many of these bytes are a list of keys or its digest, where something else follows. All of them, where they end too early.
    pub fn section(bytes: &[u8]) -> usize {
        let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return bytes.len() };
        let n_keys = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).saturating_mul(8);
        let n = match halves(head) {
            [DIGEST, _] => DIGEST_BYTES,
            [_, n] => n_keys(n).saturating_add(HEAD_BYTES),
        };
        n.min(bytes.len())
    }

    /// Bytes of memory that the remembered keys take on the receiver's side.
    pub fn n_bytes(&self) -> usize {
        8 * self.n_keys
    }

    /// Forgets all lists: the other side is new, or does not know one.
    pub fn forget(&mut self) {
        self.has_sent_digests = false;
        self.lists.clear();
        self.by_use.clear();
        self.n_keys = 0;
    }

    /// Whether a digest went since everything was forgotten: only then can the other side lack a list.
    pub fn has_sent_digests(&self) -> bool {
        self.has_sent_digests
    }

    /// What it saved.
    pub fn saved(&self) -> Saved {
        self.saved
    }

    fn is_remembered(&self, n_keys: usize) -> bool {
        (SHORTEST..=self.most_keys).contains(&n_keys)
    }

    /// Whether a list is there; it is then the last used.
    fn is_used(&mut self, digest: u128) -> bool {
        let Some(list) = self.lists.get_mut(&digest) else { return false };
        self.by_use.remove(&list.last_use);
        self.n_uses += 1;
        list.last_use = self.n_uses;
        self.by_use.insert(self.n_uses, digest);
        true
    }

    fn remember(&mut self, digest: u128, n_keys: usize, keys: Option<Arc<[u64]>>) {
        if !self.is_remembered(n_keys) {
            return;
        }
        while self.n_keys + n_keys > self.most_keys {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.n_keys -= self.lists.remove(&oldest).map_or(0, |list| list.n_keys);
        }
        self.n_uses += 1;
        self.n_keys += n_keys;
        self.by_use.insert(self.n_uses, digest);
        self.lists.insert(digest, Remembered { keys, n_keys, last_use: self.n_uses });
    }
}

fn halves(bytes: &[u8; HEAD_BYTES]) -> [u64; 2] {
    let both = u128::from_le_bytes(*bytes);
    [both as u64, (both >> 64) as u64]
}

#[cfg(test)]
mod tests;
