//! Plain text: one column `text` of chunks that together are the files.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use memchr::{memchr_iter, memrchr};

use super::ordered::{Parsed, Work, in_order};
use super::{ReadError, ReadOptions, Reader};
use crate::files::{self, Opened};

const COLUMN: &str = "text";

/// Opens plain text. Chunks are cut behind a line break where there is one, else between two characters.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let first = files.first().ok_or(ReadError::NoFiles)?;
    options.select(first, &[COLUMN.to_string()])?;
    let data_type = if options.bytes { DataType::Binary } else { DataType::Utf8 };
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new(COLUMN, data_type, false)]));
    let mut pieces = TextPieces {
        rest: files.iter().cloned().collect(),
        current: None,
        schema: schema.clone(),
        is_binary: options.bytes,
        block_bytes: block_bytes.max(8),
    };
    pieces.open_next()?;
    Ok(Reader::new(schema, in_order(move || pieces.next_piece(), options.n_threads)))
}

struct TextFile {
    file: Arc<Path>,
    input: Opened,
    carry: Vec<u8>,
    is_started: bool,
    is_done: bool,
}

struct TextPieces {
    rest: VecDeque<Arc<Path>>,
    current: Option<TextFile>,
    schema: SchemaRef,
    is_binary: bool,
    block_bytes: usize,
}

impl TextFile {
    fn next_chunk(&mut self, block_bytes: usize) -> Result<Option<Vec<u8>>, ReadError> {
        if self.is_done {
            return Ok(None);
        }
        let mut bytes = std::mem::take(&mut self.carry);
        let n_wanted = block_bytes.saturating_sub(bytes.len()).max(1);
        let failed = |source| files::read_error(&self.file, self.input.compression, source);
        bytes.reserve(n_wanted);
        let n_read = (&mut self.input.bytes)
            .take(n_wanted as u64)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        self.is_done = n_read < n_wanted;
        if !self.is_done {
            let end = cut(&bytes);
            self.carry = bytes.split_off(end);
        }
        Ok((!bytes.is_empty()).then_some(bytes))
    }
}

/// Where to cut: behind the last line break, unless that leaves less than half; else before a character that is not whole.
fn cut(bytes: &[u8]) -> usize {
    if let Some(at) = memrchr(b'\n', bytes).filter(|at| at * 2 >= bytes.len()) {
        return at + 1;
    }
    let n_continued =
        bytes.iter().rev().take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count();
    let start = bytes.len() - n_continued - 1;
    let n_character = match bytes[start] {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
        _ => 1,
    };
    if start > 0 && n_continued + 1 < n_character { start } else { bytes.len() }
}

impl TextPieces {
    fn open_next(&mut self) -> Result<bool, ReadError> {
        let Some(file) = self.rest.pop_front() else { return Ok(false) };
        let input = files::open(&file)?;
        self.current =
            Some(TextFile { file, input, carry: Vec::new(), is_started: false, is_done: false });
        Ok(true)
    }

    fn next_piece(&mut self) -> Result<Option<Work>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                if !self.open_next()? {
                    return Ok(None);
                }
                continue;
            };
            let Some(mut bytes) = current.next_chunk(self.block_bytes)? else {
                self.current = None;
                continue;
            };
            let first_line = (!current.is_started).then_some(1);
            if !current.is_started && !self.is_binary && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            current.is_started = true;
            let (file, schema) = (current.file.clone(), self.schema.clone());
            let is_binary = self.is_binary;
            let parse = {
                let file = file.clone();
                Box::new(move || parse(bytes, schema, is_binary, file))
            };
            return Ok(Some(Work { file, first_line, parse }));
        }
    }
}

fn parse(
    bytes: Vec<u8>,
    schema: SchemaRef,
    is_binary: bool,
    file: Arc<Path>,
) -> Result<Parsed, ReadError> {
    let n_lines = memchr_iter(b'\n', &bytes).count() as u64;
    let column: ArrayRef = if is_binary {
        Arc::new(BinaryArray::from_iter_values([bytes]))
    } else {
        let text = String::from_utf8(bytes).map_err(|err| {
            let n_valid = err.utf8_error().valid_up_to();
            let line = memchr_iter(b'\n', &err.as_bytes()[..n_valid]).count() as u64;
            ReadError::InvalidUtf8 { file, line }
        })?;
        Arc::new(StringArray::from_iter_values([text]))
    };
    let rows =
        RecordBatch::try_new(schema, vec![column]).expect("the column has the schema's type");
    Ok(Parsed { rows, n_lines, row_lines: None })
}
