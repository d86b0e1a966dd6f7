//! Why an operation failed, and who is where.

use std::time::Duration;

use super::call::Call;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// Not all ranks did the same, or one did not come, or one is gone.
    #[error("{call} failed after {:.1} s on rank {rank}: {places}", after.as_secs_f64())]
    Failed {
        /// This rank.
        rank: usize,
        /// The operation that it was in.
        call: Call,
        /// How long it was in it.
        after: Duration,
        /// Where the others are.
        places: Places,
    },
    /// An operation before failed, so ranks may be in different places.
    #[error("the group is of no use since an operation failed: {first}")]
    Broken {
        /// What failed.
        first: String,
    },
    /// Someone asked for the operation to end.
    #[error("{call} was given up on rank {rank}")]
    Aborted {
        /// This rank.
        rank: usize,
        /// The operation that it was in.
        call: Call,
    },
    /// The system refused to wait.
    #[error("{call} failed: the system refused to wait: {error}")]
    System {
        /// The operation.
        call: Call,
        /// What the system said.
        error: std::io::Error,
    },
    /// What was asked for makes no sense here.
    #[error("{0}")]
    Misuse(String),
}

/// Where the other ranks of a group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places(pub Vec<Place>);

/// Where one rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which rank.
    pub rank: usize,
    /// Where it is.
    pub at: At,
}

/// Where a rank is, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In this operation.
    In(Call),
    /// It was in this operation, and says nothing more.
    Silent(Call),
    /// It has not come to this operation.
    Missing,
    /// Its link failed.
    Lost(String),
}

impl Places {
    /// The ranks that are not where this one is, or say nothing.
    pub fn culprits(&self, call: &Call) -> Vec<usize> {
        let is_of_no_help = |place: &&Place| match &place.at {
            At::In(there) => !call.can_go_on_with(there),
            At::Silent(_) | At::Missing | At::Lost(_) => true,
        };
        self.0.iter().filter(is_of_no_help).map(|place| place.rank).collect()
    }
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (idx, Place { rank, at }) in self.0.iter().enumerate() {
            let comma = if idx > 0 { "; " } else { "" };
            match at {
                At::In(call) => write!(f, "{comma}rank {rank} is in {call}")?,
                At::Silent(call) => write!(f, "{comma}rank {rank} fell silent in {call}")?,
                At::Missing => write!(f, "{comma}rank {rank} has not come")?,
                At::Lost(why) => write!(f, "{comma}rank {rank} is lost ({why})")?,
            }
        }
        Ok(())
    }
}
