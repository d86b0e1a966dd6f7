//! The cluster's secret: where it comes from, and what it becomes.

use std::fmt;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, RingResolver};

/// The environment variable that holds the secret itself.
pub const SECRET_VARIABLE: &str = "MANYHANDS_SECRET";

/// Bytes of a new secret.
const RANDOM_LEN: usize = 32;
/// Shorter texts can be guessed from a recorded handshake.
const SHORTEST: usize = 16;
/// Longer files are not secrets.
const LONGEST: usize = 4096;

/// What all members of a cluster know and nobody else. Never printed: neither by `Debug` nor in an error.
#[derive(Clone)]
pub struct Secret {
    text: String,
    key: [u8; 32],
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file is there already.
    #[error("{} is there already; a new secret would lock out who uses it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be written.
    #[error("cannot write the secret to {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("cannot read the secret in {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, a pipe, a device.
    #[error("the secret must be in a plain file, which {} is not", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others may read the file.
    #[error(
        "other users may read the secret in {}: run `chmod 600 '{}'`", path.display(), path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// Nothing but space.
    #[error("there is no secret in {place}")]
    Empty {
        /// The file or variable.
        place: String,
    },
    /// Too short to be safe.
    #[error("the secret in {place} has {len} bytes; it needs {SHORTEST} or more")]
    Short {
        /// The file or variable.
        place: String,
        /// Its length.
        len: usize,
    },
    /// Too long to be one.
    #[error("the secret in {place} is longer than {LONGEST} bytes")]
    Long {
        /// The file or variable.
        place: String,
    },
    /// Not text.
    #[error("the secret in {place} is not UTF-8 text")]
    NotText {
        /// The file or variable.
        place: String,
    },
    /// No variable.
    #[error(
        "no secret is given: name the file that has it (`--secret FILE`), or set the environment variable {SECRET_VARIABLE}"
    )]
    NotSet,
    /// The system's source of randomness or the hash is not available.
    #[error("this system gives no random bytes for a new secret")]
    NoRandom,
}

impl Secret {
    /// A new secret from the system's randomness.
    pub fn random() -> Result<Secret, SecretError> {
        let mut bytes = [0u8; RANDOM_LEN];
        let mut source = RingResolver.resolve_rng().ok_or(SecretError::NoRandom)?;
        source.try_fill_bytes(&mut bytes).map_err(|_| SecretError::NoRandom)?;
        let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        wipe(&mut bytes);
        Secret::from_text(text, "random bytes")
    }

