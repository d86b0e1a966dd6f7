//! The inputs that an encoding makes of a sample, and the steps that make them of records.

use super::{
    ColumnEncoding, ContentEncoding, Element, Encoding, Input, LabelContent, LabelEncoding,
    Sampling, Target,
};
use crate::gather::{Indexes, Output, Scales, Step};
use crate::layout::{Field, Layout, Scalar};
use crate::read::{INDICES, VALUES};
use crate::sample_error::SampleError;

impl ContentEncoding {
    /// How many numbers it adds to the features; `None` where it is an input of its own.
    fn n_features(&self) -> Option<usize> {
        match self {
            Self::Number(_) => Some(1),
            Self::Numbers(scales) => Some(scales.len()),
            Self::Bytes(n) => Some(*n),
            Self::OneHot(values) => Some(values.n_indexes()),
            Self::Index(_) | Self::Text(_) => None,
            Self::Buckets { .. } | Self::PairValues(_) => None,
            Self::HashedValue { .. } | Self::HashedNumber { .. } => None,
        }
    }
}

impl Sampling {
    /// The rows of a sample that the inputs see.
    fn n_rows(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Windows(window) => window.length,
            Self::Tokens { length, .. } => length,
        }
    }

    /// The rows that the target is made of: the first, and how many.
    fn target_rows(self) -> (usize, usize) {
        match self {
            Self::Rows => (0, 1),
            Self::Windows(window) => (window.length - 1 + window.horizon, 1),
            Self::Tokens { length, .. } => (1, length),
        }
    }

    /// How many rows the next sample is further on.
    pub(crate) fn stride(self) -> u64 {
        match self {
            Self::Rows => 1,
            Self::Windows(window) => window.stride as u64,
            Self::Tokens { stride, .. } => stride as u64,
        }
    }

    /// The axis of the rows of a sample, where there is one.
    fn axis(self) -> Vec<usize> {
        match self {
            Self::Rows => Vec::new(),
            Self::Windows(_) | Self::Tokens { .. } => vec![self.n_rows()],
        }
    }
}

/// The inputs of the model.
pub(super) fn inputs(
    columns: &[ColumnEncoding],
    sampling: Sampling,
    shape: Option<&[usize]>,
) -> Result<Vec<Input>, SampleError> {
    let mut inputs = Vec::new();
    let n_features: usize = columns.iter().filter_map(|column| column.content.n_features()).sum();
    if n_features > 0 {
        let shape = features_shape(n_features, sampling, shape)?;
        let is_feature = |column: &&ColumnEncoding| column.content.n_features().is_some();
        let mut features = columns.iter().filter(is_feature);
        let all_bytes = features.all(|one| matches!(one.content, ContentEncoding::Bytes(_)));
        let element = if all_bytes { Element::U8 } else { Element::F32 };
        inputs.push(Input { name: "features".into(), element, shape, n_categories: None });
    }
    inputs.extend(pair_inputs(columns, sampling).into_iter().flatten());
    let n_own = inputs.len();
    for column in columns {
        let (n_categories, length) = match &column.content {
            ContentEncoding::Index(values) => (values.n_indexes(), None),
            ContentEncoding::Text(vocabulary) => (vocabulary.n_indexes(), vocabulary.length),
            _ => continue,
        };
        let name = match sampling {
            Sampling::Tokens { .. } => "tokens".into(),
            _ => column.name.clone(),
        };
        let taken = inputs[..n_own].iter().any(|input| input.name == name);
        if taken || name == "features" || name == "label" {
            return Err(SampleError::NameTaken { column: name });
        }
        let mut shape = sampling.axis();
        shape.extend(length);
        inputs.push(Input { name, element: Element::I32, shape, n_categories: Some(n_categories) });
    }
    Ok(inputs)
}

/// The indices and the values of features that come as pairs.
fn pair_inputs(columns: &[ColumnEncoding], sampling: Sampling) -> Option<[Input; 2]> {
    let pairs = || columns.iter().filter_map(|column| column.content.pairs());
    let n_buckets = pairs().map(|(_, n_buckets)| n_buckets).max()?;
    let mut shape = sampling.axis();
    shape.push(pairs().map(|(n, _)| n).sum());
    let input = |name: &str, element, n_categories| {
        let (name, shape) = (name.to_string(), shape.clone());
        Input { name, element, shape, n_categories }
    };
    Some([input(INDICES, Element::I32, Some(n_buckets)), input(VALUES, Element::F32, None)])
}

fn features_shape(
    n_features: usize,
    sampling: Sampling,
    shape: Option<&[usize]>,
) -> Result<Vec<usize>, SampleError> {
    let Some(shape) = shape else {
        let mut shape = sampling.axis();
        shape.push(n_features);
        return Ok(shape);
    };
    let n_features = n_features * sampling.n_rows();
    let product = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(usize::MAX);
    match product == n_features {
        true => Ok(shape.to_vec()),
        false => Err(SampleError::Shape { shape: shape.to_vec(), product, n_features }),
    }
}

/// What the loss reads.
pub(super) fn output(
    target: Target,
    columns: &[ColumnEncoding],
    sampling: Sampling,
    label: Option<&LabelEncoding>,
) -> Input {
    let name = "label".into();
    let classes = label.and_then(|label| match &label.content {
        LabelContent::Classes(values) => Some(values.values.len()),
        LabelContent::Number(_) => None,
    });
    let (element, shape, n_categories) = match target {
        Target::Classes => (Element::I32, Vec::new(), classes),
        Target::Numbers => (Element::F32, Vec::new(), None),
        Target::NextToken => {
            let tokens = columns.iter().find_map(|column| match &column.content {
                ContentEncoding::Text(vocabulary) => Some(vocabulary.n_indexes()),
                _ => None,
            });
            (Element::I32, sampling.axis(), tokens)
        }
    };
    Input { name, element, shape, n_categories }
}

