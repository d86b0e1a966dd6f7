//! What can go wrong between blocks and batches, as sentences for the person whose data it is.

use std::io;
use std::path::PathBuf;

use crate::read::Place;
use crate::split::PartName;

/// An error of the columns, values and samples of the data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A key names a column that is not there.
    #[error("`{key}` names the column `{column}`, which {file} does not have; it has {available}", file = .file.display())]
    NoColumn {
        /// The key of the job.
        key: &'static str,
        /// What it names.
        column: String,
        /// The file.
        file: PathBuf,
        /// The columns there are, the nearest first.
        available: String,
    },
    /// The loss needs a label and the job names none.
    #[error("the loss needs a label: say `data.label`, one of {available}")]
    NoLabel {
        /// The columns there are.
        available: String,
    },
    /// A column that the model was trained on is not in the data.
    #[error("{file} has no column `{column}`, which the model was trained on; it has {available}", file = .file.display())]
    ColumnGone {
        /// The column.
        column: String,
        /// The file.
        file: PathBuf,
        /// The columns there are, the nearest first.
        available: String,
    },
    /// Nothing is left to predict from.
    #[error(
        "there is no column to predict from besides the label; see `data.features` and `data.columns`"
    )]
    NoFeatures,
    /// A column holds something that cannot be used as asked.
    #[error("the column `{column}` holds {holds}, which cannot be used as {wanted}; {advice}")]
    ColumnType {
        /// The column.
        column: String,
        /// What is in it.
        holds: String,
        /// What it was to be used as.
        wanted: &'static str,
        /// What would be right.
        advice: String,
    },
    /// A cell is empty.
    #[error(
        "{place}, column `{column}`: the cell is empty; `data.missing` says what to do with empty cells (\"drop\", \"mean\", \"previous\")"
    )]
    EmptyCell {
        /// Where.
        place: Place,
        /// The column.
        column: String,
    },
    /// A cell is empty that cannot be filled with a mean.
    #[error(
        "{place}, column `{column}`: the cell is empty, and {what} cannot be filled in; `data.missing = \"drop\"` leaves such rows out"
    )]
    EmptyLabel {
        /// Where.
        place: Place,
        /// The column.
        column: String,
        /// A label or an image.
        what: &'static str,
    },
    /// A number is not a number, infinite, or too large.
    #[error(
        "{place}, column `{column}`: the number is {value:e}; numbers must be finite and fit into 32 bits, so below 3.4e38 (an empty cell, or a word of `data.empty`, counts as missing)"
    )]
    NotFinite {
        /// Where.
        place: Place,
        /// The column.
        column: String,
        /// What it is.
        value: f64,
    },
    /// A number is not whole where a class or category is wanted.
    #[error(
        "{place}, column `{column}`: {value} is not whole, but {what} are words or whole numbers{advice}"
    )]
    NotWhole {
        /// Where.
        place: Place,
        /// The column.
        column: String,
        /// What it is.
        value: f64,
        /// Classes or categories.
        what: &'static str,
        /// What would be right.
        advice: &'static str,
    },
    /// A table of features that is too small or too large.
    #[error("`data.hash.bits` must be between 1 and {most}, not {bits}")]
    HashBits {
        /// What the job says.
        bits: u32,
        /// The most there may be.
        most: u32,
    },
    /// A value is not among those of the training part.
    #[error(
        "{place}, column `{column}`: the training part does not have `{value}`; `data.unknown = \"other\"` lets such values share one of their own"
    )]
    UnknownValue {
        /// Where.
        place: Place,
        /// The column.
        column: String,
        /// The value.
        value: String,
    },
    /// A class is not among those of the training part.
    #[error(
        "{place}, column `{column}`: the label `{value}` is none of the {n_classes} classes of the training part ({classes})"
    )]
    UnknownClass {
        /// Where.
        place: Place,
        /// The column.
        column: String,
        /// The value.
        value: String,
        /// How many classes there are.
        n_classes: usize,
        /// The first few of them.
        classes: String,
    },
    /// A column has too many values for one number each.
    #[error(
        "column `{column}` has more than {most} different values, too many for one number each; `data.categories = \"index\"` with an embedding takes them, `data.columns.{column} = \"ignore\"` leaves the column out"
    )]
    TooManyValues {
        /// The column.
        column: String,
        /// The most values.
        most: usize,
    },
    /// An input would have the name of another.
    #[error(
        "the column `{column}` would be an input of that name, which is taken; rename the column"
    )]
    NameTaken {
        /// The column.
        column: String,
    },
    /// The shape does not hold the features.
    #[error("`data.shape` is {shape:?}, {product} numbers, but a sample has {n_features} features")]
    Shape {
        /// The shape.
        shape: Vec<usize>,
        /// Its product.
        product: usize,
        /// How many there are.
        n_features: usize,
    },
    /// The separator is not a single byte.
    #[error(
        "`data.separator` is {separator:?}; it must be one ASCII character, such as \",\" or \"\\t\""
    )]
    Separator {
        /// What it is.
        separator: char,
    },
    /// A share is not between 0 and 1.
    #[error("`{key}` is {share}; a share to hold out is more than 0 and less than 1")]
    Share {
        /// The key of the job.
        key: &'static str,
        /// What it is.
        share: f64,
    },
    /// The shares take everything.
    #[error("`data.validation` ({validation}) and `data.test` ({test}) leave nothing to train on")]
    NothingToTrainOn {
        /// The validation share.
        validation: f64,
        /// The test share.
        test: f64,
    },
    /// A column has no values at all in the training part.
    #[error(
        "the column `{column}` has no values in the training part; `data.columns.{column} = \"ignore\"` leaves it out"
    )]
    NoValues {
        /// The column.
        column: String,
    },
    /// A part has no samples.
    #[error("the {part} part has no {what}: {reason}")]
    EmptyPart {
        /// The part.
        part: PartName,
        /// Rows, windows or sequences.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// A number that must be at least 1 is 0.
    #[error("`{key}` is 0; it must be at least 1")]
    Zero {
        /// The key of the job.
        key: &'static str,
    },
    /// A key is needed and not there.
    #[error("{what} needs `{key}`, such as {example}")]
    KeyNeeded {
        /// The key.
        key: &'static str,
        /// What needs it.
        what: &'static str,
        /// An example.
        example: &'static str,
    },
    /// Two keys do not go together.
    #[error("`{key}` and `{other}` do not go together: {reason}")]
    KeysClash {
        /// A key.
        key: &'static str,
        /// The other.
        other: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// A text to encode has a token that the training part does not have.
    #[error(
        "the text has `{token}`, which the training part does not have; train with `data.unknown = \"other\"` to allow for it"
    )]
    UnknownToken {
        /// The token.
        token: String,
    },
    /// There is no text in the data.
    #[error("the model was not trained on text, so there is no vocabulary to encode text with")]
    NoVocabulary,
    /// The next token is predicted, of something other than text.
    #[error(
        "the loss predicts the next token, which takes plain text (`.txt` files, or `data.format = \"text\"`); there are the columns {available}"
    )]
    NotPlainText {
        /// The columns there are.
        available: String,
    },
    /// The temporary file cannot be written or read.
    #[error("the data does not fit in memory, and {what} the temporary file for it in {folder} failed at {bytes} bytes: {error}; free space there, or allow more memory with `data.memory`", folder = .folder.display())]
    Spill {
        /// Writing or reading.
        what: &'static str,
        /// The folder.
        folder: PathBuf,
        /// How large the file was to be.
        bytes: u64,
        /// Why.
        error: io::Error,
    },
    /// The thread that fills batches could not start.
    #[error("the thread that fills batches cannot start: {0}")]
    Thread(io::Error),
    /// The thread that fills batches stopped before its time.
    #[error("the thread that fills batches stopped: {reason}")]
    ThreadStopped {
        /// What it said.
        reason: String,
    },
    /// The saved encoding is of a newer version.
    #[error(
        "the saved encoding of the data has version {found}; this program knows versions up to {known}"
    )]
    Version {
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
}

