//! A chunk of a CSV file as columns.

use std::path::Path;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::super::ReadError;
use super::super::growing::{Numbers, Words};
use super::super::lines::Chunk;
use super::super::ordered::Parsed;
use super::cells::{Cell, CellFault, EmptyCells};
use super::number;

/// How the cells of a file's rows become columns.
pub(super) struct Layout {
    pub(super) file: Arc<Path>,
    pub(super) separator: u8,
    pub(super) empty: EmptyCells,
    /// For each cell of a row: the column it goes to, if any.
    pub(super) cells: Vec<Option<usize>>,
    /// For each column: whether it holds numbers.
    pub(super) is_number: Vec<bool>,
    pub(super) schema: SchemaRef,
}

impl Layout {
    /// Numbers are recognised before anything else about their cell is looked at, unless they could be something else too.
    fn has_short_numbers(&self) -> bool {
        let in_numbers = self.separator.is_ascii_alphanumeric() || b"+-.".contains(&self.separator);
        !in_numbers && !self.empty.has_number()
    }
}

enum Column {
    Numbers(Numbers),
    Words(Words),
}

impl Column {
    fn new(is_number: bool, n_rows: usize, n_bytes: usize) -> Column {
        if is_number {
            Column::Numbers(Numbers::with_capacity(n_rows))
        } else {
            Column::Words(Words::with_capacity(n_rows, n_bytes))
        }
    }

    /// The finished column, or the first row that is not UTF-8.
    fn finish(self) -> Result<ArrayRef, usize> {
        match self {
            Column::Numbers(numbers) => Ok(numbers.finish()),
            Column::Words(words) => words.finish(),
        }
    }
}

/// Parses the rows of a chunk.
pub(super) fn parse(chunk: &Chunk, layout: &Layout) -> Result<Parsed, ReadError> {
    let mut parser = Parser::new(chunk, layout);
    while parser.at < chunk.end {
        if !parser.skip_blank_line() {
            parser.parse_row()?;
        }
    }
    parser.finish()
}

/// Where the next cell starts, if a number was found and fills its cell.
#[inline(always)]
fn after_number(
    padded: &[u8],
    start: usize,
    end: usize,
    end_byte: u8,
    is_last: bool,
) -> Option<usize> {
    let is_found = end > start;
    let end = end + usize::from(is_last && padded[end] == b'\r');
    (is_found && padded[end] == end_byte).then_some(end + 1)
}

struct Parser<'a> {
    /// The chunk with its padding.
    padded: &'a [u8],
    /// The chunk without it.
    bytes: &'a [u8],
    layout: &'a Layout,
    has_short_numbers: bool,
    at: usize,
    columns: Vec<Column>,
    n_rows: usize,
    /// How many lines of the chunk are behind.
    n_lines: u32,
    row_lines: Option<Vec<u32>>,
}

