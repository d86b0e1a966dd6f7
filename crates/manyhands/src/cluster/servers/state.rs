//! The state of a table as named tensors, and back: checkpoints know nothing of servers, so a run goes on with any number of them.

use manyhands_net::tables::client::{Table, TableState};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::store::snapshot::{Filling, HEAD_BYTES, Head, piece};
use manyhands_net::tables::store::{DenseShard, RowInit, RowShard, Shard};
use manyhands_program::{Role, Tensor, TensorType};

use super::layout::{OnServer, TableLayout};
use super::row_layout::RowsOnServer;
use crate::checkpoint::NamedTensor;
use crate::error::Error;

/// A saved shard goes in pieces of about so many bytes.
const PIECE: usize = 1 << 20;

/// All of a table: its values and what stands beside them.
struct Flat {
    values: Vec<f32>,
    slots: Vec<Vec<f32>>,
}

impl Flat {
    fn zeros(layout: &TableLayout) -> Flat {
        let zeros = || vec![0.0; layout.n_elements];
        Flat { values: zeros(), slots: (0..layout.n_slots).map(|_| zeros()).collect() }
    }

    /// The values, then the slots, with the names of a parameter's tensors.
    fn named<'f>(
        &'f mut self,
        one: &'f OnServer,
    ) -> impl Iterator<Item = (&'f String, &'f mut [f32])> {
        let range = one.first..one.first + one.n_elements;
        let names = std::iter::once(&one.name).chain(&one.slots);
        let all = std::iter::once(&mut self.values).chain(&mut self.slots);
        names.zip(all.map(move |all| &mut all[range.clone()]))
    }
}

/// The state of a table whose parameters have these values, after so many steps.
pub(super) fn to_table(
    layout: &TableLayout,
    table: &Table,
    tensors: &[NamedTensor],
    n_steps: u64,
) -> Result<TableState, Error> {
    let mut flat = Flat::zeros(layout);
    for one in &layout.parameters {
        for (name, to) in flat.named(one) {
            let found = tensors.iter().find(|tensor| tensor.name == *name);
            let found = found.ok_or_else(|| Error::MissingParameter { name: name.clone() })?;
            to.copy_from_slice(&found.tensor.elements::<f32>()?);
        }
    }
    let shard = |elements: std::ops::Range<u64>| {
        let range = elements.start as usize..elements.end as usize;
        let mut dense = DenseShard::new(elements.start, range.len(), layout.n_slots);
        dense.values_mut().copy_from_slice(&flat.values[range.clone()]);
        for (idx, slots) in flat.slots.iter().enumerate() {
            dense.slots_mut(idx).copy_from_slice(&slots[range.clone()]);
        }
        pieces(&Shard::Dense(dense), n_steps)
    };
    Ok(TableState { n_steps, shards: table.shards().into_iter().map(shard).collect() })
}

/// A shard as a server saves it.
fn pieces(shard: &Shard, n_steps: u64) -> Vec<Vec<u8>> {
    let mut first = Head::of(shard).to_bytes().to_vec();
    let words = serde_json::json!({ "n_steps": n_steps, "copy": null });
    first.extend(words.to_string().into_bytes());
    let (mut pieces, mut at) = (vec![first], 0);
    while at < shard.n_items() {
        let mut next = Vec::new();
        at = piece(shard, at, PIECE, &mut next);
        pieces.push(next);
    }
    pieces
}

/// Puts the state of a table in the place of what tensors of the same names hold.
pub(super) fn from_table(
    layout: &TableLayout,
    table: &Table,
    state: &TableState,
    tensors: &mut Vec<NamedTensor>,
) -> Result<(), Error> {
    let mut flat = Flat::zeros(layout);
    for (elements, pieces) in table.shards().into_iter().zip(&state.shards) {
        let range = elements.start as usize..elements.end as usize;
        let empty = DenseShard::new(elements.start, range.len(), layout.n_slots);
        let Shard::Dense(dense) = filled(super::JobTable::NAME, Shard::Dense(empty), pieces)?
        else {
            continue;
        };
        flat.values[range.clone()].copy_from_slice(dense.values());
        for (idx, slots) in flat.slots.iter_mut().enumerate() {
            slots[range.clone()].copy_from_slice(dense.slots(idx));
        }
    }
    for one in &layout.parameters {
        let known = tensors.iter().find(|tensor| tensor.name == one.name);
        let ty: Option<TensorType> = known.map(|known| known.tensor.ty().clone());
        let Some(TensorType { shape, .. }) = ty else {
            return Err(Error::MissingParameter { name: one.name.clone() });
        };
        for (name, values) in flat.named(one) {
            let tensor = Tensor::new(shape.clone(), values)?;
            match tensors.iter_mut().find(|tensor| tensor.name == *name) {
                Some(known) => known.tensor = tensor,
                None => tensors.push(NamedTensor { name: name.clone(), role: Role::Slot, tensor }),
            }
        }
    }
    Ok(())
}

