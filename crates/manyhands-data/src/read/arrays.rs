//! Files that hold one array of numbers (IDX, NumPy): a row for each index along the first axis.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::elements::{ByteOrder, ElementType};
use super::ordered::{Parsed, Work, in_order};
use super::{Block, ReadError, ReadOptions, Reader};
use crate::files::{self, Opened};
use crate::spec::{Compression, FileFormat};

/// The name of the one column.
const COLUMN: &str = "values";

/// A row larger than this is taken for a damaged header.
const MAX_ROW_BYTES: usize = 1 << 30;

/// What the header of an array file says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrayHeader {
    pub(super) element: ElementType,
    pub(super) order: ByteOrder,
    /// The axes; the first counts the rows.
    pub(super) shape: Vec<u64>,
    /// How many bytes the header takes.
    pub(super) n_bytes: u64,
}

/// Reads the header at the start of a file.
pub(super) type ReadHeader = fn(&Arc<Path>, &mut dyn Read) -> Result<ArrayHeader, HeaderFault>;

/// Why there is no header.
pub(super) enum HeaderFault {
    Io(std::io::Error),
    Other(ReadError),
}

impl From<std::io::Error> for HeaderFault {
    fn from(err: std::io::Error) -> HeaderFault {
        HeaderFault::Io(err)
    }
}

impl From<ReadError> for HeaderFault {
    fn from(err: ReadError) -> HeaderFault {
        HeaderFault::Other(err)
    }
}

/// Opens files of one array each, whose rows follow each other.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
    format: FileFormat,
) -> Result<Reader, ReadError> {
    let (first, rest) = files.split_first().ok_or(ReadError::NoFiles)?;
    let opened = ArrayFile::open(first, format)?;
    let found = [COLUMN.to_string()];
    let has_column = !options.select(first, &found)?.is_empty();
    let fields = if has_column { vec![opened.field()] } else { Vec::new() };
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let mut pieces = ArrayPieces {
        first: first.clone(),
        first_header: opened.header.clone(),
        rest: rest.iter().filter(|_| has_column).cloned().collect(),
        format,
        schema: schema.clone(),
        block_bytes,
        current: if has_column { Some(opened) } else { None },
    };
    Ok(Reader::new(schema, in_order(move || pieces.next_piece(), options.n_threads)))
}

struct ArrayFile {
    file: Arc<Path>,
    input: Opened,
    header: ArrayHeader,
    row_bytes: usize,
    n_rows_read: u64,
}

impl ArrayFile {
    fn open(file: &Arc<Path>, format: FileFormat) -> Result<ArrayFile, ReadError> {
        let mut input = files::open(file)?;
        let read_header: ReadHeader = match format {
            FileFormat::Npy => super::npy::read_header,
            _ => super::idx::read_header,
        };
        let bad = |reason: &str| {
            let reason = reason.to_string();
            ReadError::BadHeader { file: file.clone(), format, reason }
        };
        let header = read_header(file, &mut input.bytes).map_err(|fault| match fault {
            HeaderFault::Io(err) if err.kind() == std::io::ErrorKind::UnexpectedEof => {
                bad("it ends within its header")
            }
            HeaderFault::Io(err) => files::read_error(file, input.compression, err),
            HeaderFault::Other(err) => err,
        })?;
        if header.shape.is_empty() {
            return Err(bad("it holds a single number instead of rows"));
        }
        let multiply = |product: u64, &length: &u64| product.checked_mul(length);
        let row_bytes =
            header.shape[1..].iter().try_fold(header.element.n_bytes() as u64, multiply);
        let row_bytes = row_bytes
            .and_then(|n| usize::try_from(n).ok())
            .filter(|&n| n <= MAX_ROW_BYTES)
            .ok_or_else(|| bad("its header promises rows of more than 1 GiB"))?;
        if row_bytes == 0 {
            return Err(bad("its rows have no elements"));
        }
        let n_bytes = (row_bytes as u64)
            .checked_mul(header.shape[0])
            .ok_or_else(|| bad("its header promises more data than any file has"))?;
        let found = input.n_bytes.saturating_sub(header.n_bytes);
        if input.compression == Compression::None && found != n_bytes {
            return Err(ReadError::WrongLength { file: file.clone(), expected: n_bytes, found });
        }
        Ok(ArrayFile { file: file.clone(), input, header, row_bytes, n_rows_read: 0 })
    }

