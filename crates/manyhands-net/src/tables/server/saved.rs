//! A shard in pieces and back: for copies, with all that a holder keeps, and for checkpoints, with what outlives its clients.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::counted::Counted;
use super::kept::{Kept, Numbers, RowsBefore};
use super::steps::{Part, Steps};
use crate::tables::clocks::Clocks;
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, Term, Version};
use crate::tables::message::{Bits, Body, Opened, PIECE, floats, keys, keys_and_values};
use crate::tables::rules::Rules;
use crate::tables::spec::Shape;
use crate::tables::store::snapshot::{self, Filling, HEAD_BYTES};
use crate::tables::store::{RowInit, RowShard, Shard};

/// What the first piece says, after the head of the contents.
#[derive(Serialize, Deserialize)]
struct Words {
    /// Steps that are behind it.
    n_steps: u64,
    /// What a copy needs beyond a checkpoint.
    copy: Option<Copied>,
}

#[derive(Serialize, Deserialize)]
struct Copied {
    version: Version,
    last_term: Term,
    clocks: Clocks,
    numbers: BTreeMap<ClientId, Numbers>,
    gone: BTreeMap<ClientId, u64>,
    counted: Counted,
    /// Parts of steps that are not complete; their values follow, one piece each.
    parts: Vec<PartWords>,
    /// Pieces of a state that is being loaded: they follow.
    n_loading: usize,
    /// How many rows the last step changed: what they were follows.
    #[serde(default)]
    n_before: Option<u64>,
    failed: Option<TableError>,
}

#[derive(Serialize, Deserialize)]
struct PartWords {
    step: u64,
    grains: [usize; 2],
    n_grains: usize,
    rate: Bits,
    divisor: Bits,
    n: u64,
}

/// A shard as it is now, in pieces.
pub(super) fn pieces(kept: &Kept, is_copy: bool) -> Vec<Body> {
    let copy = is_copy.then(|| Copied {
        version: kept.version,
        last_term: kept.last_term,
        clocks: kept.clocks.clone(),
        numbers: kept.numbers.clone(),
        gone: kept.gone.clone(),
        counted: kept.counted.clone(),
        parts: kept.steps.parts().map(words_of).collect(),
        n_loading: kept.loading.len(),
        n_before: kept.before.as_ref().map(|before| before.keys.len() as u64),
        failed: kept.failed.clone(),
    });
    let words = Words { n_steps: kept.steps.n_done(), copy };
    let mut first = snapshot::Head::of(&kept.contents).to_bytes().to_vec();
    first.extend(serde_json::to_vec(&words).unwrap_or_default());
    let mut pieces = vec![Body::new(first)];
    if is_copy {
        pieces.extend(kept.steps.parts().map(|part| Body::clone(&part.body)));
        pieces.extend(kept.loading.iter().cloned());
        let width = kept.opened.spec.width();
        pieces.extend(kept.before.iter().flat_map(|before| pieces_of_rows(before, width, PIECE)));
    }
    let mut at = 0;
    while at < kept.contents.n_items() {
        let mut piece = Vec::new();
        at = snapshot::piece(&kept.contents, at, PIECE, &mut piece);
        pieces.push(Body::new(piece));
    }
    pieces
}

/// Rows in pieces of about so many bytes: keys, and what belongs to them.
fn pieces_of_rows(rows: &RowsBefore, width: usize, n_bytes: usize) -> Vec<Body> {
    let n_rows = (n_bytes / (8 + 4 * width)).max(1);
    let all = rows.keys.chunks(n_rows).zip(rows.values.chunks(n_rows * width.max(1)));
    let piece = |(keys, values): (&[u64], &[f32])| {
        Body::new([bytemuck::cast_slice(keys), bytemuck::cast_slice(values)].concat())
    };
    all.map(piece).collect()
}

fn words_of(part: &Part) -> PartWords {
    PartWords {
        step: part.step,
        grains: [part.grains.start, part.grains.end],
        n_grains: part.n_grains,
        rate: part.rate,
        divisor: part.divisor,
        n: part.n,
    }
}

