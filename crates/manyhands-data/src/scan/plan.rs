//! What is read of each column, from the types of the files, the job and, for new data, the encoding.

use arrow::datatypes::{DataType, Field, Schema};

use crate::encoding::{ContentEncoding, Encoding, LabelContent, Target};
use crate::layout::Scalar;
use crate::read::{Block, INDICES, PAIRS_LABEL};
use crate::sample_error::{SampleError, nearest};
use crate::spec::{ColumnKind, DataSpec, Missing};

/// A column to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// Its place in the files.
    pub(crate) column: usize,
    pub(crate) name: String,
    pub(crate) content: PlannedContent,
}

/// What a column is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedContent {
    Number(Scalar),
    List(Scalar, usize),
    /// Categories or classes; whether the files have whole numbers rather than words.
    Categories {
        numeric: bool,
    },
    Text,
    /// Values that are hashed; whether the files have whole numbers rather than words.
    Hashed {
        numeric: bool,
    },
    /// So many indices of features.
    Buckets(usize),
    /// So many values of features.
    PairValues(usize),
}

/// The columns to predict from and the label.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) columns: Vec<Planned>,
    pub(crate) label: Option<Planned>,
    /// The shape that the one list column gives the features.
    pub(crate) shape: Option<Vec<usize>>,
}

/// What the type of a column can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Number(Scalar),
    Truth,
    Words,
    List(Scalar, usize),
}

fn found(data_type: &DataType) -> Option<Found> {
    use DataType as D;
    Some(match data_type {
        D::UInt8 => Found::Number(Scalar::U8),
        D::Int8 | D::Int16 | D::Int32 | D::UInt16 => Found::Number(Scalar::I32),
        D::Float16 | D::Float32 => Found::Number(Scalar::F32),
        D::Boolean => Found::Truth,
        D::Utf8 | D::LargeUtf8 | D::Utf8View => Found::Words,
        D::Dictionary(_, values) => found(values)?,
        D::FixedSizeList(item, n) => match found(item.data_type())? {
            Found::Number(scalar) => Found::List(scalar, usize::try_from(*n).ok()?),
            _ => return None,
        },
        data_type if data_type.is_numeric() || data_type.is_temporal() => {
            Found::Number(Scalar::F64)
        }
        _ => return None,
    })
}

/// What a column of a libsvm file is read as, where it is one of the two of features.
fn pairs(field: &Field) -> Option<PlannedContent> {
    let DataType::FixedSizeList(_, n) = field.data_type() else { return None };
    let n = usize::try_from(*n).ok()?;
    match field.metadata().get(Block::PAIRS)?.as_str() {
        INDICES => Some(PlannedContent::Buckets(n)),
        _ => Some(PlannedContent::PairValues(n)),
    }
}

/// The type that keeps missing numbers apart from others.
fn with_missing(scalar: Scalar, missing: Missing) -> Scalar {
    match (missing, scalar) {
        (Missing::Mean, Scalar::U8) => Scalar::F32,
        (Missing::Mean, Scalar::I32) => Scalar::F64,
        _ => scalar,
    }
}

impl Plan {
    /// What the job asks for of files with these columns.
    pub(crate) fn new(
        schema: &Schema,
        spec: &DataSpec,
        target: Target,
        file: &std::path::Path,
    ) -> Result<Self, SampleError> {
        let names = || schema.fields().iter().map(|field| field.name().as_str());
        let place = |key: &'static str, column: &str| {
            schema.index_of(column).map_err(|_| SampleError::NoColumn {
                key,
                column: column.into(),
                file: file.into(),
                available: nearest(column, names()),
            })
        };
        let has_pairs = schema.fields().iter().any(|field| pairs(field).is_some());
        let own_label = has_pairs.then(|| PAIRS_LABEL.to_string());
        let Some(label) = &spec.label.clone().or(own_label) else {
            return Err(SampleError::NoLabel { available: nearest("label", names()) });
        };
        let label_idx = place("data.label", label)?;
        let wanted: Vec<usize> = match &spec.features {
            Some(features) => {
                let places = features.iter().map(|column| place("data.features", column));
                places.collect::<Result<_, _>>()?
            }
            // What was is known when the future is predicted, the label's own past too.
            None => {
                let is_feature = |&idx: &usize| idx != label_idx || spec.window.is_some();
                (0..schema.fields().len()).filter(is_feature).collect()
            }
        };
        for column in spec.columns.keys() {
            // Columns that are ignored are not even read.
            if spec.columns[column] != ColumnKind::Ignore {
                place("data.columns", column)?;
            }
        }
        let mut columns = Vec::new();
        for idx in wanted {
            let name = schema.field(idx).name();
            if spec.columns.get(name) != Some(&ColumnKind::Ignore) {
                columns.push(plan_column(schema, idx, spec)?);
            }
        }
        if columns.is_empty() {
            return Err(SampleError::NoFeatures);
        }
        let label = Some(plan_label(schema, label_idx, target)?);
        let shape = spec.shape.clone().or_else(|| list_shape(schema, &columns, spec));
        Ok(Self { columns, label, shape })
    }

    /// What an encoding needs of files with these columns.
    pub(crate) fn of_encoding(
        schema: &Schema,
        encoding: &Encoding,
        spec: &DataSpec,
        with_label: bool,
        file: &std::path::Path,
    ) -> Result<Self, SampleError> {
        let mut columns = Vec::new();
        for column in encoding.columns() {
            let idx = match schema.index_of(&column.name) {
                Ok(idx) => idx,
                // Files of one array have no names for columns.
                Err(_) if encoding.columns().len() == 1 && is_array(schema) => 0,
                Err(_) => return Err(column_gone(schema, &column.name, file)),
            };
            columns.push(replan_column(schema, idx, &column.name, &column.content, spec)?);
        }
        let label = match encoding.label().filter(|_| with_label) {
            None => None,
            Some(label) => {
                let idx = schema
                    .index_of(&label.name)
                    .map_err(|_| column_gone(schema, &label.name, file))?;
                let (target, numeric) = match &label.content {
                    LabelContent::Classes(values) => (Target::Classes, Some(values.numeric)),
                    LabelContent::Number(_) => (Target::Numbers, None),
                };
                let mut planned = plan_label(schema, idx, target)?;
                if let Some(numeric) = numeric {
                    planned.content =
                        categories(schema, idx, numeric, "the classes of the trained model")?;
                }
                Some(planned)
            }
        };
        Ok(Self { columns, label, shape: None })
    }
}

