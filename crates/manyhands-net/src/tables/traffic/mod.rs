//! Less traffic between clients and servers. Each filter is a setting of a table, off unless asked for, and each tells what it saved.
//!
//! | filter | what it does | costs |
//! |---|---|---|
//! | [`significance`] | holds back updates that are too small to matter, for a bounded time and in a bounded number | staleness, memory of the sender |
//! | [`rounding`] | values as f16 or 8 bits; what rounding took away goes with the next push | exactness, memory of the sender |
//! | [`zero_runs`] | runs of zeros become their length | a look at each byte |
//! | [`key_cache`] | a list of keys that both sides have seen goes as its digest | memory of both sides |
//!
//! A push goes through them in this order. Of a pull only runs of zeros and lists of keys are made shorter: its values are those of the server.
//! Zero runs and lists of keys change no value, and may be used under BSP; the other two may not.

pub mod key_cache;
pub mod rounding;
pub mod significance;
pub mod zero_runs;

use serde::{Deserialize, Serialize};

use rounding::Rounding;
use significance::Significance;

/// Which filters a table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrafficSpec {
    /// Lists of keys that both sides have seen go as their digest. Lists of so many keys in all are remembered, of each worker and shard.
    pub key_lists: Option<usize>,
    /// How values of pushes are rounded; what that takes away goes with the next push.
    pub rounding: Rounding,
    /// What is held back.
    pub significance: Option<Significance>,
    /// Runs of zeros become their length.
    pub zero_runs: bool,
}

/// Keys that are remembered where nobody says how many: half a megabyte for each worker and shard.
pub const REMEMBERED_KEYS: usize = 1 << 16;

impl TrafficSpec {
    /// The setting that has other values arrive than were sent, if there is one: then the table is outside of the bit contract.
    pub fn changes_values(&self) -> Option<&'static str> {
        if self.rounding != Rounding::None {
            return Some("rounded values");
        }
        self.significance.map(|_| "updates that are held back")
    }

    /// Whether the bytes of a push's values are written in another way than they are.
    pub(super) fn packs(&self) -> bool {
        self.rounding != Rounding::None || self.zero_runs
    }
}

/// Bytes that the filters of a table saved, as one worker counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedByFilter {
    /// By holding updates back that are too small to matter: what was pushed, and what of it left.
    pub significance: Saved,
    /// By rounding.
    pub rounding: Saved,
    /// By the length of runs of zeros in their place.
    pub zero_runs: Saved,
    /// By digests in place of lists of keys.
    pub key_lists: Saved,
}

impl SavedByFilter {
    /// Each filter with its name, in the order in which a push goes through them.
    pub fn each(&self) -> [(&'static str, Saved); 4] {
        [
            ("significance", self.significance),
            ("rounding", self.rounding),
            ("zero runs", self.zero_runs),
            ("key lists", self.key_lists),
        ]
    }

    /// Bytes that did not go, by all filters together.
    pub fn n_bytes(&self) -> i64 {
        self.each().iter().map(|(_, saved)| saved.n_bytes()).sum()
    }

    /// What was counted since an earlier count of the same.
    pub fn since(self, earlier: SavedByFilter) -> SavedByFilter {
        SavedByFilter {
            significance: self.significance.since(earlier.significance),
            rounding: self.rounding.since(earlier.rounding),
            zero_runs: self.zero_runs.since(earlier.zero_runs),
            key_lists: self.key_lists.since(earlier.key_lists),
        }
    }
}

impl std::ops::AddAssign for SavedByFilter {
    fn add_assign(&mut self, more: SavedByFilter) {
        self.significance += more.significance;
        self.rounding += more.rounding;
        self.zero_runs += more.zero_runs;
        self.key_lists += more.key_lists;
    }
}

/// Bytes before and after a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// What would have gone without it.
    pub before: u64,
    /// What went.
    pub after: u64,
}

impl Saved {
    /// Bytes that did not go; below 0 where the filter made it worse.
    pub fn n_bytes(&self) -> i64 {
        self.before as i64 - self.after as i64
    }

    /// What was counted since an earlier count of the same.
    pub fn since(self, earlier: Saved) -> Saved {
        Saved {
            before: self.before.saturating_sub(earlier.before),
            after: self.after.saturating_sub(earlier.after),
        }
    }

    /// Counts one more message.
    pub fn count(&mut self, before: usize, after: usize) {
        self.before += before as u64;
        self.after += after as u64;
    }
}

impl std::ops::AddAssign for Saved {
    fn add_assign(&mut self, more: Saved) {
        self.before = self.before.saturating_add(more.before);
        self.after = self.after.saturating_add(more.after);
    }
}

/// Why bytes are not what the other side should have sent, or why a setting makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrafficError {
    /// Another length than what was announced comes to.
    #[error("{what} came as {found} bytes, where there should be {expected}")]
    WrongLength {
        /// What it was.
        what: &'static str,
        /// How many bytes it should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Runs of zeros that do not come to what was announced.
    #[error("compressed bytes come to {found} or more, where {expected} were announced")]
    WrongRuns {
        /// How many bytes it should be.
        expected: usize,
        /// How many there are at least; fewer than expected if they end too early.
        found: usize,
    },
    /// Neither a list of keys nor a digest of one.
    #[error("a list of keys is of form {form}, which this version does not know")]
    UnknownForm {
        /// The number of the form.
        form: u64,
    },
    /// A digest of keys that this side does not remember: the other must send the list.
    #[error("no list of keys with this digest is remembered: {digest:032x}")]
    UnknownKeys {
        /// The digest.
        digest: u128,
    },
    /// A threshold below 0, or none.
    #[error("a significance threshold of {threshold} is not a finite number of at least 0")]
    Threshold {
        /// What it was.
        threshold: f32,
    },
}
