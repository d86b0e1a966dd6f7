//! libsvm files: a label and the features that are not zero, `1 3:0.5 17:1`, one sample a line.
//!
//! A row becomes three columns: `label`, and lists of one length, `indices` and `values`, in which -1 stands for no feature.

mod parse;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use self::parse::Layout;
use super::lines::Chunks;
use super::ordered::{Work, in_order};
use super::{Block, ReadError, ReadOptions, Reader};

/// The column of labels.
pub(crate) const LABEL: &str = "label";
/// The column of indices, or of their buckets.
pub(crate) const INDICES: &str = "indices";
/// The column of values.
pub(crate) const VALUES: &str = "values";

/// Opens libsvm files. Unless the options say how many features a row has at most, the files are read once for that alone.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let first = files.first().ok_or(ReadError::NoFiles)?;
    let most = match options.most_pairs {
        Some(most) => most,
        None => most_pairs(files, block_bytes)?.max(1),
    };
    let names = [LABEL, INDICES, VALUES].map(String::from);
    let columns = options.select(first, &names)?;
    let fields: Vec<Field> = columns.iter().map(|&idx| field(&names[idx], idx, most)).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let layout =
        Layout { columns, most, hash_bits: options.hash_bits, schema: Arc::clone(&schema) };
    let mut pieces = Pieces {
        rest: files.iter().cloned().collect(),
        block_bytes,
        layout: Arc::new(layout),
        current: None,
    };
    Ok(Reader::new(schema, in_order(move || pieces.next_piece(), options.n_threads)))
}

/// Parses a whole libsvm file. How many rows it has. For fuzzing; what is read is dropped.
#[doc(hidden)]
pub fn parse_libsvm(bytes: &[u8], hash_bits: Option<u32>) -> Result<usize, ReadError> {
    let pairs = bytes.split(|&byte| byte == b'\n').map(parse::count_pairs);
    let most = pairs.max().unwrap_or(0).max(1);
    let fields: Vec<Field> = [LABEL, INDICES, VALUES]
        .iter()
        .enumerate()
        .map(|(idx, name)| field(name, idx, most))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let layout = Layout { columns: vec![0, 1, 2], most, hash_bits, schema };
    let file: Arc<Path> = Path::new("bytes").into();
    Ok(parse::parse(bytes, &layout, &file)?.rows.num_rows())
}

fn field(name: &str, idx: usize, most: usize) -> Field {
    let list = |element: DataType| {
        let item = Arc::new(Field::new("item", element, true));
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let metadata: HashMap<_, _> = [(Block::PAIRS.to_string(), name.to_string())].into();
        Field::new(name, DataType::FixedSizeList(item, most), true).with_metadata(metadata)
    };
    match idx {
        0 => Field::new(name, DataType::Float64, true),
        1 => list(DataType::Int32),
        _ => list(DataType::Float32),
    }
}

/// The most features that a line of the files has.
fn most_pairs(files: &[Arc<Path>], block_bytes: usize) -> Result<usize, ReadError> {
    let mut most = 0;
    for file in files {
        let mut chunks = Chunks::open(file, block_bytes, None)?;
        let mut line = 1;
        while let Some(chunk) = chunks.next_chunk().map_err(|err| err.shift_line(line))? {
            let lines = chunk.lines();
            most =
                lines.split(|&byte| byte == b'\n').map(parse::count_pairs).fold(most, usize::max);
            line += memchr::memchr_iter(b'\n', lines).count() as u64;
        }
    }
    Ok(most)
}

/// The chunks of all files.
struct Pieces {
    rest: VecDeque<Arc<Path>>,
    block_bytes: usize,
    layout: Arc<Layout>,
    /// The file at hand, and whether its first chunk is still to come.
    current: Option<(Arc<Path>, Chunks, bool)>,
}

impl Pieces {
    fn next_piece(&mut self) -> Result<Option<Work>, ReadError> {
        loop {
            let Some((file, chunks, is_first)) = &mut self.current else {
                let Some(file) = self.rest.pop_front() else { return Ok(None) };
                let chunks = Chunks::open(&file, self.block_bytes, None)?;
                self.current = Some((file, chunks, true));
                continue;
            };
            let file = Arc::clone(file);
            let first_line = std::mem::take(is_first).then_some(1);
            let chunk = match chunks.next_chunk() {
                Ok(Some(chunk)) => chunk,
                Ok(None) if first_line.is_some() => return Err(ReadError::Empty { file }),
                Ok(None) => {
                    self.current = None;
                    continue;
                }
                Err(err) => {
                    self.current = None;
                    self.rest.clear();
                    return Ok(Some(Work::failed(file, first_line, err)));
                }
            };
            let layout = Arc::clone(&self.layout);
            let parse = {
                let file = Arc::clone(&file);
                Box::new(move || parse::parse(chunk.lines(), &layout, &file))
            };
            return Ok(Some(Work { file, first_line, parse }));
        }
    }
}
