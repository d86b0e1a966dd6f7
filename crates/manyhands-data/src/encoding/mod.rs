//! What was learned from the training part: the scales of numbers, the values of categories, the tokens of texts. Saved with the
//! model, it turns new data into the same inputs.

mod columns;
mod outputs;
mod vocabulary;

use serde::{Deserialize, Serialize};

pub(crate) use columns::{ColumnEncoding, ContentEncoding, Scale, Values, sort_values};
pub(crate) use outputs::RecordIndexes;
pub(crate) use vocabulary::{Vocabulary, words};

use crate::error::DataError;
use crate::sample_error::SampleError;
use crate::spec::WindowSpec;

/// What the loss wants of the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One of several classes.
    Classes,
    /// A number.
    Numbers,
    /// The token that follows, for each token of a text.
    NextToken,
}

/// The type of the elements of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 32-bit integers: indexes.
    I32,
    /// Bytes, which the model divides by 255: pixels travel in a quarter of the space.
    U8,
}

impl Element {
    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::U8 => 1,
        }
    }
}

/// Something that the model, or the loss, reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Its name: `features`, `tokens`, `label`, or that of a column.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// The shape for one sample.
    pub shape: Vec<usize>,
    /// How many different indexes there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_categories: Option<usize>,
}

/// Whether new data must have labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// It must.
    Required,
    /// They are used where they are there.
    IfPresent,
    /// They are not looked at.
    Ignored,
}

/// What was learned from the training part. It is saved with the model and knows no paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    version: Version,
    target: Target,
    sampling: Sampling,
    columns: Vec<ColumnEncoding>,
    label: Option<LabelEncoding>,
    inputs: Vec<Input>,
    output: Input,
}

/// How rows become samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sampling {
    /// Each row is one.
    Rows,
    /// Runs of rows.
    Windows(WindowSpec),
    /// Runs of tokens.
    Tokens { length: usize, stride: usize },
}

/// What was learned of the label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LabelEncoding {
    pub(crate) name: String,
    pub(crate) content: LabelContent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LabelContent {
    Classes(Values),
    Number(Scale),
}

/// The version of the saved form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version(u32);

const VERSION: u32 = 1;

impl TryFrom<u32> for Version {
    type Error = SampleError;

    fn try_from(found: u32) -> Result<Self, SampleError> {
        match found <= VERSION {
            true => Ok(Self(found)),
            false => Err(SampleError::Version { found, known: VERSION }),
        }
    }
}

impl From<Version> for u32 {
    fn from(version: Version) -> u32 {
        version.0
    }
}

impl Encoding {
    pub(crate) fn new(
        target: Target,
        sampling: Sampling,
        columns: Vec<ColumnEncoding>,
        label: Option<LabelEncoding>,
        shape: Option<&[usize]>,
    ) -> Result<Self, SampleError> {
        let inputs = outputs::inputs(&columns, sampling, shape)?;
        let output = outputs::output(target, &columns, sampling, label.as_ref());
        Ok(Self { version: Version(VERSION), target, sampling, columns, label, inputs, output })
    }

    /// What the model reads: `features` (f32, or u8 where all of them are bytes), `tokens` (i32) of plain text, and one i32 input for each indexed category or
    /// text column, named as the column.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// What the loss reads, `label`: the index of a class (i32), a number (f32), or the next tokens (i32).
    pub fn target(&self) -> Option<&Input> {
        Some(&self.output)
    }

    /// What the loss wants of the label.
    pub fn target_kind(&self) -> Target {
        self.target
    }

    /// The name of the label column; plain text has none.
    pub fn label_name(&self) -> Option<&str> {
        self.label.as_ref().map(|label| label.name.as_str())
    }

    /// The names of the classes in the order of their indexes: sorted, by size where they are numbers.
    pub fn classes(&self) -> Option<&[String]> {
        match &self.label.as_ref()?.content {
            LabelContent::Classes(values) => Some(&values.values),
            LabelContent::Number(_) => None,
        }
    }

    /// The mean and the scale of a label that is a number: `prediction * scale + mean` is in the units of the files. `(0, 1)`
    /// where labels are not scaled.
    pub fn label_scale(&self) -> (f64, f64) {
        match self.label.as_ref().map(|label| &label.content) {
            Some(LabelContent::Number(scale)) => (scale.offset, 1.0 / scale.inverse),
            _ => (0.0, 1.0),
        }
    }

    /// How many different tokens there are, of plain text or of the first text column, with those for unknown tokens and for
    /// filling up.
    pub fn vocabulary_size(&self) -> Option<usize> {
        self.vocabulary().map(Vocabulary::n_indexes)
    }

    /// The text of a token; `None` for unknown ones.
    pub fn token_text(&self, idx: usize) -> Option<String> {
        self.vocabulary()?.text(idx)
    }

    /// The tokens of a text, as many as it has. An unknown one is an error unless the training part allowed for them.
    pub fn encode_text(&self, text: &str) -> Result<Vec<i32>, DataError> {
        match self.vocabulary() {
            Some(vocabulary) => Ok(vocabulary.encode(text)?),
            None => Err(SampleError::NoVocabulary.into()),
        }
    }

    /// The text of tokens; unknown ones become `\u{fffd}`.
    pub fn decode_text(&self, tokens: &[i32]) -> Option<String> {
        Some(self.vocabulary()?.decode(tokens))
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.columns.iter().find_map(|column| match &column.content {
            ContentEncoding::Text(vocabulary) => Some(vocabulary),
            _ => None,
        })
    }

    pub(crate) fn columns(&self) -> &[ColumnEncoding] {
        &self.columns
    }

    pub(crate) fn label(&self) -> Option<&LabelEncoding> {
        self.label.as_ref()
    }

    pub(crate) fn sampling(&self) -> Sampling {
        self.sampling
    }
}
