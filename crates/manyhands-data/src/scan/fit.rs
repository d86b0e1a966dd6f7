//! From what was seen of the training part to an encoding.

use std::sync::Arc;

use super::Scanned;
use super::dictionary::Dictionary;
use super::fields::{FieldContent, FieldScan};
use super::plan::PlannedContent;
use super::statistics::Summary;
use crate::encoding::{
    ColumnEncoding, ContentEncoding, LabelContent, LabelEncoding, RecordIndexes, Scale, Values,
    Vocabulary, sort_values,
};
use crate::gather::Indexes;
use crate::hash::FeatureHash;
use crate::layout::Scalar;
use crate::sample_error::SampleError;
use crate::spec::{CategoryForm, DataSpec, Missing, Normalise, TextUnit, Unknown};

/// What was learned, and the indexes of the numbers in the records.
pub(crate) struct Fitted {
    pub(crate) columns: Vec<ColumnEncoding>,
    pub(crate) label: Option<LabelEncoding>,
    pub(crate) indexes: RecordIndexes,
}

/// Turns what was seen into an encoding.
pub(crate) fn fit(scanned: &Scanned, spec: &DataSpec) -> Result<Fitted, SampleError> {
    let mut fitted = Fitted { columns: Vec::new(), label: None, indexes: RecordIndexes::default() };
    let mut statistics = scanned.statistics.iter();
    for field in &scanned.fields {
        let n_slots = if field.has_statistics() { field.field.n } else { 0 };
        let summaries: Vec<Summary> = statistics.by_ref().take(n_slots).copied().collect();
        let name = field.planned.name.clone();
        if summaries.iter().any(|summary| summary.n == 0) {
            return Err(SampleError::NoValues { column: name });
        }
        if field.is_label {
            let (content, indexes) = fit_label(field, &summaries, spec)?;
            fitted.label = Some(LabelEncoding { name, content });
            fitted.indexes.label = indexes;
        } else {
            let (content, indexes) = fit_column(field, &summaries, spec)?;
            fitted.columns.push(ColumnEncoding { name, content });
            fitted.indexes.columns.push(indexes);
        }
    }
    Ok(fitted)
}

fn fit_column(
    field: &FieldScan,
    summaries: &[Summary],
    spec: &DataSpec,
) -> Result<(ContentEncoding, Indexes), SampleError> {
    let scale = |summary: &Summary| summary.scale(spec.normalise);
    Ok(match (&field.content, field.planned.content) {
        (FieldContent::Values { dictionary, .. }, _) => {
            let missing = spec.missing == Missing::Mean;
            let other = spec.unknown == Unknown::Other;
            let (values, indexes) = fit_values(field, dictionary, other, missing)?;
            match spec.categories {
                CategoryForm::OneHot => (ContentEncoding::OneHot(values), indexes),
                CategoryForm::Index => (ContentEncoding::Index(values), indexes),
            }
        }
        (FieldContent::Tokens { dictionary, unit, .. }, _) => {
            let limit = spec.text.and_then(|text| text.vocabulary);
            let length = Some(field.field.n);
            let (vocabulary, indexes) =
                fit_vocabulary(dictionary, *unit, limit, spec.unknown, length)
                    .map_err(|id| field.unseen(dictionary, id))?;
            (ContentEncoding::Text(vocabulary), indexes)
        }
        (FieldContent::Hashed { bits, .. }, content) => {
            let numeric = content == PlannedContent::Hashed { numeric: true };
            (ContentEncoding::HashedValue { bits: *bits, numeric }, None)
        }
        (FieldContent::Buckets { largest, .. }, _) => {
            let n_buckets = match spec.hash.and_then(|hash| hash.bits) {
                Some(bits) => 1 << bits,
                None => (*largest).max(0) as usize + 1,
            };
            (ContentEncoding::Buckets { length: field.field.n, n_buckets }, None)
        }
        (FieldContent::Numbers, PlannedContent::PairValues(n)) => {
            (ContentEncoding::PairValues(n), None)
        }
        (FieldContent::Numbers, PlannedContent::Number(_)) if spec.hash.is_some() => {
            let bits = hash_bits(spec)?;
            let bucket = FeatureHash::new().with(field.planned.name.as_bytes()).bucket(bits);
            (ContentEncoding::HashedNumber { bits, bucket, scale: scale(&summaries[0]) }, None)
        }
        (FieldContent::Numbers, PlannedContent::List(Scalar::U8, n)) => {
            (ContentEncoding::Bytes(n), None)
        }
        (FieldContent::Numbers, PlannedContent::List(..)) => {
            (ContentEncoding::Numbers(summaries.iter().map(scale).collect()), None)
        }
        (FieldContent::Numbers, _) => (ContentEncoding::Number(scale(&summaries[0])), None),
    })
}

