//! Lines of libsvm files as columns.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int32Array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::super::ReadError;
use super::super::csv::parse_number;
use super::super::ordered::Parsed;
use crate::hash::FeatureHash;

/// How lines become columns.
pub(super) struct Layout {
    /// Which of label, indices and values are wanted, in this order.
    pub(super) columns: Vec<usize>,
    /// The most features of a line.
    pub(super) most: usize,
    /// Indices become buckets of so many bits.
    pub(super) hash_bits: Option<u32>,
    pub(super) schema: SchemaRef,
}

/// What a line has before its comment, in words.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = memchr::memchr(b'#', line).unwrap_or(line.len());
    line[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// How many features a line has.
pub(super) fn count_pairs(line: &[u8]) -> usize {
    words(line).skip(1).count()
}

/// Parses the rows of a chunk.
pub(super) fn parse(lines: &[u8], layout: &Layout, file: &Arc<Path>) -> Result<Parsed, ReadError> {
    let mut rows = Rows::new(layout, file);
    let lines = lines.strip_suffix(b"\n").unwrap_or(lines);
    for line in lines.split(|&byte| byte == b'\n') {
        rows.add(line)?;
        rows.n_lines += 1;
    }
    Ok(rows.finish())
}

struct Rows<'a> {
    layout: &'a Layout,
    file: &'a Arc<Path>,
    labels: Vec<f64>,
    indices: Vec<i32>,
    values: Vec<f32>,
    n_lines: u32,
    /// The line of each row.
    row_lines: Vec<u32>,
}

impl<'a> Rows<'a> {
    fn new(layout: &'a Layout, file: &'a Arc<Path>) -> Self {
        let (labels, indices, values, row_lines) = (vec![], vec![], vec![], vec![]);
        Self { layout, file, labels, indices, values, n_lines: 0, row_lines }
    }

    /// Adds a line, unless it is blank or a comment.
    fn add(&mut self, line: &[u8]) -> Result<(), ReadError> {
        let mut words = words(line);
        let Some(label) = words.next() else { return Ok(()) };
        let number = parse_number(label).ok_or_else(|| self.bad_label(label))?;
        self.labels.push(number);
        self.row_lines.push(self.n_lines);
        let first = self.indices.len();
        for word in words {
            let (index, value) = self.pair(word)?;
            self.indices.push(index);
            self.values.push(value);
        }
        let (n_found, most) = (self.indices.len() - first, self.layout.most);
        if n_found > most {
            let (file, line) = (Arc::clone(self.file), self.n_lines.into());
            return Err(ReadError::TooManyPairs { file, line, n_found, most });
        }
        self.indices.resize(first + most, -1);
        self.values.resize(first + most, 0.0);
        Ok(())
    }

    fn pair(&self, word: &[u8]) -> Result<(i32, f32), ReadError> {
        let pair = memchr::memchr(b':', word).map(|at| (&word[..at], &word[at + 1..]));
        let (Some((index, value)), file, line) =
            (pair, || Arc::clone(self.file), u64::from(self.n_lines))
        else {
            return Err(self.bad_pair(word));
        };
        if index == b"qid" {
            return Err(ReadError::QueryId { file: file(), line });
        }
        let (Some(index), Some(value)) = (whole(index), parse_number(value)) else {
            return Err(self.bad_pair(word));
        };
        let bucket = match self.layout.hash_bits {
            Some(bits) => FeatureHash::of_index(index, bits),
            None => i32::try_from(index)
                .ok()
                .filter(|&index| index < i32::MAX)
                .ok_or(ReadError::LargeIndex { file: file(), line, index })?,
        };
        Ok((bucket, value as f32))
    }

    #[cold]
    fn bad_label(&self, word: &[u8]) -> ReadError {
        let (file, line) = (Arc::clone(self.file), self.n_lines.into());
        ReadError::PairLabel { file, line, label: shown(word) }
    }

    #[cold]
    fn bad_pair(&self, word: &[u8]) -> ReadError {
        let (file, line) = (Arc::clone(self.file), self.n_lines.into());
        ReadError::Pair { file, line, pair: shown(word) }
    }

    fn finish(self) -> Parsed {
        let n_rows = self.labels.len();
        let [mut labels, mut indices, mut values] = [
            Some(Arc::new(Float64Array::from(self.labels)) as ArrayRef),
            Some(Arc::new(Int32Array::from(self.indices)) as ArrayRef),
            Some(Arc::new(Float32Array::from(self.values)) as ArrayRef),
        ];
        let fields = self.layout.schema.fields().iter();
        let columns = self.layout.columns.iter().zip(fields).filter_map(|(idx, field)| {
            let array = match idx {
                0 => labels.take(),
                1 => indices.take(),
                _ => values.take(),
            }?;
            Some(match field.data_type() {
                DataType::FixedSizeList(item, n) => {
                    Arc::new(FixedSizeListArray::new(Arc::clone(item), *n, array, None))
                }
                _ => array,
            })
        });
        let columns: Vec<ArrayRef> = columns.collect();
        let options = RecordBatchOptions::new().with_row_count(Some(n_rows));
        let schema = Arc::clone(&self.layout.schema);
        let rows = RecordBatch::try_new_with_options(schema, columns, &options)
            .expect("every column has the type of its field and one value a row");
        let in_order = self.row_lines.iter().enumerate().all(|(row, &line)| row as u32 == line);
        let row_lines = (!in_order).then(|| Arc::from(self.row_lines));
        Parsed { rows, n_lines: self.n_lines.into(), row_lines }
    }
}

/// A whole number of digits alone.
fn whole(word: &[u8]) -> Option<u64> {
    let digit = |number: u64, &byte: &u8| {
        let digit = byte.is_ascii_digit().then_some(u64::from(byte.wrapping_sub(b'0')))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if word.is_empty() { None } else { word.iter().try_fold(0, digit) }
}

/// A word for a message, the first characters of it.
fn shown(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word);
    let mut start: String = text.chars().take(40).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    start
}
