//! What a table is: its shape, what a push does, what a read may miss, and how it is kept.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::error::TableError;
use super::identity::ShardId;
use super::message::MOST_BYTES;
use super::rules::RuleSpec;
use super::store::RowInit;
use super::traffic::TrafficSpec;

/// Edges of dense shards lie on multiples of this many elements.
pub const BLOCK: u64 = 4096;
/// The most shards of a table.
pub const MOST_SHARDS: usize = 1024;
/// The widest row.
pub const WIDEST_ROW: usize = 1 << 16;
/// The most copies of a shard, the first included.
pub const MOST_REPLICATION: usize = 8;
/// Beyond this many clocks a bound bounds nothing.
pub const MOST_STALENESS: u32 = 1 << 20;
/// Shards of a table where it does not say.
const SHARDS: usize = 16;
/// Elements of a dense shard, where there are fewer than [`SHARDS`]: a quarter of a megabyte.
const SHARD_ELEMENTS: u64 = 16 * BLOCK;

/// What a table is. All who open it say the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// What it holds.
    pub shape: Shape,
    /// What a push does to the values.
    pub rule: RuleSpec,
    /// What a read may miss.
    #[serde(default)]
    pub consistency: Consistency,
    /// How many servers hold each shard, as far as there are so many.
    #[serde(default = "default_replication")]
    pub replication: usize,
    /// Into how many shards it is cut, where not as its size suggests.
    #[serde(default)]
    pub n_shards: Option<usize>,
    /// What is done to move fewer bytes.
    #[serde(default)]
    pub traffic: TrafficSpec,
    /// Whether a push with a value that is not finite is refused.
    #[serde(default = "default_true")]
    pub rejects_nan: bool,
}

/// What a table holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A run of elements, which begin as zeros.
    Dense {
        /// How many.
        n_elements: u64,
    },
    /// Rows under keys, made at first touch.
    Rows {
        /// Elements of a row.
        width: usize,
        /// What a new row is.
        init: RowInit,
    },
}

/// What a read may miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Parts of a step are added along the grain tree and applied once; a read is of one step.
    #[default]
    Bsp,
    /// A read at clock c has every worker's pushes of clocks up to c - staleness - 1, and the reader's own.
    Ssp {
        /// The bound.
        staleness: u32,
    },
    /// As SSP, with a bound for each worker that changes at run time; this is the first.
    Adaptive {
        /// The bound to begin with.
        staleness: u32,
    },
    /// A read waits for nobody, and has the reader's own pushes.
    Async,
}

impl Consistency {
    /// The bound of a read, where there is one.
    pub fn bound(self) -> Option<u32> {
        match self {
            Consistency::Ssp { staleness } | Consistency::Adaptive { staleness } => Some(staleness),
            Consistency::Bsp | Consistency::Async => None,
        }
    }
}

fn default_replication() -> usize {
    1
}

fn default_true() -> bool {
    true
}

impl TableSpec {
    /// A dense table to which pushes are added, synchronous and on one server each.
    pub fn dense(n_elements: u64) -> TableSpec {
        TableSpec::new(Shape::Dense { n_elements })
    }

    /// A table of rows to which pushes are added, synchronous and on one server each.
    pub fn rows(width: usize, init: RowInit) -> TableSpec {
        TableSpec::new(Shape::Rows { width, init })
    }

    fn new(shape: Shape) -> TableSpec {
        TableSpec {
            shape,
            rule: RuleSpec::Add,
            consistency: Consistency::default(),
            replication: default_replication(),
            n_shards: None,
            traffic: TrafficSpec::default(),
            rejects_nan: true,
        }
    }

