//! The `[data]` table of a job: where the data is and how it is read. Doc comments are the documentation that users see.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the data is and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// The files to train on: a path or glob, a list of them, or a table of one file per column, such as
    /// `{ image = "images.idx.gz", label = "labels.idx.gz" }`. Relative paths start at the job file. URLs are read as files are:
    /// `s3://bucket/folder/part-*.csv`, `gs://`, `az://` (with globs; keys and endpoints come from the environment, such as
    /// `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`), `http://` and `https://`.
    pub train: Source,
    /// The files to test on when training is done, or the share of the training data to hold out for it (0.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<HeldOut>,
    /// The files to validate on after each epoch, or the share of the training data to hold out for it (0.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<HeldOut>,
    /// What the files are. Told from their names unless said; `.gz` and `.zst` behind the name are understood too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<FileFormat>,
    /// The column to predict. Not needed for plain text, where the next token is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether a label that is a number is scaled to mean 0 and standard deviation 1 for training. Predictions and metrics are
    /// in its own units either way.
    #[serde(default = "default_true")]
    pub scale_label: bool,
    /// The columns to predict from; all others than the label unless said. Windows over time see the label's own past too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<String>>,
    /// What single columns are, where it is not what they look like (numbers are numbers, words are categories).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, ColumnKind>,
    /// How numbers are brought to a common scale; fitted on the training part and saved with the model. Images of bytes are
    /// divided by 255 instead.
    #[serde(default)]
    pub normalise: Normalise,
    /// How categories enter the model: as one number per value (values in order, then one for unknown values where they are
    /// allowed), or as an index for an embedding (one input per column).
    #[serde(default)]
    pub categories: CategoryForm,
    /// What happens to a category or word that the training part does not have.
    #[serde(default)]
    pub unknown: Unknown,
    /// What happens to empty cells.
    #[serde(default)]
    pub missing: Missing,
    /// The cells that count as empty, besides empty ones.
    #[serde(default = "default_empty")]
    pub empty: Vec<String>,
    /// What separates cells of a CSV file.
    #[serde(default = "default_separator")]
    pub separator: char,
    /// Whether the first line of a CSV file has the names of the columns; without it they are `c0`, `c1`, ...
    #[serde(default = "default_true")]
    pub header: bool,
    /// The shape that the features of a sample form together, such as `[28, 28, 1]` (height, width, channels).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    /// Cuts a table, whose rows follow each other in time, into windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowSpec>,
    /// How text is cut into tokens, and tokens into sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextSpec>,
    /// Features as pairs of an index and a value, for `sparse_linear` and `factorization_machine`: the indices of libsvm files
    /// become buckets of a table of fixed size, and so do the columns of other files, which need no learning then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<HashSpec>,
    /// Whether the samples are visited in another order each epoch.
    #[serde(default = "default_true")]
    pub shuffle: bool,
    /// How many samples are shuffled together when there are more. Blocks of neighbouring samples are drawn in random order,
    /// and the samples of the blocks in the window are mixed. 64 MiB worth of them unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_window: Option<usize>,
    /// How much memory the data may take, in MiB; what is beyond goes into a temporary file. Half of what is free unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<usize>,
}

fn default_empty() -> Vec<String> {
    ["NA", "N/A", "NaN", "nan", "null", "NULL", "?"].map(String::from).into()
}

fn default_separator() -> char {
    ','
}

fn default_true() -> bool {
    true
}

/// Files to read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Source {
    /// A path, glob or URL.
    One(String),
    /// Several paths, globs or URLs, read in this order; the matches of a glob in the order of their names.
    Many(Vec<String>),
    /// One file per column.
    Columns(BTreeMap<String, String>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Source::One(path) => f.write_str(path),
            Source::Many(paths) => f.write_str(&paths.join(", ")),
            Source::Columns(columns) => {
                let paths: Vec<&str> = columns.values().map(String::as_str).collect();
                f.write_str(&paths.join(", "))
            }
        }
    }
}

/// Data that is not trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HeldOut {
    /// This share of the training data: rows drawn by the seed, or the last part of a text or of a table cut into windows.
    Share(f64),
    /// Files of its own.
    Files(Source),
}

impl From<&str> for Source {
    fn from(path: &str) -> Source {
        Source::One(path.to_string())
    }
}

impl From<Vec<String>> for Source {
    fn from(paths: Vec<String>) -> Source {
        Source::Many(paths)
    }
}

