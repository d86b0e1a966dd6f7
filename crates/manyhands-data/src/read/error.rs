//! What can go wrong while files are found, opened and parsed.

use std::path::Path;
use std::sync::Arc;

use crate::objects::ObjectError;
use crate::spec::{Compression, FileFormat};

/// A file that cannot be found, opened or parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The sentences say what the fields are.
pub enum ReadError {
    /// The list of files is empty.
    #[error("the data names no files; give a path, a glob, or a list of them")]
    NoFiles,
    /// A glob without a match.
    #[error("no file matches `{glob}` in {}; check the pattern and the folder", .folder.display())]
    NoMatch { glob: String, folder: Arc<Path> },
    /// A glob that cannot be understood.
    #[error("`{glob}` is not a pattern for files: {reason}")]
    BadGlob { glob: String, reason: &'static str },
    /// A path without a file.
    #[error("there is no file {}", .file.display())]
    MissingFile { file: Arc<Path> },
    /// A folder where a file belongs.
    #[error("{} is a folder; name the files in it, such as `{}/*.csv`", .file.display(), .file.display())]
    Folder { file: Arc<Path> },
    /// The operating system refuses.
    #[error("{} cannot be read: {source}", .file.display())]
    Io { file: Arc<Path>, source: std::io::Error },
    /// A URL that cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The operating system gives no threads.
    #[error("no threads can be started to read with: {source}")]
    Threads { source: std::io::Error },
    /// A name that tells no format.
    #[error(
        "the name of {} does not tell what it is; set `data.format` to \"csv\", \"parquet\", \"jsonl\", \"libsvm\", \"idx\", \"npy\" or \"text\"",
        .file.display()
    )]
    UnknownFormat { file: Arc<Path> },
    /// Files of one source in several formats.
    #[error(
        "{} is {} and {} is {}; the files of one source must have one format",
        .first.display(), format_name(*.first_format), .file.display(), format_name(*.format)
    )]
    MixedFormats { first: Arc<Path>, first_format: FileFormat, file: Arc<Path>, format: FileFormat },
    /// The name promises a compression that the bytes do not have.
    #[error("{} is named as {} but does not start as {} does", .file.display(), compression_name(*.named), compression_name(*.named))]
    NotCompressed { file: Arc<Path>, named: Compression },
    /// A compressed file that ends early or is damaged.
    #[error("{} is damaged or cut short: its {} data cannot be unpacked ({source})", .file.display(), compression_name(*.compression))]
    Damaged { file: Arc<Path>, compression: Compression, source: std::io::Error },
    /// A table without even a header.
    #[error("{} is empty", .file.display())]
    Empty { file: Arc<Path> },
    /// A row with too few or too many cells.
    #[error(
        "line {line} of {} has {}, where {n_expected} {} expected",
        .file.display(), cells(*.n_found), if *.n_expected == 1 { "is" } else { "are" }
    )]
    Ragged { file: Arc<Path>, line: u64, n_found: usize, n_expected: usize },
    /// Bytes that are no text.
    #[error("line {line} of {} is not valid UTF-8; save the file as UTF-8", .file.display())]
    InvalidUtf8 { file: Arc<Path>, line: u64 },
    /// A word where a number belongs.
    #[error(
        "line {line} of {}, column `{column}`: `{cell}` is not a number; if the column holds words, set `data.columns.{} = \"category\"`",
        .file.display(), toml_key(.column)
    )]
    NotANumber { file: Arc<Path>, line: u64, column: String, cell: String },
    /// A quote without an end.
    #[error("line {line} of {} opens a quote that is never closed", .file.display())]
    UnclosedQuote { file: Arc<Path>, line: u64 },
    /// A quoted cell that goes on behind its quote.
    #[error(
        "line {line} of {} has text behind a closing quote; a quote inside a quoted cell is written twice",
        .file.display()
    )]
    AfterQuote { file: Arc<Path>, line: u64 },
    /// A line, or a quoted cell, beyond all measure.
    #[error("line {line} of {} is longer than {limit} bytes; is a quote not closed, or is this another format?", .file.display())]
    LineTooLong { file: Arc<Path>, line: u64, limit: usize },
    /// A column that is asked for and not there.
    #[error("{} has no column `{column}`; its columns are {known}", .file.display())]
    MissingColumn { file: Arc<Path>, column: String, known: String },
    /// A column that the first file does not have.
    #[error("{} has a column `{column}`, which {} does not have; the files of one source must have the same columns", .file.display(), .first.display())]
    ExtraColumn { file: Arc<Path>, column: String, first: Arc<Path> },
    /// A column that a later file does not have.
    #[error("{} has no column `{column}`, which {} has; the files of one source must have the same columns", .file.display(), .first.display())]
    LostColumn { file: Arc<Path>, column: String, first: Arc<Path> },
    /// A column that holds something else than in the first file.
    #[error("column `{column}` of {} holds {found}, and {expected} in {}; the files of one source must have the same columns", .file.display(), .first.display())]
    OtherType { file: Arc<Path>, column: String, found: String, expected: String, first: Arc<Path> },
    /// Two columns of one name.
    #[error("{} has two columns named `{column}`", .file.display())]
    DuplicateColumn { file: Arc<Path>, column: String },
    /// A column that cannot become part of a sample.
    #[error("column `{column}` of {} holds {found}, which cannot be read; set `data.columns.{} = \"ignore\"` to leave it out", .file.display(), toml_key(.column))]
    UnsupportedColumn { file: Arc<Path>, column: String, found: String },
    /// A list that is longer or shorter than the others of its column.
    #[error(
        "{place}, column `{column}`: the list has {n_found} numbers, where the ones before have {n_expected}"
    )]
    ListLength { place: String, column: String, n_found: usize, n_expected: usize },
    /// A null inside a list.
    #[error("{place}, column `{column}`: the list has an empty value in it")]
    ListNull { place: String, column: String },
    /// A line that is no JSON.
    #[error("line {line} of {} is not a JSON object: {reason}", .file.display())]
    Json { file: Arc<Path>, line: u64, reason: String },
    /// One JSON array instead of lines.
    #[error("{} is one JSON array; write one object a line instead (for example with `jq -c '.[]'`)", .file.display())]
    JsonArray { file: Arc<Path> },
    /// A JSON value that does not fit its column.
    #[error("line {line} of {}, column `{column}`: {found} does not fit, where the lines before have {expected}", .file.display())]
    JsonType {
        file: Arc<Path>,
        line: u64,
        column: String,
        found: &'static str,
        expected: &'static str,
    },
    /// A JSON list that is longer or shorter than the others of its column.
    #[error("line {line} of {}, column `{column}`: a list has {n_found} values, where the lines before have {n_expected}", .file.display())]
    JsonLength { file: Arc<Path>, line: u64, column: String, n_found: usize, n_expected: usize },
    /// A key that the first lines do not have.
    #[error(
        "line {line} of {} has a key `{key}` that the first lines do not have; set `data.columns.{} = \"ignore\"`, or name the columns in `data.features`",
        .file.display(), toml_key(.key)
    )]
    UnknownKey { file: Arc<Path>, line: u64, key: String },
    /// A line of pairs that does not begin with a number.
    #[error("line {line} of {} begins with `{label}`, where its label belongs, a number; then come pairs such as `7:0.5`", .file.display())]
    PairLabel { file: Arc<Path>, line: u64, label: String },
    /// Something that is no pair.
    #[error("line {line} of {}: `{pair}` is not an index and a value, such as `7:0.5`", .file.display())]
    Pair { file: Arc<Path>, line: u64, pair: String },
    /// The number of a query.
    #[error("line {line} of {} has a `qid`: files of queries, for ranking, are not read; take the `qid:` words out to use its rows one by one", .file.display())]
    QueryId { file: Arc<Path>, line: u64 },
    /// An index that is no index of a table.
    #[error("line {line} of {} has the index {index}, beyond 2147483646; let indices be hashed, with `data.hash = {{ bits = 20 }}`", .file.display())]
    LargeIndex { file: Arc<Path>, line: u64, index: u64 },
    /// More features than a sample has room for.
    #[error("line {line} of {} has {n_found} features, where {most} are the most; set `data.hash = {{ most = {n_found} }}`, or more, to train with room for them", .file.display())]
    TooManyPairs { file: Arc<Path>, line: u64, n_found: usize, most: usize },
    /// Parquet that cannot be read.
    #[error("{} cannot be read as Parquet: {source}", .file.display())]
    Parquet { file: Arc<Path>, source: parquet::errors::ParquetError },
    /// An array file that does not start as its format does.
    #[error("{} is not a readable {} file: {reason}", .file.display(), format_name(*.format))]
    BadHeader { file: Arc<Path>, format: FileFormat, reason: String },
    /// A NumPy array stored by columns.
    #[error("{} is stored in Fortran order; save it with `numpy.save(path, numpy.ascontiguousarray(array))`", .file.display())]
    FortranOrder { file: Arc<Path> },
    /// An array of something else than numbers.
    #[error("{} holds elements of type `{element}`; integers and floats of up to 64 bits can be read", .file.display())]
    UnknownElement { file: Arc<Path>, element: String },
    /// An array file shorter or longer than its header says.
    #[error("{} is cut short or damaged: its header promises {expected} bytes of data, {found} are there", .file.display())]
    WrongLength { file: Arc<Path>, expected: u64, found: u64 },
    /// Rows of another shape than in the first file.
    #[error("{} has {found} and {} has {expected}; the files of one source must have rows of one shape", .file.display(), .first.display())]
    OtherShape { file: Arc<Path>, found: String, first: Arc<Path>, expected: String },
    /// Files of one column each that do not have the same number of rows.
    #[error("{} has {n_rows} rows and {} has {n_first}; files of one column each must have the same number", .file.display(), .first.display())]
    RowCounts { first: Arc<Path>, n_first: u64, file: Arc<Path>, n_rows: u64 },
    /// A file of several columns where one belongs.
    #[error("{} has {n_columns} columns, none of them `{column}`; a file for one column has one column, or one of that name", .file.display())]
    NotOneColumn { file: Arc<Path>, column: String, n_columns: usize },
    /// Plain text as a column.
    #[error("{} is plain text, which has no rows; it cannot be the column `{column}`", .file.display())]
    TextColumn { file: Arc<Path>, column: String },
}

