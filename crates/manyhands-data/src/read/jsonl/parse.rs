//! A chunk of JSON lines as columns, without building a tree of each line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, FixedSizeListArray, Float64Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::growing::{Numbers, Words, nulls};
use super::super::lines::Chunk;
use super::super::ordered::Parsed;
use super::super::{ReadError, ReadOptions};
use super::JsonKind;
use super::list::List;
use crate::spec::ColumnKind;

/// How the keys of the objects become columns.
pub(super) struct Layout {
    names: Vec<String>,
    kinds: Vec<JsonKind>,
    by_name: HashMap<String, usize>,
    ignored: Vec<String>,
    /// Whether other keys than the columns' are passed over.
    allows_others: bool,
    schema: SchemaRef,
}

impl Layout {
    pub(super) fn new(
        names: Vec<String>,
        kinds: Vec<JsonKind>,
        options: &ReadOptions,
        schema: SchemaRef,
    ) -> Layout {
        let by_name = names.iter().enumerate().map(|(idx, name)| (name.clone(), idx)).collect();
        let is_ignored = |(name, kind): (&String, &ColumnKind)| {
            (*kind == ColumnKind::Ignore).then(|| name.clone())
        };
        let ignored = options.kinds.iter().filter_map(is_ignored).collect();
        Layout { names, kinds, by_name, ignored, allows_others: options.columns.is_some(), schema }
    }
}

/// Parses the lines of a chunk.
pub(super) fn parse(chunk: &Chunk, layout: &Layout, file: &Arc<Path>) -> Result<Parsed, ReadError> {
    let mut rows = Rows::new(layout);
    let mut row_lines: Vec<u32> = Vec::new();
    let mut n_lines: u32 = 0;
    for line in chunk.lines().split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii();
        if !text.is_empty() {
            rows.push(text).map_err(|fault| fault.into_error(file, n_lines.into(), layout))?;
            row_lines.push(n_lines);
        }
        n_lines += 1;
    }
    let is_plain = row_lines.len() == n_lines as usize;
    let rows = rows.finish();
    let row_lines = (!is_plain).then(|| Arc::from(row_lines));
    Ok(Parsed { rows, n_lines: n_lines.into(), row_lines })
}

/// What is wrong with a line.
pub(super) enum Fault {
    Syntax(String),
    UnknownKey(String),
    NotANumber { column_idx: usize, cell: String },
    Type { column_idx: usize, found: &'static str },
    Length { column_idx: usize, n_found: usize, n_expected: usize },
}

impl Fault {
    #[cold]
    fn into_error(self, file: &Arc<Path>, line: u64, layout: &Layout) -> ReadError {
        let file = file.clone();
        let name = |column_idx: usize| layout.names[column_idx].clone();
        match self {
            Fault::Syntax(reason) => ReadError::Json { file, line, reason },
            Fault::UnknownKey(key) => ReadError::UnknownKey { file, line, key },
            Fault::NotANumber { column_idx, cell } => {
                ReadError::NotANumber { file, line, column: name(column_idx), cell }
            }
            Fault::Type { column_idx, found } => {
                let expected = match layout.kinds[column_idx] {
                    JsonKind::Number => "numbers",
                    JsonKind::Truth => "true or false",
                    JsonKind::Words => "words",
                    JsonKind::List(_) => "lists of numbers",
                };
                ReadError::JsonType { file, line, column: name(column_idx), found, expected }
            }
            Fault::Length { column_idx, n_found, n_expected } => {
                let column = name(column_idx);
                ReadError::JsonLength { file, line, column, n_found, n_expected }
            }
        }
    }
}

enum Column {
    Numbers(Numbers),
    Truths(Vec<Option<bool>>),
    Words(Words),
    Lists { elements: Vec<f64>, n_rows: usize, null_rows: Vec<usize> },
}

impl Column {
    fn new(kind: &JsonKind) -> Column {
        match kind {
            JsonKind::Number => Column::Numbers(Numbers::default()),
            JsonKind::Truth => Column::Truths(Vec::new()),
            JsonKind::Words => Column::Words(Words::with_capacity(0, 0)),
            JsonKind::List(_) => {
                Column::Lists { elements: Vec::new(), n_rows: 0, null_rows: Vec::new() }
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Column::Numbers(numbers) => numbers.len(),
            Column::Truths(truths) => truths.len(),
            Column::Words(words) => words.len(),
            Column::Lists { n_rows, .. } => *n_rows,
        }
    }

    fn push_null(&mut self, kind: &JsonKind) {
        match self {
            Column::Numbers(numbers) => numbers.push_null(),
            Column::Truths(truths) => truths.push(None),
            Column::Words(words) => words.push_null(),
            Column::Lists { elements, n_rows, null_rows } => {
                null_rows.push(*n_rows);
                *n_rows += 1;
                if let JsonKind::List(shape) = kind {
                    elements.resize(n_rows.saturating_mul(shape.iter().product()), 0.0);
                }
            }
        }
    }

    fn finish(self, field: &Field) -> ArrayRef {
        match self {
            Column::Numbers(numbers) => numbers.finish(),
            Column::Truths(truths) => Arc::new(BooleanArray::from(truths)),
            Column::Words(words) => words.finish().expect("JSON strings are UTF-8"),
            Column::Lists { elements, n_rows, null_rows } => {
                let DataType::FixedSizeList(item, length) = field.data_type() else {
                    unreachable!("the field of a list column is a list");
                };
                let elements = Arc::new(Float64Array::from(elements));
                let nulls = nulls(&null_rows, n_rows);
                let (item, length) = (item.clone(), *length);
                let lists =
                    FixedSizeListArray::try_new_with_length(item, length, elements, nulls, n_rows);
                Arc::new(lists.expect("every list was checked against the shape"))
            }
        }
    }
}

struct Rows<'a> {
    layout: &'a Layout,
    columns: Vec<Column>,
    n_rows: usize,
    fault: Option<Fault>,
}

impl<'a> Rows<'a> {
    fn new(layout: &'a Layout) -> Rows<'a> {
        let columns = layout.kinds.iter().map(Column::new).collect();
        Rows { layout, columns, n_rows: 0, fault: None }
    }

    fn push(&mut self, line: &[u8]) -> Result<(), Fault> {
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let done = deserializer.deserialize_map(RowVisitor(self)).and_then(|()| deserializer.end());
        if let Err(err) = done {
            return Err(self.fault.take().unwrap_or_else(|| Fault::Syntax(reason(&err))));
        }
        self.n_rows += 1;
        for (column, kind) in self.columns.iter_mut().zip(&self.layout.kinds) {
            if column.len() < self.n_rows {
                column.push_null(kind);
            }
        }
        Ok(())
    }

    fn finish(self) -> RecordBatch {
        let fields = self.layout.schema.fields();
        let columns =
            self.columns.into_iter().zip(fields).map(|(column, field)| column.finish(field));
        let options = RecordBatchOptions::new().with_row_count(Some(self.n_rows));
        let schema = self.layout.schema.clone();
        RecordBatch::try_new_with_options(schema, columns.collect(), &options)
            .expect("every column has the type of its field and one value a row")
    }
}

/// What the JSON parser says, without its count of lines, of which it sees only one.
fn reason(err: &serde_json::Error) -> String {
    let text = err.to_string();
    match text.split_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} at character {column}"),
        None => text,
    }
}

