//! Comma-separated values: RFC 4180 with any separator, with or without a header, LF or CRLF.

mod cells;
mod number;
mod parse;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use self::cells::{Cell, EmptyCells};
use self::parse::Layout;
use super::lines::{Chunk, Chunks};
use super::ordered::{Work, in_order};
use super::{ReadError, ReadOptions, Reader};
use crate::files;
use crate::spec::ColumnKind;

pub(super) use self::number::parse as parse_number;

/// Opens CSV files. The first block of the first one tells which columns are numbers.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let (first, rest) = files.split_first().ok_or(ReadError::NoFiles)?;
    let opened = CsvFile::open(first, options, block_bytes)?;
    let cells = options.select(first, &opened.names)?;
    let empty = EmptyCells::new(&options.empty);
    let is_number = infer(&opened, &cells, &empty, options);
    let field = |(&cell_idx, &is_number): (&usize, &bool)| {
        let data_type = if is_number { DataType::Float64 } else { DataType::Utf8 };
        Field::new(&opened.names[cell_idx], data_type, true)
    };
    let fields: Vec<Field> = cells.iter().zip(&is_number).map(field).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let mut pieces = CsvPieces {
        first: first.clone(),
        rest: rest.iter().cloned().collect(),
        options: options.clone(),
        block_bytes,
        empty,
        is_number,
        schema: schema.clone(),
        current: None,
    };
    let layout = pieces.layout(&opened)?;
    pieces.current = Some((opened, layout));
    Ok(Reader::new(schema, in_order(move || pieces.next_piece(), options.n_threads)))
}

/// A file whose header is read.
struct CsvFile {
    file: Arc<Path>,
    separator: u8,
    chunks: Chunks,
    names: Vec<String>,
    /// The first chunk, without the header.
    first_chunk: Option<Chunk>,
    /// The line that the first chunk starts at.
    first_line: u64,
}

impl CsvFile {
    fn open(
        file: &Arc<Path>,
        options: &ReadOptions,
        block_bytes: usize,
    ) -> Result<CsvFile, ReadError> {
        let is_tab = options.separator == b',' && files::is_tab_separated(file);
        let separator = if is_tab { b'\t' } else { options.separator };
        let mut chunks = Chunks::open(file, block_bytes, Some(separator))?;
        // The line of a header that never ends.
        let chunk = chunks.next_chunk().map_err(|err| err.shift_line(1))?;
        let mut chunk = chunk.ok_or_else(|| ReadError::Empty { file: file.clone() })?;
        let mut first_line = 1;
        while let Some(length) = [1, 2]
            .into_iter()
            .find(|&length| matches!(chunk.lines().get(..length), Some(b"\n" | b"\r\n")))
        {
            chunk.start += length;
            first_line += 1;
        }
        let (mut names, n_bytes, n_lines) = first_row(file, &chunk, separator, first_line)?;
        if options.header {
            chunk.start += n_bytes;
            first_line += n_lines;
        }
        for (cell_idx, name) in names.iter_mut().enumerate() {
            if !options.header || name.is_empty() {
                *name = format!("c{cell_idx}");
            }
        }
        check_distinct(file, &names)?;
        // A header as long as a block must not hide what the columns are.
        let first_chunk = match chunk.lines() {
            [] => chunks.next_chunk().map_err(|err| err.shift_line(first_line))?,
            _ => None,
        };
        let first_chunk = first_chunk.or(Some(chunk));
        Ok(CsvFile { file: file.clone(), separator, chunks, names, first_chunk, first_line })
    }
}

/// The cells of the first row, how many bytes it takes and how many lines.
fn first_row(
    file: &Arc<Path>,
    chunk: &Chunk,
    separator: u8,
    line: u64,
) -> Result<(Vec<String>, usize, u64), ReadError> {
    let lines = chunk.lines();
    let (mut names, mut at, mut n_lines) = (Vec::new(), 0, 1);
    loop {
        let cell = Cell::at(lines, at, separator).map_err(|fault| match fault {
            cells::CellFault::Unclosed => ReadError::UnclosedQuote { file: file.clone(), line },
            cells::CellFault::AfterQuote => ReadError::AfterQuote { file: file.clone(), line },
        })?;
        let name = String::from_utf8(cell.text().into_owned())
            .map_err(|_| ReadError::InvalidUtf8 { file: file.clone(), line })?;
        names.push(name);
        n_lines += u64::from(cell.n_breaks());
        at = cell.end + 1;
        if lines[cell.end] == b'\n' {
            return Ok((names, at, n_lines));
        }
    }
}