    /// A new secret in a new file that only this user may read. An existing file stays as it is.
    pub fn create(path: impl AsRef<Path>) -> Result<Secret, SecretError> {
        let path = path.as_ref();
        let secret = Secret::random()?;
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(path);
        let mut file = opened.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => SecretError::Exists { path: path.into() },
            _ => SecretError::Write { path: path.into(), source },
        })?;
        file.write_all(secret.text.as_bytes())
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all())
            .map_err(|source| SecretError::Write { path: path.into(), source })?;
        Ok(secret)
    }

    /// The secret in a file: its text without the space around it. The file must be this user's alone.
    pub fn read(path: impl AsRef<Path>) -> Result<Secret, SecretError> {
        let path = path.as_ref();
        let failed = |source| SecretError::Read { path: path.into(), source };
        // A pipe that nobody writes to would block the opening for ever.
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
        let file = opened.map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(SecretError::NotAFile { path: path.into() });
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(SecretError::Readable { path: path.into() });
        }
        let mut bytes = Vec::with_capacity(LONGEST + 1);
        file.take(LONGEST as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let place = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            wipe(&mut error.into_bytes());
            SecretError::NotText { place: place.clone() }
        })?;
        Secret::from_text(text, &place)
    }

    /// The secret that the environment variable `MANYHANDS_SECRET` holds.
    pub fn from_environment() -> Result<Secret, SecretError> {
        let text = std::env::var(SECRET_VARIABLE).map_err(|error| match error {
            std::env::VarError::NotPresent => SecretError::NotSet,
            std::env::VarError::NotUnicode(_) => {
                SecretError::NotText { place: SECRET_VARIABLE.into() }
            }
        })?;
        Secret::from_text(text, SECRET_VARIABLE)
    }

    /// The secret as text, for the environment of a process that this one starts. Not for people, messages or logs.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the handshake mixes in: 32 bytes, whatever the length of the text.
    pub(super) fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// The secret that a text is; `place` says where it was, for errors.
    pub fn from_text(mut text: String, place: &str) -> Result<Secret, SecretError> {
        let place = || place.to_string();
        let trimmed = text.trim();
        let checked = match trimmed.len() {
            0 => Err(SecretError::Empty { place: place() }),
            len if len < SHORTEST => Err(SecretError::Short { place: place(), len }),
            len if len > LONGEST => Err(SecretError::Long { place: place() }),
            _ => Ok(trimmed.to_string()),
        };
        wipe_text(&mut text);
        let text = checked?;
        let mut hash =
            RingResolver.resolve_hash(&HashChoice::SHA256).ok_or(SecretError::NoRandom)?;
        let mut key = [0u8; 32];
        // The label keeps this hash apart from any other use of the same text.
        hash.input(b"manyhands cluster secret\0");
        hash.input(text.as_bytes());
        hash.result(&mut key);
        Ok(Secret { text, key })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wipe_text(&mut self.text);
        wipe(&mut self.key);
    }
}

/// Overwrites what memory would otherwise keep until it is used again. `black_box` keeps the compiler from leaving it out.
fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

fn wipe_text(text: &mut String) {
    let mut bytes = std::mem::take(text).into_bytes();
    wipe(&mut bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(content: &[u8], mode: u32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, content).unwrap();
        permit(&path, mode);
        let sentence = Secret::read(&path).unwrap_err().to_string();
        sentence.replace(&folder.path().display().to_string(), "DIR")
    }

    #[test]
    fn a_created_secret_is_private_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let created = Secret::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Secret::read(&path).unwrap().key(), created.key());
        assert_ne!(Secret::random().unwrap().key(), created.key());
    }

    #[test]
    fn an_existing_file_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(Secret::create(&path), Err(SecretError::Exists { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn what_is_no_secret_is_refused_with_a_sentence() {
        assert_eq!(refusal(b" \n", 0o600), "there is no secret in DIR/key");
        assert_eq!(
            refusal(b"fifteen bytes..\n", 0o600),
            "the secret in DIR/key has 15 bytes; it needs 16 or more"
        );
        assert_eq!(
            refusal(&[b'x'; 5000], 0o600),
            "the secret in DIR/key is longer than 4096 bytes"
        );
        assert_eq!(refusal(&[0xff; 40], 0o600), "the secret in DIR/key is not UTF-8 text");
        let readable = "other users may read the secret in DIR/key: run `chmod 600 'DIR/key'`";
        assert_eq!(refusal(&[b'x'; 40], 0o640), readable);
        assert_eq!(refusal(&[b'x'; 40], 0o604), readable);
    }

    #[test]
    fn a_folder_and_a_pipe_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Secret::read(folder.path()), Err(SecretError::NotAFile { .. })));
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(Secret::read(&pipe), Err(SecretError::NotAFile { .. })));
    }

    #[test]
    fn space_around_the_text_does_not_count() {
        let one = Secret::from_text("a secret of some length".into(), "test").unwrap();
        let other = Secret::from_text("\n a secret of some length \r\n".into(), "test").unwrap();
        assert_eq!(one.key(), other.key());
    }

    #[test]
    fn debug_shows_nothing_of_it() {
        let secret = Secret::random().unwrap();
        let shown = format!("{secret:?}");
        assert_eq!(shown, "Secret(not shown)");
        assert!(!shown.contains(&secret.text()[..4]));
    }
}
