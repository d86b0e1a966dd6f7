//! Opens plain text, of which the next token is predicted.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};

use crate::data::{Folders, Opened};
use crate::encoding::{ColumnEncoding, ContentEncoding, Encoding, RecordIndexes, Sampling, Target};
use crate::error::DataError;
use crate::open_table::read_options;
use crate::read::{Reader, read as open_files};
use crate::sample_error::{SampleError, nearest};
use crate::scan::{Destination, TextScan, fit_text};
use crate::spec::{DataSpec, Source, TextUnit};
use crate::split::{PartName, Split};
use crate::store::Budget;

/// Reads the training files of a job and learns their tokens.
pub(crate) fn open(
    spec: &DataSpec,
    split: &Split,
    folders: Folders<'_>,
    budget: &Arc<Budget>,
) -> Result<Opened, DataError> {
    let text = spec.text.ok_or(SampleError::KeyNeeded {
        key: "data.text",
        what: "predicting the next token",
        example: "`text = { unit = \"characters\", length = 64 }`",
    })?;
    let stride = text.stride.unwrap_or(text.length);
    let sampling = Sampling::Tokens { length: text.length, stride };
    let reader = open_plain(spec, &spec.train, text.unit, folders)?;
    let to = Destination::new(spec, folders, budget);
    let mut scanned = TextScan::new(text.unit, None, stride as u64, &to).run(reader)?;
    let cut = split.cut(scanned.store.n_records());
    if cut[0].is_empty() {
        let reason = "its files have no tokens".into();
        let (part, what) = (PartName::Train, "sequences");
        return Err(SampleError::EmptyPart { part, what, reason }.into());
    }
    let (vocabulary, indexes) = fit_text(&mut scanned, &text, spec.unknown, cut[0].end)?;
    let column = ColumnEncoding { name: "text".into(), content: ContentEncoding::Text(vocabulary) };
    let encoding = Encoding::new(Target::NextToken, sampling, vec![column], None, None)?;
    let [train, validation, test] = cut;
    let store = &scanned.store;
    let held_out = |share: f64, rows| (share > 0.0).then(|| (Arc::clone(store), rows));
    let parts = [
        Some((Arc::clone(store), train)),
        held_out(split.validation, validation),
        held_out(split.test, test),
    ];
    let indexes = RecordIndexes { columns: vec![indexes], label: None };
    Ok(Opened { encoding, layout: scanned.layout, indexes, counts: scanned.counts, parts })
}

/// Reads text with the tokens of an encoding.
pub(crate) fn read(
    encoding: &Encoding,
    spec: &DataSpec,
    source: &Source,
    folders: Folders<'_>,
    budget: &Arc<Budget>,
) -> Result<Opened, DataError> {
    let Some(ColumnEncoding { content: ContentEncoding::Text(vocabulary), .. }) =
        encoding.columns().first()
    else {
        return Err(SampleError::NoVocabulary.into());
    };
    let reader = open_plain(spec, source, vocabulary.unit, folders)?;
    let to = Destination::new(spec, folders, budget);
    let stride = encoding.sampling().stride();
    let scanned = TextScan::new(vocabulary.unit, Some(vocabulary), stride, &to).run(reader)?;
    let n = scanned.store.n_records();
    Ok(Opened {
        encoding: encoding.clone(),
        layout: scanned.layout,
        indexes: RecordIndexes::default(),
        counts: scanned.counts,
        parts: [Some((scanned.store, 0..n)), None, None],
    })
}

fn open_plain(
    spec: &DataSpec,
    source: &Source,
    unit: TextUnit,
    folders: Folders<'_>,
) -> Result<Reader, DataError> {
    let mut options = read_options(spec)?;
    options.bytes = unit == TextUnit::Bytes;
    let reader = open_files(source, folders.files, &options)?;
    if !is_plain(reader.schema()) {
        let names = reader.schema().fields().iter().map(|field| field.name().as_str());
        let available = nearest("text", names);
        return Err(SampleError::NotPlainText { available }.into());
    }
    Ok(reader)
}

/// Chunks of plain text are never missing, which sets them apart from a table with one column `text`.
fn is_plain(schema: &Schema) -> bool {
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::Binary);
    matches!(schema.fields().as_ref(), [field]
        if field.name() == "text" && !field.is_nullable() && is_text(field.data_type()))
}
