//! Where ranks of one machine leave word for each other when no address is known: a private folder with a note named after the job.
//!
//! The folder is this user's alone (0700), and so is the note (0600), so that its secret is known to this user only. Rank 0 writes it aside and renames it: nobody
//! reads half of one. A note that an earlier run left behind leads to an address where nobody answers; whoever reads it looks again.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::error::WorldError;
use crate::host::random_number;
use crate::secure::Secret;

/// Longer files are not notes.
const LONGEST: u64 = 64 << 10;
/// What of a job's name is kept as it is.
const NAME_LEN: usize = 60;

#[derive(Serialize, Deserialize)]
struct Note {
    address: String,
    secret: String,
}

/// The place of one job's note.
#[derive(Clone, Debug)]
pub(super) struct NotePlace {
    path: PathBuf,
}

/// Removes the note when rank 0 does not need it any more.
#[derive(Debug)]
pub(super) struct WrittenNote {
    path: PathBuf,
}

impl Drop for WrittenNote {
    fn drop(&mut self) {
        // Another run may have replaced or removed it, which is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl NotePlace {
    /// The place of a job's note in this user's folder, which is made where it is not there.
    pub(super) fn of(job: &str) -> Result<NotePlace, WorldError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = runtime.filter(|path| path.is_absolute() && path.is_dir());
        let user = rustix::process::geteuid().as_raw();
        let folder = base.unwrap_or_else(std::env::temp_dir).join(format!("manyhands-{user}"));
        private_folder(&folder)?;
        Ok(NotePlace { path: folder.join(file_name(job)) })
    }

    /// Leaves word of where rank 0 listens, and the secret.
    pub(super) fn write(&self, address: &str, secret: &Secret) -> Result<WrittenNote, WorldError> {
        let failed = |error: std::io::Error| trouble(&self.path, &error.to_string());
        let number = random_number().map_err(failed)?;
        let aside = self.path.with_extension(format!("{number:016x}.new"));
        let note = Note { address: address.to_string(), secret: secret.text().to_string() };
        let bytes = serde_json::to_vec(&note).map_err(|error| failed(error.into()))?;
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside);
        let written = opened
            .and_then(|mut file| file.write_all(&bytes))
            .and_then(|()| std::fs::rename(&aside, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        written.map_err(failed)?;
        Ok(WrittenNote { path: self.path.clone() })
    }

    /// What rank 0 left; none where it has not come yet.
    pub(super) fn read(&self) -> Result<Option<(String, Secret)>, WorldError> {
        let failed = |error: std::io::Error| trouble(&self.path, &error.to_string());
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        self.check(&file)?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
        let note: Note = serde_json::from_slice(&bytes)
            .map_err(|error| trouble(&self.path, &format!("it is no note of rank 0: {error}")))?;
        let secret = Secret::from_text(note.secret, &self.path.display().to_string());
        Ok(Some((note.address, secret.map_err(WorldError::LocalSecret)?)))
    }

    fn check(&self, file: &File) -> Result<(), WorldError> {
        let metadata = file.metadata().map_err(|error| trouble(&self.path, &error.to_string()))?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        match metadata.is_file() && is_own && metadata.mode() & 0o077 == 0 {
            true => Ok(()),
            false => Err(trouble(&self.path, "the note is not a file of this user's alone")),
        }
    }
}

/// Makes a folder that is this user's alone, or sees that it is.
fn private_folder(path: &Path) -> Result<(), WorldError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(trouble(path, &error.to_string())),
    }
    // Not following links: one that somebody else put there leads anywhere.
    let metadata =
        std::fs::symlink_metadata(path).map_err(|error| trouble(path, &error.to_string()))?;
    if !metadata.is_dir() {
        return Err(trouble(path, "it is not a folder"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(trouble(path, "it belongs to another user"));
    }
    if metadata.mode() & 0o077 != 0 {
        let sentence = format!("other users may enter it: run `chmod 700 '{}'`", path.display());
        return Err(trouble(path, &sentence));
    }
    Ok(())
}

fn trouble(path: &Path, reason: &str) -> WorldError {
    WorldError::Folder { path: path.into(), reason: reason.to_string() }
}

/// A name for a file that no other job has and that is nothing but a name.
fn file_name(job: &str) -> String {
    let is_plain = |character: &char| character.is_ascii_alphanumeric() || *character == '-';
    let plain: String =
        job.chars().map(|c| if is_plain(&c) { c } else { '_' }).take(NAME_LEN).collect();
    format!("{plain}-{:016x}.json", super::mix(job.bytes().map(u64::from)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place(folder: &Path) -> NotePlace {
        NotePlace { path: folder.join(file_name("job")) }
    }

    #[test]
    fn a_note_reads_back_is_private_and_goes_with_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        assert!(place.read().unwrap().is_none());
        let secret = Secret::random().unwrap();
        let written = place.write("127.0.0.1:9", &secret).unwrap();
        let mode = std::fs::metadata(&place.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (address, found) = place.read().unwrap().unwrap();
        assert_eq!((address.as_str(), found.text()), ("127.0.0.1:9", secret.text()));
        drop(written);
        assert!(place.read().unwrap().is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn notes_that_others_may_read_or_that_are_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let _written = place.write("127.0.0.1:9", &Secret::random().unwrap()).unwrap();
        std::fs::set_permissions(&place.path, PermissionsExt::from_mode(0o644)).unwrap();
        let sentence = place.read().unwrap_err().to_string();
        assert!(sentence.ends_with("the note is not a file of this user's alone"), "{sentence}");
        std::fs::remove_file(&place.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &place.path).unwrap();
        assert!(place.read().is_err());
    }

    #[test]
    fn folders_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
        let sentence = private_folder(&open).unwrap_err().to_string();
        assert!(sentence.contains("other users may enter it: run `chmod 700"), "{sentence}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(private_folder(&link).unwrap_err().to_string().ends_with("it is not a folder"));
        private_folder(&folder.path().join("new")).unwrap();
        private_folder(&folder.path().join("new")).unwrap();
    }

    #[test]
    fn names_of_jobs_cannot_leave_the_folder_or_meet_each_other() {
        assert!(!file_name("../../etc/x").contains('/'));
        assert!(!file_name("../../etc/x").contains(".."));
        assert_ne!(file_name("a/b"), file_name("a_b"));
        assert!(file_name(&"x".repeat(5000)).len() < 128);
    }
}
