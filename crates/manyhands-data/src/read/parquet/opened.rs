//! The files that lanes read side by side: opened once for all of them, so that a footer is fetched and a packed file is
//! unpacked once.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::super::ReadError;
use super::file::ParquetFile;
use crate::objects::Stamp;

/// Files, and which of them are open.
pub(super) struct OpenedFiles {
    files: Vec<Arc<Path>>,
    opened: Mutex<Vec<Shared>>,
}

#[derive(Clone, Default)]
struct Shared {
    /// As long as a lane reads it.
    file: Weak<ParquetFile>,
    /// Of an object, from the first time that it was opened: lanes that come to it later must find the same.
    stamp: Option<Stamp>,
}

impl OpenedFiles {
    pub(super) fn new(files: &[Arc<Path>]) -> OpenedFiles {
        let opened = Mutex::new(vec![Shared::default(); files.len()]);
        OpenedFiles { files: files.to_vec(), opened }
    }

    /// The first file, for messages.
    pub(super) fn first(&self) -> Arc<Path> {
        self.files[0].clone()
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn open(&self, file_idx: usize) -> Result<Arc<ParquetFile>, ReadError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &mut opened[file_idx];
        if let Some(file) = shared.file.upgrade() {
            return Ok(file);
        }
        let file = Arc::new(ParquetFile::open(&self.files[file_idx], shared.stamp.clone())?);
        *shared = Shared { file: Arc::downgrade(&file), stamp: file.stamp().cloned() };
        Ok(file)
    }
}