/// The bits of buckets, which columns that are hashed cannot do without.
pub(crate) fn hash_bits(spec: &DataSpec) -> Result<u32, SampleError> {
    spec.hash.and_then(|hash| hash.bits).ok_or(SampleError::KeyNeeded {
        key: "data.hash.bits",
        what: "a table whose columns are hashed",
        example: "`hash = { bits = 20 }`",
    })
}

fn fit_label(
    field: &FieldScan,
    summaries: &[Summary],
    spec: &DataSpec,
) -> Result<(LabelContent, Indexes), SampleError> {
    Ok(match (&field.content, summaries) {
        (FieldContent::Values { dictionary, .. }, _) => {
            let (values, indexes) = fit_values(field, dictionary, false, false)?;
            (LabelContent::Classes(values), indexes)
        }
        (_, [summary, ..]) if spec.scale_label => {
            (LabelContent::Number(summary.scale(Normalise::Standard)), None)
        }
        (_, summaries) => {
            let mean = summaries.first().map_or(0.0, |summary| summary.mean);
            (LabelContent::Number(Scale { mean, offset: 0.0, inverse: 1.0 }), None)
        }
    })
}

impl FieldScan {
    /// The error for a value that kept rows have, but none of the training part.
    fn unseen(&self, dictionary: &Dictionary, id: usize) -> SampleError {
        match &dictionary.seen[id].place {
            Some(place) => self.unknown_value(place.clone(), dictionary.name(id).into()),
            None => SampleError::NoValues { column: self.planned.name.clone() },
        }
    }
}

/// Puts the values of the training part in order.
fn fit_values(
    field: &FieldScan,
    dictionary: &Dictionary,
    other: bool,
    missing: bool,
) -> Result<(Values, Indexes), SampleError> {
    let numeric = field.planned.content == PlannedContent::Categories { numeric: true };
    let is_trained = |id: &usize| dictionary.seen[*id].n_train > 0;
    let mut names: Vec<String> = (0..dictionary.len())
        .filter(is_trained)
        .map(|id| dictionary.name(id).to_string())
        .collect();
    if names.is_empty() {
        return Err(SampleError::NoValues { column: field.planned.name.clone() });
    }
    sort_values(&mut names);
    let values = Values { values: names, numeric, other, missing };
    let mut sorted = Dictionary::of_values(&values);
    let mut indexes = vec![values.missing_idx().unwrap_or(0)];
    for (id, seen) in dictionary.seen.iter().enumerate() {
        match sorted.text(dictionary.name(id)) {
            Some(idx) => indexes.push(idx),
            None if seen.place.is_none() => indexes.push(0),
            None => return Err(field.unseen(dictionary, id)),
        }
    }
    Ok((values, Some(Arc::from(indexes))))
}

/// Puts the tokens of the training part in order: characters by their code, words by how often they come up. The error is the
/// number of a token that the training part does not have.
pub(super) fn fit_vocabulary(
    dictionary: &Dictionary,
    unit: TextUnit,
    limit: Option<usize>,
    unknown: Unknown,
    length: Option<usize>,
) -> Result<(Vocabulary, Indexes), usize> {
    if unit == TextUnit::Bytes {
        return Ok((bytes_vocabulary(length), None));
    }
    let mut ids: Vec<usize> =
        (0..dictionary.len()).filter(|&id| dictionary.seen[id].n_train > 0).collect();
    ids.sort_by_key(|&id| (std::cmp::Reverse(dictionary.seen[id].n_train), dictionary.name(id)));
    let limit = limit.unwrap_or(usize::MAX);
    let other = unknown == Unknown::Other || ids.len() > limit;
    ids.truncate(limit);
    let mut tokens: Vec<String> = ids.iter().map(|&id| dictionary.name(id).to_string()).collect();
    if unit == TextUnit::Characters {
        tokens.sort_unstable();
    }
    let vocabulary = Vocabulary { unit, tokens, other, length };
    let mut sorted = Dictionary::of_vocabulary(&vocabulary);
    // What fills up short texts has index 0.
    let mut indexes = vec![0];
    for (id, seen) in dictionary.seen.iter().enumerate() {
        match sorted.text(dictionary.name(id)) {
            Some(idx) => indexes.push(idx),
            None if seen.place.is_none() => indexes.push(0),
            None => return Err(id),
        }
    }
    Ok((vocabulary, Some(Arc::from(indexes))))
}

/// All bytes, in order.
pub(super) fn bytes_vocabulary(length: Option<usize>) -> Vocabulary {
    Vocabulary { unit: TextUnit::Bytes, tokens: Vec::new(), other: false, length }
}