impl<'a> Parser<'a> {
    fn new(chunk: &'a Chunk, layout: &'a Layout) -> Parser<'a> {
        let first_line = memchr::memchr(b'\n', chunk.lines()).map_or(1, |at| at + 1);
        // The first row tells how many there are, roughly; a wrong guess costs a little time or memory.
        let n_rows = (chunk.lines().len() / first_line + 1).min(chunk.lines().len() / 2 + 1);
        let n_rows = n_rows + n_rows / 16;
        // As if all cells were equally long, and then some; what is not needed is never touched.
        let n_bytes = chunk.lines().len() / layout.cells.len() * 3 / 2;
        Parser {
            padded: chunk.padded(),
            bytes: &chunk.padded()[..chunk.end],
            layout,
            has_short_numbers: layout.has_short_numbers(),
            at: chunk.start,
            columns: layout.is_number.iter().map(|&is| Column::new(is, n_rows, n_bytes)).collect(),
            n_rows: 0,
            n_lines: 0,
            row_lines: None,
        }
    }

    /// Blank lines are no rows, except in a table of one column, where they are empty cells.
    #[inline]
    fn skip_blank_line(&mut self) -> bool {
        let length = match (self.padded[self.at], self.padded[self.at + 1]) {
            (b'\n', _) => 1,
            (b'\r', b'\n') => 2,
            _ => return false,
        };
        if self.layout.cells.len() == 1 {
            return false;
        }
        self.at += length;
        self.n_lines += 1;
        true
    }

    #[inline]
    fn parse_row(&mut self) -> Result<(), ReadError> {
        let line = self.n_lines;
        if self.row_lines.is_some() || line as usize != self.n_rows {
            self.note_line(line);
        }
        let (padded, separator) = (self.padded, self.layout.separator);
        let last_idx = self.layout.cells.len() - 1;
        for (cell_idx, &column) in self.layout.cells.iter().enumerate() {
            let end_byte = if cell_idx == last_idx { b'\n' } else { separator };
            if self.has_short_numbers
                && let Some(column) = column
                && let Column::Numbers(numbers) = &mut self.columns[column]
            {
                let is_last = cell_idx == last_idx;
                let (mut value, mut end) = number::parse_short(padded, self.at);
                let mut next = after_number(padded, self.at, end, end_byte, is_last);
                if next.is_none() {
                    (value, end) = number::parse_long(padded, self.at);
                    next = after_number(padded, self.at, end, end_byte, is_last);
                }
                if let Some(next) = next {
                    numbers.push(value);
                    self.at = next;
                    continue;
                }
            }
            self.parse_cell(cell_idx, column, end_byte, line)?;
        }
        self.n_rows += 1;
        self.n_lines += 1;
        Ok(())
    }

    /// Any cell.
    fn parse_cell(
        &mut self,
        cell_idx: usize,
        column: Option<usize>,
        end_byte: u8,
        line: u32,
    ) -> Result<(), ReadError> {
        let cell = Cell::at(self.bytes, self.at, self.layout.separator)
            .map_err(|fault| self.cell_error(fault))?;
        if self.bytes[cell.end] != end_byte {
            let n_found = cell_idx + 1 + self.n_cells_from(cell.end);
            let (file, n_expected) = (self.layout.file.clone(), self.layout.cells.len());
            return Err(ReadError::Ragged { file, line: line.into(), n_found, n_expected });
        }
        self.at = cell.end + 1;
        self.n_lines += cell.n_breaks();
        let Some(column_idx) = column else { return Ok(()) };
        let text = cell.text();
        let is_empty = self.layout.empty.contains(&text);
        match &mut self.columns[column_idx] {
            Column::Numbers(numbers) if is_empty => numbers.push_null(),
            Column::Numbers(numbers) => match number::parse(text.trim_ascii()) {
                Some(value) => numbers.push(value),
                None => return Err(self.not_a_number(&text, column_idx, line)),
            },
            Column::Words(words) if is_empty => words.push_null(),
            Column::Words(words) => words.push(&text),
        }
        Ok(())
    }

    #[cold]
    fn note_line(&mut self, line: u32) {
        let n_rows = self.n_rows as u32;
        self.row_lines.get_or_insert_with(|| (0..n_rows).collect()).push(line);
    }

    #[cold]
    fn cell_error(&self, fault: CellFault) -> ReadError {
        let (file, line) = (self.layout.file.clone(), self.n_lines.into());
        match fault {
            CellFault::Unclosed => ReadError::UnclosedQuote { file, line },
            CellFault::AfterQuote => ReadError::AfterQuote { file, line },
        }
    }

    #[cold]
    fn not_a_number(&self, text: &[u8], column_idx: usize, line: u32) -> ReadError {
        let (file, line) = (self.layout.file.clone(), line.into());
        let Ok(text) = std::str::from_utf8(text) else {
            return ReadError::InvalidUtf8 { file, line };
        };
        let mut cell: String = text.chars().take(60).collect();
        if cell.len() < text.len() {
            cell.push_str("...");
        }
        let column = self.layout.schema.field(column_idx).name().clone();
        ReadError::NotANumber { file, line, column, cell }
    }

    /// How many cells follow in the row behind a cell's end.
    #[cold]
    fn n_cells_from(&self, mut end: usize) -> usize {
        let mut n_cells = 0;
        while self.bytes[end] != b'\n' {
            n_cells += 1;
            match Cell::at(self.bytes, end + 1, self.layout.separator) {
                Ok(cell) => end = cell.end,
                Err(_) => break,
            }
        }
        n_cells
    }

    fn finish(self) -> Result<Parsed, ReadError> {
        let n_rows = self.n_rows;
        let row_lines = self.row_lines;
        let mut columns = Vec::with_capacity(self.columns.len());
        for column in self.columns {
            let array = column.finish().map_err(|row_idx| {
                let line = row_lines.as_ref().map_or(row_idx as u32, |lines| lines[row_idx]);
                ReadError::InvalidUtf8 { file: self.layout.file.clone(), line: line.into() }
            })?;
            columns.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(n_rows));
        let rows = RecordBatch::try_new_with_options(self.layout.schema.clone(), columns, &options)
            .expect("every column has the type of its field and one value a row");
        let row_lines = row_lines.map(Arc::from);
        Ok(Parsed { rows, n_lines: self.n_lines.into(), row_lines })
    }
}
