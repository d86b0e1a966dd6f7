//! From the cells of a column to the field of records.

use std::ops::Range;

use arrow::buffer::NullBuffer;

use super::cells::Cells;
use super::dictionary::Dictionary;
use super::plan::Planned;
use super::rows::{DROPPED, Rows};
use crate::encoding::words;
use crate::hash::FeatureHash;
use crate::layout::{Field, Scalar};
use crate::read::Block;
use crate::sample_error::SampleError;
use crate::spec::{Missing, TextUnit, Unknown};
use crate::split::PartName;

/// A column on its way into records.
#[derive(Debug)]
pub(crate) struct FieldScan {
    pub(crate) planned: Planned,
    pub(crate) field: Field,
    pub(crate) content: FieldContent,
    /// Labels and lists cannot be filled in.
    pub(crate) is_label: bool,
    missing: Missing,
    /// The bytes of the last row that had a value.
    previous: Option<Vec<u8>>,
}

/// What is kept of a column besides its records.
#[derive(Debug)]
pub(crate) enum FieldContent {
    Numbers,
    Values {
        dictionary: Dictionary,
        /// What stands for a missing value.
        missing: i32,
        /// The most values there may be.
        most: usize,
    },
    Tokens {
        dictionary: Dictionary,
        unit: TextUnit,
        /// What bytes and the tokens of an encoding start at.
        first: i32,
        /// What fills up short texts.
        fill: i32,
    },
    /// Values by their hash, behind that of the column's name.
    Hashed {
        column: FeatureHash,
        bits: u32,
    },
    /// Indices of features.
    Buckets {
        /// How many there are, where that is known, and what becomes of those beyond.
        known: Option<(i32, Unknown)>,
        /// The largest so far.
        largest: i32,
    },
}

impl FieldScan {
    pub(crate) fn new(
        planned: Planned,
        field: Field,
        content: FieldContent,
        is_label: bool,
        missing: Missing,
    ) -> Self {
        Self { planned, field, content, is_label, missing, previous: None }
    }

    /// Writes the cells of some rows of a block into records.
    pub(crate) fn write(
        &mut self,
        block: &Block,
        (cells, nulls): &(Cells, Option<NullBuffer>),
        range: Range<usize>,
        rows: &mut Rows<'_>,
    ) -> Result<(), SampleError> {
        let nulls = nulls
            .as_ref()
            .map(|nulls| nulls.slice(range.start, range.len()))
            .filter(|nulls| nulls.null_count() > 0);
        let is_null = |at: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
        let first = range.start;
        self.write_cells(block, cells, range, &is_null, rows)?;
        for at in 0..if nulls.is_some() { rows.len() } else { 0 } {
            if is_null(at) {
                self.write_missing(block, first + at, at, rows)?;
            } else if self.missing == Missing::Previous {
                self.keep(at, rows);
            }
        }
        if nulls.is_none() && self.missing == Missing::Previous && rows.len() > 0 {
            self.keep(rows.len() - 1, rows);
        }
        Ok(())
    }

    fn write_cells(
        &mut self,
        block: &Block,
        cells: &Cells,
        range: Range<usize>,
        is_null: &dyn Fn(usize) -> bool,
        rows: &mut Rows<'_>,
    ) -> Result<(), SampleError> {
        let n = self.field.n;
        let run = range.start * n..range.end * n;
        let first = range.start;
        let bad = match (&mut self.content, cells) {
            (FieldContent::Numbers, Cells::U8(cells)) => {
                rows.put(&self.field, &cells.values()[run], |x| [x]);
                None
            }
            (FieldContent::Numbers, Cells::I32(cells)) => {
                rows.put(&self.field, &cells.values()[run], i32::to_ne_bytes);
                None
            }
            (FieldContent::Numbers, Cells::F32(cells)) => {
                let numbers = &cells.values()[run];
                rows.put(&self.field, numbers, f32::to_ne_bytes);
                not_finite(numbers.iter().map(|&x| f64::from(x)), n, is_null)
            }
            (FieldContent::Numbers, Cells::F64(cells)) => {
                let numbers = &cells.values()[run];
                rows.put(&self.field, numbers, f64::to_ne_bytes);
                not_finite(numbers.iter().copied(), n, is_null)
            }
            (FieldContent::Buckets { .. }, Cells::I32(cells)) => {
                rows.put(&self.field, &cells.values()[run], i32::to_ne_bytes);
                return self.check_buckets(block, first, rows);
            }
            _ => return self.write_ids(block, cells, range, is_null, rows),
        };
        match bad {
            None => Ok(()),
            Some((at, value)) => Err(SampleError::NotFinite {
                place: block.place(first + at, self.planned.column),
                column: self.planned.name.clone(),
                value,
            }),
        }
    }