/// The names there are, those nearest to the wanted one first.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    let distance = |name: &str| {
        let (wanted, name) = (wanted.to_lowercase(), name.to_lowercase());
        // A name that goes on where the wanted one ends is near, however long it is.
        let is_part = name.contains(&wanted) || wanted.contains(&name);
        (!is_part, strsim::damerau_levenshtein(&wanted, &name))
    };
    let mut names: Vec<_> = names.map(|name| (distance(name), name)).collect();
    names.sort_by_key(|&(distance, _)| distance);
    let shown: Vec<String> = names.iter().take(SHOWN).map(|(_, n)| format!("`{n}`")).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match shown.is_empty() {
        true => "no columns".into(),
        false => format!("{}{more}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_comes_first() {
        let names = ["age", "income", "label"];
        assert_eq!(nearest("lable", names.into_iter()), "`label`, `age`, `income`");
        let many: Vec<String> = (0..20).map(|i| format!("c{i}")).collect();
        assert!(nearest("c3", many.iter().map(String::as_str)).ends_with(" and 8 more"));
        assert_eq!(nearest("PM", ["No", "hour", "pm2.5"].into_iter()), "`pm2.5`, `No`, `hour`");
        assert_eq!(nearest("x", std::iter::empty()), "no columns");
    }
}
