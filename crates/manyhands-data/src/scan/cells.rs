//! The cells of a column, in a type that is read directly.

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, StringArray};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type};

use super::fields::FieldScan;
use super::plan::PlannedContent;
use crate::layout::Scalar;
use crate::read::Block;
use crate::sample_error::SampleError;

/// The cells of a block of one column, in a type that is read directly.
pub(crate) enum Cells {
    U8(PrimitiveArray<UInt8Type>),
    I32(PrimitiveArray<Int32Type>),
    I64(PrimitiveArray<Int64Type>),
    F32(PrimitiveArray<Float32Type>),
    F64(PrimitiveArray<Float64Type>),
    Words(StringArray),
}

impl FieldScan {
    /// The cells of a block, and which of them are there.
    pub(crate) fn cells(&self, block: &Block) -> Result<(Cells, Option<NullBuffer>), SampleError> {
        let column = block.rows.column(self.planned.column);
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let cells = match self.planned.content {
            PlannedContent::Number(scalar) => self.numbers(column, scalar)?,
            PlannedContent::List(..)
            | PlannedContent::Buckets(_)
            | PlannedContent::PairValues(_) => match column.as_fixed_size_list_opt() {
                Some(list) => self.numbers(list.values(), self.field.scalar)?,
                None => return Err(self.changed(column)),
            },
            PlannedContent::Categories { numeric: true }
            | PlannedContent::Hashed { numeric: true } => match column.data_type().is_integer() {
                true => Cells::I64(self.cast(column, &DataType::Int64)?.as_primitive().clone()),
                false => Cells::F64(self.cast(column, &DataType::Float64)?.as_primitive().clone()),
            },
            PlannedContent::Categories { numeric: false }
            | PlannedContent::Hashed { numeric: false }
            | PlannedContent::Text => {
                Cells::Words(self.cast(column, &DataType::Utf8)?.as_string().clone())
            }
        };
        Ok((cells, nulls))
    }

    fn numbers(&self, column: &ArrayRef, scalar: Scalar) -> Result<Cells, SampleError> {
        Ok(match scalar {
            Scalar::U8 => Cells::U8(self.cast(column, &DataType::UInt8)?.as_primitive().clone()),
            Scalar::I32 => Cells::I32(self.cast(column, &DataType::Int32)?.as_primitive().clone()),
            Scalar::F32 => {
                Cells::F32(self.cast(column, &DataType::Float32)?.as_primitive().clone())
            }
            Scalar::F64 => {
                // Moments become numbers by way of their integers.
                let column = match column.data_type().is_temporal() {
                    true => &self.cast(column, &DataType::Int64)?,
                    false => column,
                };
                Cells::F64(self.cast(column, &DataType::Float64)?.as_primitive().clone())
            }
        })
    }

    fn cast(&self, column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, SampleError> {
        if column.data_type() == wanted {
            return Ok(column.clone());
        }
        // A 32-bit date has no cast of its own to 64 bits.
        let date = matches!(column.data_type(), DataType::Date32 | DataType::Time32(_));
        let through = match date && *wanted == DataType::Int64 {
            true => cast(column, &DataType::Int32),
            false => Ok(column.clone()),
        };
        through.and_then(|column| cast(&column, wanted)).map_err(|_| self.changed(column))
    }

    fn changed(&self, column: &ArrayRef) -> SampleError {
        SampleError::ColumnType {
            column: self.planned.name.clone(),
            holds: format!("values of type {}", column.data_type()),
            wanted: "what the first rows hold",
            advice: "all rows of a column must be of one kind".into(),
        }
    }
}
