//! Writing to the output folder of a run, so that a kill at any moment leaves a whole checkpoint.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use manyhands_program::Role;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::error::CheckpointError;
use super::folder::CheckpointFolder;
use super::lock::Lock;
use super::manifest::{Listed, MANIFEST, Manifest};
use super::tensors::TensorFile;
use super::{Checkpoint, ENCODING, FORMAT, JOB, MODEL, OPTIMIZER, STATE};
use crate::files::{ASIDE, FileDigest, FileError, replace_file, sync_folder, write_synced};

/// What the name of a folder starts with while it is being removed.
const REMOVING: &str = ".removing-";

/// Which checkpoints stay when a new one is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// So many of the last; at least one stays.
    pub last: usize,
    /// Whether that of the best model stays too.
    pub best: bool,
}

/// The right to write to the output folder of a run; others get an error that names this process until it is dropped.
#[derive(Debug)]
pub struct CheckpointWriter {
    folder: CheckpointFolder,
    lock: Option<Lock>,
}

impl CheckpointWriter {
    /// Opens a folder for a new run, making it if need be. What an earlier run left there stays until
    /// [`clear`](CheckpointWriter::clear) or until the first [`save`](CheckpointWriter::save) takes its place.
    pub fn create(folder: impl Into<PathBuf>) -> Result<CheckpointWriter, CheckpointError> {
        let folder = CheckpointFolder::at(folder.into());
        if folder.path().exists() && !folder.path().is_dir() {
            return Err(CheckpointError::NotAFolder { path: folder.path().to_path_buf() });
        }
        let published = [JOB, MODEL, ENCODING, "report.json"];
        let taken = published.into_iter().find(|name| folder.path().join(name).exists());
        if let Some(name) = taken.filter(|_| !folder.is_run()) {
            return Err(CheckpointError::Foreign { path: folder.path().join(name) });
        }
        CheckpointWriter::start(folder)
    }

    /// Opens the folder of an earlier run to go on with it.
    pub fn resume(folder: impl Into<PathBuf>) -> Result<CheckpointWriter, CheckpointError> {
        CheckpointWriter::start(CheckpointFolder::open(folder)?)
    }

    fn start(folder: CheckpointFolder) -> Result<CheckpointWriter, CheckpointError> {
        let checkpoints = folder.checkpoints();
        let made = fs::create_dir_all(&checkpoints).and_then(|()| {
            // The names of new folders last only when the folders around them are synced.
            sync_folder(folder.path())?;
            match folder.path().parent().filter(|parent| !parent.as_os_str().is_empty()) {
                Some(parent) => sync_folder(parent).or_else(unreadable_is_fine),
                None => Ok(()),
            }
        });
        made.map_err(|source| FileError::writing(folder.path(), &checkpoints, source))?;
        let lock = Lock::take(folder.path())?;
        let writer = CheckpointWriter { folder, lock };
        writer.remove_leftovers();
        Ok(writer)
    }

    /// The folder, for reading.
    pub fn folder(&self) -> &CheckpointFolder {
        &self.folder
    }

