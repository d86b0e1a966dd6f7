//! Lists as columns of one fixed length: nested ones are flattened, and every row must have the shape of the first.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field};

use super::Block;

/// A row that does not fit.
#[derive(Debug)]
pub(super) struct ListFault {
    pub(super) row_idx: usize,
    pub(super) kind: ListFaultKind,
}

#[derive(Debug)]
pub(super) enum ListFaultKind {
    Length { n_found: usize, n_expected: usize },
    Null,
}

/// What the elements of a possibly nested list are, and how deep it is nested.
pub(super) fn element_of(data_type: &DataType) -> (&DataType, usize) {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let (element, depth) = element_of(item.data_type());
            (element, depth + 1)
        }
        _ => (data_type, 0),
    }
}

/// The field of a column of flattened lists.
pub(super) fn list_field(name: &str, element: DataType, shape: &[usize]) -> Field {
    let lengths: Vec<String> = shape.iter().map(usize::to_string).collect();
    let item = Arc::new(Field::new_list_field(element, true));
    // Longer rows than an i32 counts do not fit a block.
    let length = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
    Field::new(name, DataType::FixedSizeList(item, length), true)
        .with_metadata([(Block::SHAPE, lengths.join(","))])
}

/// The shape of the first row that is not null.
pub(super) fn first_shape(lists: &ArrayRef) -> Option<Vec<usize>> {
    let row_idx = (0..lists.len()).find(|&row_idx| lists.is_valid(row_idx))?;
    let mut shape = Vec::new();
    let mut row = lists.slice(row_idx, 1);
    while let Some(inner) = list_value(&row, 0) {
        shape.push(inner.len());
        if inner.is_empty() {
            // What is nested in nothing has no shape.
            let (_, depth) = element_of(inner.data_type());
            shape.extend(std::iter::repeat_n(0, depth));
            return Some(shape);
        }
        row = inner;
    }
    Some(shape)
}

fn list_value(lists: &ArrayRef, row_idx: usize) -> Option<ArrayRef> {
    match lists.data_type() {
        DataType::List(_) => Some(lists.as_list::<i32>().value(row_idx)),
        DataType::LargeList(_) => Some(lists.as_list::<i64>().value(row_idx)),
        DataType::FixedSizeList(..) => Some(lists.as_fixed_size_list().value(row_idx)),
        _ => None,
    }
}

/// The lists as a column of the given field, which [`list_field`] made for the shape.
pub(super) fn flatten(
    lists: &ArrayRef,
    shape: &[usize],
    field: &Field,
) -> Result<ArrayRef, ListFault> {
    let DataType::FixedSizeList(item, length) = field.data_type() else {
        return Ok(lists.clone());
    };
    let mut elements = lists.clone();
    let mut per_row = 1;
    for &n_expected in shape {
        check_lengths(&elements, n_expected, per_row, lists)?;
        elements = fixed_values(&elements, n_expected);
        per_row *= n_expected;
    }
    check_nulls(&elements, per_row, lists)?;
    let options = CastOptions { safe: false, ..Default::default() };
    let elements = cast_with_options(&elements, item.data_type(), &options)
        .expect("numbers are cast to numbers");
    let column = FixedSizeListArray::try_new_with_length(
        item.clone(),
        *length,
        elements,
        lists.nulls().cloned(),
        lists.len(),
    );
    Ok(Arc::new(column.expect("every row has the length of the field")))
}

fn check_lengths(
    level: &ArrayRef,
    n_expected: usize,
    per_row: usize,
    rows: &ArrayRef,
) -> Result<(), ListFault> {
    for idx in 0..level.len() {
        let row_idx = idx / per_row.max(1);
        if rows.is_null(row_idx) {
            continue;
        }
        if level.is_null(idx) {
            return Err(ListFault { row_idx, kind: ListFaultKind::Null });
        }
        let n_found = match level.data_type() {
            DataType::List(_) => level.as_list::<i32>().value_length(idx) as usize,
            DataType::LargeList(_) => level.as_list::<i64>().value_length(idx) as usize,
            DataType::FixedSizeList(_, length) => *length as usize,
            _ => n_expected,
        };
        if n_found != n_expected {
            let kind = ListFaultKind::Length { n_found, n_expected };
            return Err(ListFault { row_idx, kind });
        }
    }
    Ok(())
}

/// The values of lists that have one length each (null lists get that many nulls).
fn fixed_values(level: &ArrayRef, length: usize) -> ArrayRef {
    let item = match level.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        _ => return level.clone(),
    };
    let item = Arc::new(item.as_ref().clone().with_nullable(true));
    let fixed = DataType::FixedSizeList(item, length as i32);
    let options = CastOptions { safe: false, ..Default::default() };
    let cast = cast_with_options(level, &fixed, &options).expect("the lengths are checked");
    let lists = cast.as_fixed_size_list();
    lists.values().slice(lists.value_offset_at(0), lists.len() * length)
}

fn check_nulls(elements: &ArrayRef, per_row: usize, rows: &ArrayRef) -> Result<(), ListFault> {
    let Some(nulls) = elements.nulls() else { return Ok(()) };
    let is_fault = |idx: &usize| nulls.is_null(*idx) && rows.is_valid(idx / per_row.max(1));
    match (0..elements.len()).find(is_fault) {
        Some(idx) => Err(ListFault { row_idx: idx / per_row.max(1), kind: ListFaultKind::Null }),
        None => Ok(()),
    }
}
