//! The coordinator's log on disk, of which one process at a time is the writer.
//!
//! It is replaced by a shorter one that comes to the same when it has grown: written beside it, flushed, and moved to its place, so that
//! at every moment there is one whole log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::coordinator::CoordinatorError;
use crate::membership::log::{Entry, decode, encode};
use crate::membership::remembered::Remembered;

/// A shorter log that is written, but not in its place yet, has this at the end of its name.
const NEW: &str = ".new";
/// A log is not replaced before it has this many bytes.
const WORTH_IT: u64 = 1 << 18;
/// Or this many at a start: members wait for the coordinator then, and a busy disk takes seconds for it.
const WORTH_IT_AT_START: u64 = 1 << 14;
/// Nor before it is so many times as long as it has to be.
const GROWTH: u64 = 4;

/// The log on disk.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    /// How long it was when it was last as short as it can be.
    n_shortest: u64,
    /// What it comes to; nothing if it has no entry yet.
    remembered: Option<Remembered>,
    /// Whether its name is on disk. Until it is, a power cut leaves the one before, or none, so no entry of this one counts.
    is_named: bool,
}

impl LogFile {
    /// Opens or creates it; what a crash cut short at its end is taken off.
    pub(super) fn open(path: &Path) -> Result<(LogFile, Vec<Entry>), CoordinatorError> {
        let failed = |source| CoordinatorError::LogFile { path: path.to_path_buf(), source };
        let mut file = open_locked(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let decoded = decode(&bytes)
            .map_err(|source| CoordinatorError::Log { path: path.to_path_buf(), source })?;
        let n_bytes = decoded.n_bytes as u64;
        file.set_len(n_bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let remembered = Remembered::read(&decoded.entries).ok();
        let (path, n_shortest, is_named) = (path.to_path_buf(), 0, false);
        let log = LogFile { path, file, n_bytes, n_shortest, remembered, is_named };
        Ok((log, decoded.entries))
    }

    /// Writes an entry, and has it on disk.
    pub(super) fn append(&mut self, entry: &Entry) -> Result<(), CoordinatorError> {
        let failed = |source| CoordinatorError::LogFile { path: self.path.clone(), source };
        let line = encode(entry).map_err(|error| failed(error.into()))?;
        self.file.write_all(line.as_bytes()).map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
        if !self.is_named {
            sync_folder(&self.path).map_err(failed)?;
            self.is_named = true;
        }
        self.n_bytes += line.len() as u64;
        match &mut self.remembered {
            Some(remembered) => remembered.note(entry),
            None => self.remembered = Remembered::read(std::slice::from_ref(entry)).ok(),
        }
        Ok(())
    }

    /// Whether a shorter one should take its place at a start.
    pub(super) fn is_long(&self) -> bool {
        self.n_bytes >= WORTH_IT_AT_START
    }

    /// Whether it has grown so much that a shorter one should take its place.
    pub(super) fn has_grown(&self) -> bool {
        self.n_bytes >= WORTH_IT.max(GROWTH * self.n_shortest)
    }

    /// Puts the shortest log that comes to the same in its place. Where that fails, this one is still good, and not tried again before it
    /// has grown much more.
    pub(super) fn shorten(&mut self) -> Result<(), CoordinatorError> {
        let failed = |source| CoordinatorError::LogFile { path: self.path.clone(), source };
        let Some(remembered) = &self.remembered else { return Ok(()) };
        self.n_shortest = self.n_bytes;
        let lines: Result<String, _> = remembered.entries().iter().map(encode).collect();
        let text = lines.map_err(|error| failed(error.into()))?;
        let beside = beside(&self.path);
        let file = write_whole(&beside, &text).map_err(failed)?;
        std::fs::rename(&beside, &self.path).map_err(failed)?;
        (self.file, self.n_bytes, self.n_shortest) = (file, text.len() as u64, text.len() as u64);
        self.is_named = false;
        Ok(())
    }
}

/// Where a shorter log is written.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(NEW);
    PathBuf::from(name)
}

/// Writes a file and has it on disk. It is locked before anyone can find it as the log.
fn write_whole(path: &Path, text: &str) -> std::io::Result<File> {
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    file.try_lock()?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(file)
}

/// Has it on disk that a file of this folder is another now.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn open_locked(path: &Path) -> Result<File, CoordinatorError> {
    let failed = |source| CoordinatorError::LogFile { path: path.to_path_buf(), source };
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(failed)?;
        if file.try_lock().is_err() {
            return Err(CoordinatorError::LogTaken { path: path.to_path_buf() });
        }
        // Between opening and locking its writer may have put another in its place.
        let own = file.metadata().map_err(failed)?;
        match std::fs::metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => return Ok(file),
            _ => continue,
        }
    }
}

#[cfg(test)]
mod tests;
