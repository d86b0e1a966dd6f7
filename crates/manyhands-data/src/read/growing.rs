//! Columns that grow cell by cell while text is parsed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};

/// A column of numbers.
#[derive(Default)]
pub(super) struct Numbers {
    values: Vec<f64>,
    null_rows: Vec<usize>,
}

impl Numbers {
    pub(super) fn with_capacity(n_rows: usize) -> Numbers {
        Numbers { values: Vec::with_capacity(n_rows), null_rows: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    pub(super) fn push_null(&mut self) {
        self.null_rows.push(self.values.len());
        self.values.push(0.0);
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn finish(self) -> ArrayRef {
        let nulls = nulls(&self.null_rows, self.values.len());
        Arc::new(Float64Array::new(self.values.into(), nulls))
    }
}

/// A column of words, whose bytes are checked at the end, all at once.
pub(super) struct Words {
    /// Where each word ends, after a 0. A block is far below 2 GiB.
    ends: Vec<i32>,
    bytes: Vec<u8>,
    null_rows: Vec<usize>,
}

impl Words {
    pub(super) fn with_capacity(n_rows: usize, n_bytes: usize) -> Words {
        let mut ends = Vec::with_capacity(n_rows + 1);
        ends.push(0);
        Words { ends, bytes: Vec::with_capacity(n_bytes), null_rows: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len() as i32);
    }

    pub(super) fn push_null(&mut self) {
        self.null_rows.push(self.len());
        self.ends.push(self.bytes.len() as i32);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// The finished column, or the first row that is not UTF-8.
    pub(super) fn finish(self) -> Result<ArrayRef, usize> {
        let nulls = nulls(&self.null_rows, self.len());
        let ends = OffsetBuffer::new(self.ends.into());
        let bytes = Buffer::from_vec(self.bytes);
        match StringArray::try_new(ends.clone(), bytes.clone(), nulls) {
            Ok(array) => Ok(Arc::new(array)),
            Err(_) => {
                let is_invalid = |word: &[i32]| {
                    std::str::from_utf8(&bytes[word[0] as usize..word[1] as usize]).is_err()
                };
                Err(ends.windows(2).position(is_invalid).unwrap_or(0))
            }
        }
    }
}

/// Which rows are there, unless all are.
pub(super) fn nulls(null_rows: &[usize], n_rows: usize) -> Option<NullBuffer> {
    if null_rows.is_empty() {
        return None;
    }
    let mut is_valid = vec![true; n_rows];
    for &row_idx in null_rows {
        is_valid[row_idx] = false;
    }
    Some(is_valid.into())
}
