//! Values in fewer bytes, and back: pushes rounded with feedback, pushes and pulls without runs of zeros. Keys are left as they are: see `key_lists.rs`.

use std::collections::BTreeMap;

use super::body;
use super::error::TableError;
use super::identity::ShardId;
use super::message::{Body, Operation, Packing, floats, keys};
use super::spec::{Shape, TableSpec};
use super::traffic::rounding::{DenseFeedback, Rounding, RowFeedback};
use super::traffic::{Saved, SavedByFilter, TrafficError, TrafficSpec, zero_runs};

/// Rows whose rounding is fed back, in all shards of a table together.
const MOST_ROWS: usize = 4 << 20;

/// What a worker keeps to write its pushes to a table in fewer bytes.
#[derive(Default)]
pub(super) struct Packer {
    feedback: BTreeMap<ShardId, Feedback>,
    rounding: Saved,
    zero_runs: Saved,
}

enum Feedback {
    Dense(DenseFeedback),
    Rows(Box<RowFeedback>),
}

impl Packer {
    /// Bytes before and after, of each filter.
    pub(super) fn saved(&self) -> SavedByFilter {
        let (rounding, zero_runs) = (self.rounding, self.zero_runs);
        SavedByFilter { rounding, zero_runs, ..SavedByFilter::default() }
    }

    /// Writes a push in fewer bytes. `first` is where its elements lie in the shard.
    pub(super) fn pack(
        &mut self,
        spec: &TableSpec,
        (shard, n_elements): (ShardId, usize),
        first: usize,
        operation: &mut Operation,
        body: &mut Body,
    ) -> Result<(), TrafficError> {
        let TrafficSpec { rounding, zero_runs, .. } = spec.traffic;
        // Sums of grains keep their bits: tables whose pushes are such have no rounding.
        let (Operation::Push { n, packing, .. } | Operation::Part { n, packing, .. }) = operation
        else {
            return Ok(());
        };
        let (n_keys, width) = match spec.shape {
            Shape::Dense { .. } => (0, 1),
            Shape::Rows { width, .. } => (*n as usize * 8, width),
        };
        let (all_keys, values) = body.split_at(n_keys);
        let mut rounded = Vec::new();
        if rounding != Rounding::None {
            let values = floats(values);
            match self.feedback.entry(shard).or_insert_with(|| match spec.shape {
                Shape::Dense { .. } => Feedback::Dense(DenseFeedback::new(rounding, n_elements)),
                Shape::Rows { .. } => {
                    let most = MOST_ROWS / spec.cut().n_shards().max(1) as usize;
                    Feedback::Rows(Box::new(RowFeedback::new(rounding, width, most)))
                }
            }) {
                Feedback::Dense(feedback) => feedback.encode(first, &values, &mut rounded)?,
                Feedback::Rows(feedback) => {
                    feedback.encode(&keys(all_keys), &values, &mut rounded)?
                }
            };
            self.rounding.count(size_of_val(&*values), rounded.len());
        }
        let values = if rounding == Rounding::None { values } else { &rounded[..] };
        let mut packed = body::empty(all_keys.len() + values.len() + 1);
        packed.extend_from_slice(all_keys);
        match zero_runs {
            true => self.zero_runs += zero_runs::encode(values, &mut packed),
            false => packed.extend_from_slice(values),
        }
        let without_zeros = zero_runs.then_some(values.len());
        // Rounding may make infinity of what is large.
        *packing = Packing { rounding, without_zeros, is_finite: false };
        *body = Body::new(packed);
        Ok(())
    }
}

/// Values that were read, without their runs of zeros.
pub(super) fn pack_values(values: &Body) -> Body {
    let mut packed = body::empty(values.len() + 1);
    zero_runs::encode(values, &mut packed);
    Body::new(packed)
}

/// Values that were read as they were: so many bytes of them.
pub(super) fn unpack_values(packed: &[u8], n_bytes: usize) -> Result<Body, TrafficError> {
    let mut values = body::any(n_bytes);
    zero_runs::decode(packed, &mut values)?;
    Ok(Body::new(values))
}

/// A push as it was before it was packed.
pub(super) fn unpack(
    spec: &TableSpec,
    worker: &str,
    operation: &mut Operation,
    body: &mut Body,
) -> Result<(), TableError> {
    let (Operation::Push { n, packing, .. } | Operation::Part { n, packing, .. }) = operation
    else {
        return Ok(());
    };
    if packing.is_as_it_is() {
        return Ok(());
    }
    let wrong = |what: String| TableError::Nonsense { who: worker.to_string(), what };
    let Packing { rounding, without_zeros, .. } = std::mem::take(packing);
    let (n_keys, width) = match spec.shape {
        Shape::Dense { .. } => (0, 1),
        Shape::Rows { width, .. } => ((*n).saturating_mul(8), width),
    };
    // What is announced is bounded by what may be said at once.
    let n_values = n.saturating_mul(width as u64);
    if n_values > super::message::MOST_BYTES as u64 / 4 || n_keys > body.len() as u64 {
        return Err(wrong(format!("{n} keys in {} bytes", body.len())));
    }
    let (all_keys, packed) = body.split_at(n_keys as usize);
    let mut bytes = Vec::new();
    let rounded = match without_zeros {
        None => packed,
        Some(len) if len == rounding.n_bytes(n_values as usize) => {
            bytes.resize(len, 0);
            zero_runs::decode(packed, &mut bytes).map_err(|error| wrong(error.to_string()))?;
            &bytes[..]
        }
        Some(len) => return Err(wrong(format!("{n_values} values in {len} bytes"))),
    };
    let mut plain = all_keys.to_vec();
    match rounding {
        Rounding::None => plain.extend_from_slice(rounded),
        rounding => {
            let mut values = vec![0f32; n_values as usize];
            let decoded = rounding.decode(rounded, &mut values);
            decoded.map_err(|error| wrong(error.to_string()))?;
            plain.extend_from_slice(bytemuck::cast_slice(&values));
        }
    }
    *body = Body::new(plain);
    Ok(())
}