    /// Forgets an earlier run: its checkpoints and its published model.
    pub fn clear(&self) -> Result<(), CheckpointError> {
        // Checkpoints before the report: without it what is left would look like a run to go on with. Then the model: files
        // around a model that is gone mean nothing, a model without them misleads.
        for step in self.folder.steps()? {
            self.remove(step).map_err(|error| self.failed(&self.folder.checkpoints(), error))?;
        }
        let gone = |path: &Path, result: io::Result<()>| match result {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed(path, error)),
            _ => Ok(()),
        };
        for name in [MODEL, JOB, ENCODING, "loss.svg", "report.json", MANIFEST] {
            let path = self.folder.path().join(name);
            gone(&path, fs::remove_file(&path))?;
        }
        let events = self.folder.path().join("events");
        gone(&events, fs::remove_dir_all(&events))?;
        Ok(())
    }

    /// Saves a checkpoint and then removes those that need not be kept. A checkpoint of a later step, left by an earlier run
    /// or by a future that this run did not take, is removed too (C2). Gives the new folder.
    pub fn save(&self, checkpoint: &Checkpoint, keep: Keep) -> Result<PathBuf, CheckpointError> {
        let checkpoints = self.folder.checkpoints();
        let aside = checkpoints.join(format!("{ASIDE}{}", std::process::id()));
        let path = self.folder.checkpoint_path(checkpoint.state.step);
        let contents = Contents::of_checkpoint(checkpoint)?;
        let written = self.write_aside(checkpoint, &contents, &aside).and_then(|()| {
            move_into_place(&aside, &path)?;
            sync_folder(&checkpoints)
        });
        if let Err(source) = written {
            // The error that matters is the first one; a leftover is removed by the next writer.
            let _ = fs::remove_dir_all(&aside);
            return Err(self.failed(&path, source).into());
        }
        self.prune(checkpoint, keep)?;
        Ok(path)
    }

    /// Leaves a model for use by others at the top of the folder. A reader meanwhile finds the old files or the new ones,
    /// each of them whole.
    pub fn publish(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let folder = self.folder.path();
        let contents = Contents::of_model(checkpoint)?;
        let aside = |name: &str| folder.join(format!("{ASIDE}{}-{name}", std::process::id()));
        let mut manifest = Manifest::new(checkpoint);
        for (name, content) in &contents.0 {
            let path = folder.join(name);
            let now = write_synced(&aside(name), |out| content.write(out))
                .map_err(|source| self.failed(&path, source))?;
            let before = fs::read(&path).ok().map(|bytes| FileDigest::of(&bytes));
            manifest.files.insert(name.to_string(), Listed { now, before });
        }
        let write_manifest = |manifest: &Manifest| {
            replace_file(folder, MANIFEST, |out| out.write_all(manifest.to_text().as_bytes()))
        };
        write_manifest(&manifest)?;
        for (name, _) in &contents.0 {
            let path = folder.join(name);
            fs::rename(aside(name), &path).map_err(|source| self.failed(&path, source))?;
        }
        sync_folder(folder).map_err(|source| self.failed(folder, source))?;
        manifest.files.values_mut().for_each(|listed| listed.before = None);
        write_manifest(&manifest)?;
        Ok(())
    }

    /// Puts another file of the run, such as `report.json`, at the top of the folder.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        replace_file(self.folder.path(), name, |out| out.write_all(bytes))?;
        Ok(())
    }

    fn write_aside(
        &self,
        checkpoint: &Checkpoint,
        contents: &Contents<'_>,
        aside: &Path,
    ) -> io::Result<()> {
        match fs::remove_dir_all(aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(aside)?,
        }
        let mut manifest = Manifest::new(checkpoint);
        for (name, content) in &contents.0 {
            let now = write_synced(&aside.join(name), |out| content.write(out))?;
            manifest.files.insert(name.to_string(), Listed { now, before: None });
        }
        let text = manifest.to_text();
        write_synced(&aside.join(MANIFEST), |out| out.write_all(text.as_bytes()))?;
        sync_folder(aside)
    }

    fn prune(&self, saved: &Checkpoint, keep: Keep) -> Result<(), CheckpointError> {
        let steps = self.folder.steps()?;
        let best = saved.state.best.as_ref().filter(|_| keep.best).map(|best| best.step);
        for step in steps_to_remove(&steps, saved.state.step, keep.last, best) {
            // What cannot be removed now (a reader on a network file system) is tried again at the next save.
            let _ = self.remove(step);
        }
        Ok(())
    }

    /// Removes a checkpoint; it loses its name first, so that a kill leaves no half of it under that name (C1).
    fn remove(&self, step: u64) -> io::Result<()> {
        let path = self.folder.checkpoint_path(step);
        let doomed = self.folder.checkpoints().join(format!("{REMOVING}{step}"));
        if doomed.exists() {
            remove_all(&doomed)?;
        }
        fs::rename(&path, &doomed)?;
        remove_all(&doomed)
    }

    /// Removes what killed writers left behind. With the lock in hand, no other writer is alive; without one, only folders of
    /// dead processes go.
    fn remove_leftovers(&self) {
        for folder in [self.folder.path().to_path_buf(), self.folder.checkpoints()] {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            for entry in entries {
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let dead = match name.strip_prefix(ASIDE) {
                    Some(rest) => self.lock.is_some() || !is_alive(rest),
                    None => name.starts_with(REMOVING),
                };
                if dead {
                    // A leftover that cannot be removed is in nobody's way.
                    let _ = remove_all(&entry.path());
                }
            }
        }
    }

    fn failed(&self, path: &Path, source: io::Error) -> FileError {
        FileError::writing(self.folder.path(), path, source)
    }
}

