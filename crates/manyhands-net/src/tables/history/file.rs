//! Histories in files: a record a line, as JSON.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Record;

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
}

impl HistoryWriter {
    /// Appends to a file, which is made where there is none.
    pub fn append(path: &Path) -> Result<HistoryWriter, HistoryError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file =
            file.map_err(|source| HistoryError::File { path: path.to_path_buf(), source })?;
        Ok(HistoryWriter { file: Arc::new(Mutex::new(file)) })
    }

    /// Appends a record. A full disk costs the history, not the training.
    pub fn write(&self, record: &Record) {
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = file.write_all(&line);
        }
    }
}

/// Reads a history. A last line that was cut short is left out.
pub fn read(path: &Path) -> Result<Vec<Record>, HistoryError> {
    let failed = |source| HistoryError::File { path: path.to_path_buf(), source };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let mut records = Vec::new();
    let mut text = String::new();
    let mut line = 0;
    loop {
        text.clear();
        if reader.read_line(&mut text).map_err(failed)? == 0 {
            return Ok(records);
        }
        line += 1;
        match serde_json::from_str(&text) {
            Ok(record) => records.push(record),
            Err(_) if !text.ends_with('\n') => return Ok(records),
            Err(source) => {
                return Err(HistoryError::Line { path: path.to_path_buf(), line, source });
            }
        }
    }
}
