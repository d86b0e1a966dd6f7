//! Why a job cannot be understood or done: where it stands, what is wrong, what would be right.

use std::fmt;
use std::path::PathBuf;

use super::check::CheckError;

/// Where something stands, to open a message with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a file, or in a text that came without one.
    Text {
        /// The file, where there is one.
        file: Option<PathBuf>,
        /// The line, 1 at the first.
        line: usize,
        /// The character in the line, 1 at the first.
        column: usize,
    },
    /// In a file as a whole.
    File(PathBuf),
    /// In an override, such as `train.epochs=3`.
    Setting(String),
    /// Nowhere that could be pointed at: the job was built, not written.
    #[default]
    Unknown,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Text { file: Some(file), line, column } => {
                write!(f, "{}:{line}:{column}: ", file.display())
            }
            Place::Text { file: None, line, column } => write!(f, "line {line}, column {column}: "),
            Place::File(file) => write!(f, "{}: ", file.display()),
            Place::Setting(text) => write!(f, "in the setting `{text}`: "),
            Place::Unknown => Ok(()),
        }
    }
}

/// Why a job was refused. The text names the place, the key and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("{}: the job cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The name of the file does not say how it is written.
    #[error("{}: a job is a .toml or a .json file", path.display())]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// The text is not TOML, or not JSON.
    #[error("{place}{problem}")]
    Syntax {
        /// Where reading failed.
        place: Place,
        /// What the parser says.
        problem: String,
    },
    /// No such key.
    #[error("{place}there is no key `{key}`; {advice}")]
    UnknownKey {
        /// Where it is written.
        place: Place,
        /// The key, with the tables around it.
        key: String,
        /// What may be meant.
        advice: Advice,
    },
    /// A key that a job must have.
    #[error("{place}the key `{key}` is missing: {about}")]
    MissingKey {
        /// The table that lacks it.
        place: Place,
        /// The key, with the tables around it.
        key: String,
        /// What it is.
        about: String,
    },
    /// A value of another type.
    #[error("{place}`{key}` must be {expected}, found {found}")]
    Type {
        /// Where it is written.
        place: Place,
        /// The key, with the tables around it.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A value that its type refuses for a reason of its own.
    #[error("{place}the job is not understood: {problem}")]
    Value {
        /// The file, where there is one.
        place: Place,
        /// What is wrong.
        problem: serde_json::Error,
    },
    /// An override that is not `key=value`.
    #[error(
        "`{text}` sets nothing; write key=value, such as train.epochs=3 or model.layers.0=\"dense 64 relu\""
    )]
    Setting {
        /// What was written.
        text: String,
    },
    /// An override of an entry that a list does not have.
    #[error(
        "in the setting `{text}`: `{key}` has {n} entries, so the index is at most {n}, which adds one; found `{index}`"
    )]
    Index {
        /// What was written.
        text: String,
        /// The list.
        key: String,
        /// How many entries it has.
        n: usize,
        /// What was asked for.
        index: String,
    },
    /// An override of something inside a value that has no inside.
    #[error(
        "in the setting `{text}`: `{key}` is {found}, which has no keys to set; set `{key}` as a whole"
    )]
    Inside {
        /// What was written.
        text: String,
        /// The value that has no keys.
        key: String,
        /// What it is.
        found: String,
    },
    /// A value that cannot be.
    #[error("{place}{problem}")]
    Check {
        /// Where it is written.
        place: Place,
        /// What is wrong.
        problem: CheckError,
    },
    /// The job cannot be written as TOML.
    #[error("the job cannot be written as TOML: {0}")]
    Write(#[from] toml::ser::Error),
}

impl From<CheckError> for JobError {
    fn from(problem: CheckError) -> JobError {
        JobError::Check { place: Place::Unknown, problem }
    }
}

/// What may be meant by a key that there is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// A key much like it.
    Near(String),
    /// Nothing alike: the keys that the table has.
    Known {
        /// The table; empty for the job itself.
        table: String,
        /// Its keys.
        keys: Vec<String>,
    },
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Advice::Near(key) => write!(f, "did you mean `{key}`?"),
            Advice::Known { table, keys } if table.is_empty() => {
                write!(f, "a job has {}", keys.join(", "))
            }
            Advice::Known { table, keys } => write!(f, "`{table}` has {}", keys.join(", ")),
        }
    }
}