/// The parameters of a table whose elements have these values, without the slots beside them. Types are those of tensors of the same names.
pub(super) fn parameters_of(
    layout: &TableLayout,
    values: &[f32],
    known: &[NamedTensor],
) -> Result<Vec<NamedTensor>, Error> {
    let one = |one: &OnServer| {
        let found = known.iter().find(|tensor| tensor.name == one.name);
        let found = found.ok_or_else(|| Error::MissingParameter { name: one.name.clone() })?;
        let values = &values[one.first..one.first + one.n_elements];
        let tensor = Tensor::new(found.tensor.ty().shape.clone(), values)?;
        Ok(NamedTensor { name: one.name.clone(), role: found.role, tensor })
    };
    layout.parameters.iter().map(one).collect()
}

/// The state of a table of rows that have these values, after so many steps. Rows of zeros are what new ones are, and need not be there.
pub(super) fn to_rows(
    rows: &RowsOnServer,
    table: &Table,
    tensors: &[NamedTensor],
    n_steps: u64,
) -> Result<TableState, Error> {
    let names = std::iter::once(&rows.name).chain(&rows.slots);
    let found = names.map(|name| {
        let found = tensors.iter().find(|tensor| tensor.name == *name);
        let found = found.ok_or_else(|| Error::MissingParameter { name: name.clone() })?;
        let n = rows.n_rows * rows.width;
        match found.tensor.ty().n_bytes() == 4 * n {
            true => Ok(found.tensor.bytes()),
            false => Err(Error::MissingParameter { name: name.clone() }),
        }
    });
    let found: Vec<&[u8]> = found.collect::<Result<_, Error>>()?;
    let cut = table.spec().cut();
    let empty = || RowShard::new(0, rows.width, rows.slots.len(), RowInit::Zeros);
    let mut shards: Vec<RowShard> = (0..cut.n_shards()).map(|_| empty()).collect();
    let row_bytes = 4 * rows.width;
    for key in 0..rows.n_rows {
        let own = key * row_bytes..(key + 1) * row_bytes;
        if found.iter().all(|bytes| bytes[own.clone()].iter().all(|byte| *byte == 0)) {
            continue;
        }
        let shard = &mut shards[cut.shard_of(key as u64).0 as usize];
        let row = shard.get_or_make(key as u64).map_err(|error| damaged(rows, &error))?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(shard.row_mut(row));
        for (bytes, to) in found.iter().zip(to.chunks_exact_mut(row_bytes)) {
            to.copy_from_slice(&bytes[own.clone()]);
        }
    }
    let shards = shards.into_iter().map(|shard| pieces(&Shard::Rows(shard), n_steps));
    Ok(TableState { n_steps, shards: shards.collect() })
}

/// Adds the tensors of a table of rows to those of the workers.
pub(super) fn from_rows(
    rows: &RowsOnServer,
    state: &TableState,
    tensors: &mut Vec<NamedTensor>,
) -> Result<(), Error> {
    let (width, n) = (rows.width, rows.n_rows * rows.width);
    let mut all: Vec<Vec<f32>> = vec![vec![0.0; n]; 1 + rows.slots.len()];
    for pieces in &state.shards {
        let empty = RowShard::new(0, width, rows.slots.len(), RowInit::Zeros);
        let empty = Shard::Rows(empty);
        let Shard::Rows(shard) = filled(&rows.table_name(), empty, pieces)? else { continue };
        for (key, values, slots) in shard.iter() {
            let start = usize::try_from(key).unwrap_or(usize::MAX).saturating_mul(width);
            if start >= n {
                let what = format!("it has no row {key}");
                return Err(damaged(rows, &what));
            }
            let kinds = std::iter::once(values).chain(slots.chunks_exact(width));
            for (all, own) in all.iter_mut().zip(kinds) {
                all[start..start + width].copy_from_slice(own);
            }
        }
    }
    let names = std::iter::once((&rows.name, Role::Weight));
    let names = names.chain(rows.slots.iter().map(|slot| (slot, Role::Slot)));
    for ((name, role), values) in names.zip(all) {
        let tensor = Tensor::new([rows.n_rows, width], &values)?;
        tensors.retain(|known| known.name != *name);
        tensors.push(NamedTensor { name: name.clone(), role, tensor });
    }
    Ok(())
}

fn damaged(rows: &RowsOnServer, what: &dyn std::fmt::Display) -> Error {
    TableError::Snapshot { table: rows.table_name(), what: what.to_string() }.into()
}

/// A shard that was saved.
fn filled(table: &str, empty: Shard, pieces: &[Vec<u8>]) -> Result<Shard, Error> {
    let wrong = |what: String| Error::from(TableError::Snapshot { table: table.to_string(), what });
    let head = pieces.first().and_then(|first| first.get(..HEAD_BYTES)).unwrap_or_default();
    let head = Head::from_bytes(head).map_err(|error| wrong(error.to_string()))?;
    let mut filling = Filling::new(empty, head).map_err(|error| wrong(error.to_string()))?;
    for piece in pieces.iter().skip(1) {
        filling.take(piece).map_err(|error| wrong(error.to_string()))?;
    }
    filling.finish().map_err(|error| wrong(error.to_string()))
}
