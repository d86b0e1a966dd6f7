//! Histories in files: a record a line, as JSON.
//!
//! Several lives of tables may be in one file: a run that goes on from a checkpoint has other tables, whose numbers begin anew. Every line says of which life it is.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::Record;
use crate::tables::message::Reach;

/// Why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be used.
    #[error("the history {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is no record.
    #[error("the history {path}, line {line}: {source}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Appends records to a file. Clones write to the same; several processes may append to one file, since a line is written at once.
#[derive(Clone)]
pub struct HistoryWriter {
    file: Arc<Mutex<File>>,
    life: Arc<str>,
}

/// A line of a history.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    /// The life of the tables that it is of.
    life: String,
    #[serde(flatten)]
    record: R,
}

/// What is in a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The records of each life, in the order in which these began.
    pub lives: Vec<Vec<Record>>,
    /// Whether the last line was cut short. It is left out.
    pub is_cut: bool,
}

impl HistoryWriter {
    /// Appends to a file, which is made where there is none.
    pub fn append(path: &Path) -> Result<HistoryWriter, HistoryError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file =
            file.map_err(|source| HistoryError::File { path: path.to_path_buf(), source })?;
        Ok(HistoryWriter { file: Arc::new(Mutex::new(file)), life: Arc::from("") })
    }

    /// The same for the tables of one director. No two directors have the same door.
    pub fn of(&self, director: &Reach) -> HistoryWriter {
        HistoryWriter { file: Arc::clone(&self.file), life: Arc::from(director.door.as_str()) }
    }

    /// Appends a record. A full disk costs the history, not the training.
    pub fn write(&self, record: &Record) {
        let line = Line { life: self.life.to_string(), record };
        if let Ok(mut line) = serde_json::to_vec(&line) {
            line.push(b'\n');
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = file.write_all(&line);
        }
    }
}

/// Reads a history.
pub fn read(path: &Path) -> Result<Recorded, HistoryError> {
    let failed = |source| HistoryError::File { path: path.to_path_buf(), source };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let mut recorded = Recorded::default();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        if reader.read_line(&mut text).map_err(failed)? == 0 {
            break;
        }
        if !text.ends_with('\n') {
            recorded.is_cut = true;
            break;
        }
        let Line { life, record } = serde_json::from_str(&text)
            .map_err(|source| HistoryError::Line { path: path.to_path_buf(), line, source })?;
        let place = *places.entry(life).or_insert(recorded.lives.len());
        if place == recorded.lives.len() {
            recorded.lives.push(Vec::new());
        }
        recorded.lives[place].push(record);
    }
    Ok(recorded)
}
