//! Files as blocks of rows: in file order, in bounded memory, parsed by several threads.
//!
//! A format cuts its files into pieces of work (`Work`) one after the other; parsing a piece is independent of all others and
//! happens on any thread; `ordered` puts the results back into file order and gives them their line numbers. Parquet, which
//! is stored by columns, reads groups of columns side by side instead (`parquet`).

mod arrays;
mod columns;
mod csv;
mod elements;
mod error;
mod growing;
mod idx;
mod jsonl;
mod libsvm;
mod lines;
mod lists;
mod npy;
mod ordered;
mod origin;
mod parquet;
mod text;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

pub use self::error::ReadError;
#[doc(hidden)]
pub use self::libsvm::parse_libsvm;
pub(crate) use self::libsvm::{INDICES, LABEL as PAIRS_LABEL, VALUES};
pub use self::origin::{Origin, Place};

use crate::error::DataError;
use crate::files;
use crate::spec::{ColumnKind, FileFormat, Source};

/// How many bytes of a file a block comes from. Small enough for the caches of a core, large enough that handing blocks
/// around costs nothing.
const BLOCK_BYTES: usize = 1 << 20;

/// Rows that follow each other in a file.
#[derive(Clone, Debug)]
pub struct Block {
    /// The rows. Numbers are numeric columns (those of CSV and JSON lines are `Float64`), words are `Utf8`, arrays are
    /// `FixedSizeList` columns whose field says the shape of a row in its metadata under [`Block::SHAPE`]; empty cells are
    /// nulls.
    pub rows: RecordBatch,
    /// Where they are from.
    pub origin: Origin,
    /// Where each column is from, if every column has a file of its own.
    column_origins: Option<Vec<Origin>>,
}

impl Block {
    /// The key in the metadata of a field of lists that holds the shape of one row, such as `28,28`.
    pub const SHAPE: &str = "shape";

    /// The key in the metadata of the two fields of lists that are features as pairs: `indices`, of which those below zero
    /// stand for no feature, and `values`.
    pub const PAIRS: &str = "pairs";

    fn new(rows: RecordBatch, origin: Origin) -> Block {
        Block { rows, origin, column_origins: None }
    }

    /// The place of a cell, for messages.
    pub fn place(&self, row_idx: usize, column_idx: usize) -> Place {
        let origins = self.column_origins.as_deref();
        let origin = origins.and_then(|origins| origins.get(column_idx)).unwrap_or(&self.origin);
        origin.place(row_idx)
    }

    /// Some of the rows.
    fn slice(&self, first_row: usize, n_rows: usize) -> Block {
        let shift = |origin: &Origin| origin.advanced(first_row);
        Block {
            rows: self.rows.slice(first_row, n_rows),
            origin: shift(&self.origin),
            column_origins: self.column_origins.as_ref().map(|all| all.iter().map(shift).collect()),
        }
    }
}

/// How files are read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// What the files hold; told from their names unless said.
    pub format: Option<FileFormat>,
    /// What separates the cells of a CSV file. A comma means a tab for files named `.tsv`.
    pub separator: u8,
    /// Whether the first line of a CSV file has the names of the columns; without it they are `c0`, `c1`, ...
    pub header: bool,
    /// The cells of a CSV file that count as empty, besides empty ones.
    pub empty: Vec<String>,
    /// What columns are, where it is known. In CSV and JSON lines a `Number` must parse, a `Category` or `Text` comes as
    /// `Utf8`; the others are what the first block makes them look like. `Ignore`d columns are left out in every format.
    pub kinds: BTreeMap<String, ColumnKind>,
    /// The columns to read, in this order; all of them unless said.
    pub columns: Option<Vec<String>>,
    /// The most features of a line of a libsvm file; as many as the files have unless said.
    pub most_pairs: Option<usize>,
    /// The indices of libsvm files become buckets of so many bits.
    pub hash_bits: Option<u32>,
    /// Plain text comes as `Binary`, whether it is UTF-8 or not.
    pub bytes: bool,
    /// How many threads parse; as many as the machine has if 0. With 1, the thread that asks for blocks does all the work.
    pub n_threads: usize,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            format: None,
            separator: b',',
            header: true,
            empty: Vec::new(),
            kinds: BTreeMap::new(),
            columns: None,
            most_pairs: None,
            hash_bits: None,
            bytes: false,
            n_threads: 0,
        }
    }
}

