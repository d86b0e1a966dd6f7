//! One file per column: the rows of all of them side by side.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::{Block, Origin, ReadError, ReadOptions, Reader, open_files};
use crate::files;
use crate::spec::FileFormat;

/// Opens a reader for each column and puts their blocks side by side.
pub(super) fn open(
    columns: &BTreeMap<String, String>,
    folder: &Path,
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let known: Vec<String> = columns.keys().cloned().collect();
    let wanted = options.select(&folder.into(), &known)?;
    if wanted.is_empty() {
        return Err(ReadError::NoFiles);
    }
    let n_threads = options.n_threads.div_ceil(wanted.len());
    let mut parts = Vec::with_capacity(wanted.len());
    let mut fields = Vec::with_capacity(wanted.len());
    for idx in wanted {
        let (name, pattern) = (&known[idx], &columns[&known[idx]]);
        let files = files::resolve(std::slice::from_ref(pattern), folder)?;
        let options = ReadOptions { n_threads, columns: None, ..options.clone() };
        let (part, field) = ColumnPart::open(name, &files, options, block_bytes)?;
        parts.push(part);
        fields.push(field);
    }
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let zipped = Zipped { parts, schema: schema.clone() };
    Ok(Reader::new(schema, zipped))
}

/// The reader of one column.
struct ColumnPart {
    reader: Reader,
    /// The first of its files, for messages.
    file: Arc<Path>,
    column_idx: usize,
    /// Rows that are read and not handed out yet.
    pending: Option<Block>,
    n_rows: u64,
}

impl ColumnPart {
    fn open(
        name: &str,
        files: &[Arc<Path>],
        options: ReadOptions,
        block_bytes: usize,
    ) -> Result<(ColumnPart, Field), ReadError> {
        let file = files.first().ok_or(ReadError::NoFiles)?.clone();
        if super::format_of(files, &options)? == FileFormat::Text {
            return Err(ReadError::TextColumn { file, column: name.into() });
        }
        let reader = open_files(files, &options, block_bytes)?;
        let fields = reader.schema().fields();
        let column_idx = match fields.iter().position(|field| field.name() == name) {
            Some(column_idx) => column_idx,
            None if fields.len() == 1 => 0,
            None => {
                let n_columns = fields.len();
                return Err(ReadError::NotOneColumn { file, column: name.into(), n_columns });
            }
        };
        let field = fields[column_idx].as_ref().clone().with_name(name);
        Ok((ColumnPart { reader, file, column_idx, pending: None, n_rows: 0 }, field))
    }

    /// Makes sure that rows are pending; whether there are any.
    fn fill(&mut self) -> Result<bool, ReadError> {
        while self.pending.as_ref().is_none_or(|block| block.rows.num_rows() == 0) {
            match self.reader.next_block() {
                Some(block) => self.pending = Some(block?),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Counts the rest of the rows, for a message.
    fn count_rest(&mut self) -> Result<u64, ReadError> {
        while self.fill()? {
            self.n_rows += self.pending.take().map_or(0, |block| block.rows.num_rows() as u64);
        }
        Ok(self.n_rows)
    }
}

struct Zipped {
    parts: Vec<ColumnPart>,
    schema: SchemaRef,
}

impl Zipped {
    fn next_block(&mut self) -> Result<Option<Block>, ReadError> {
        let mut n_filled = 0;
        for part in &mut self.parts {
            n_filled += usize::from(part.fill()?);
        }
        if n_filled == 0 {
            return Ok(None);
        }
        if n_filled < self.parts.len() {
            return Err(self.row_count_error()?);
        }
        let lengths = self.parts.iter().flat_map(|part| &part.pending);
        let n_rows = lengths.map(|block| block.rows.num_rows()).min().unwrap_or(0);
        let mut columns = Vec::with_capacity(self.parts.len());
        let mut origins: Vec<Origin> = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            let Some(block) = part.pending.take() else { continue };
            columns.push(block.rows.column(part.column_idx).slice(0, n_rows));
            origins.push(block.origin.clone());
            part.n_rows += n_rows as u64;
            part.pending = Some(block.slice(n_rows, block.rows.num_rows() - n_rows));
        }
        let rows = RecordBatch::try_new(self.schema.clone(), columns)
            .expect("every column has the type that its reader promised");
        Ok(Some(Block { rows, origin: origins[0].clone(), column_origins: Some(origins) }))
    }

    /// Names the first file and the first that differs from it.
    fn row_count_error(&mut self) -> Result<ReadError, ReadError> {
        let mut counts = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            counts.push((part.file.clone(), part.count_rest()?));
        }
        let (first, n_first) = counts[0].clone();
        let differs = counts.into_iter().find(|(_, n_rows)| *n_rows != n_first);
        let (file, n_rows) = differs.unwrap_or((first.clone(), n_first));
        Ok(ReadError::RowCounts { first, n_first, file, n_rows })
    }
}

impl Iterator for Zipped {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_block().transpose()
    }
}