    fn field(&self) -> Field {
        let element = self.header.element.data_type();
        let shape = &self.header.shape[1..];
        if shape.is_empty() {
            return Field::new(COLUMN, element, false);
        }
        let n_elements = self.row_bytes / self.header.element.n_bytes();
        let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
        // A row has at most 2^30 elements.
        let list = DataType::FixedSizeList(item_field(element), n_elements as i32);
        Field::new(COLUMN, list, false).with_metadata([(Block::SHAPE, lengths.join(","))])
    }

    /// The bytes of the next rows, as many as fill a block, and how many rows they are.
    fn next_rows(&mut self, block_bytes: usize) -> Result<Option<(Vec<u8>, usize)>, ReadError> {
        let n_left = self.header.shape[0] - self.n_rows_read;
        let n_rows = (block_bytes / self.row_bytes).max(1) as u64;
        let n_rows = n_rows.min(n_left) as usize;
        let n_bytes = (n_rows * self.row_bytes) as u64;
        // Grows with what is really there, whatever the header of a packed file promises.
        let mut bytes = Vec::with_capacity(n_bytes.min(block_bytes as u64) as usize);
        // At the end, one byte more tells whether the file ends there too.
        let n_asked = if n_rows == 0 { 1 } else { n_bytes };
        let failed = |source| files::read_error(&self.file, self.input.compression, source);
        (&mut self.input.bytes).take(n_asked).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 != n_bytes {
            let row_bytes = self.row_bytes as u64;
            return Err(ReadError::WrongLength {
                file: self.file.clone(),
                expected: self.header.shape[0] * row_bytes,
                found: self.n_rows_read * row_bytes + bytes.len() as u64,
            });
        }
        self.n_rows_read += n_rows as u64;
        Ok((n_rows > 0).then_some((bytes, n_rows)))
    }
}

fn item_field(element: DataType) -> FieldRef {
    Arc::new(Field::new_list_field(element, false))
}

struct ArrayPieces {
    first: Arc<Path>,
    first_header: ArrayHeader,
    rest: VecDeque<Arc<Path>>,
    format: FileFormat,
    schema: SchemaRef,
    block_bytes: usize,
    current: Option<ArrayFile>,
}

impl ArrayPieces {
    fn open_next(&mut self) -> Result<Option<ArrayFile>, ReadError> {
        let Some(file) = self.rest.pop_front() else { return Ok(None) };
        let opened = ArrayFile::open(&file, self.format)?;
        let (expected, found) = (&self.first_header, &opened.header);
        if (expected.element, &expected.shape[1..]) != (found.element, &found.shape[1..]) {
            let first = self.first.clone();
            let (found, expected) = (describe(found), describe(expected));
            return Err(ReadError::OtherShape { file, found, first, expected });
        }
        Ok(Some(opened))
    }

    fn next_piece(&mut self) -> Result<Option<Work>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                self.current = self.open_next()?;
                if self.current.is_none() {
                    return Ok(None);
                }
                continue;
            };
            let first_line = (current.n_rows_read == 0).then_some(0);
            let Some((bytes, n_rows)) = current.next_rows(self.block_bytes)? else {
                self.current = None;
                continue;
            };
            let (header, schema) = (current.header.clone(), self.schema.clone());
            let parse = Box::new(move || Ok(decode(bytes, n_rows, &header, schema)));
            return Ok(Some(Work { file: current.file.clone(), first_line, parse }));
        }
    }
}

fn describe(header: &ArrayHeader) -> String {
    let element = header.element.data_type();
    match &header.shape[1..] {
        [] => format!("single numbers of type {element}"),
        shape => format!("rows of shape {shape:?} of type {element}"),
    }
}

fn decode(bytes: Vec<u8>, n_rows: usize, header: &ArrayHeader, schema: SchemaRef) -> Parsed {
    let elements = header.element.decode(bytes, header.order);
    let column: ArrayRef = match schema.field(0).data_type() {
        DataType::FixedSizeList(item, length) => Arc::new(
            FixedSizeListArray::try_new_with_length(item.clone(), *length, elements, None, n_rows)
                .expect("there are as many elements as the rows take"),
        ),
        _ => elements,
    };
    let rows =
        RecordBatch::try_new(schema, vec![column]).expect("the schema is made from the header");
    Parsed { rows, n_lines: 0, row_lines: None }
}