struct RowVisitor<'r, 'a>(&'r mut Rows<'a>);

impl<'de> Visitor<'de> for RowVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let rows = self.0;
        let layout = rows.layout;
        let mut guess = 0;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            // Keys mostly come in the same order on every line.
            let is_guess = layout.names.get(guess).is_some_and(|name| *name == *key);
            let found = if is_guess { Some(guess) } else { layout.by_name.get(&*key).copied() };
            let Some(column_idx) = found else {
                if !layout.allows_others && !layout.ignored.iter().any(|name| *name == *key) {
                    rows.fault = Some(Fault::UnknownKey(key.into_owned()));
                    return Err(A::Error::custom("unknown key"));
                }
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            guess = column_idx + 1;
            if rows.columns[column_idx].len() > rows.n_rows {
                return Err(A::Error::custom(format_args!("the key `{key}` is there twice")));
            }
            map.next_value_seed(Cell { rows, column_idx })?;
        }
        Ok(())
    }
}

/// Puts the next value into a column.
struct Cell<'r, 'a> {
    rows: &'r mut Rows<'a>,
    column_idx: usize,
}

impl Cell<'_, '_> {
    #[cold]
    fn misfit<E: Error>(self, found: &'static str) -> E {
        self.rows.fault = Some(Fault::Type { column_idx: self.column_idx, found });
        E::custom(found)
    }

    fn number<E: Error>(self, value: f64, written: impl fmt::Display) -> Result<(), E> {
        match &mut self.rows.columns[self.column_idx] {
            Column::Numbers(numbers) => numbers.push(value),
            Column::Words(words) => words.push(written.to_string().as_bytes()),
            _ => return Err(self.misfit("a number")),
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Cell<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Cell<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a string, true, false, null or a list of numbers")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        let kind = &self.rows.layout.kinds[self.column_idx];
        self.rows.columns[self.column_idx].push_null(kind);
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.number(value, value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.number(value as f64, value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.number(value as f64, value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match &mut self.rows.columns[self.column_idx] {
            Column::Truths(truths) => truths.push(Some(value)),
            Column::Words(words) => words.push(if value { b"true" } else { b"false" }),
            _ => return Err(self.misfit("true or false")),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let column_idx = self.column_idx;
        match &mut self.rows.columns[column_idx] {
            Column::Words(words) => words.push(value.as_bytes()),
            Column::Numbers(numbers) => match fast_float2::parse(value.trim()) {
                Ok(number) => numbers.push(number),
                Err(_) => {
                    let cell = value.chars().take(60).collect();
                    self.rows.fault = Some(Fault::NotANumber { column_idx, cell });
                    return Err(E::custom("not a number"));
                }
            },
            _ => return Err(self.misfit("a string")),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        let layout = self.rows.layout;
        let JsonKind::List(shape) = &layout.kinds[self.column_idx] else {
            return Err(self.misfit("a list"));
        };
        let Column::Lists { elements, n_rows, .. } = &mut self.rows.columns[self.column_idx] else {
            return Err(self.misfit("a list"));
        };
        *n_rows += 1;
        let column_idx = self.column_idx;
        let mut list = List { elements, shape, column_idx, fault: &mut self.rows.fault };
        list.fill(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.misfit("an object"))
    }
}