    /// Whether it can be. `name` is for the error.
    pub fn check(&self, name: &str) -> Result<(), TableError> {
        let wrong = |what: String| Err(TableError::Spec { table: name.to_string(), what });
        match self.shape {
            Shape::Dense { n_elements: 0 } => return wrong("it has no elements".into()),
            Shape::Rows { width, .. } if width == 0 || width > WIDEST_ROW => {
                return wrong(format!("its rows have {width} elements, not 1 to {WIDEST_ROW}"));
            }
            _ => {}
        }
        if self.replication == 0 || self.replication > MOST_REPLICATION {
            let wanted = format!("it must be 1 to {MOST_REPLICATION}");
            return wrong(format!("a replication of {}: {wanted}", self.replication));
        }
        if self.n_shards.is_some_and(|n| n == 0 || n > MOST_SHARDS) {
            return wrong(format!("the number of shards must be 1 to {MOST_SHARDS}"));
        }
        if let Cut::Dense { n_elements, n_blocks, n_shards } = self.cut() {
            // A shard is pushed and read at once. Runs of zeros that save nothing take a byte.
            let most = (MOST_BYTES - usize::from(self.traffic.zero_runs)) as u64 / 4 / BLOCK;
            let (found, enough) = (n_blocks.div_ceil(n_shards), n_blocks.div_ceil(most));
            if enough > MOST_SHARDS as u64 {
                return wrong(format!("{n_elements} elements are more than a table can have"));
            }
            if found > most {
                let (found, most) = (found * BLOCK, most * BLOCK);
                return wrong(format!(
                    "a shard of {found} elements is more than goes at once, which is {most}: n_shards = {enough} would do"
                ));
            }
        }
        if let (Consistency::Bsp, Some(setting)) = (self.consistency, self.traffic.changes_values())
        {
            let (table, setting) = (name.to_string(), setting.to_string());
            return Err(TableError::NotExact { table, setting });
        }
        if let Some(error) = self.traffic.significance.and_then(|one| one.check().err()) {
            return wrong(error.to_string());
        }
        match self.consistency.bound() {
            Some(staleness) if staleness > MOST_STALENESS => {
                Err(TableError::AbsurdStaleness { table: name.to_string(), staleness })
            }
            _ => Ok(()),
        }
    }

    /// How it is cut.
    pub fn cut(&self) -> Cut {
        let n_shards = self.n_shards.unwrap_or(SHARDS).max(1);
        match self.shape {
            Shape::Dense { n_elements } => {
                let n_blocks = n_elements.div_ceil(BLOCK).max(1);
                let most = match self.n_shards {
                    Some(_) => n_blocks,
                    None => n_elements.div_ceil(SHARD_ELEMENTS).max(1),
                };
                let n_shards = (n_shards as u64).min(most);
                Cut::Dense { n_elements, n_blocks, n_shards }
            }
            Shape::Rows { width, .. } => Cut::Rows { width, n_shards: n_shards as u32 },
        }
    }

    /// Elements under one key: 1 where it is dense.
    pub fn width(&self) -> usize {
        match self.shape {
            Shape::Dense { .. } => 1,
            Shape::Rows { width, .. } => width,
        }
    }
}

/// How a table is cut into shards: the same for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Ranges of elements, on edges of blocks.
    Dense {
        /// Elements.
        n_elements: u64,
        /// Blocks of them.
        n_blocks: u64,
        /// Shards.
        n_shards: u64,
    },
    /// Keys by their hash.
    Rows {
        /// Elements of a row.
        width: usize,
        /// Shards.
        n_shards: u32,
    },
}

impl Cut {
    /// The number of shards.
    pub fn n_shards(&self) -> u32 {
        match *self {
            Cut::Dense { n_shards, .. } => n_shards as u32,
            Cut::Rows { n_shards, .. } => n_shards,
        }
    }

    /// The elements of a dense shard; nothing of others.
    pub fn elements(&self, shard: ShardId) -> Range<u64> {
        match *self {
            Cut::Dense { n_elements, n_blocks, n_shards } => {
                let edge = |i: u64| (n_blocks * i / n_shards * BLOCK).min(n_elements);
                let i = u64::from(shard.0);
                edge(i)..if i + 1 == n_shards { n_elements } else { edge(i + 1) }
            }
            Cut::Rows { .. } => 0..0,
        }
    }

    /// The shard of an element, or of a key.
    pub fn shard_of(&self, key: u64) -> ShardId {
        match *self {
            Cut::Dense { n_blocks, n_shards, .. } => {
                // The first guess is right or one too small, since edges are rounded down.
                let block = key / BLOCK;
                let mut i = (block * n_shards / n_blocks).min(n_shards - 1);
                while i + 1 < n_shards && n_blocks * (i + 1) / n_shards <= block {
                    i += 1;
                }
                ShardId(i as u32)
            }
            Cut::Rows { n_shards, .. } => {
                // The high bits of a product: no division for each key.
                ShardId((((mix(key) >> 32) * u64::from(n_shards)) >> 32) as u32)
            }
        }
    }
}