impl<const N: usize> From<[&str; N]> for Source {
    fn from(paths: [&str; N]) -> Source {
        Source::Many(paths.map(String::from).into())
    }
}

impl From<BTreeMap<String, String>> for Source {
    fn from(files: BTreeMap<String, String>) -> Source {
        Source::Columns(files)
    }
}

impl From<f64> for HeldOut {
    fn from(share: f64) -> HeldOut {
        HeldOut::Share(share)
    }
}

impl From<Source> for HeldOut {
    fn from(files: Source) -> HeldOut {
        HeldOut::Files(files)
    }
}

impl From<&str> for HeldOut {
    fn from(path: &str) -> HeldOut {
        HeldOut::Files(Source::from(path))
    }
}

/// Declares an enum of plain names.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* $variant),* }
    };
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileFormat {
    /// Comma-separated values (`.csv`, and `.tsv` with tabs).
    Csv,
    /// Parquet (`.parquet`).
    Parquet,
    /// One JSON object a line (`.jsonl`, `.ndjson`, `.json`).
    Jsonl,
    /// A label and pairs of index and value a line, `1 3:0.5 17:1` (`.libsvm`, `.svmlight`, `.svm`).
    Libsvm,
    /// The IDX format of MNIST (`.idx`, `-ubyte`).
    Idx,
    /// A NumPy array (`.npy`).
    Npy,
    /// Plain text (`.txt`).
    Text,
}

/// How a file is compressed, told from its name and its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip (`.gz`).
    Gzip,
    /// Zstandard (`.zst`).
    Zstd,
}

names! {
    /// What a column is.
    ColumnKind {
        /// A number.
        #[default]
        Number,
        /// One of a set of values.
        Category,
        /// Words or characters; see `data.text`.
        Text,
        /// Not used.
        Ignore,
    }
}

names! {
    /// How numbers are scaled.
    Normalise {
        /// To mean 0 and standard deviation 1.
        #[default]
        Standard,
        /// From the smallest and largest value to 0 and 1.
        Range,
        /// Not at all.
        None,
    }
}

names! {
    /// How categories enter the model.
    CategoryForm {
        /// One number per value: 1 for the one at hand, 0 for the others.
        #[default]
        OneHot,
        /// An index, for an embedding; each column is an input of its own.
        Index,
    }
}

names! {
    /// What happens to values that the training part does not have.
    Unknown {
        /// They are an error that says where.
        #[default]
        Error,
        /// They share one value of their own.
        Other,
    }
}

names! {
    /// What happens to empty cells.
    Missing {
        /// They are an error that says where.
        #[default]
        Error,
        /// Their rows are left out.
        Drop,
        /// Numbers get the mean of the training part, categories a value of their own.
        Mean,
        /// They get the value of the row before; rows before the first value are left out.
        Previous,
    }
}

/// Windows over the rows of a table: `length` rows to predict from, the label `horizon` rows after the last of them. Rows that
/// `data.missing` leaves out are left out before windows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// How many rows the model sees.
    pub length: usize,
    /// How many rows after the last of them the label is.
    #[serde(default = "default_one")]
    pub horizon: usize,
    /// How many rows the next window is further on.
    #[serde(default = "default_one")]
    pub stride: usize,
}

fn default_one() -> usize {
    1
}

/// Features as pairs of an index and a value. Of a column of words, `column=value` is hashed and has the value 1; of a column
/// of numbers, `column` is, and the (scaled) number is its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HashSpec {
    /// Features go to 2 to the power of `bits` buckets, by their hash (1 to 30). Without it the indices of libsvm files stay as
    /// they are; other files need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u32>,
    /// The most features that a line of a libsvm file may have; as many as the training files have unless said, for which they
    /// are read twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<usize>,
}

/// Text as tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextSpec {
    /// What a token is.
    #[serde(default)]
    pub unit: TextUnit,
    /// How many tokens a sequence has. Texts of a column are cut or filled up to it.
    pub length: usize,
    /// How many tokens the next sequence of a plain text is further on; `length` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<usize>,
    /// The most different tokens; rarer ones are unknown. No limit unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
}

names! {
    /// What a token is.
    TextUnit {
        /// A character.
        #[default]
        Characters,
        /// A byte; the vocabulary is 256.
        Bytes,
        /// A run of letters and digits, or one other visible character.
        Words,
    }
}