    /// Takes note of the largest index; where it is known how many there are, finds those beyond.
    fn check_buckets(
        &mut self,
        block: &Block,
        first: usize,
        rows: &mut Rows<'_>,
    ) -> Result<(), SampleError> {
        let FieldContent::Buckets { known, largest } = &mut self.content else { return Ok(()) };
        for at in 0..rows.len() {
            for out in rows.field_mut(at, &self.field).as_chunks_mut::<4>().0 {
                let index = i32::from_ne_bytes(*out);
                match known {
                    None => *largest = index.max(*largest),
                    Some((n, _)) if index < *n => {}
                    // As if the feature were not there, which is what a weight of zero would do.
                    Some((_, Unknown::Other)) => *out = (-1i32).to_ne_bytes(),
                    Some((_, Unknown::Error)) => {
                        let place = block.place(first + at, self.planned.column);
                        return Err(self.unknown_value(place, index.to_string()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the numbers of values and tokens.
    fn write_ids(
        &mut self,
        block: &Block,
        cells: &Cells,
        range: Range<usize>,
        is_null: &dyn Fn(usize) -> bool,
        rows: &mut Rows<'_>,
    ) -> Result<(), SampleError> {
        for (at, row) in range.enumerate() {
            if is_null(at) {
                continue;
            }
            let out = rows.field_mut(at, &self.field);
            let known = match (&mut self.content, cells) {
                (FieldContent::Values { dictionary, .. }, cells) => match cells {
                    Cells::Words(cells) => dictionary.text(cells.value(row)),
                    Cells::I64(cells) => dictionary.number(cells.value(row)),
                    Cells::F64(cells) => match whole(cells.value(row)) {
                        Some(number) => dictionary.number(number),
                        None => return Err(self.not_whole(block, row, cells.value(row))),
                    },
                    _ => None,
                }
                .map(|id| out.copy_from_slice(&id.to_ne_bytes()))
                .ok_or(()),
                (FieldContent::Hashed { column, bits }, cells) => {
                    let hash = match cells {
                        Cells::Words(cells) => column.with(cells.value(row).as_bytes()),
                        Cells::I64(cells) => column.with(cells.value(row).to_string().as_bytes()),
                        Cells::F64(cells) => match whole(cells.value(row)) {
                            Some(number) => column.with(number.to_string().as_bytes()),
                            None => return Err(self.not_whole(block, row, cells.value(row))),
                        },
                        _ => *column,
                    };
                    out.copy_from_slice(&hash.bucket(*bits).to_ne_bytes());
                    Ok(())
                }
                (FieldContent::Tokens { dictionary, unit, first, fill }, Cells::Words(cells)) => {
                    write_tokens(cells.value(row), dictionary, *unit, (*first, *fill), out)
                }
                _ => Err(()),
            };
            if known.is_err() {
                return Err(self.unknown(block, cells, row));
            }
        }
        match &self.content {
            FieldContent::Values { dictionary, most, .. } if dictionary.len() > *most => {
                let column = self.planned.name.clone();
                Err(SampleError::TooManyValues { column, most: *most })
            }
            _ => Ok(()),
        }
    }

    fn not_whole(&self, block: &Block, row: usize, value: f64) -> SampleError {
        let (what, advice) = match self.is_label {
            true => ("classes", "; for numbers choose another loss, such as `squared_error`"),
            false => ("categories", ""),
        };
        let place = block.place(row, self.planned.column);
        let column = self.planned.name.clone();
        match value.is_finite() {
            true => SampleError::NotWhole { place, column, value, what, advice },
            false => SampleError::NotFinite { place, column, value },
        }
    }

    /// The error for a value that the encoding does not have.
    fn unknown(&self, block: &Block, cells: &Cells, row: usize) -> SampleError {
        let value = match (cells, &self.content) {
            (Cells::Words(cells), FieldContent::Tokens { dictionary, unit, .. }) => {
                first_unknown(cells.value(row), dictionary, *unit)
            }
            (Cells::Words(cells), _) => cells.value(row).into(),
            (Cells::I64(cells), _) => cells.value(row).to_string(),
            (Cells::F64(cells), _) => cells.value(row).to_string(),
            _ => String::new(),
        };
        let place = block.place(row, self.planned.column);
        self.unknown_value(place, value)
    }

    /// The error for a value that the training part does not have.
    pub(crate) fn unknown_value(&self, place: crate::read::Place, value: String) -> SampleError {
        let column = self.planned.name.clone();
        match (self.is_label, &self.content) {
            (true, FieldContent::Values { dictionary, .. }) => {
                let (n_classes, classes) = dictionary.known();
                SampleError::UnknownClass { place, column, value, n_classes, classes }
            }
            _ => SampleError::UnknownValue { place, column, value },
        }
    }

    /// Takes note of the values that kept rows have.
    pub(crate) fn observe(&mut self, block: &Block, first: usize, rows: &Rows<'_>) {
        let (field, column) = (self.field, self.planned.column);
        let Some(dictionary) = self.learning() else { return };
        for at in 0..rows.len() {
            let part = rows.parts[at];
            if part == DROPPED {
                continue;
            }
            for id in ids(rows.field(at, &field)) {
                let Some(seen) = dictionary.seen.get_mut(id as usize) else { continue };
                seen.place.get_or_insert_with(|| block.place(first + at, column));
                seen.n_train += u64::from(part == PartName::Train as u8);
            }
        }
    }

    /// Forgets how often the training part has its values.
    pub(crate) fn forget_counts(&mut self) {
        if let Some(dictionary) = self.learning() {
            dictionary.seen.iter_mut().for_each(|seen| seen.n_train = 0);
        }
    }

    /// Counts the values of a record of the training part.
    pub(crate) fn count(&mut self, record: &[u8]) {
        let field = self.field;
        let Some(dictionary) = self.learning() else { return };
        for id in ids(&record[field.offset..field.offset + field.bytes()]) {
            if let Some(seen) = dictionary.seen.get_mut(id as usize) {
                seen.n_train += 1;
            }
        }
    }

    /// The dictionary, if it still learns.
    fn learning(&mut self) -> Option<&mut Dictionary> {
        match &mut self.content {
            FieldContent::Numbers | FieldContent::Hashed { .. } | FieldContent::Buckets { .. } => {
                None
            }
            FieldContent::Values { dictionary, .. } | FieldContent::Tokens { dictionary, .. } => {
                Some(dictionary).filter(|dictionary| !dictionary.is_frozen())
            }
        }
    }

    /// Remembers the value of a row.
    fn keep(&mut self, at: usize, rows: &Rows<'_>) {
        let value = rows.field(at, &self.field);
        match &mut self.previous {
            Some(previous) => previous.copy_from_slice(value),
            None => self.previous = Some(value.to_vec()),
        }
    }

    /// Writes what stands for an empty cell.
    fn write_missing(
        &self,
        block: &Block,
        row: usize,
        at: usize,
        rows: &mut Rows<'_>,
    ) -> Result<(), SampleError> {
        let (place, column) =
            (|| block.place(row, self.planned.column), || self.planned.name.clone());
        match self.missing {
            Missing::Error => {
                return Err(SampleError::EmptyCell { place: place(), column: column() });
            }
            Missing::Drop => rows.parts[at] = DROPPED,
            Missing::Previous => match &self.previous {
                Some(previous) => rows.field_mut(at, &self.field).copy_from_slice(previous),
                None => rows.parts[at] = DROPPED,
            },
            Missing::Mean => {
                let out = rows.field_mut(at, &self.field);
                let what = match (&self.content, self.field.scalar) {
                    _ if self.is_label => "a label",
                    (FieldContent::Numbers, Scalar::F32) => {
                        return fill(out, f32::NAN.to_ne_bytes());
                    }
                    (FieldContent::Numbers, Scalar::F64) => {
                        return fill(out, f64::NAN.to_ne_bytes());
                    }
                    (FieldContent::Numbers, _) => "a list of whole numbers",
                    (FieldContent::Values { missing: -1, dictionary, .. }, _)
                        if dictionary.is_frozen() =>
                    {
                        "a category that the model was trained on without empty cells"
                    }
                    (FieldContent::Values { missing, .. }, _) => {
                        return fill(out, missing.to_ne_bytes());
                    }
                    // A value that is not there is no feature.
                    (FieldContent::Hashed { .. } | FieldContent::Buckets { .. }, _) => {
                        return fill(out, (-1i32).to_ne_bytes());
                    }
                    // A text that is not there has no tokens.
                    (FieldContent::Tokens { fill: empty, .. }, _) => {
                        return fill(out, empty.to_ne_bytes());
                    }
                };
                return Err(SampleError::EmptyLabel { place: place(), column: column(), what });
            }
        }
        Ok(())
    }
}

/// The numbers of values in a field; what is missing has a negative one, which is no number of a value.
fn ids(field: &[u8]) -> impl Iterator<Item = i32> {
    field.as_chunks::<4>().0.iter().map(|&id| i32::from_ne_bytes(id))
}

fn fill<const N: usize>(out: &mut [u8], value: [u8; N]) -> Result<(), SampleError> {
    out.as_chunks_mut::<N>().0.fill(value);
    Ok(())
}

/// The first number that is not finite, or not so in 32 bits: its row, and what it is.
fn not_finite(
    numbers: impl Iterator<Item = f64> + Clone,
    n: usize,
    is_null: &dyn Fn(usize) -> bool,
) -> Option<(usize, f64)> {
    // One pass without a branch for all the numbers that are fine.
    let fits = |number: f64| number.abs() <= f64::from(f32::MAX);
    let all = numbers.clone().fold(true, |all, number| all & fits(number));
    if all {
        return None;
    }
    let mut rows = numbers.enumerate().map(|(at, number)| (at / n, number));
    rows.find(|&(row, number)| !fits(number) && !is_null(row))
}

/// A number that is whole, and exactly so in 64 bits.
fn whole(number: f64) -> Option<i64> {
    const MOST: f64 = (1u64 << 53) as f64;
    (number.fract() == 0.0 && number.abs() <= MOST).then_some(number as i64)
}

/// Writes the tokens of a text, cut or filled up to the length of the field.
fn write_tokens(
    text: &str,
    dictionary: &mut Dictionary,
    unit: TextUnit,
    (first, fill): (i32, i32),
    out: &mut [u8],
) -> Result<(), ()> {
    let mut out = out.as_chunks_mut::<4>().0.iter_mut();
    match unit {
        TextUnit::Bytes => {
            for (byte, out) in text.bytes().zip(&mut out) {
                *out = (i32::from(byte) + first).to_ne_bytes();
            }
        }
        TextUnit::Characters => {
            for (character, out) in text.chars().zip(&mut out) {
                *out = dictionary.character(character).ok_or(())?.to_ne_bytes();
            }
        }
        TextUnit::Words => {
            for (word, out) in words(text).zip(&mut out) {
                *out = dictionary.text(word).ok_or(())?.to_ne_bytes();
            }
        }
    }
    out.for_each(|out| *out = fill.to_ne_bytes());
    Ok(())
}

fn first_unknown(text: &str, dictionary: &Dictionary, unit: TextUnit) -> String {
    let found = match unit {
        TextUnit::Words => words(text).find(|word| !dictionary.has(word)).map(String::from),
        _ => text.chars().map(String::from).find(|character| !dictionary.has(character)),
    };
    found.unwrap_or_default()
}
