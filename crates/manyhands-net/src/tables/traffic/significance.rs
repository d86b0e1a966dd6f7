//! Holds back updates that are too small to matter, until they add up.
//!
//! What is held is bounded twice: no update is held for more than a number of clocks, and no more rows than a number of them. Nothing is lost: what is held goes with
//! the next update of its row, when its time is over, or when all is flushed.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Saved, TrafficError};

/// Elements of a dense table that go or stay together: a message for fewer would cost more than their bytes.
pub const BLOCK: usize = 1024;

/// What is too small to matter, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Significance {
    /// A row goes when one of its sums is at least this, by absolute value.
    pub threshold: f32,
    /// No update stays longer than this.
    #[serde(default = "default_clocks")]
    pub most_clocks: u64,
    /// No more rows stay than this. Dense tables have the memory of their elements instead.
    #[serde(default = "default_rows")]
    pub most_rows: usize,
}

fn default_clocks() -> u64 {
    8
}

fn default_rows() -> usize {
    1 << 20
}

impl Significance {
    /// With this threshold, for at most eight clocks and a million rows.
    pub fn of(threshold: f32) -> Significance {
        let (most_clocks, most_rows) = (default_clocks(), default_rows());
        Significance { threshold, most_clocks, most_rows }
    }

    /// Whether the numbers make sense.
    pub fn check(&self) -> Result<(), TrafficError> {
        match self.threshold.is_finite() && self.threshold >= 0.0 {
            true => Ok(()),
            false => Err(TrafficError::Threshold { threshold: self.threshold }),
        }
    }

    /// NaN and infinity matter.
    fn matters(&self, sums: &[f32]) -> bool {
        sums.iter().any(|sum| sum.is_nan() || sum.abs() >= self.threshold)
    }
}

/// Updates of rows that are held back.
#[derive(Clone, Debug)]
pub struct HeldRows {
    width: usize,
    significance: Significance,
    rows: BTreeMap<u64, Held>,
    /// By clock and key, so that the oldest is found.
    by_age: std::collections::BTreeSet<(u64, u64)>,
    saved: Saved,
}

#[derive(Clone, Debug)]
struct Held {
    since: u64,
    sums: Vec<f32>,
}

/// Updates that go: rows of sums under keys, which rise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Going {
    /// The keys.
    pub keys: Vec<u64>,
    /// A row for each.
    pub values: Vec<f32>,
}

impl HeldRows {
    /// Holds nothing yet.
    pub fn new(width: usize, significance: Significance) -> Result<HeldRows, TrafficError> {
        significance.check()?;
        let (rows, by_age) = Default::default();
        Ok(HeldRows { width, significance, rows, by_age, saved: Saved::default() })
    }

    /// How many rows are held.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What of an update at this clock goes now, with what was held of it. Keys must rise.
    pub fn offer(
        &mut self,
        clock: u64,
        keys: &[u64],
        update: &[f32],
    ) -> Result<Going, TrafficError> {
        let (expected, found) = (keys.len() * self.width, update.len());
        if expected != found {
            return Err(TrafficError::WrongLength { what: "an update", expected, found });
        }
        let mut going = BTreeMap::new();
        for (key, update) in keys.iter().zip(update.chunks_exact(self.width.max(1))) {
            let held = self.rows.remove(key);
            let since = held.as_ref().map_or(clock, |held| held.since);
            self.by_age.remove(&(since, *key));
            let mut sums = update.to_vec();
            if let Some(held) = held {
                sums.iter_mut().zip(held.sums).for_each(|(sum, held)| *sum += held);
            }
            if self.significance.matters(&sums) {
                going.insert(*key, sums);
            } else {
                self.rows.insert(*key, Held { since, sums });
                self.by_age.insert((since, *key));
            }
        }
        let n_over = self.rows.len().saturating_sub(self.significance.most_rows);
        self.oldest(n_over, &mut going);
        let going = self.in_order(going);
        self.saved.count(row_bytes(self.width) * keys.len(), 0);
        Ok(going)
    }

    /// What must go when the worker's clock comes to this: all that was held for as long as it may be.
    pub fn clock(&mut self, clock: u64) -> Going {
        let oldest = clock.saturating_sub(self.significance.most_clocks);
        let n_due = match clock >= self.significance.most_clocks {
            true => self.by_age.iter().take_while(|(since, _)| *since <= oldest).count(),
            false => 0,
        };
        let mut going = BTreeMap::new();
        self.oldest(n_due, &mut going);
        self.in_order(going)
    }

    /// All that is held.
    pub fn flush(&mut self) -> Going {
        let mut going = BTreeMap::new();
        self.oldest(self.rows.len(), &mut going);
        self.in_order(going)
    }

    /// What it saved: rows that were offered, and rows that went.
    pub fn saved(&self) -> Saved {
        self.saved
    }

    fn oldest(&mut self, n: usize, going: &mut BTreeMap<u64, Vec<f32>>) {
        for _ in 0..n {
            let Some((_, key)) = self.by_age.pop_first() else { break };
            if let Some(held) = self.rows.remove(&key) {
                going.insert(key, held.sums);
            }
        }
    }

