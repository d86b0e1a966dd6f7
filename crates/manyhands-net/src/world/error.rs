//! Why there is no world, or an operation in it failed.

use std::path::PathBuf;
use std::time::Duration;

use crate::collective::CollectiveError;
use crate::launch::LaunchError;
use crate::secure::SecretError;
use crate::station::StationError;
use crate::transport::LinkError;
use crate::wire::{DialError, DoormanError, FrameError};

/// Why there is no world, or an operation in it failed.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The launcher's variables cannot be understood.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Ranks on several machines need a secret that all of them know.
    #[error("ranks that meet at {address} need the same secret in MANYHANDS_SECRET: {source}")]
    Secret {
        /// Where they meet.
        address: String,
        /// Why there is none.
        source: SecretError,
    },
    /// A secret for ranks of one machine could not be made or read.
    #[error(transparent)]
    LocalSecret(SecretError),
    /// Where ranks of one machine leave word for each other is of no use.
    #[error("ranks of this machine cannot meet in {}: {reason}", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Rank 0's door cannot be served.
    #[error(transparent)]
    Door(#[from] DoormanError),
    /// Some ranks did not come in time.
    #[error("{ranks} never came within {:.1} s; {size} were to come", after.as_secs_f64())]
    NeverCame {
        /// Which, in words.
        ranks: String,
        /// How many there were to be.
        size: usize,
        /// How long they were waited for.
        after: Duration,
    },
    /// Rank 0 was not found.
    #[error("rank {rank} did not find rank 0 within {:.1} s: {reason}", after.as_secs_f64())]
    NoRankZero {
        /// This rank.
        rank: usize,
        /// What the last attempt came to.
        reason: String,
        /// How long it tried.
        after: Duration,
    },
    /// Rank 0 answers, but not as one of the same world.
    #[error("rank {rank} cannot join: {source}")]
    Dial {
        /// This rank.
        rank: usize,
        /// What went wrong.
        source: DialError,
    },
    /// Rank 0 gave up, and said why.
    #[error("rank 0 gave up: {0}")]
    Refused(String),
    /// Processes disagree about who they are.
    #[error("{0}")]
    Disagreement(String),
    /// Rank 0 or another went away while the ranks met.
    #[error("rank {rank} went away while the ranks met: {source}")]
    WentAway {
        /// Which.
        rank: usize,
        /// What failed.
        source: LinkError,
    },
    /// What a rank said while they met cannot be understood.
    #[error("what rank {rank} said while the ranks met cannot be understood: {source}")]
    Frame {
        /// Which.
        rank: usize,
        /// Why.
        source: FrameError,
    },
    /// The place where others reach this process cannot be opened.
    #[error(transparent)]
    Station(#[from] StationError),
    /// Links for a group could not be made.
    #[error("rank {rank} has no links for {group}: {problems}")]
    NoLinks {
        /// This rank.
        rank: usize,
        /// Which group.
        group: String,
        /// Which ranks, and why.
        problems: String,
    },
    /// The variable of the patience means nothing.
    #[error("MANYHANDS_PATIENCE should be a number of seconds above 0, but is {value:?}")]
    Patience {
        /// What it is set to.
        value: String,
    },
    /// An operation failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// What was asked for makes no sense here.
    #[error("{0}")]
    Misuse(String),
    /// The thread that does operations in the background is gone.
    #[error("the thread that does operations in the background ended before this one was done")]
    BackgroundGone,
}

/// Some ranks in words: `rank 3`, `ranks 1, 2 and 5`.
pub(super) fn in_words(ranks: &[usize]) -> String {
    let words: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match &words[..] {
        [] => "no rank".to_string(),
        [one] => format!("rank {one}"),
        [front @ .., last] => format!("ranks {} and {last}", front.join(", ")),
    }
}
