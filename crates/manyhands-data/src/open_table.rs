//! Opens tables: to learn from them, or as an encoding reads them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::{Folders, Opened};
use crate::encoding::{
    ContentEncoding, Encoding, LabelContent, Labels, RecordIndexes, Sampling, Target, Values,
};
use crate::error::DataError;
use crate::hash::FeatureHash;
use crate::layout::{Layout, Scalar};
use crate::read::{ReadOptions, Reader, read as open_files};
use crate::sample_error::SampleError;
use crate::scan::{
    Counts, Destination, Dictionary, FieldContent, FieldScan, Plan, Planned, PlannedContent, Scan,
    fit, hash_bits,
};
use crate::spec::{CategoryForm, ColumnKind, DataSpec, Source, TextUnit};
use crate::split::Split;
use crate::store::Budget;

/// The most values of a column that become one number each.
const MOST_ONE_HOT: usize = 10_000;

/// Reads the training files of a job and learns from them.
pub(crate) fn open(
    spec: &DataSpec,
    target: Target,
    split: &Split,
    folders: Folders<'_>,
    budget: &Arc<Budget>,
) -> Result<Opened, DataError> {
    let mut options = read_options(spec)?;
    let file = source_path(&spec.train);
    let reader = open_files(&spec.train, folders.files, &options)?;
    let plan = Plan::new(reader.schema(), spec, target, &file)?;
    let (reader, plan) = project(reader, plan, |columns| {
        options.columns = Some(columns);
        open_files(&spec.train, folders.files, &options)
    })?;
    let sampling = spec.window.map_or(Sampling::Rows, Sampling::Windows);
    let shape = plan.shape.clone();
    let (fields, layout) = learning_fields(plan, spec)?;
    let to = Destination::new(spec, folders, budget);
    let drawn = (sampling == Sampling::Rows).then_some(split);
    let mut scanned = Scan::learning(fields, layout, drawn, sampling.stride(), &to).run(reader)?;
    let n_rows = scanned.stores[0].as_ref().map_or(0, |store| store.n_records());
    let cut = match sampling {
        Sampling::Rows => None,
        _ => Some(split.cut(n_rows)),
    };
    if let Some([train, ..]) = &cut {
        scanned.learn(train.clone())?;
    }
    if n_rows == 0 || cut.as_ref().is_some_and(|[train, ..]| train.is_empty()) {
        return Err(nothing_to_learn(&spec.train, &scanned.counts, sampling));
    }
    let fitted = fit(&scanned, spec)?;
    let encoding = Encoding::new(target, sampling, fitted.columns, fitted.label, shape.as_deref())?;
    let parts = match cut {
        None => scanned.stores.map(|store| {
            store.map(|store| {
                let n = store.n_records();
                (store, 0..n)
            })
        }),
        Some(cut) => {
            let store = scanned.stores[0].take();
            let shares = [1.0, split.validation, split.test];
            let mut at = 0;
            cut.map(|rows| {
                let wanted = shares[at] > 0.0;
                at += 1;
                store.clone().filter(|_| wanted).map(|store| (store, rows))
            })
        }
    };
    Ok(Opened {
        encoding,
        layout: scanned.layout,
        indexes: fitted.indexes,
        counts: scanned.counts,
        parts,
    })
}

fn nothing_to_learn(source: &Source, counts: &Counts, sampling: Sampling) -> DataError {
    let what = if sampling == Sampling::Rows { "rows" } else { "windows" };
    let reason = match (counts.n_rows, counts.n_rows - counts.n_dropped) {
        (0, _) => format!("{source} has none"),
        (n, 0) => format!("all {n} of {source} have empty cells, and are left out"),
        (_, n) => format!("all {n} of {source} are held out"),
    };
    SampleError::EmptyPart { part: crate::split::PartName::Train, what, reason }.into()
}

/// Reads files as an encoding says.
pub(crate) fn read(
    encoding: &Encoding,
    spec: &DataSpec,
    source: &Source,
    folders: Folders<'_>,
    labels: Labels,
    budget: &Arc<Budget>,
) -> Result<Opened, DataError> {
    let mut options = read_options(spec)?;
    options.kinds = kinds(encoding);
    options.most_pairs = encoding.columns().iter().find_map(|column| match column.content {
        ContentEncoding::Buckets { length, .. } | ContentEncoding::PairValues(length) => {
            Some(length)
        }
        _ => None,
    });
    let file = source_path(source);
    let reader = open_files(source, folders.files, &options)?;
    let schema = Arc::clone(reader.schema());
    let has_label = encoding.label_name().is_some_and(|label| schema.index_of(label).is_ok());
    let with_label = match labels {
        Labels::Required => true,
        Labels::IfPresent => has_label,
        Labels::Ignored => false,
    };
    let plan = Plan::of_encoding(&schema, encoding, spec, with_label, &file)?;
    let (reader, plan) = project(reader, plan, |columns| {
        options.columns = Some(columns);
        open_files(source, folders.files, &options)
    })?;
    let (fields, layout) = known_fields(plan, encoding, spec);
    let to = Destination::new(spec, folders, budget);
    let scanned = Scan::known(fields, layout, encoding.sampling().stride(), &to).run(reader)?;
    let parts = scanned.stores.map(|store| {
        store.map(|store| {
            let n = store.n_records();
            (store, 0..n)
        })
    });
    Ok(Opened {
        encoding: encoding.clone(),
        layout: scanned.layout,
        indexes: RecordIndexes::default(),
        counts: scanned.counts,
        parts,
    })
}

