//! Less traffic between clients and servers. Each filter is a setting of a table, off unless asked for, and each tells what it saved.
//!
//! | filter | what it does | costs |
//! |---|---|---|
//! | [`significance`] | holds back updates that are too small to matter, for a bounded time and in a bounded number | staleness, memory of the sender |
//! | [`rounding`] | values as f16 or 8 bits; what rounding took away goes with the next push | exactness, memory of the sender |
//! | [`zero_runs`] | runs of zeros become their length | a look at each byte |
//! | [`key_cache`] | a list of keys that both sides have seen goes as its digest | memory of both sides |
//!
//! A push goes through them in this order; a pull, whose values are read and not added up, through the last three, without feedback.

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
    /// Lists of keys that both sides have seen go as their digest.
    pub key_cache: bool,
    /// How values are rounded.
    pub rounding: Rounding,
    /// What is held back.
    pub significance: Option<Significance>,
    /// Runs of zeros become their length.
    pub zero_runs: bool,
}

impl TrafficSpec {
    /// Whether what arrives may differ from what was sent: then the table is outside of the bit contract.
    pub fn changes_values(&self) -> bool {
        self.rounding != Rounding::None || self.significance.is_some()
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

    /// Counts one more message.
    pub fn count(&mut self, before: usize, after: usize) {
        self.before += before as u64;
        self.after += after as u64;
    }
}

impl std::ops::AddAssign for Saved {
    fn add_assign(&mut self, more: Saved) {
        self.before += more.before;
        self.after += more.after;
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
