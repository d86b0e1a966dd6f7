//! Parts of parameters: what a worker holds of a whole tensor, and the whole again from what all of them hold.

use std::collections::HashMap;

use manyhands_program::mesh::{Along, Holding, MIRROR, part_type, put_together};
use manyhands_program::{Tensor, TensorType, mesh};

use super::error::MeshError;
use crate::checkpoint::NamedTensor;

/// What one worker holds of a parameter, with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldPart {
    /// What it is.
    pub holding: Holding,
    /// The part's value.
    pub tensor: Tensor,
}

/// The type of what a worker holds.
pub fn held_type(holding: &Holding) -> Result<TensorType, MeshError> {
    part_type(&holding.ty, &holding.along).map_err(|error| wrong_part(holding, error))
}

fn wrong_part(holding: &Holding, source: mesh::AlongError) -> MeshError {
    MeshError::Part { name: own_name(holding).to_string(), source: Box::new(source) }
}

/// The name of the parameter that it is part of; what is kept for another worker goes by a name of its own.
pub(super) fn own_name(holding: &Holding) -> &str {
    holding.name.strip_prefix(MIRROR).unwrap_or(&holding.name)
}

/// A worker's part of a whole tensor.
pub(super) fn part_of(holding: &Holding, whole: &Tensor) -> Result<Tensor, MeshError> {
    if *whole.ty() != holding.ty {
        let (name, expected, found) =
            (holding.name.clone(), holding.ty.clone(), whole.ty().clone());
        return Err(MeshError::ParameterType { name, expected, found });
    }
    mesh::part_of(whole, &holding.along).map_err(|error| wrong_part(holding, error))
}

/// Whole tensors from the parts that workers hold; parts that several hold are taken from one of them. In the order in which names first come.
pub fn whole_tensors<'a>(
    parts: impl IntoIterator<Item = &'a HeldPart>,
) -> Result<Vec<NamedTensor>, MeshError> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut wholes: Vec<(&Holding, Vec<(Along, Tensor)>)> = Vec::new();
    for HeldPart { holding, tensor } in parts {
        let idx = *places.entry(own_name(holding)).or_insert_with(|| {
            wholes.push((holding, Vec::new()));
            wholes.len() - 1
        });
        let own = &mut wholes[idx].1;
        if !own.iter().any(|(along, _)| *along == holding.along) {
            own.push((holding.along.clone(), tensor.clone()));
        }
    }
    let whole = |(holding, parts): (&Holding, Vec<(Along, Tensor)>)| {
        let tensor = put_together(&parts, &holding.ty);
        let tensor = tensor.map_err(|error| wrong_part(holding, error))?;
        Ok(NamedTensor { name: own_name(holding).to_string(), role: holding.role, tensor })
    };
    wholes.into_iter().map(whole).collect()
}
