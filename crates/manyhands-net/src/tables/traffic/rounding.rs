//! Values with fewer bits, and what rounding took away kept for the next time.
//!
//! *Error feedback*: the sender of updates keeps for each value what rounding took away, and adds it to the next update of the same value. Over many pushes nothing
//! is lost: the sum of all that arrived and of what is kept is the sum of all that was pushed. The forms are those of compressed collectives.

use serde::{Deserialize, Serialize};

use super::{Saved, TrafficError};
use crate::collective::compress::{self, Compression};
use crate::tables::store::{RowInit, RowShard};

/// How values are rounded for the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Not at all.
    #[default]
    None,
    /// 16-bit floats: an error of at most 1/2048 of each value of usual size. Beyond 65504 it ends.
    F16,
    /// 8-bit integers, with a scale for every 256 values: an error of at most 1/254 of the largest of these.
    EightBit,
}

impl Rounding {
    /// Bytes of so many values.
    pub fn n_bytes(self, n: usize) -> usize {
        match self.compression() {
            Some(compression) => compress::encoded_len(compression, n),
            None => n * size_of::<f32>(),
        }
    }

    /// Adds the values to `out`, rounded.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Saved {
        match self.compression() {
            Some(compression) => out.extend_from_slice(&compress::encode(compression, values)),
            None => out.extend_from_slice(bytemuck::cast_slice(values)),
        }
        let after = self.n_bytes(values.len()) as u64;
        Saved { before: size_of_val(values) as u64, after }
    }

    /// Fills `values`, as many as were announced, with what was encoded.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) -> Result<(), TrafficError> {
        let (expected, found) = (self.n_bytes(values.len()), bytes.len());
        let wrong = TrafficError::WrongLength { what: "values", expected, found };
        if expected != found {
            return Err(wrong);
        }
        match self.compression() {
            Some(compression) => {
                compress::decode(compression, bytes, values, 0).map_err(|_| wrong)?;
            }
            None => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
        }
        Ok(())
    }

    fn compression(self) -> Option<Compression> {
        match self {
            Rounding::None => None,
            Rounding::F16 => Some(Compression::F16),
            Rounding::EightBit => Some(Compression::EightBit),
        }
    }
}

/// What rounding took away from the updates of a run of elements.
#[derive(Clone, Debug)]
pub struct DenseFeedback {
    rounding: Rounding,
    kept: Vec<f32>,
    seen: Vec<f32>,
}

impl DenseFeedback {
    /// Nothing so far, of so many elements.
    pub fn new(rounding: Rounding, n: usize) -> DenseFeedback {
        DenseFeedback { rounding, kept: vec![0.0; n], seen: Vec::new() }
    }

    /// What will go with the next updates.
    pub fn kept(&self) -> &[f32] {
        &self.kept
    }

    /// Adds to `out` the update of the elements from `first` on, with what was kept of them, rounded.
    pub fn encode(
        &mut self,
        first: usize,
        update: &[f32],
        out: &mut Vec<u8>,
    ) -> Result<Saved, TrafficError> {
        let n = self.kept.len();
        let Some(kept) = self.kept.get_mut(first..).and_then(|kept| kept.get_mut(..update.len()))
        else {
            let (expected, found) = (n.saturating_sub(first), update.len());
            return Err(TrafficError::WrongLength { what: "an update", expected, found });
        };
        if self.rounding == Rounding::None {
            return Ok(self.rounding.encode(update, out));
        }
        kept.iter_mut().zip(update).for_each(|(kept, update)| *kept += update);
        let start = out.len();
        let saved = self.rounding.encode(kept, out);
        self.seen.resize(update.len(), 0.0);
        self.rounding.decode(&out[start..], &mut self.seen)?;
        kept.iter_mut().zip(&self.seen).for_each(|(kept, seen)| *kept = left(*kept, *seen));
        Ok(saved)
    }
}

/// What rounding took away from the updates of rows. It takes the memory of a row for each key that was pushed, up to a number of them; rows beyond that are rounded
/// without feedback, and counted.
#[derive(Clone, Debug)]
pub struct RowFeedback {
    rounding: Rounding,
    kept: RowShard,
    most_rows: usize,
    n_without: u64,
    rows: Vec<Option<usize>>,
    wanted: Vec<f32>,
    seen: Vec<f32>,
}

impl RowFeedback {
    /// Nothing so far, of rows of this width and at most so many.
    pub fn new(rounding: Rounding, width: usize, most_rows: usize) -> RowFeedback {
        RowFeedback {
            rounding,
            kept: RowShard::new(0, width, 0, RowInit::Zeros),
            most_rows: most_rows.min(RowShard::most_rows()),
            n_without: 0,
            rows: Vec::new(),
            wanted: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// What will go with the next update of this key.
    pub fn kept(&self, key: u64) -> Option<&[f32]> {
        self.kept.find(key).map(|row| self.kept.row(row))
    }

    /// Rows of pushes that were rounded without feedback, because there were too many to keep.
    pub fn n_without(&self) -> u64 {
        self.n_without
    }

    /// Adds to `out` the updates of these keys, with what was kept of them, rounded. No key may come twice.
    pub fn encode(
        &mut self,
        keys: &[u64],
        update: &[f32],
        out: &mut Vec<u8>,
    ) -> Result<Saved, TrafficError> {
        let width = self.kept.width();
        let (expected, found) = (keys.len() * width, update.len());
        if expected != found {
            return Err(TrafficError::WrongLength { what: "an update", expected, found });
        }
        if self.rounding == Rounding::None {
            return Ok(self.rounding.encode(update, out));
        }
        self.find_rows(keys);
        self.wanted.clear();
        self.wanted.extend_from_slice(update);
        let wanted = self.wanted.chunks_exact_mut(width.max(1));
        for (row, wanted) in self.rows.iter().zip(wanted) {
            let Some(row) = *row else { continue };
            wanted.iter_mut().zip(self.kept.row(row)).for_each(|(wanted, kept)| *wanted += kept);
        }
        let start = out.len();
        let saved = self.rounding.encode(&self.wanted, out);
        self.seen.resize(update.len(), 0.0);
        self.rounding.decode(&out[start..], &mut self.seen)?;
        let wanted = self.wanted.chunks_exact(width.max(1));
        for ((row, wanted), seen) in
            self.rows.iter().zip(wanted).zip(self.seen.chunks_exact(width.max(1)))
        {
            let Some(row) = *row else { continue };
            for ((kept, wanted), seen) in self.kept.row_mut(row).iter_mut().zip(wanted).zip(seen) {
                *kept = left(*wanted, *seen);
            }
        }
        Ok(saved)
    }

    /// Where what is kept of each key lies; nowhere, if there are too many.
    fn find_rows(&mut self, keys: &[u64]) {
        self.rows.clear();
        for key in keys {
            let row = match self.kept.len() < self.most_rows {
                true => self.kept.get_or_make(*key).ok(),
                false => self.kept.find(*key),
            };
            self.n_without += u64::from(row.is_none());
            self.rows.push(row);
        }
    }
}

/// What is left of a value. What is not finite has been seen as such, and would never leave again.
fn left(wanted: f32, seen: f32) -> f32 {
    let left = wanted - seen;
    if left.is_finite() { left } else { 0.0 }
}

#[cfg(test)]
mod tests;