impl ReadError {
    /// Parsers count lines from the start of their block; only the one who puts blocks in order knows where that is.
    pub(super) fn shift_line(mut self, first_line: u64) -> ReadError {
        match &mut self {
            ReadError::Ragged { line, .. }
            | ReadError::InvalidUtf8 { line, .. }
            | ReadError::NotANumber { line, .. }
            | ReadError::UnclosedQuote { line, .. }
            | ReadError::AfterQuote { line, .. }
            | ReadError::LineTooLong { line, .. }
            | ReadError::Json { line, .. }
            | ReadError::JsonType { line, .. }
            | ReadError::JsonLength { line, .. }
            | ReadError::PairLabel { line, .. }
            | ReadError::Pair { line, .. }
            | ReadError::QueryId { line, .. }
            | ReadError::LargeIndex { line, .. }
            | ReadError::TooManyPairs { line, .. }
            | ReadError::UnknownKey { line, .. } => *line += first_line,
            _ => {}
        }
        self
    }
}

fn cells(n: usize) -> String {
    if n == 1 { "1 cell".into() } else { format!("{n} cells") }
}

/// A column's name as a key of the job file: quoted where TOML wants it.
fn toml_key(column: &str) -> String {
    let is_bare = !column.is_empty()
        && column.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if is_bare { column.into() } else { format!("{column:?}") }
}

fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "plain",
        Compression::Gzip => "gzip",
        Compression::Zstd => "Zstandard",
    }
}

fn format_name(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Csv => "CSV",
        FileFormat::Parquet => "Parquet",
        FileFormat::Jsonl => "JSON lines",
        FileFormat::Libsvm => "libsvm",
        FileFormat::Idx => "IDX",
        FileFormat::Npy => "NumPy",
        FileFormat::Text => "plain text",
    }
}
