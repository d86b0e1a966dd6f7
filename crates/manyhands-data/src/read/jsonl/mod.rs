//! JSON lines: one object a line, whose keys are the columns.

mod infer;
mod list;
mod parse;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use self::infer::infer;
use self::parse::Layout;
use super::lines::{Chunk, Chunks};
use super::ordered::{Work, in_order};
use super::{ReadError, ReadOptions, Reader, lists};

/// What a column of JSON values is.
#[derive(Clone, Debug, PartialEq)]
enum JsonKind {
    Number,
    Truth,
    Words,
    /// Lists of numbers of this shape.
    List(Vec<usize>),
}

impl JsonKind {
    fn field(&self, name: &str) -> Field {
        match self {
            JsonKind::Number => Field::new(name, DataType::Float64, true),
            JsonKind::Truth => Field::new(name, DataType::Boolean, true),
            JsonKind::Words => Field::new(name, DataType::Utf8, true),
            JsonKind::List(shape) => lists::list_field(name, DataType::Float64, shape),
        }
    }
}

/// Opens JSON lines. The first block of the first file tells the columns.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let (first, rest) = files.split_first().ok_or(ReadError::NoFiles)?;
    let mut chunks = Chunks::open(first, block_bytes, None)?;
    let chunk = first_chunk(first, &mut chunks)?;
    let found = infer(first, chunk.lines(), options)?;
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let selected = options.select(first, &names)?;
    let (names, kinds): (Vec<String>, Vec<JsonKind>) =
        selected.into_iter().map(|idx| found[idx].clone()).unzip();
    let fields: Vec<Field> =
        names.iter().zip(&kinds).map(|(name, kind)| kind.field(name)).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let layout = Arc::new(Layout::new(names, kinds, options, schema.clone()));
    let mut pieces = JsonPieces {
        rest: rest.iter().cloned().collect(),
        block_bytes,
        layout,
        current: Some(JsonFile { file: first.clone(), chunks, first_chunk: Some(chunk) }),
    };
    Ok(Reader::new(schema, in_order(move || pieces.next_piece(), options.n_threads)))
}

fn first_chunk(file: &Arc<Path>, chunks: &mut Chunks) -> Result<Chunk, ReadError> {
    let chunk = chunks.next_chunk().map_err(|err| err.shift_line(1))?;
    let chunk = chunk.ok_or_else(|| ReadError::Empty { file: file.clone() })?;
    if chunk.lines().trim_ascii_start().starts_with(b"[") {
        return Err(ReadError::JsonArray { file: file.clone() });
    }
    Ok(chunk)
}

struct JsonFile {
    file: Arc<Path>,
    chunks: Chunks,
    first_chunk: Option<Chunk>,
}

struct JsonPieces {
    rest: VecDeque<Arc<Path>>,
    block_bytes: usize,
    layout: Arc<Layout>,
    current: Option<JsonFile>,
}

impl JsonPieces {
    fn next_piece(&mut self) -> Result<Option<Work>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(file) = self.rest.pop_front() else { return Ok(None) };
                let mut chunks = Chunks::open(&file, self.block_bytes, None)?;
                let first_chunk = Some(first_chunk(&file, &mut chunks)?);
                self.current = Some(JsonFile { file, chunks, first_chunk });
                continue;
            };
            let file = current.file.clone();
            let (chunk, first_line) = match current.first_chunk.take() {
                Some(chunk) => (chunk, Some(1)),
                None => match current.chunks.next_chunk() {
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
            let layout = self.layout.clone();
            let parse = {
                let file = file.clone();
                Box::new(move || parse::parse(&chunk, &layout, &file))
            };
            return Ok(Some(Work { file, first_line, parse }));
        }
    }
}