/// Spreads numbers that lie close over all 64 bits.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_is_in_one_shard(n_elements in 1u64..500_000, n_shards in 1usize..40, at in 0.0..1.0f64) {
            let spec = TableSpec { n_shards: Some(n_shards), ..TableSpec::dense(n_elements) };
            let cut = spec.cut();
            let mut end = 0;
            for shard in 0..cut.n_shards() {
                let elements = cut.elements(ShardId(shard));
                prop_assert_eq!(elements.start, end);
                prop_assert!(!elements.is_empty());
                end = elements.end;
            }
            prop_assert_eq!(end, n_elements);
            let element = (at * n_elements as f64) as u64;
            prop_assert!(cut.elements(cut.shard_of(element)).contains(&element));
        }
    }

    #[test]
    fn keys_that_lie_close_are_spread() {
        let cut = TableSpec::rows(4, RowInit::Zeros).cut();
        let mut counts = vec![0; cut.n_shards() as usize];
        (0..16_000).for_each(|key| counts[cut.shard_of(key).0 as usize] += 1);
        assert!(counts.iter().all(|n| (800..1200).contains(n)), "{counts:?}");
    }

    #[test]
    fn what_cannot_be_is_told_in_a_sentence() {
        let sentence = |spec: TableSpec| spec.check("weights").unwrap_err().to_string();
        assert_eq!(
            sentence(TableSpec::dense(0)),
            "the table weights cannot be: it has no elements"
        );
        let ssp = Consistency::Ssp { staleness: u32::MAX };
        assert_eq!(
            sentence(TableSpec { consistency: ssp, ..TableSpec::dense(5) }),
            "the table weights cannot have a staleness of 4294967295 clocks: at most 1048576 mean anything; \"async\" waits for nobody"
        );
        let large = TableSpec::dense(5 << 30);
        assert_eq!(
            sentence(large.clone()),
            "the table weights cannot be: a shard of 335544320 elements is more than goes at once, which is 268435456: n_shards = 20 would do"
        );
        assert!(TableSpec { n_shards: Some(19), ..large.clone() }.check("w").is_err());
        assert!(TableSpec { n_shards: Some(20), ..large }.check("w").is_ok());
        assert!(sentence(TableSpec::dense(u64::MAX)).ends_with("more than a table can have"));
        assert!(TableSpec { replication: 0, ..TableSpec::dense(5) }.check("w").is_err());
        assert!(TableSpec::rows(0, RowInit::Zeros).check("w").is_err());
    }

    #[test]
    fn what_changes_values_is_refused_where_bits_are_promised() {
        use crate::tables::traffic::rounding::Rounding;
        use crate::tables::traffic::significance::Significance;
        let small = Significance { threshold: 1e-3, most_clocks: 8, most_rows: 10 };
        let of = |consistency, traffic| TableSpec { consistency, traffic, ..TableSpec::dense(5) };
        let rounds = TrafficSpec { rounding: Rounding::F16, ..TrafficSpec::default() };
        let holds = TrafficSpec { significance: Some(small), ..TrafficSpec::default() };
        for (traffic, word) in [(rounds, "rounded values"), (holds, "updates that are held back")] {
            assert!(of(Consistency::Async, traffic).check("w").is_ok());
            assert_eq!(
                of(Consistency::Bsp, traffic).check("weights").unwrap_err().to_string(),
                format!(
                    "the table weights cannot have {word} under bsp, which promises every bit: take ssp, adaptive or async"
                )
            );
        }
        let exact = TrafficSpec { key_lists: Some(9), zero_runs: true, ..TrafficSpec::default() };
        assert!(of(Consistency::Bsp, exact).check("w").is_ok());
        let absurd = Significance { threshold: -1.0, ..small };
        let absurd = TrafficSpec { significance: Some(absurd), ..TrafficSpec::default() };
        assert!(of(Consistency::Async, absurd).check("w").is_err());
    }
}
