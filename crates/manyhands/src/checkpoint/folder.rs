//! Reading the output folder of a run. Takes no lock: a folder that got its name is whole and never changes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use manyhands_program::Role;

use super::error::{CheckpointError, Damage, Warning};
use super::manifest::{MANIFEST, Manifest};
use super::state::State;
use super::tensors::{NamedTensor, read_tensors};
use super::{Checkpoint, ENCODING, JOB, MODEL, Model, OPTIMIZER, STATE};
use crate::files::FileError;

/// The folder of checkpoints inside an output folder.
const CHECKPOINTS: &str = "checkpoints";

/// A run that saves often may remove a checkpoint while it is being read; then there is a newer one, and reading starts over.
const MOST_TRIES: usize = 20;

/// The output folder of a run.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    folder: PathBuf,
}

impl CheckpointFolder {
    /// Opens the output folder of a run for reading.
    pub fn open(folder: impl Into<PathBuf>) -> Result<CheckpointFolder, CheckpointError> {
        let own = CheckpointFolder { folder: folder.into() };
        match fs::metadata(&own.folder) {
            Ok(found) if !found.is_dir() => Err(CheckpointError::NotAFolder { path: own.folder }),
            Ok(_) if own.is_run() || own.folder.join(MODEL).exists() => Ok(own),
            Ok(_) => Err(CheckpointError::NotARun { folder: own.folder }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(CheckpointError::NoFolder { folder: own.folder })
            }
            Err(error) => Err(FileError::reading(&own.folder, error).into()),
        }
    }

    /// The folder at a path that need not be one yet.
    pub(super) fn at(folder: PathBuf) -> CheckpointFolder {
        CheckpointFolder { folder }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Whether a run wrote here.
    pub(super) fn is_run(&self) -> bool {
        self.checkpoints().is_dir() || self.folder.join(MANIFEST).exists()
    }

    /// The folder with a folder per checkpoint.
    pub(super) fn checkpoints(&self) -> PathBuf {
        self.folder.join(CHECKPOINTS)
    }

    /// The folder of the checkpoint after a step.
    pub fn checkpoint_path(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("step-{step:08}"))
    }

    /// The steps that have a checkpoint, lowest first.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let path = self.checkpoints();
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(FileError::reading(&path, error).into()),
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| FileError::reading(&path, error))?.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.parse().ok());
            steps.extend(step.filter(|&step| self.checkpoint_path(step).ends_with(&name)));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The newest whole checkpoint, with a warning for each newer one that is damaged. Given the fingerprint of a job, one of
    /// another job is refused.
    pub fn latest(
        &self,
        fingerprint: Option<&str>,
    ) -> Result<(Checkpoint, Vec<Warning>), CheckpointError> {
        let mut tries = 0;
        'listing: loop {
            tries += 1;
            let steps = self.steps()?;
            let mut warnings = Vec::new();
            for &step in steps.iter().rev() {
                match self.load(step, fingerprint) {
                    Ok(checkpoint) => return Ok((checkpoint, warnings)),
                    Err(reason) if reason.is_damage() => {
                        if tries < MOST_TRIES && !self.checkpoint_path(step).exists() {
                            continue 'listing;
                        }
                        warnings.push(Warning::Skipped { step, reason });
                    }
                    Err(error) => return Err(error),
                }
            }
            let folder = self.folder.clone();
            return Err(match warnings.into_iter().next() {
                None => CheckpointError::NoCheckpoint { folder },
                Some(Warning::Skipped { reason, .. }) => CheckpointError::NoneWhole {
                    folder,
                    n_checkpoints: steps.len(),
                    newest: Box::new(reason),
                },
            });
        }
    }

    /// The checkpoint after a step. Given the fingerprint of a job, one of another job is refused.
    pub fn load(
        &self,
        step: u64,
        fingerprint: Option<&str>,
    ) -> Result<Checkpoint, CheckpointError> {
        let folder = self.checkpoint_path(step);
        let files = Files::open(&folder)?;
        if fingerprint.is_some_and(|own| own != files.manifest.job) {
            return Err(CheckpointError::OtherJob { path: folder });
        }
        let state: State = files.parse(STATE, "a ledger", |bytes| {
            serde_json::from_slice(bytes).map_err(|error| error.to_string())
        })?;
        let mut tensors = files.tensors(MODEL, Role::Weight)?;
        tensors.extend(files.tensors(OPTIMIZER, Role::Slot)?);
        Ok(Checkpoint {
            tensors,
            job_text: files.text(JOB)?,
            encoding_json: files.text(ENCODING)?,
            state,
            fingerprint: files.manifest.job,
            kernel_set: files.manifest.kernel_set,
        })
    }

    /// The published model, if there is one. Without a manifest (files copied by hand) nothing is checked but that they read.
    pub fn published(&self) -> Result<Option<Model>, CheckpointError> {
        if !self.folder.join(MODEL).exists() {
            return Ok(None);
        }
        let files = match Files::open(&self.folder) {
            Err(CheckpointError::Damaged { damage: Damage::Missing, .. }) => {
                Files::unchecked(&self.folder)
            }
            files => files?,
        };
        let (job_text, encoding_json) = (files.text(JOB)?, files.text(ENCODING)?);
        Ok(Some(Model { tensors: files.tensors(MODEL, Role::Weight)?, job_text, encoding_json }))
    }
}

/// The files of one folder, checked against its manifest as they are read.
struct Files<'a> {
    folder: &'a Path,
    manifest: Manifest,
    checked: bool,
}

impl Files<'_> {
    fn open(folder: &Path) -> Result<Files<'_>, CheckpointError> {
        let path = folder.join(MANIFEST);
        let manifest = Manifest::from_bytes(&path, &read(&path)?)?;
        Ok(Files { folder, manifest, checked: true })
    }

    fn unchecked(folder: &Path) -> Files<'_> {
        Files { folder, manifest: Manifest::default(), checked: false }
    }

    fn parse<T>(
        &self,
        name: &str,
        expected: &'static str,
        parse: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, CheckpointError> {
        let path = self.folder.join(name);
        let bytes = read(&path)?;
        let checked = if self.checked { self.manifest.check(name, &bytes) } else { Ok(()) };
        checked
            .and_then(|()| parse(&bytes).map_err(|reason| Damage::Content { expected, reason }))
            .map_err(|damage| CheckpointError::Damaged { path, damage })
    }

    fn text(&self, name: &str) -> Result<String, CheckpointError> {
        self.parse(name, "text", |bytes| {
            String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
        })
    }

    fn tensors(&self, name: &str, role: Role) -> Result<Vec<NamedTensor>, CheckpointError> {
        self.parse(name, "a safetensors file", |bytes| read_tensors(bytes, role))
    }
}

/// A file that has to be there.
fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    fs::read(path).map_err(|error| match error.kind() {
        // A file in the place of the checkpoint's folder makes its files missing as well.
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            CheckpointError::Damaged { path: path.to_path_buf(), damage: Damage::Missing }
        }
        _ => FileError::reading(path, error).into(),
    })
}