/// A shard that comes in pieces.
pub(super) struct Arriving {
    kept: Kept,
    filling: Option<Filling>,
    parts: VecDeque<PartWords>,
    n_loading: usize,
    /// Rows of the step before that are still to come.
    n_before: u64,
    is_copy: bool,
}

impl Arriving {
    /// Begins with the first piece.
    pub(super) fn new(
        opened: &Opened,
        place: Place,
        rules: &Rules,
        first: &[u8],
    ) -> Result<Arriving, TableError> {
        let wrong = |what: String| TableError::Snapshot { table: opened.name.clone(), what };
        let mut kept = Kept::new(opened, place, rules)?;
        let Some((head, words)) = first.split_at_checked(HEAD_BYTES) else {
            return Err(wrong(format!("it begins with {} bytes", first.len())));
        };
        let head = snapshot::Head::from_bytes(head).map_err(|error| wrong(error.to_string()))?;
        let words: Words =
            serde_json::from_slice(words).map_err(|error| wrong(error.to_string()))?;
        // The shard that was just made is what is filled.
        let nothing = Shard::Rows(RowShard::new(0, 1, 0, RowInit::Zeros));
        let empty = std::mem::replace(&mut kept.contents, nothing);
        let filling = Filling::new(empty, head).map_err(|error| wrong(error.to_string()))?;
        kept.steps = Steps::after(words.n_steps);
        kept.counted = Counted::after(words.n_steps);
        let is_copy = words.copy.is_some();
        let mut arriving = Arriving {
            kept,
            filling: Some(filling),
            parts: VecDeque::new(),
            n_loading: 0,
            n_before: 0,
            is_copy,
        };
        if let Some(copy) = words.copy {
            arriving.kept.version = copy.version;
            arriving.kept.last_term = copy.last_term;
            arriving.kept.clocks = copy.clocks;
            arriving.kept.numbers = copy.numbers;
            arriving.kept.gone = copy.gone;
            arriving.kept.counted = copy.counted;
            arriving.kept.failed = copy.failed;
            arriving.parts = copy.parts.into();
            arriving.n_loading = copy.n_loading;
            arriving.kept.before = copy.n_before.map(|_| RowsBefore::default());
            arriving.n_before = copy.n_before.unwrap_or(0);
        }
        Ok(arriving)
    }

    /// Bytes that have come.
    pub(super) fn n_bytes(&self) -> u64 {
        let filled = self.filling.as_ref().map_or(0, Filling::n_bytes);
        self.kept.n_bytes() + filled as u64
    }

    /// More bytes that the next piece takes: none where it fills a dense shard, which is there as a whole.
    pub(super) fn n_bytes_for(&self, piece: &Body) -> u64 {
        let is_dense = matches!(self.kept.opened.spec.shape, Shape::Dense { .. });
        let is_beside = !self.parts.is_empty() || self.n_loading > 0 || self.n_before > 0;
        if is_dense && !is_beside { 0 } else { piece.len() as u64 }
    }