/// From the numbers in records to the indexes of the encoding, for each column and the label.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordIndexes {
    pub(crate) columns: Vec<Indexes>,
    pub(crate) label: Indexes,
}

impl Encoding {
    /// The steps that make inputs and target of records of this layout.
    pub(crate) fn outputs(
        &self,
        layout: &Layout,
        indexes: &RecordIndexes,
    ) -> (Vec<Output>, Option<Output>) {
        let n_rows = self.sampling.n_rows();
        let output = |steps| Output { first_row: 0, n_rows, row_bytes: 0, steps };
        let mut features = output(Vec::new());
        let mut pairs = [output(Vec::new()), output(Vec::new())];
        let mut others = Vec::new();
        let element = self.inputs.first().map_or(Element::F32, |input| input.element);
        for (at, (column, field)) in self.columns.iter().zip(&layout.columns).enumerate() {
            if push_pairs(&column.content, field, &mut pairs) {
                continue;
            }
            let indexes = indexes.columns.get(at).cloned().flatten();
            let step = match (&column.content, element) {
                (ContentEncoding::Bytes(n), Element::U8) => {
                    Step::Copy { from: field.offset, n: *n, to: features.row_bytes }
                }
                (content, _) => step(content, field, indexes, features.row_bytes),
            };
            match column.content.n_features() {
                Some(n) => {
                    features.push(step);
                    features.row_bytes += n * element.size();
                }
                None => others.push(Output { row_bytes: field.n * 4, ..output(vec![step]) }),
            }
        }
        let mut inputs = Vec::new();
        if features.row_bytes > 0 {
            inputs.push(features);
        }
        inputs.extend(pairs.into_iter().filter(|output| output.row_bytes > 0));
        inputs.extend(others);
        let target = self.target_output(layout, indexes);
        (inputs, target)
    }

    fn target_output(&self, layout: &Layout, indexes: &RecordIndexes) -> Option<Output> {
        let (first_row, n_rows) = self.sampling.target_rows();
        let field = match self.sampling {
            Sampling::Tokens { .. } => layout.columns.first()?,
            _ => layout.label.as_ref()?,
        };
        let (from, scalar) = (field.offset, field.scalar);
        let step = match self.label.as_ref().map(|label| &label.content) {
            Some(LabelContent::Number(scale)) => {
                let mut scales = Scales::default();
                scales.push(scale);
                Step::Numbers { from, scalar, scales, to: 0 }
            }
            Some(LabelContent::Classes(_)) => {
                Step::Indexes { from, scalar, n: 1, indexes: indexes.label.clone(), to: 0 }
            }
            None => {
                let indexes = indexes.columns.first().cloned().flatten();
                Step::Indexes { from, scalar, n: 1, indexes, to: 0 }
            }
        };
        Some(Output { first_row, n_rows, row_bytes: 4, steps: vec![step] })
    }
}

/// Adds what a column has of the pairs to indices and values; whether it has any.
fn push_pairs(content: &ContentEncoding, field: &Field, pairs: &mut [Output; 2]) -> bool {
    let &Field { offset: from, scalar, n } = field;
    let [indices, values] = pairs;
    let (index_at, value_at) = (indices.row_bytes, values.row_bytes);
    let copied = Step::Indexes { from, scalar, n, indexes: None, to: index_at };
    let (index, value) = match content {
        ContentEncoding::Buckets { .. } => (Some(copied), None),
        ContentEncoding::PairValues(n) => (None, Some(Step::Copy { from, n: n * 4, to: value_at })),
        ContentEncoding::HashedValue { .. } => {
            (Some(copied), Some(Step::Present { from, to: value_at }))
        }
        ContentEncoding::HashedNumber { bucket, scale, .. } => {
            let mut scales = Scales::default();
            scales.push(scale);
            let index = Step::Constant { index: *bucket, to: index_at };
            (Some(index), Some(Step::Numbers { from, scalar, scales, to: value_at }))
        }
        _ => return false,
    };
    if let Some(step) = index {
        indices.push(step);
        indices.row_bytes += n * 4;
    }
    if let Some(step) = value {
        values.push(step);
        values.row_bytes += n * 4;
    }
    true
}

/// The step of a column; `to` is where its features go.
fn step(content: &ContentEncoding, field: &Field, indexes: Indexes, to: usize) -> Step {
    let &Field { offset: from, scalar, n } = field;
    let numbers = |scales: &[super::Scale]| {
        let mut run = Scales::default();
        scales.iter().for_each(|scale| run.push(scale));
        Step::Numbers { from, scalar, scales: run, to }
    };
    match content {
        ContentEncoding::Number(scale) => numbers(std::slice::from_ref(scale)),
        ContentEncoding::Numbers(scales) => numbers(scales),
        ContentEncoding::Bytes(n) => Step::Bytes { from, n: *n, to },
        ContentEncoding::OneHot(values) => {
            debug_assert_eq!(scalar, Scalar::I32);
            Step::OneHot { from, n: values.n_indexes(), indexes, to }
        }
        // The others are pairs.
        _ => Step::Indexes { from, scalar, n, indexes, to: 0 },
    }
}
