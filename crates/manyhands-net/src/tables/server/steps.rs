//! Steps of a shard under BSP: parts are held until they cover all grains, then added along the one tree.
//!
//! Parts are of complete subtrees, so two of them lie one in the other or apart. Grains that were done again elsewhere come as other parts of the same
//! sum: what is covered already is dropped, and a part that covers others takes their place. Who brought what, and when, leaves no trace.

use std::collections::BTreeMap;
use std::ops::Range;

use super::sums::{self, Sum};
use crate::collective::tree::{Forest, subtrees};
use crate::tables::error::TableError;
use crate::tables::identity::Place;
use crate::tables::message::{Bits, Body};

/// How many steps beyond the next one parts are held of.
const AHEAD: u64 = 1;
/// The most grains of a step: what somebody broken says of more is not cut into trees.
pub(super) const MOST_GRAINS: usize = 1 << 20;
/// Steps of a table are below this.
pub(super) const MOST_STEPS: u64 = 1 << 62;

/// A part of a step: the sum of some grains.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) step: u64,
    pub(super) grains: Range<usize>,
    pub(super) n_grains: usize,
    pub(super) rate: Bits,
    pub(super) divisor: Bits,
    pub(super) n: u64,
    pub(super) body: Body,
}

/// A step that is complete: its sum, and what goes with it.
pub(super) struct Whole {
    pub(super) step: u64,
    pub(super) rate: f32,
    pub(super) divisor: f32,
    pub(super) sum: Sum,
}

/// How far a shard is, and the parts of what comes.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    n_done: u64,
    coming: BTreeMap<u64, Vec<Part>>,
}

impl Steps {
    /// So many steps are behind it.
    pub(super) fn after(n_done: u64) -> Steps {
        Steps { n_done, coming: BTreeMap::new() }
    }

    pub(super) fn n_done(&self) -> u64 {
        self.n_done
    }

    /// All parts that are held.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.coming.values().flatten()
    }

    /// Bytes of the parts that are held.
    pub(super) fn n_bytes(&self) -> usize {
        self.parts().map(|part| part.body.len()).sum()
    }

    /// Whether a part can be taken.
    pub(super) fn check(&self, place: Place, part: &Part) -> Result<(), TableError> {
        let Part { step, n_grains, grains, .. } = part;
        let is_subtree = *n_grains <= MOST_GRAINS
            && grains.start < grains.end
            && grains.end <= *n_grains
            && matches!(&subtrees(*n_grains, grains)[..], [one] if one == grains);
        if !is_subtree {
            let (start, end) = (grains.start, grains.end);
            return Err(TableError::NoSubtree { start, end, n_grains: *n_grains });
        }
        if *step > self.n_done.saturating_add(AHEAD) {
            return Err(TableError::StepAhead { place, has: self.n_done, step: *step });
        }
        let differs = |what: &str| {
            Err(TableError::PartsDiffer { place, step: *step, what: what.to_string() })
        };
        match self.coming.get(step).and_then(|parts| parts.first()) {
            Some(held) if held.n_grains != *n_grains => differs("the number of grains"),
            Some(held) if held.rate != part.rate => differs("the rate"),
            _ => Ok(()),
        }
    }

    /// Takes a part that was checked. What is covered already, or done, is dropped.
    pub(super) fn take(&mut self, part: Part) {
        if part.step < self.n_done {
            return;
        }
        let parts = self.coming.entry(part.step).or_default();
        let covers = |one: &Part, other: &Part| {
            one.grains.start <= other.grains.start && other.grains.end <= one.grains.end
        };
        if parts.iter().any(|held| covers(held, &part)) {
            return;
        }
        parts.retain(|held| !covers(&part, held));
        parts.push(part);
    }

    /// The next step, if it is complete: then it counts as done. Its sum goes along the tree.
    pub(super) fn complete(&mut self, width: Option<usize>) -> Option<Whole> {
        let parts = self.coming.get(&self.n_done)?;
        let first = parts.first()?;
        let ranges: Vec<Range<usize>> = parts.iter().map(|part| part.grains.clone()).collect();
        let forest = Forest::new(first.n_grains, &ranges)?;
        if !forest.is_whole(first.n_grains) {
            return None;
        }
        let (step, rate) = (first.step, first.rate.into());
        let joins = forest.joins.iter().map(|join| (join.into.slot, join.from.slot));
        let joins: Vec<(usize, usize)> = joins.collect();
        let root = forest.roots[0].slot;
        let divisors = parts.iter().map(|part| f32::from(part.divisor)).collect();
        let divisor = sums::add_scalars(divisors, &joins, root);
        let parts = self.coming.remove(&self.n_done)?;
        self.n_done += 1;
        let sum = match width {
            None => {
                let bodies = parts.into_iter().map(|part| (part.n, part.body)).collect();
                sums::dense_sum(bodies, &joins, root)
            }
            Some(width) => {
                let bodies: Vec<_> = parts.iter().map(|part| (part.n, &part.body)).collect();
                sums::add_rows(&bodies, width, &joins, root)
            }
        };
        Some(Whole { step, rate, divisor, sum })
    }
}
