//! Why a letter did not come, and because of whom.

use std::time::Duration;

/// Why letters cannot be sent or taken.
#[derive(Debug, thiserror::Error)]
pub enum MailError {
    /// The link to a worker failed, or it says that it gave up.
    #[error(
        "worker {worker} waited {:.1} s for {what}, but worker {culprit} is lost: {why}",
        after.as_secs_f64()
    )]
    Lost {
        /// This worker.
        worker: usize,
        /// What was waited for, and from whom.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// Who is lost.
        culprit: usize,
        /// How that shows.
        why: String,
    },
    /// Nothing moved for too long.
    #[error(
        "worker {worker} waited {:.1} s for {what}, and nothing has come for {:.1} s{}",
        after.as_secs_f64(), patience.as_secs_f64(), other_letters(*n_others)
    )]
    TimeOver {
        /// This worker.
        worker: usize,
        /// Who was waited for.
        culprit: usize,
        /// What was waited for, and from whom.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// How long one may wait in which nothing moves.
        patience: Duration,
        /// Letters with other labels that have come from that worker.
        n_others: usize,
    },
    /// A letter is not as long as it should be.
    #[error("{what} has {found} bytes, but worker {worker} expects {expected}")]
    Length {
        /// This worker.
        worker: usize,
        /// Whose letter it is.
        culprit: usize,
        /// What it is, and from whom.
        what: String,
        /// The bytes that were expected.
        expected: usize,
        /// The bytes that it has.
        found: u64,
    },
    /// A worker is at another place of its program than this one.
    #[error(
        "worker {worker} waits for {what}, but worker {culprit} {where_it_is}: their programs do not fit"
    )]
    Elsewhere {
        /// This worker.
        worker: usize,
        /// What was waited for.
        what: String,
        /// Who is elsewhere.
        culprit: usize,
        /// Where it is.
        where_it_is: String,
    },
    /// Someone asked to give up.
    #[error("worker {worker} was asked to give up while it waited for {what}")]
    Aborted {
        /// This worker.
        worker: usize,
        /// What was waited for.
        what: String,
    },
    /// The system refused to wait.
    #[error("worker {worker} cannot wait for {what}: {error}")]
    System {
        /// This worker.
        worker: usize,
        /// What was waited for.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something failed before, so letters may be half sent.
    #[error("no letters can be sent any more since this happened: {first}")]
    Broken {
        /// What failed.
        first: String,
        /// Because of whom, where that is known.
        culprit: Option<usize>,
    },
    /// What was asked for makes no sense here.
    #[error("{0}")]
    Misuse(String),
}

impl MailError {
    /// The worker because of which it failed, where it is another than this one.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            MailError::Lost { culprit, .. }
            | MailError::TimeOver { culprit, .. }
            | MailError::Length { culprit, .. }
            | MailError::Elsewhere { culprit, .. } => Some(*culprit),
            MailError::Broken { culprit, .. } => *culprit,
            MailError::Aborted { .. } | MailError::System { .. } | MailError::Misuse(_) => None,
        }
    }
}

fn other_letters(n: usize) -> String {
    match n {
        0 => String::new(),
        n => format!("; {n} letters with other labels have come from there"),
    }
}