fn check_distinct(file: &Arc<Path>, names: &[String]) -> Result<(), ReadError> {
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(ReadError::DuplicateColumn { file: file.clone(), column: pair[0].clone() })
        }
        None => Ok(()),
    }
}

/// Which of the selected cells hold numbers, by the first block: those of which most filled ones parse. A word among numbers
/// is a fault, not a reason to take the numbers for words; faults are left for the parser to find, which knows their lines.
fn infer(
    file: &CsvFile,
    selected: &[usize],
    empty: &EmptyCells,
    options: &ReadOptions,
) -> Vec<bool> {
    let said: Vec<Option<bool>> = file
        .names
        .iter()
        .map(|name| options.kinds.get(name).map(|kind| *kind == ColumnKind::Number))
        .collect();
    // How many more numbers than words there are.
    let mut surplus = vec![0i64; file.names.len()];
    let lines = file.first_chunk.as_ref().map(Chunk::lines).unwrap_or_default();
    let (mut at, mut cell_idx) = (0, 0);
    while at < lines.len() {
        let Ok(cell) = Cell::at(lines, at, file.separator) else { break };
        if said.get(cell_idx) == Some(&None) {
            let text = cell.text();
            if !empty.contains(&text) {
                let is_number = number::parse(text.trim_ascii()).is_some();
                surplus[cell_idx] += if is_number { 1 } else { -1 };
            }
        }
        cell_idx = if lines[cell.end] == b'\n' { 0 } else { cell_idx + 1 };
        at = cell.end + 1;
    }
    selected.iter().map(|&idx| said[idx].unwrap_or(surplus[idx] >= 0)).collect()
}

/// The chunks of all files.
struct CsvPieces {
    first: Arc<Path>,
    rest: VecDeque<Arc<Path>>,
    options: ReadOptions,
    block_bytes: usize,
    empty: EmptyCells,
    is_number: Vec<bool>,
    schema: SchemaRef,
    current: Option<(CsvFile, Arc<Layout>)>,
}

impl CsvPieces {
    /// How the cells of a file become the columns of the schema, wherever they stand in it.
    fn layout(&self, opened: &CsvFile) -> Result<Arc<Layout>, ReadError> {
        let position = |name: &String| self.schema.index_of(name).ok();
        let cells: Vec<Option<usize>> = opened.names.iter().map(position).collect();
        for (column_idx, field) in self.schema.fields().iter().enumerate() {
            if !cells.contains(&Some(column_idx)) {
                let (file, first) = (opened.file.clone(), self.first.clone());
                return Err(ReadError::LostColumn { file, column: field.name().clone(), first });
            }
        }
        let is_extra = |(name, cell): (&String, &Option<usize>)| {
            cell.is_none() && self.options.columns.is_none() && !self.options.is_ignored(name)
        };
        if let Some(idx) = opened.names.iter().zip(&cells).position(is_extra) {
            let (file, first) = (opened.file.clone(), self.first.clone());
            let column = opened.names[idx].clone();
            return Err(ReadError::ExtraColumn { file, column, first });
        }
        Ok(Arc::new(Layout {
            file: opened.file.clone(),
            separator: opened.separator,
            empty: self.empty.clone(),
            cells,
            is_number: self.is_number.clone(),
            schema: self.schema.clone(),
        }))
    }

    fn next_piece(&mut self) -> Result<Option<Work>, ReadError> {
        loop {
            let Some((opened, layout)) = &mut self.current else {
                let Some(file) = self.rest.pop_front() else { return Ok(None) };
                let opened = CsvFile::open(&file, &self.options, self.block_bytes)?;
                let layout = self.layout(&opened)?;
                self.current = Some((opened, layout));
                continue;
            };
            let file = opened.file.clone();
            let (chunk, first_line) = match opened.first_chunk.take() {
                Some(chunk) => (chunk, Some(opened.first_line)),
                None => match opened.chunks.next_chunk() {
                    Ok(Some(chunk)) => (chunk, None),
                    Ok(None) => {
                        self.current = None;
                        continue;
                    }
                    Err(err) => {
                        self.current = None;
                        self.rest.clear();
                        return Ok(Some(Work::failed(file, None, err)));
                    }
                },
            };
            let layout = layout.clone();
            let parse = Box::new(move || parse::parse(&chunk, &layout));
            return Ok(Some(Work { file, first_line, parse }));
        }
    }
}