/// Opens the files again for the columns of the plan alone, where they have others: what nobody needs is not even parsed.
fn project(
    reader: Reader,
    mut plan: Plan,
    open: impl FnOnce(Vec<String>) -> Result<Reader, DataError>,
) -> Result<(Reader, Plan), DataError> {
    let schema = Arc::clone(reader.schema());
    let mut needed: Vec<usize> =
        plan.columns.iter().chain(&plan.label).map(|planned| planned.column).collect();
    needed.sort_unstable();
    needed.dedup();
    if needed.len() == schema.fields().len() {
        return Ok((reader, plan));
    }
    drop(reader);
    let names = needed.iter().map(|&idx| schema.field(idx).name().clone()).collect();
    for planned in plan.columns.iter_mut().chain(&mut plan.label) {
        planned.column = needed.iter().position(|&idx| idx == planned.column).unwrap_or(0);
    }
    Ok((open(names)?, plan))
}

/// What the columns of an encoding are in files that do not say.
fn kinds(encoding: &Encoding) -> std::collections::BTreeMap<String, ColumnKind> {
    let of_values = |values: &Values| match values.numeric {
        true => ColumnKind::Number,
        false => ColumnKind::Category,
    };
    let columns = encoding.columns().iter().map(|column| {
        let kind = match &column.content {
            ContentEncoding::OneHot(values) | ContentEncoding::Index(values) => of_values(values),
            ContentEncoding::HashedValue { numeric: false, .. } => ColumnKind::Category,
            ContentEncoding::Text(_) => ColumnKind::Text,
            _ => ColumnKind::Number,
        };
        (column.name.clone(), kind)
    });
    let label = encoding.label().map(|label| {
        let kind = match &label.content {
            LabelContent::Classes(values) => of_values(values),
            LabelContent::Number(_) => ColumnKind::Number,
        };
        (label.name.clone(), kind)
    });
    columns.chain(label).collect()
}

/// How the files of a job are read.
pub(crate) fn read_options(spec: &DataSpec) -> Result<ReadOptions, SampleError> {
    let separator = u8::try_from(spec.separator)
        .ok()
        .filter(u8::is_ascii)
        .ok_or(SampleError::Separator { separator: spec.separator })?;
    Ok(ReadOptions {
        format: spec.format,
        separator,
        header: spec.header,
        empty: spec.empty.clone(),
        kinds: spec.columns.clone(),
        most_pairs: spec.hash.and_then(|hash| hash.most),
        hash_bits: spec.hash.and_then(|hash| hash.bits),
        ..ReadOptions::default()
    })
}

/// What to call the files of a source in a message.
pub(crate) fn source_path(source: &Source) -> PathBuf {
    match source {
        Source::One(path) => PathBuf::from(path),
        Source::Many(paths) => paths.first().map(PathBuf::from).unwrap_or_default(),
        Source::Columns(columns) => {
            let files: Vec<&str> = columns.values().map(String::as_str).collect();
            Path::new(&files.join(" and ")).into()
        }
    }
}

/// What a column takes of a record.
fn slot(planned: &Planned, text_length: usize) -> (Scalar, usize) {
    match planned.content {
        PlannedContent::Number(scalar) => (scalar, 1),
        PlannedContent::List(scalar, n) => (scalar, n),
        PlannedContent::Categories { .. } => (Scalar::I32, 1),
        PlannedContent::Text => (Scalar::I32, text_length),
        PlannedContent::Hashed { .. } => (Scalar::I32, 1),
        PlannedContent::Buckets(n) => (Scalar::I32, n),
        PlannedContent::PairValues(n) => (Scalar::F32, n),
    }
}

fn place_fields(plan: &Plan, text_length: usize) -> Layout {
    let columns: Vec<_> = plan.columns.iter().map(|planned| slot(planned, text_length)).collect();
    Layout::new(&columns, plan.label.as_ref().map(|planned| slot(planned, 1).0))
}

/// Whether a column becomes a feature by its hash.
fn is_hashed(planned: &Planned, spec: &DataSpec) -> bool {
    match planned.content {
        PlannedContent::Hashed { .. } => true,
        PlannedContent::Number(_) => spec.hash.is_some(),
        _ => false,
    }
}