/// Whether there is one column of lists.
fn is_array(schema: &Schema) -> bool {
    matches!(schema.fields().as_ref(), [field] if matches!(field.data_type(), DataType::FixedSizeList(..)))
}

fn column_gone(schema: &Schema, column: &str, file: &std::path::Path) -> SampleError {
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let available = nearest(column, names);
    SampleError::ColumnGone { column: column.into(), file: file.into(), available }
}

fn wrong_type(schema: &Schema, idx: usize, wanted: &'static str, advice: &str) -> SampleError {
    let field = schema.field(idx);
    let holds = match found(field.data_type()) {
        Some(Found::Number(_)) => "numbers".into(),
        Some(Found::Truth) => "truth values".into(),
        Some(Found::Words) => "words".into(),
        Some(Found::List(_, n)) => format!("lists of {n} numbers"),
        None => format!("values of type {}", field.data_type()),
    };
    SampleError::ColumnType { column: field.name().clone(), holds, wanted, advice: advice.into() }
}

fn plan_column(schema: &Schema, idx: usize, spec: &DataSpec) -> Result<Planned, SampleError> {
    let field = schema.field(idx);
    let name = field.name().clone();
    let found = found(field.data_type());
    if let Some(content) = pairs(field) {
        return Ok(Planned { column: idx, name, content });
    }
    let number = |scalar| PlannedContent::Number(with_missing(scalar, spec.missing));
    let content = match (spec.columns.get(&name), found) {
        (None | Some(ColumnKind::Number), Some(Found::Number(scalar))) => number(scalar),
        (None | Some(ColumnKind::Number), Some(Found::Truth)) => number(Scalar::U8),
        (None | Some(ColumnKind::Number), Some(Found::List(scalar, n))) => {
            PlannedContent::List(scalar, n)
        }
        (None, Some(Found::Words)) => PlannedContent::Categories { numeric: false },
        (Some(ColumnKind::Category), Some(Found::Number(_))) => {
            PlannedContent::Categories { numeric: true }
        }
        (Some(ColumnKind::Category), Some(Found::Words | Found::Truth)) => {
            PlannedContent::Categories { numeric: false }
        }
        (Some(ColumnKind::Text), Some(Found::Words)) => PlannedContent::Text,
        (kind, _) => {
            let wanted = match kind {
                Some(ColumnKind::Category) => "a category",
                Some(ColumnKind::Text) => "text",
                _ => "numbers",
            };
            let advice = format!("leave it out with `data.columns.{name} = \"ignore\"`");
            return Err(wrong_type(schema, idx, wanted, &advice));
        }
    };
    let content = match content {
        PlannedContent::Categories { numeric } if spec.hash.is_some() => {
            PlannedContent::Hashed { numeric }
        }
        content => content,
    };
    Ok(Planned { column: idx, name, content })
}

