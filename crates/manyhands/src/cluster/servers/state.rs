//! The state of a table as named tensors, and back: checkpoints know nothing of servers, so a run goes on with any number of them.

use manyhands_net::tables::client::{Table, TableState};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::store::snapshot::{Filling, HEAD_BYTES, Head, piece};
use manyhands_net::tables::store::{DenseShard, Shard};
use manyhands_program::{Role, Tensor, TensorType};

use super::layout::{OnServer, TableLayout};
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
        let Shard::Dense(dense) = filled(Shard::Dense(empty), pieces)? else { continue };
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

/// A shard that was saved.
fn filled(empty: Shard, pieces: &[Vec<u8>]) -> Result<Shard, Error> {
    let wrong = |what: String| {
        Error::from(TableError::Snapshot { table: super::JobTable::NAME.to_string(), what })
    };
    let head = pieces.first().and_then(|first| first.get(..HEAD_BYTES)).unwrap_or_default();
    let head = Head::from_bytes(head).map_err(|error| wrong(error.to_string()))?;
    let mut filling = Filling::new(empty, head).map_err(|error| wrong(error.to_string()))?;
    for piece in pieces.iter().skip(1) {
        filling.take(piece).map_err(|error| wrong(error.to_string()))?;
    }
    filling.finish().map_err(|error| wrong(error.to_string()))
}