impl Manifest {
    fn new(checkpoint: &Checkpoint) -> Manifest {
        Manifest {
            format: FORMAT,
            kernel_set: checkpoint.kernel_set.clone(),
            job: checkpoint.fingerprint.clone(),
            step: checkpoint.state.step,
            ..Manifest::default()
        }
    }
}

/// The files of a folder before they are written, in the order in which they get their names.
struct Contents<'a>(Vec<(&'static str, Content<'a>)>);

enum Content<'a> {
    Text(&'a str),
    Json(String),
    Tensors(TensorFile<'a>),
}

impl Content<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Content::Text(text) => out.write_all(text.as_bytes()),
            Content::Json(text) => out.write_all(text.as_bytes()),
            Content::Tensors(file) => file.write(out),
        }
    }
}

impl<'a> Contents<'a> {
    /// What others use; the model last, so that it is there only when the others are.
    fn of_model(checkpoint: &'a Checkpoint) -> Result<Contents<'a>, CheckpointError> {
        let model = checkpoint.tensors.iter().filter(|named| named.role != Role::Slot);
        Ok(Contents(vec![
            (ENCODING, Content::Text(&checkpoint.encoding_json)),
            (JOB, Content::Text(&checkpoint.job_text)),
            (MODEL, Content::Tensors(TensorFile::new(model)?)),
        ]))
    }

    fn of_checkpoint(checkpoint: &'a Checkpoint) -> Result<Contents<'a>, CheckpointError> {
        let mut contents = Contents::of_model(checkpoint)?;
        let slots = checkpoint.tensors.iter().filter(|named| named.role == Role::Slot);
        contents.0.push((OPTIMIZER, Content::Tensors(TensorFile::new(slots)?)));
        let state = serde_json::to_string_pretty(&checkpoint.state)
            .expect("numbers, strings and JSON values can be written");
        contents.0.push((STATE, Content::Json(state + "\n")));
        Ok(contents)
    }
}

/// The steps whose checkpoints go once that of `saved` is whole: those after it, and those before it but the last few and
/// the best.
fn steps_to_remove(steps: &[u64], saved: u64, n_last: usize, best: Option<u64>) -> Vec<u64> {
    let n_kept_before = n_last.saturating_sub(1);
    let before: Vec<u64> = steps.iter().copied().filter(|&step| step < saved).collect();
    let old = &before[..before.len().saturating_sub(n_kept_before)];
    let after = steps.iter().filter(|&&step| step > saved);
    old.iter().chain(after).copied().filter(|&step| Some(step) != best).collect()
}

/// Gives a whole folder its name. Where that is taken (a step saved again), the two are swapped at once, so that a kill never
/// finds neither.
fn move_into_place(aside: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(aside, path) {
        Err(error)
            if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
        renamed => return renamed,
    }
    match renameat_with(CWD, aside, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => fs::remove_dir_all(aside),
        // Not every file system can swap; then older checkpoints cover the moment without this one.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let doomed = path.with_file_name(format!("{REMOVING}{}", std::process::id()));
            fs::rename(path, &doomed)?;
            fs::rename(aside, path)?;
            fs::remove_dir_all(&doomed)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn remove_all(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Whether the process that a leftover is named after still runs.
fn is_alive(rest: &str) -> bool {
    let digits = rest.split('-').next().unwrap_or(rest);
    let pid = digits.parse().ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// The folder around the output folder may be one that can be entered but not read; its entry then lasts when the system
/// writes it in its own time.
fn unreadable_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::PermissionDenied { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_and_the_best_stay() {
        assert_eq!(steps_to_remove(&[1, 2, 3, 4], 4, 2, None), [1, 2]);
        assert_eq!(steps_to_remove(&[1, 2, 3, 4], 4, 2, Some(1)), [2]);
        assert_eq!(steps_to_remove(&[1, 2, 3, 4], 4, 9, None), [0u64; 0]);
        assert_eq!(steps_to_remove(&[1, 2, 3, 4], 4, 0, None), [1, 2, 3]);
    }

    #[test]
    fn steps_after_the_saved_one_go() {
        assert_eq!(steps_to_remove(&[1, 2, 7, 9], 2, 3, None), [7, 9]);
    }
}
