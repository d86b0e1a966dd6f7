//! Files that are there whole or not at all, after a kill or a power cut too: written aside, synced, renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why a file could not be written or read.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum FileError {
    #[error("the disk of {} is full; free some space or choose another output folder", folder.display())]
    DiskFull { folder: PathBuf },
    #[error("{} cannot be written ({reason}); choose an output folder that can", folder.display())]
    ReadOnly { folder: PathBuf, reason: &'static str },
    #[error("{} could not be {action}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl FileError {
    /// What a failed write means to a person. `folder` is the output folder that was asked for: where the folder as a whole
    /// is the trouble, a path inside it would only distract.
    pub(crate) fn writing(folder: &Path, path: &Path, source: io::Error) -> FileError {
        let folder = folder.to_path_buf();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FileError::DiskFull { folder },
            ErrorKind::ReadOnlyFilesystem => {
                FileError::ReadOnly { folder, reason: "its file system is read-only" }
            }
            ErrorKind::PermissionDenied => {
                FileError::ReadOnly { folder, reason: "permission denied" }
            }
            _ => FileError::Io { action: "written", path: path.to_path_buf(), source },
        }
    }

    /// A failed read.
    pub(crate) fn reading(path: &Path, source: io::Error) -> FileError {
        FileError::Io { action: "read", path: path.to_path_buf(), source }
    }
}

/// The length and the checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct FileDigest {
    /// Its length.
    pub(crate) bytes: u64,
    /// The SHA-256 of its bytes, in hexadecimal.
    pub(crate) sha256: String,
}

impl FileDigest {
    /// The digest of bytes in memory.
    pub(crate) fn of(bytes: &[u8]) -> FileDigest {
        FileDigest { bytes: bytes.len() as u64, sha256: hexadecimal(&Sha256::digest(bytes)) }
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Writes a new file through `fill` and syncs it to the disk; gives its digest.
pub(crate) fn write_synced(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<FileDigest> {
    let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut hashing = Hashing { file, hash: Sha256::new(), n_bytes: 0 };
    fill(&mut hashing)?;
    let file = hashing.file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    let sha256 = hexadecimal(&hashing.hash.finalize());
    Ok(FileDigest { bytes: hashing.n_bytes, sha256 })
}

/// Makes the entries of a folder (new names, renames) last.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network and user-space file systems sync files only; names there last when the server says so.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}

/// What the name of a file written aside starts with, before it is renamed.
pub(crate) const ASIDE: &str = ".writing-";

/// Puts a file into a folder: readers see the old one or the new one, never a part.
pub(crate) fn replace_file(
    folder: &Path,
    name: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<FileDigest, FileError> {
    let aside = folder.join(format!("{ASIDE}{}-{name}", std::process::id()));
    let path = folder.join(name);
    let written = write_synced(&aside, fill).and_then(|digest| {
        fs::rename(&aside, &path)?;
        sync_folder(folder)?;
        Ok(digest)
    });
    written.map_err(|source| {
        // The error that matters is the first one; a leftover is removed by the next writer.
        let _ = fs::remove_file(&aside);
        FileError::writing(folder, &path, source)
    })
}

/// Counts and hashes what passes.
struct Hashing {
    file: BufWriter<File>,
    hash: Sha256,
    n_bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_written = self.file.write(bytes)?;
        self.hash.update(&bytes[..n_written]);
        self.n_bytes += n_written as u64;
        Ok(n_written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_has_the_digest_that_its_bytes_have() {
        let folder = tempfile::tempdir().unwrap();
        let content = vec![7u8; 3_000_000];
        let digest = replace_file(folder.path(), "weights", |out| out.write_all(&content)).unwrap();
        assert_eq!(digest, FileDigest::of(&content));
        assert_eq!(fs::read(folder.path().join("weights")).unwrap(), content);
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(FileDigest::of(b"abc").sha256, abc);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        replace_file(folder.path(), "report.json", |out| out.write_all(b"old")).unwrap();
        let full = |out: &mut dyn Write| {
            out.write_all(b"half")?;
            Err(io::Error::from(ErrorKind::StorageFull))
        };
        let error = replace_file(folder.path(), "report.json", full).unwrap_err();
        let expected = format!(
            "the disk of {} is full; free some space or choose another output folder",
            folder.path().display()
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!(fs::read(folder.path().join("report.json")).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_read_only_folder_is_named_with_the_reason() {
        let writing = |kind| {
            FileError::writing(Path::new("out"), Path::new("out/a/b"), io::Error::from(kind))
        };
        assert_eq!(
            writing(ErrorKind::ReadOnlyFilesystem).to_string(),
            "out cannot be written (its file system is read-only); choose an output folder that can"
        );
        assert_eq!(
            writing(ErrorKind::PermissionDenied).to_string(),
            "out cannot be written (permission denied); choose an output folder that can"
        );
        assert!(
            writing(ErrorKind::TimedOut).to_string().starts_with("out/a/b could not be written")
        );
    }
}