impl ReadOptions {
    fn is_ignored(&self, column: &str) -> bool {
        self.kinds.get(column) == Some(&ColumnKind::Ignore)
    }

    /// Which of a file's columns are wanted, in the wanted order.
    fn select(&self, file: &Arc<Path>, found: &[String]) -> Result<Vec<usize>, ReadError> {
        let Some(wanted) = &self.columns else {
            return Ok((0..found.len()).filter(|&idx| !self.is_ignored(&found[idx])).collect());
        };
        let position = |column: &String| {
            found.iter().position(|name| name == column).ok_or_else(|| ReadError::MissingColumn {
                file: file.clone(),
                column: column.clone(),
                known: listed(found),
            })
        };
        wanted.iter().filter(|column| !self.is_ignored(column)).map(position).collect()
    }
}

/// Names for a message, the first twenty of them.
fn listed(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(20).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(20);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

/// Opens the files of a source: finds them, tells their format and columns, and reads as much of the first as that takes.
pub fn read(source: &Source, folder: &Path, options: &ReadOptions) -> Result<Reader, DataError> {
    Ok(read_blocks(source, folder, options, BLOCK_BYTES)?)
}

fn read_blocks(
    source: &Source,
    folder: &Path,
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let mut options = options.clone();
    if options.n_threads == 0 {
        options.n_threads = thread::available_parallelism().map_or(1, NonZero::get);
    }
    match source {
        Source::One(pattern) => open_files(
            &files::resolve(std::slice::from_ref(pattern), folder)?,
            &options,
            block_bytes,
        ),
        Source::Many(patterns) => {
            open_files(&files::resolve(patterns, folder)?, &options, block_bytes)
        }
        Source::Columns(columns) => columns::open(columns, folder, &options, block_bytes),
    }
}

/// Opens files that hold the same columns, one after the other.
fn open_files(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    match format_of(files, options)? {
        FileFormat::Csv => csv::open(files, options, block_bytes),
        FileFormat::Parquet => parquet::open(files, options, block_bytes),
        FileFormat::Jsonl => jsonl::open(files, options, block_bytes),
        FileFormat::Libsvm => libsvm::open(files, options, block_bytes),
        format @ (FileFormat::Idx | FileFormat::Npy) => {
            arrays::open(files, options, block_bytes, format)
        }
        FileFormat::Text => text::open(files, options, block_bytes),
    }
}

fn format_of(files: &[Arc<Path>], options: &ReadOptions) -> Result<FileFormat, ReadError> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let first = files.first().ok_or(ReadError::NoFiles)?;
    let first_format = files::format_of(first)?;
    for file in files {
        let format = files::format_of(file)?;
        if format != first_format {
            let (first, file) = (first.clone(), file.clone());
            return Err(ReadError::MixedFormats { first, first_format, file, format });
        }
    }
    Ok(first_format)
}

/// Blocks in file order, one file after the other. Threads that parse ahead end when it is dropped.
pub struct Reader {
    schema: SchemaRef,
    blocks: Box<dyn Iterator<Item = Result<Block, ReadError>> + Send>,
    is_done: bool,
}

impl Reader {
    fn new(
        schema: SchemaRef,
        blocks: impl Iterator<Item = Result<Block, ReadError>> + Send + 'static,
    ) -> Reader {
        Reader { schema, blocks: Box::new(blocks), is_done: false }
    }

    /// The columns of every block.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn next_block(&mut self) -> Option<Result<Block, ReadError>> {
        if self.is_done {
            return None;
        }
        let next = self.blocks.next();
        self.is_done = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Nothing comes after an error.
impl Iterator for Reader {
    type Item = Result<Block, DataError>;

    fn next(&mut self) -> Option<Result<Block, DataError>> {
        self.next_block().map(|block| block.map_err(DataError::from))
    }
}

#[cfg(test)]
mod tests;
