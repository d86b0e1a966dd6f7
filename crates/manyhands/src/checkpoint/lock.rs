//! One writer per output folder: an advisory lock that the operating system takes back when its holder dies.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::CheckpointError;
use crate::files::FileError;

/// The file that is locked. It stays when the lock is given back: removing it would let two others lock different files of the
/// same name.
const LOCK: &str = ".lock";

/// The right to write to a folder, until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a folder. Nothing where the file system knows no locks: training there is better than refusing to.
    pub(super) fn take(folder: &Path) -> Result<Option<Lock>, CheckpointError> {
        let path = folder.join(LOCK);
        let failed = |source| FileError::writing(folder, &path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let folder = folder.to_path_buf();
                return Err(CheckpointError::InUse { folder, pid: holder(&mut file) });
            }
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => return Ok(None),
            Err(errno) => return Err(failed(errno.into()).into()),
        }
        file.set_len(0).map_err(failed)?;
        file.write_all(std::process::id().to_string().as_bytes()).map_err(failed)?;
        Ok(Some(Lock { _file: file }))
    }
}

/// The process that holds the lock, if it has said so already.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