fn plan_label(schema: &Schema, idx: usize, target: Target) -> Result<Planned, SampleError> {
    let field = schema.field(idx);
    let content = match (target, found(field.data_type())) {
        (Target::Classes, Some(Found::Number(_))) => PlannedContent::Categories { numeric: true },
        (Target::Classes, Some(Found::Words | Found::Truth)) => {
            PlannedContent::Categories { numeric: false }
        }
        (Target::Numbers, Some(Found::Number(_) | Found::Truth)) => {
            PlannedContent::Number(Scalar::F64)
        }
        (Target::Numbers, _) => {
            let advice = "a loss for classes, such as `cross_entropy`, takes words";
            return Err(wrong_type(schema, idx, "the number to predict", advice));
        }
        _ => {
            let advice = "`data.label` must name a column of words or whole numbers";
            return Err(wrong_type(schema, idx, "the class to predict", advice));
        }
    };
    Ok(Planned { column: idx, name: field.name().clone(), content })
}

/// Reads a column as it was read when the model was trained.
fn replan_column(
    schema: &Schema,
    idx: usize,
    name: &str,
    content: &ContentEncoding,
    spec: &DataSpec,
) -> Result<Planned, SampleError> {
    let found = found(schema.field(idx).data_type());
    let advice = "the model was trained on it so";
    let number = |scalar| PlannedContent::Number(with_missing(scalar, spec.missing));
    if let Some(planned) = pairs(schema.field(idx)) {
        let fits = match (content, planned) {
            (ContentEncoding::Buckets { length: m, .. }, PlannedContent::Buckets(n))
            | (ContentEncoding::PairValues(m), PlannedContent::PairValues(n)) => *m == n,
            _ => false,
        };
        return match fits {
            true => Ok(Planned { column: idx, name: name.into(), content: planned }),
            false => Err(wrong_type(schema, idx, "what the model was trained on", advice)),
        };
    }
    let content = match (content, found) {
        (ContentEncoding::Number(_), Some(Found::Number(scalar))) => number(scalar),
        (ContentEncoding::Number(_), Some(Found::Truth)) => number(Scalar::U8),
        (ContentEncoding::Numbers(scales), Some(Found::List(scalar, n))) if n == scales.len() => {
            PlannedContent::List(scalar, n)
        }
        (ContentEncoding::Bytes(m), Some(Found::List(Scalar::U8, n))) if *m == n => {
            PlannedContent::List(Scalar::U8, n)
        }
        (ContentEncoding::OneHot(values) | ContentEncoding::Index(values), _) => {
            categories(schema, idx, values.numeric, "a category")?
        }
        (ContentEncoding::HashedNumber { .. }, Some(Found::Number(scalar))) => number(scalar),
        (ContentEncoding::HashedNumber { .. }, Some(Found::Truth)) => number(Scalar::U8),
        (ContentEncoding::HashedValue { numeric, .. }, _) => {
            categories(schema, idx, *numeric, "a category")?;
            PlannedContent::Hashed { numeric: *numeric }
        }
        (ContentEncoding::Text(_), Some(Found::Words)) => PlannedContent::Text,
        (ContentEncoding::Buckets { .. } | ContentEncoding::PairValues(_), _) => {
            return Err(wrong_type(schema, idx, "pairs of libsvm files", advice));
        }
        (ContentEncoding::Number(_) | ContentEncoding::HashedNumber { .. }, _) => {
            return Err(wrong_type(schema, idx, "a number", advice));
        }
        (ContentEncoding::Numbers(_) | ContentEncoding::Bytes(_), _) => {
            return Err(wrong_type(schema, idx, "a list of the size that was trained on", advice));
        }
        (ContentEncoding::Text(_), _) => return Err(wrong_type(schema, idx, "text", advice)),
    };
    Ok(Planned { column: idx, name: name.into(), content })
}

/// Categories as they were when the model was trained. Words are never taken for numbers, nor the other way round: `007`
/// is not 7.
fn categories(
    schema: &Schema,
    idx: usize,
    numeric: bool,
    wanted: &'static str,
) -> Result<PlannedContent, SampleError> {
    match (numeric, found(schema.field(idx).data_type())) {
        (true, Some(Found::Number(_))) | (false, Some(Found::Words | Found::Truth)) => {
            Ok(PlannedContent::Categories { numeric })
        }
        (true, _) => Err(wrong_type(schema, idx, wanted, "they were whole numbers")),
        (false, _) => Err(wrong_type(schema, idx, wanted, "they were words")),
    }
}

/// The shape of a row of lists, where one column of them is all there is to predict from.
fn list_shape(schema: &Schema, columns: &[Planned], spec: &DataSpec) -> Option<Vec<usize>> {
    let [column] = columns else { return None };
    let PlannedContent::List(_, n) = column.content else { return None };
    if spec.window.is_some() {
        return None;
    }
    let shape = schema.field(column.column).metadata().get(Block::SHAPE)?;
    let shape: Option<Vec<usize>> = shape.split(',').map(|n| n.trim().parse().ok()).collect();
    shape.filter(|shape| shape.iter().product::<usize>() == n)
}
