//! What a recorded history proves, and where it proves nothing.
//!
//! A history without a broken promise says little where it is not whole: an empty file breaks none. So the file must have records, must not be cut short, and somebody must
//! say how every shard stood in the end. Lives before the last may have no end: whoever goes on from a checkpoint has lost all holders of a shard.

use std::collections::{BTreeMap, BTreeSet};

use super::{Record, Recorded, Violation, check};
use crate::tables::identity::{Place, Term, Version};

/// What was looked at, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// Records, of all lives.
    pub n_records: usize,
    /// Reads among them.
    pub n_reads: usize,
    /// Lives of the tables; the run went on from a checkpoint between two of them.
    pub n_lives: usize,
    /// Promises that were broken.
    pub violations: Vec<Violation>,
}

/// Why a history proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// There is nothing in it.
    #[error(
        "it has no records: was MANYHANDS_HISTORY set, and did the job have parameters on servers?"
    )]
    Empty,
    /// The last line is not whole.
    #[error("its last line is cut short, after {n_records} whole records")]
    Cut {
        /// Records before it.
        n_records: usize,
    },
    /// Nobody said how a shard stood.
    #[error(
        "{place} has no end: nobody said how it stood when the run was over, so what was acknowledged may be lost ({n_places} of {n_all} shards have no end)"
    )]
    NoEnd {
        /// The first of them.
        place: Place,
        /// How many of the last life there are.
        n_places: usize,
        /// Shards of the last life.
        n_all: usize,
    },
    /// Grains of steps that workers took turns for never came.
    #[error(
        "{place} lacks grains of {n_begun} steps at the end: either the run was broken off while they were on their way, or they were lost"
    )]
    GrainsMissing {
        /// Where.
        place: Place,
        /// How many steps.
        n_begun: u64,
    },
}

/// Checks all lives of a history.
pub fn prove(recorded: &Recorded) -> Result<Proof, Unproven> {
    let n_records = recorded.lives.iter().map(Vec::len).sum();
    let Some(last) = recorded.lives.last() else { return Err(Unproven::Empty) };
    if recorded.is_cut {
        return Err(Unproven::Cut { n_records });
    }
    has_ended(last)?;
    let violations: Vec<Violation> = recorded.lives.iter().flat_map(|life| check(life)).collect();
    // A promise that is broken is told first.
    if violations.is_empty() {
        has_all_grains(last)?;
    }
    let is_read = |record: &&Record| matches!(record, Record::Read { .. });
    Ok(Proof {
        n_records,
        n_reads: recorded.lives.iter().flatten().filter(is_read).count(),
        n_lives: recorded.lives.len(),
        violations,
    })
}

/// No shard has steps that are not whole, as whoever answered for it last says. Lives before the last may have been broken off.
fn has_all_grains(records: &[Record]) -> Result<(), Unproven> {
    let mut ends: BTreeMap<Place, ((Term, Version), u64)> = BTreeMap::new();
    for record in records {
        if let Record::End { place, term, version, n_begun, .. } = record {
            let (at, end) = ((*term, *version), ends.entry(*place).or_default());
            if end.0 <= at {
                *end = (at, *n_begun);
            }
        }
    }
    match ends.into_iter().find(|(_, (_, n_begun))| *n_begun > 0) {
        Some((place, (_, n_begun))) => Err(Unproven::GrainsMissing { place, n_begun }),
        None => Ok(()),
    }
}

/// Every shard that was worked with has an end.
fn has_ended(records: &[Record]) -> Result<(), Unproven> {
    let mut has_end: BTreeMap<Place, bool> = BTreeMap::new();
    for record in records {
        match record {
            Record::Write { place, .. } | Record::Read { place, .. } => {
                has_end.entry(*place).or_default();
            }
            Record::End { place, .. } => {
                has_end.insert(*place, true);
            }
        }
    }
    let without: BTreeSet<Place> =
        has_end.iter().filter(|(_, has_end)| !**has_end).map(|(place, _)| *place).collect();
    match without.first() {
        None => Ok(()),
        Some(&place) => {
            Err(Unproven::NoEnd { place, n_places: without.len(), n_all: has_end.len() })
        }
    }
}
