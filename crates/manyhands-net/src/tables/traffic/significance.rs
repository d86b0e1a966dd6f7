//! Holds back updates that are too small to matter, until they add up.
//!
//! What is held is bounded twice: no update is held for more than a number of clocks, and no more rows than a number of them. Nothing is lost: what is held goes with
//! the next update of its row, when its time is over, or when all is flushed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Saved, TrafficError};

/// Elements of a dense table that go or stay together.
const BLOCK: usize = 64;

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

/// Updates of a run of elements that are held back, 64 elements at a time. What is held leaves zeros in its place, which [`super::zero_runs`] makes small; so this is for
/// rules to which a zero is nothing.
#[derive(Clone, Debug)]
pub struct HeldElements {
    significance: Significance,
    sums: Vec<f32>,
    /// Of each block the clock of the oldest update that is held.
    since: Vec<Option<u64>>,
    saved: Saved,
}

impl HeldElements {
    /// Holds nothing yet, of so many elements.
    pub fn new(n: usize, significance: Significance) -> Result<HeldElements, TrafficError> {
        significance.check()?;
        let (sums, since) = (vec![0.0; n], vec![None; n.div_ceil(BLOCK)]);
        Ok(HeldElements { significance, sums, since, saved: Saved::default() })
    }

    /// Replaces the update of all elements at this clock by what of it goes now, with what was held.
    pub fn offer(&mut self, clock: u64, update: &mut [f32]) -> Result<(), TrafficError> {
        let (expected, found) = (self.sums.len(), update.len());
        if expected != found {
            return Err(TrafficError::WrongLength { what: "an update", expected, found });
        }
        let blocks = self.sums.chunks_mut(BLOCK).zip(&mut self.since);
        for ((sums, since), update) in blocks.zip(update.chunks_mut(BLOCK)) {
            sums.iter_mut().zip(&*update).for_each(|(sum, update)| *sum += update);
            let oldest = since.unwrap_or(clock);
            let is_due = clock.saturating_sub(oldest) >= self.significance.most_clocks;
            let goes = is_due || self.significance.matters(sums);
            self.saved.count(size_of_val(sums), if goes { size_of_val(sums) } else { 0 });
            if goes {
                update.copy_from_slice(sums);
                sums.fill(0.0);
                *since = None;
            } else {
                update.fill(0.0);
                *since = Some(oldest);
            }
        }
        Ok(())
    }

    /// All that is held, zeros elsewhere. None if nothing is.
    pub fn flush(&mut self) -> Option<Vec<f32>> {
        if self.since.iter().all(Option::is_none) {
            return None;
        }
        self.since.fill(None);
        let n = self.sums.len();
        Some(std::mem::replace(&mut self.sums, vec![0.0; n]))
    }

    /// What it saved: elements that were offered, and elements that went before a flush.
    pub fn saved(&self) -> Saved {
        self.saved
    }
}

#[cfg(test)]
mod tests;
