//! Parquet files. They are stored by columns, so several threads read groups of columns side by side, in step (`lanes`).

mod file;
mod input;
mod lanes;
mod opened;

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use self::file::ParquetFile;
use self::lanes::LaneBlocks;
use self::opened::OpenedFiles;
use super::lists;
use super::{ReadError, ReadOptions, Reader};

/// Opens Parquet files.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let first = files.first().ok_or(ReadError::NoFiles)?;
    let files = OpenedFiles::new(files);
    let opened = files.open(0)?;
    let names: Vec<String> = opened.fields().iter().map(|field| field.name().clone()).collect();
    let selected = options.select(first, &names)?;
    let columns = plan_columns(&opened, &selected)?;
    let fields: Vec<Field> = columns.iter().map(|column| column.field.clone()).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let plan = Arc::new(Plan {
        files,
        columns,
        batch_rows: opened.batch_rows(&selected, block_bytes),
        allows_others: options.columns.is_some(),
        options: options.clone(),
    });
    let lanes = share_columns(&opened, &selected, options.n_threads);
    let blocks = LaneBlocks::start(&plan, &opened, lanes, schema.clone())?;
    Ok(Reader::new(schema, blocks))
}

/// What is read, the same for all lanes.
struct Plan {
    files: OpenedFiles,
    columns: Vec<Column>,
    batch_rows: usize,
    /// Whether files may have columns beside those that are read.
    allows_others: bool,
    options: ReadOptions,
}

/// A column as it comes and as it goes.
struct Column {
    /// What the file holds.
    stored: DataType,
    /// What the blocks hold.
    field: Field,
    /// The shape of a row, for lists.
    shape: Option<Vec<usize>>,
}

fn plan_columns(opened: &ParquetFile, selected: &[usize]) -> Result<Vec<Column>, ReadError> {
    let mut columns = Vec::with_capacity(selected.len());
    for &idx in selected {
        let field = &opened.fields()[idx];
        let unsupported = || ReadError::UnsupportedColumn {
            file: opened.file.clone(),
            column: field.name().clone(),
            found: field.data_type().to_string(),
        };
        let stored = field.data_type().clone();
        let (element, depth) = lists::element_of(&stored);
        let element = plain_type(element).ok_or_else(unsupported)?;
        let (field, shape) = if depth == 0 {
            (Field::new(field.name(), element, true), None)
        } else {
            if !element.is_numeric() {
                return Err(unsupported());
            }
            let shape = list_shape(opened, idx)?.unwrap_or(vec![0; depth]);
            (lists::list_field(field.name(), element, &shape), Some(shape))
        };
        columns.push(Column { stored, field, shape });
    }
    Ok(columns)
}

/// What a type is in a block; `None` for what cannot be part of a sample.
fn plain_type(stored: &DataType) -> Option<DataType> {
    match stored {
        DataType::Float16 => Some(DataType::Float32),
        DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Null => Some(DataType::Float64),
        DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8),
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Some(DataType::Binary)
        }
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Boolean | DataType::Utf8 | DataType::Binary => Some(stored.clone()),
        _ if stored.is_numeric() || stored.is_temporal() => Some(stored.clone()),
        _ => None,
    }
}

/// The shape of the first list of a column.
fn list_shape(opened: &ParquetFile, idx: usize) -> Result<Option<Vec<usize>>, ReadError> {
    let mut reader = opened.reader(&[idx], 64, Some(1024))?;
    while let Some(batch) = reader.next_batch()? {
        if let Some(shape) = lists::first_shape(batch.column(0)) {
            return Ok(Some(shape));
        }
    }
    Ok(None)
}

/// Shares the columns among at most `n_threads` lanes so that each has about as many bytes: the largest first, each to the
/// lane that has least. Positions are those of the blocks.
fn share_columns(opened: &ParquetFile, selected: &[usize], n_threads: usize) -> Vec<Vec<usize>> {
    let sizes = opened.column_bytes();
    let mut by_size: Vec<usize> = (0..selected.len()).collect();
    by_size.sort_by_key(|&position| std::cmp::Reverse(sizes[selected[position]]));
    let n_lanes = n_threads.min(selected.len()).max(1);
    let mut lanes = vec![(0, Vec::new()); n_lanes];
    for position in by_size {
        if let Some(lane) = lanes.iter_mut().min_by_key(|lane| lane.0) {
            lane.0 += sizes[selected[position]];
            lane.1.push(position);
        }
    }
    lanes.into_iter().map(|(_, positions)| positions).collect()
}

impl Plan {
    /// Where a column stands in a file.
    fn root_of(&self, opened: &ParquetFile, position: usize) -> Result<usize, ReadError> {
        let column = &self.columns[position];
        let (file, first) = (opened.file.clone(), self.files.first());
        let name = column.field.name();
        let root = opened.fields().iter().position(|field| field.name() == name);
        let Some(root) = root else {
            return Err(ReadError::LostColumn { file, column: name.clone(), first });
        };
        let found = opened.fields()[root].data_type();
        if !found.equals_datatype(&column.stored) {
            let (found, expected) = (found.to_string(), column.stored.to_string());
            let column = name.clone();
            return Err(ReadError::OtherType { file, column, found, expected, first });
        }
        Ok(root)
    }

    /// Columns that the first file does not have are an error, unless columns were asked for by name.
    fn check_others(&self, opened: &ParquetFile) -> Result<(), ReadError> {
        let is_known = |name: &String| {
            self.options.is_ignored(name) || self.columns.iter().any(|c| c.field.name() == name)
        };
        let extra = opened.fields().iter().find(|field| !is_known(field.name()));
        match extra {
            Some(field) if !self.allows_others => Err(ReadError::ExtraColumn {
                file: opened.file.clone(),
                column: field.name().clone(),
                first: self.files.first(),
            }),
            _ => Ok(()),
        }
    }
}
