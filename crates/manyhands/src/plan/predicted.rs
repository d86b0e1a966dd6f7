//! What is known of a candidate: memory of each worker, bytes that it sends, seconds of a step.

use serde::Serialize;

use super::Candidate;
use crate::job::bytes_in_words;

/// The memory of the worker that takes most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Weights and statistics.
    pub parameters: u64,
    /// What the optimizer keeps.
    pub state: u64,
    /// Sums over grains.
    pub gradients: u64,
    /// Samples, and what lies between operations and inside them.
    pub activations: u64,
    /// The process itself, programs, links and letters on the way.
    pub process: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parameters + self.state + self.gradients + self.activations + self.process
    }

    /// In words: the sum, and what it is made of.
    pub fn in_words(&self) -> String {
        format!(
            "{} (parameters {}, optimizer {}, gradients {}, activations {}, the process itself {})",
            bytes_in_words(self.total()),
            bytes_in_words(self.parameters),
            bytes_in_words(self.state),
            bytes_in_words(self.gradients),
            bytes_in_words(self.activations),
            bytes_in_words(self.process)
        )
    }
}

/// What a step would take of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Timed {
    pub(super) seconds: f64,
    /// Threads of each worker.
    pub(super) threads: usize,
    pub(super) sent_bytes: u64,
    /// Whether it follows from runs on this machine; otherwise operations were counted.
    pub(super) is_measured: bool,
    /// Where the time goes: one sentence.
    pub(super) reason: String,
}

/// What is known of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// Which it is.
    pub candidate: Candidate,
    /// Memory of the worker that takes most, in bytes.
    pub memory: Memory,
    /// The sum of these.
    pub memory_bytes: u64,
    /// Whether that is within the limit, and the model can be shared out so.
    pub fits: bool,
    /// Seconds of a step.
    pub seconds: f64,
    /// Threads of each worker with which it takes that long.
    pub threads: usize,
    /// Bytes that each worker sends in a step.
    pub sent_bytes: u64,
    /// Where the time goes, or why it cannot be: one sentence.
    pub reason: String,
}

impl Predicted {
    /// A candidate that the model cannot be shared out by.
    pub(super) fn impossible(candidate: Candidate, reason: String) -> Predicted {
        let (memory, memory_bytes) = (Memory::default(), 0);
        let (fits, seconds, threads, sent_bytes) = (false, 0.0, 1, 0);
        Predicted { candidate, memory, memory_bytes, fits, seconds, threads, sent_bytes, reason }
    }

    /// A candidate whose memory and time are known.
    pub(super) fn new(
        candidate: Candidate,
        memory: Memory,
        timed: Timed,
        limit: Option<u64>,
    ) -> Predicted {
        let memory_bytes = memory.total();
        let Timed { seconds, threads, sent_bytes, reason, .. } = timed;
        let (fits, reason) = within(memory_bytes, limit, reason);
        Predicted { candidate, memory, memory_bytes, fits, seconds, threads, sent_bytes, reason }
    }
}

/// Whether an amount is within a limit, and the reason: its own, or by how much it is not.
fn within(total: u64, limit: Option<u64>, own: String) -> (bool, String) {
    match limit.filter(|limit| total > *limit) {
        Some(limit) => {
            let (total, more) = (bytes_in_words(total), bytes_in_words(total - limit));
            (false, format!("needs {total}, which is {more} more than a worker may take"))
        }
        None => (true, own),
    }
}