/// Fields that learn.
fn learning_fields(plan: Plan, spec: &DataSpec) -> Result<(Vec<FieldScan>, Layout), SampleError> {
    let has_text = plan.columns.iter().any(|planned| planned.content == PlannedContent::Text);
    let text = match (has_text, spec.text) {
        (true, None) => {
            return Err(SampleError::KeyNeeded {
                key: "data.text",
                what: "a column of text",
                example: "`text = { unit = \"words\", length = 100 }`",
            });
        }
        (true, Some(_)) if spec.window.is_some() => {
            return Err(SampleError::KeysClash {
                key: "data.window",
                other: "data.text",
                reason: "windows over columns of text are not supported",
            });
        }
        (_, text) => text,
    };
    let layout = place_fields(&plan, text.map_or(0, |text| text.length));
    let bits = match plan.columns.iter().any(|planned| is_hashed(planned, spec)) {
        true => hash_bits(spec)?,
        false => 0,
    };
    let content = |planned: &Planned, is_label: bool| match planned.content {
        PlannedContent::Number(_) | PlannedContent::List(..) | PlannedContent::PairValues(_) => {
            FieldContent::Numbers
        }
        PlannedContent::Hashed { .. } => {
            FieldContent::Hashed { column: FeatureHash::of_column(&planned.name), bits }
        }
        PlannedContent::Buckets(_) => FieldContent::Buckets { known: None, largest: -1 },
        PlannedContent::Categories { .. } => {
            let one_hot = !is_label && spec.categories == CategoryForm::OneHot;
            let most = if one_hot { MOST_ONE_HOT } else { i32::MAX as usize };
            FieldContent::Values { dictionary: Dictionary::new(), missing: -1, most }
        }
        PlannedContent::Text => {
            let unit = text.map_or(TextUnit::Characters, |text| text.unit);
            // Bytes need no learning: their indexes are known.
            let (first, fill) = if unit == TextUnit::Bytes { (1, 0) } else { (0, -1) };
            FieldContent::Tokens { dictionary: Dictionary::new(), unit, first, fill }
        }
    };
    let fields =
        join_fields(plan, &layout, spec, |_, planned, is_label| content(planned, is_label));
    Ok((fields, layout))
}

/// Fields that know the values of an encoding.
fn known_fields(plan: Plan, encoding: &Encoding, spec: &DataSpec) -> (Vec<FieldScan>, Layout) {
    let length = encoding.columns().iter().find_map(|column| match &column.content {
        ContentEncoding::Text(vocabulary) => vocabulary.length,
        _ => None,
    });
    let layout = place_fields(&plan, length.unwrap_or(0));
    let values = |values: &Values| FieldContent::Values {
        dictionary: Dictionary::of_values(values),
        missing: values.missing_idx().unwrap_or(-1),
        most: usize::MAX,
    };
    let content = |at: usize, is_label: bool| match (is_label, encoding.label()) {
        (true, Some(label)) => match &label.content {
            LabelContent::Classes(classes) => values(classes),
            LabelContent::Number(_) => FieldContent::Numbers,
        },
        _ => match &encoding.columns()[at].content {
            ContentEncoding::OneHot(known) | ContentEncoding::Index(known) => values(known),
            ContentEncoding::Text(vocabulary) => FieldContent::Tokens {
                dictionary: Dictionary::of_vocabulary(vocabulary),
                unit: vocabulary.unit,
                first: vocabulary.first_idx(),
                fill: 0,
            },
            ContentEncoding::HashedValue { bits, .. } => {
                let column = FeatureHash::of_column(&encoding.columns()[at].name);
                FieldContent::Hashed { column, bits: *bits }
            }
            ContentEncoding::Buckets { n_buckets, .. } => {
                let n_buckets = i32::try_from(*n_buckets).unwrap_or(i32::MAX);
                FieldContent::Buckets { known: Some((n_buckets, spec.unknown)), largest: -1 }
            }
            _ => FieldContent::Numbers,
        },
    };
    let fields = join_fields(plan, &layout, spec, |at, _, is_label| content(at, is_label));
    (fields, layout)
}

fn join_fields(
    plan: Plan,
    layout: &Layout,
    spec: &DataSpec,
    content: impl Fn(usize, &Planned, bool) -> FieldContent,
) -> Vec<FieldScan> {
    let columns = plan.columns.into_iter().zip(&layout.columns).map(|pair| (pair, false));
    let label = plan.label.into_iter().zip(&layout.label).map(|pair| (pair, true));
    let all = columns.chain(label).enumerate();
    all.map(|(at, ((planned, field), is_label))| {
        let content = content(at, &planned, is_label);
        FieldScan::new(planned, *field, content, is_label, spec.missing)
    })
    .collect()
}
