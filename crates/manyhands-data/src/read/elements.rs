//! Numbers as they lie in binary files, of either byte order, as Arrow arrays.

use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// What an array file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// The order of the bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ElementType {
    /// How many bytes an element takes in the file.
    pub(super) fn n_bytes(self) -> usize {
        match self {
            ElementType::Bool | ElementType::U8 | ElementType::I8 => 1,
            ElementType::U16 | ElementType::I16 | ElementType::F16 => 2,
            ElementType::U32 | ElementType::I32 | ElementType::F32 => 4,
            ElementType::U64 | ElementType::I64 | ElementType::F64 => 8,
        }
    }

    /// What it is in a block. Truth values are small integers, since bytes would be taken for pixels; half floats are widened.
    pub(super) fn data_type(self) -> DataType {
        match self {
            ElementType::Bool | ElementType::I8 => DataType::Int8,
            ElementType::U8 => DataType::UInt8,
            ElementType::U16 => DataType::UInt16,
            ElementType::I16 => DataType::Int16,
            ElementType::U32 => DataType::UInt32,
            ElementType::I32 => DataType::Int32,
            ElementType::U64 => DataType::UInt64,
            ElementType::I64 => DataType::Int64,
            ElementType::F16 | ElementType::F32 => DataType::Float32,
            ElementType::F64 => DataType::Float64,
        }
    }

    /// The elements in the bytes.
    pub(super) fn decode(self, bytes: Vec<u8>, order: ByteOrder) -> ArrayRef {
        use ElementType as E;
        macro_rules! numbers {
            ($arrow:ty, $native:ty) => {
                match order {
                    ByteOrder::Little => convert::<$arrow, _>(&bytes, <$native>::from_le_bytes),
                    ByteOrder::Big => convert::<$arrow, _>(&bytes, <$native>::from_be_bytes),
                }
            };
        }
        match self {
            E::U8 => Arc::new(PrimitiveArray::<UInt8Type>::from(bytes)),
            E::Bool => convert::<Int8Type, 1>(&bytes, |[byte]| i8::from(byte != 0)),
            E::I8 => numbers!(Int8Type, i8),
            E::U16 => numbers!(UInt16Type, u16),
            E::I16 => numbers!(Int16Type, i16),
            E::U32 => numbers!(UInt32Type, u32),
            E::I32 => numbers!(Int32Type, i32),
            E::U64 => numbers!(UInt64Type, u64),
            E::I64 => numbers!(Int64Type, i64),
            E::F32 => numbers!(Float32Type, f32),
            E::F64 => numbers!(Float64Type, f64),
            E::F16 => match order {
                ByteOrder::Little => {
                    convert::<Float32Type, 2>(&bytes, |raw| Half::from_le_bytes(raw).to_f32())
                }
                ByteOrder::Big => {
                    convert::<Float32Type, 2>(&bytes, |raw| Half::from_be_bytes(raw).to_f32())
                }
            },
        }
    }
}

fn convert<T: ArrowPrimitiveType, const N: usize>(
    bytes: &[u8],
    element: impl Fn([u8; N]) -> T::Native,
) -> ArrayRef {
    let (elements, _) = bytes.as_chunks::<N>();
    Arc::new(PrimitiveArray::<T>::from_iter_values(elements.iter().map(|raw| element(*raw))))
}
