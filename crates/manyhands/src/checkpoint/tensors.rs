//! Tensors as safetensors files: what every other tool reads.
//!
//! The same tensors always give the same bytes, so two runs can be compared by comparing files. Statistics (trained by no
//! gradient) are told apart from weights by a list of their names in the file's metadata.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use manyhands_program::{DType, Role, Tensor, TensorType};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};

use super::error::CheckpointError;

/// The key of the file's metadata that lists the names of statistics, as JSON.
const STATISTICS: &str = "statistics";

/// The most bytes that readers of the format accept as header.
const LONGEST_HEADER: usize = 100_000_000;

/// A tensor with its name and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// Its name in the program, such as `dense0/weight`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its elements.
    pub tensor: Tensor,
}

/// The head of a safetensors file and the tensors in the order in which they follow it.
pub(super) struct TensorFile<'a> {
    header: Vec<u8>,
    tensors: Vec<&'a NamedTensor>,
}

impl<'a> TensorFile<'a> {
    /// Lays out a file of the given tensors.
    pub(super) fn new(
        tensors: impl Iterator<Item = &'a NamedTensor>,
    ) -> Result<TensorFile<'a>, CheckpointError> {
        let mut tensors: Vec<&NamedTensor> = tensors.collect();
        check_names(&tensors)?;
        // Wide elements first, as the format's own writer does, so that every tensor is aligned.
        tensors.sort_by(|a, b| {
            let key = |named: &NamedTensor| written_type(named.tensor.ty().dtype);
            key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name))
        });
        let mut end = 0;
        let mut infos = Vec::with_capacity(tensors.len());
        for named in &tensors {
            let start = end;
            end += named.tensor.bytes().len();
            let info = TensorInfo {
                dtype: written_type(named.tensor.ty().dtype),
                shape: named.tensor.shape().to_vec(),
                data_offsets: (start, end),
            };
            infos.push((named.name.clone(), info));
        }
        // One key only: the order of several would change from run to run.
        let statistics: Vec<&str> = tensors
            .iter()
            .filter(|named| named.role == Role::Statistic)
            .map(|named| named.name.as_str())
            .collect();
        let metadata = (!statistics.is_empty()).then(|| {
            HashMap::from([(STATISTICS.to_string(), serde_json::json!(statistics).to_string())])
        });
        let metadata = Metadata::new(metadata, infos).expect("offsets follow from the tensors");
        let mut header = serde_json::to_vec(&metadata).expect("names and numbers can be written");
        header.resize(header.len().next_multiple_of(8), b' ');
        if header.len() > LONGEST_HEADER {
            return Err(CheckpointError::TooManyNames);
        }
        Ok(TensorFile { header, tensors })
    }

    /// Writes the file.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(&self.header)?;
        self.tensors.iter().try_for_each(|named| out.write_all(named.tensor.bytes()))
    }
}

fn check_names(tensors: &[&NamedTensor]) -> Result<(), CheckpointError> {
    let mut seen = HashSet::new();
    for NamedTensor { name, .. } in tensors {
        if name == "__metadata__" {
            return Err(CheckpointError::ReservedName { name: name.clone() });
        }
        if !seen.insert(name) {
            return Err(CheckpointError::DuplicateName { name: name.clone() });
        }
    }
    Ok(())
}

/// Reads a file of weights and statistics (`Role::Weight`) or of slots (`Role::Slot`); the reason if it is not one.
pub(super) fn read_tensors(bytes: &[u8], role: Role) -> Result<Vec<NamedTensor>, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let statistics: HashSet<String> =
        match metadata.metadata().as_ref().and_then(|entries| entries.get(STATISTICS)) {
            Some(names) => serde_json::from_str(names).map_err(|error| error.to_string())?,
            None => HashSet::new(),
        };
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut tensors = Vec::new();
    for name in metadata.offset_keys() {
        let view = file.tensor(&name).map_err(|error| error.to_string())?;
        let dtype = read_type(view.dtype())
            .ok_or_else(|| format!("\"{name}\" has elements of type {}", view.dtype()))?;
        let tensor = Tensor::from_bytes(TensorType::new(dtype, view.shape()), view.data().to_vec())
            .map_err(|error| format!("\"{name}\": {error}"))?;
        let role = if statistics.contains(&name) { Role::Statistic } else { role };
        tensors.push(NamedTensor { name, role, tensor });
    }
    Ok(tensors)
}

fn written_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

fn read_type(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&own| written_type(own) == dtype)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(tensors: &[NamedTensor]) -> Vec<u8> {
        let mut bytes = Vec::new();
        TensorFile::new(tensors.iter()).unwrap().write(&mut bytes).unwrap();
        bytes
    }

    fn any_tensor() -> impl Strategy<Value = (Role, Tensor)> {
        let role = prop_oneof![Just(Role::Weight), Just(Role::Statistic)];
        (role, 0..DType::ALL.len(), prop::collection::vec(0usize..4, 0..4), any::<u8>()).prop_map(
            |(role, dtype_idx, sizes, salt)| {
                let ty = TensorType::new(DType::ALL[dtype_idx], sizes);
                let byte = |idx: usize| (idx as u8).wrapping_mul(31) ^ salt;
                let bool_or = |b: u8| if ty.dtype == DType::Bool { b & 1 } else { b };
                let bytes = (0..ty.n_bytes()).map(|idx| bool_or(byte(idx))).collect();
                (role, Tensor::from_bytes(ty, bytes).unwrap())
            },
        )
    }

    proptest! {
        #[test]
        fn tensors_of_every_type_and_shape_come_back(
            parts in prop::collection::btree_map("[a-z/\"é]{0,12}", any_tensor(), 0..8),
        ) {
            let mut tensors: Vec<NamedTensor> = parts
                .into_iter()
                .map(|(name, (role, tensor))| NamedTensor { name, role, tensor })
                .collect();
            let bytes = written(&tensors);
            let mut back = read_tensors(&bytes, Role::Weight).unwrap();
            back.sort_by(|a, b| a.name.cmp(&b.name));
            prop_assert_eq!(&back, &tensors);
            tensors.reverse();
            prop_assert_eq!(written(&tensors), bytes, "the order of tensors changes nothing");
        }

        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_tensors(&bytes, Role::Weight);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_formats_own_writer() {
        let named =
            |name: &str, tensor| NamedTensor { name: name.to_string(), role: Role::Weight, tensor };
        let tensors = [
            named("b", Tensor::new([2], &[1.0f32, 2.0]).unwrap()),
            named("a", Tensor::new([3], &[1u8, 2, 3]).unwrap()),
            named("c", Tensor::new([1, 1], &[7i64]).unwrap()),
        ];
        let views = tensors.iter().map(|named| {
            let dtype = written_type(named.tensor.ty().dtype);
            let shape = named.tensor.shape().to_vec();
            let view = safetensors::tensor::TensorView::new(dtype, shape, named.tensor.bytes());
            (named.name.as_str(), view.unwrap())
        });
        assert_eq!(written(&tensors), safetensors::serialize(views, None).unwrap());
    }

    #[test]
    fn names_are_unique_and_not_reserved() {
        let named = |name: &str| NamedTensor {
            name: name.to_string(),
            role: Role::Weight,
            tensor: Tensor::scalar(DType::F32, 0.0),
        };
        let refused = |names: [&str; 2]| {
            let tensors = names.map(named);
            TensorFile::new(tensors.iter()).err().unwrap().to_string()
        };
        assert_eq!(refused(["w", "w"]), "two tensors of a checkpoint are named \"w\"");
        assert!(refused(["w", "__metadata__"]).contains("cannot be named"));
    }
}
