//! Histories: what clients did and what they were shown, and whether that keeps the promise of the table's consistency.

mod check;
mod file;
mod proof;

pub use check::{Violation, check};
pub use file::{HistoryError, HistoryWriter, Recorded, read};
pub use proof::{Proof, Unproven, prove};

use serde::{Deserialize, Serialize};

use super::identity::{ClientId, Place, Term, Version};
use super::message::{Operation, Until};

/// One line of a history. Those of one client are in the order in which it heard the answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// An operation that was acknowledged.
    Write {
        /// Whose.
        client: ClientId,
        /// Where.
        place: Place,
        /// The client's number for it.
        number: u64,
        /// Its place in the shard's order; 0 where the holder that answered did not know any more.
        version: Version,
        /// What it was.
        what: Write,
    },
    /// A read that was answered.
    Read {
        /// Whose.
        client: ClientId,
        /// Where.
        place: Place,
        /// The number of the reader's last operation before it.
        after: u64,
        /// What it was to have.
        until: Until,
        /// What it had of the shard's order.
        version: Version,
        /// Steps that it had.
        steps: u64,
    },
    /// How a shard stood at the end, as its first holder says.
    End {
        /// Which.
        place: Place,
        /// The term in which it answered.
        #[serde(default)]
        term: Term,
        /// All of its order.
        version: Version,
        /// Steps that workers took turns for and of which grains are missing, where the shard is of elements.
        #[serde(default)]
        n_begun: u64,
        /// Of each client the number of the last that was done.
        numbers: Vec<(ClientId, u64)>,
    },
}

/// What an operation was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// The client takes part from a clock on.
    Enter {
        /// The clock.
        clock: u64,
    },
    /// A push.
    Push {
        /// The clock of it.
        clock: u64,
    },
    /// A clock was done.
    Finish {
        /// Which.
        clock: u64,
    },
    /// A part of a step.
    Part {
        /// The step.
        step: u64,
        /// The first grain and the end.
        grains: [usize; 2],
        /// Grains of the step.
        n_grains: usize,
    },
    /// Anything else.
    Other,
}

impl Record {
    /// The record of an operation.
    pub fn of_operation(
        client: ClientId,
        place: Place,
        number: u64,
        version: Version,
        operation: &Operation,
    ) -> Record {
        let what = match *operation {
            Operation::Enter { clock } => Write::Enter { clock },
            Operation::Push { clock, .. } => Write::Push { clock },
            Operation::Finish { clock } => Write::Finish { clock },
            Operation::Part { step, grains, n_grains, .. } => {
                Write::Part { step, grains, n_grains }
            }
            _ => Write::Other,
        };
        Record::Write { client, place, number, version, what }
    }
}