    /// Takes the next piece.
    pub(super) fn take(&mut self, piece: &Body) -> Result<(), TableError> {
        if let Some(words) = self.parts.pop_front() {
            let PartWords { step, grains: [start, end], n_grains, rate, divisor, n } = words;
            let (grains, body) = (start..end, Body::clone(piece));
            let part = Part { step, grains, n_grains, rate, divisor, n, body };
            let Kept { opened, elements, steps, place, .. } = &mut self.kept;
            let fits = match opened.spec.shape {
                Shape::Dense { .. } => {
                    n == elements.end - elements.start && part.body.len() as u64 == 4 * n
                }
                Shape::Rows { width, .. } => keys_and_values(&part.body, n, width).is_some(),
            };
            if !fits || steps.check(*place, &part).is_err() {
                return Err(TableError::Snapshot {
                    table: opened.name.clone(),
                    what: "a part of a step does not fit into it".to_string(),
                });
            }
            steps.take(part);
            return Ok(());
        }
        if self.n_loading > 0 {
            self.n_loading -= 1;
            self.kept.loading.push(Body::clone(piece));
            return Ok(());
        }
        if self.n_before > 0 {
            let width = self.kept.opened.spec.width();
            let n = (piece.len() / (8 + 4 * width)) as u64;
            let found = keys_and_values(piece, n, width);
            let is_expected = (1..=self.n_before).contains(&n);
            let Some((own_keys, values)) = found.filter(|_| is_expected) else {
                return Err(TableError::Snapshot {
                    table: self.kept.opened.name.clone(),
                    what: "the rows of the step before are of another number".to_string(),
                });
            };
            let before = self.kept.before.get_or_insert_default();
            before.keys.extend_from_slice(&keys(own_keys));
            before.values.extend_from_slice(&floats(values));
            self.n_before -= n;
            return Ok(());
        }
        let wrong = |error: snapshot::SnapshotError| TableError::Snapshot {
            table: self.kept.opened.name.clone(),
            what: error.to_string(),
        };
        match &mut self.filling {
            Some(filling) => filling.take(piece).map_err(wrong),
            None => Ok(()),
        }
    }

    /// The shard, when all of it has come.
    pub(super) fn finish(mut self) -> Result<Kept, TableError> {
        let table = self.kept.opened.name.clone();
        let filled = self.filling.take().map(Filling::finish);
        match filled {
            Some(Ok(contents)) => self.kept.contents = contents,
            Some(Err(error)) => {
                return Err(TableError::Snapshot { table, what: error.to_string() });
            }
            None => {}
        }
        Ok(self.kept)
    }
}

impl Kept {
    /// Takes a piece of a state that is loaded. The last one replaces contents and steps, and mends what had failed.
    pub(super) fn load(
        &mut self,
        is_first: bool,
        is_last: bool,
        body: &Body,
        rules: &Rules,
    ) -> Result<(), TableError> {
        if is_first {
            self.loading.clear();
        }
        self.loading.push(Body::clone(body));
        if !is_last {
            return Ok(());
        }
        let mut pieces = std::mem::take(&mut self.loading).into_iter();
        let first = pieces.next().unwrap_or_default();
        let mut arriving = Arriving::new(&self.opened, self.place, rules, &first)?;
        if arriving.is_copy {
            let what = "it is a copy between servers, not a saved state".to_string();
            return Err(TableError::Snapshot { table: self.opened.name.clone(), what });
        }
        pieces.try_for_each(|piece| arriving.take(&piece))?;
        let loaded = arriving.finish()?;
        (self.contents, self.steps, self.failed) = (loaded.contents, loaded.steps, None);
        self.before = None;
        self.counted = loaded.counted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_step_before_come_in_pieces_and_are_whole_again() {
        let keys: Vec<u64> = (0..1000).map(|key| 3 * key).collect();
        let values: Vec<f32> = (0..4000).map(|value| value as f32).collect();
        let before = RowsBefore { keys, values };
        for (n_bytes, n_pieces) in [(1 << 20, 1), (2400, 10), (1, 1000)] {
            let pieces = pieces_of_rows(&before, 4, n_bytes);
            assert_eq!(pieces.len(), n_pieces);
            let mut found = RowsBefore::default();
            for piece in &pieces {
                assert!(piece.len() <= n_bytes.max(24));
                let (own, values) = keys_and_values(piece, piece.len() as u64 / 24, 4).unwrap();
                found.keys.extend_from_slice(&keys_of(own));
                found.values.extend_from_slice(&floats(values));
            }
            assert_eq!(found, before);
        }
        assert!(pieces_of_rows(&RowsBefore::default(), 4, 100).is_empty());
    }

    fn keys_of(bytes: &[u8]) -> Vec<u64> {
        keys(bytes).into_owned()
    }
}