    fn in_order(&mut self, going: BTreeMap<u64, Vec<f32>>) -> Going {
        self.saved.count(0, row_bytes(self.width) * going.len());
        let (keys, rows): (Vec<u64>, Vec<Vec<f32>>) = going.into_iter().unzip();
        Going { keys, values: rows.concat() }
    }
}

/// A row and its key on the wire.
fn row_bytes(width: usize) -> usize {
    8 + width * size_of::<f32>()
}

/// Updates of a run of elements that are held back, [`BLOCK`] elements at a time.
#[derive(Clone, Debug)]
pub struct HeldElements {
    significance: Significance,
    sums: Vec<f32>,
    blocks: Vec<Option<HeldBlock>>,
    saved: Saved,
}

/// What is held of a block.
#[derive(Clone, Debug)]
struct HeldBlock {
    /// The clock of the oldest update.
    since: u64,
    /// The elements that any update was of: others are left alone.
    elements: Range<usize>,
}

/// Elements of a table whose updates go: the first of them, and a sum for each.
#[derive(Clone, Debug, PartialEq)]
pub struct GoingRun {
    /// Where they begin.
    pub first: usize,
    /// The sums.
    pub values: Vec<f32>,
}

impl HeldElements {
    /// Holds nothing yet, of so many elements.
    pub fn new(n: usize, significance: Significance) -> Result<HeldElements, TrafficError> {
        significance.check()?;
        let (sums, blocks) = (vec![0.0; n], vec![None; n.div_ceil(BLOCK)]);
        Ok(HeldElements { significance, sums, blocks, saved: Saved::default() })
    }

    /// What of an update of the elements from `first` on goes now, at this clock, with what was held of it.
    pub fn offer(
        &mut self,
        clock: u64,
        first: usize,
        update: &[f32],
    ) -> Result<Vec<GoingRun>, TrafficError> {
        let (expected, found) = (self.sums.len().saturating_sub(first), update.len());
        if found > expected {
            return Err(TrafficError::WrongLength { what: "an update", expected, found });
        }
        let end = first + update.len();
        let sums = self.sums[first..end].iter_mut().zip(update);
        sums.for_each(|(sum, update)| *sum += update);
        self.saved.count(size_of_val(update), 0);
        let touched = first / BLOCK..end.div_ceil(BLOCK);
        for block in touched.clone() {
            let own = first.max(block * BLOCK)..end.min((block + 1) * BLOCK);
            let held = self.blocks[block].take();
            let held = held.unwrap_or(HeldBlock { since: clock, elements: own.clone() });
            let HeldBlock { since, elements } = held;
            let elements = elements.start.min(own.start)..elements.end.max(own.end);
            self.blocks[block] = Some(HeldBlock { since, elements });
        }
        let goes = |own: &Self, held: &HeldBlock| {
            own.is_due(clock, held) || own.significance.matters(&own.sums[held.elements.clone()])
        };
        Ok(self.take(touched, goes))
    }

    /// What must go when the worker's clock comes to this: all that was held for as long as it may be.
    pub fn clock(&mut self, clock: u64) -> Vec<GoingRun> {
        self.take(0..self.blocks.len(), |own, held| own.is_due(clock, held))
    }

    /// All that is held.
    pub fn flush(&mut self) -> Vec<GoingRun> {
        self.take(0..self.blocks.len(), |_, _| true)
    }

    /// What it saved: elements that were offered, and elements that went.
    pub fn saved(&self) -> Saved {
        self.saved
    }

    fn is_due(&self, clock: u64, held: &HeldBlock) -> bool {
        clock.saturating_sub(held.since) >= self.significance.most_clocks
    }

    /// Takes those blocks of which something is held that is to go.
    fn take(
        &mut self,
        blocks: Range<usize>,
        goes: impl Fn(&Self, &HeldBlock) -> bool,
    ) -> Vec<GoingRun> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in blocks {
            let is_going = self.blocks[block].as_ref().is_some_and(|held| goes(self, held));
            let held = if is_going { self.blocks[block].take() } else { None };
            held.into_iter().for_each(|held| join(&mut runs, held.elements));
        }
        let run = |elements: Range<usize>| {
            let (first, own) = (elements.start, &mut self.sums[elements]);
            let values = own.to_vec();
            own.fill(0.0);
            self.saved.count(0, size_of_val(&values[..]));
            GoingRun { first, values }
        };
        runs.into_iter().map(run).collect()
    }
}

/// Adds a run to those before it. Two of one length become one where that lies on a multiple of its own length, so that runs have few lengths: whoever
/// updates them may have prepared something for each.
fn join(runs: &mut Vec<Range<usize>>, run: Range<usize>) {
    runs.push(run);
    while let [.., one, other] = &runs[..] {
        let len = one.len();
        let are_halves = len == other.len() && one.end == other.start && len.is_power_of_two();
        if !are_halves || !one.start.is_multiple_of(2 * len) {
            break;
        }
        let both = one.start..other.end;
        runs.truncate(runs.len() - 2);
        runs.push(both);
    }
}

#[cfg(test)]
mod tests;
