//! Where a server keeps a shard: a run of elements, or rows under keys. Plain memory, with no idea of who asks.
//!
//! Both kinds keep values and, beside them, the slots of the table's rule. Both become bytes and come back from them ([`snapshot`]), with the same bits and in
//! the same order.

pub mod dense;
pub mod row_init;
pub mod rows;
pub mod snapshot;

mod block;
mod row_index;

pub use dense::DenseShard;
pub use row_init::RowInit;
pub use rows::RowShard;

use super::rules::{Rule, RuleError};

/// A shard of either kind.
#[derive(Clone, Debug)]
pub enum Shard {
    /// A run of elements.
    Dense(DenseShard),
    /// Rows under keys.
    Rows(RowShard),
}

impl Shard {
    /// Bytes of memory that it takes, reserves included.
    pub fn n_bytes(&self) -> usize {
        match self {
            Shard::Dense(dense) => dense.n_bytes(),
            Shard::Rows(rows) => rows.n_bytes(),
        }
    }

    /// How many elements or rows there are.
    pub fn n_items(&self) -> u64 {
        match self {
            Shard::Dense(dense) => dense.len() as u64,
            Shard::Rows(rows) => rows.len() as u64,
        }
    }
}

/// Why a shard cannot do what was asked. Nothing has changed then, except where a rule refused one of several rows: those before it are done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// Elements that are not of this shard.
    #[error(
        "elements {first}..{end} are not all in this shard, which has {shard_first}..{shard_end}"
    )]
    Outside {
        /// The first that was asked for.
        first: u64,
        /// The one after the last.
        end: u64,
        /// The first of the shard.
        shard_first: u64,
        /// The one after the last of the shard.
        shard_end: u64,
    },
    /// Not as many values as elements, or as keys times the width.
    #[error("{expected} values belong to what was named, not {found}")]
    WrongLength {
        /// How many it should be.
        expected: usize,
        /// How many came.
        found: usize,
    },
    /// A rule with another number of slots than the shard was made for.
    #[error("the rule keeps {of_rule} slots beside each value, but the shard has {of_shard}")]
    WrongSlots {
        /// What the rule needs.
        of_rule: usize,
        /// What there is.
        of_shard: usize,
    },
    /// More rows than the index can tell apart.
    #[error("a shard of rows holds at most {most} of them: cut the table into more shards")]
    Full {
        /// How many it holds.
        most: usize,
    },
    /// The rule refused.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

fn check_length(expected: usize, found: usize) -> Result<(), StoreError> {
    match expected == found {
        true => Ok(()),
        false => Err(StoreError::WrongLength { expected, found }),
    }
}

fn check_slots(rule: &dyn Rule, of_shard: usize) -> Result<(), StoreError> {
    let of_rule = rule.n_slots();
    match of_rule == of_shard {
        true => Ok(()),
        false => Err(StoreError::WrongSlots { of_rule, of_shard }),
    }
}
