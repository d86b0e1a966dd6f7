//! Saving checkpoints off the training thread. A checkpoint that waits while another is being written gives way to a newer
//! one: training never waits for the disk, unless it says that it must.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointWriter, Keep};
use crate::files::FileError;

/// A checkpoint that is on disk.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) step: usize,
    pub(crate) folder: PathBuf,
}

/// A thread that saves checkpoints.
pub(crate) struct Saver {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    papers: Mutex<Papers>,
    changed: Condvar,
}

#[derive(Default)]
struct Papers {
    waiting: Option<Checkpoint>,
    is_writing: bool,
    is_closed: bool,
    done: Vec<Result<Saved, CheckpointError>>,
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is being written or waits to be.
    fn idle(&self) -> MutexGuard<'_, Papers> {
        let busy = |papers: &mut Papers| papers.is_writing || papers.waiting.is_some();
        let waited = self.changed.wait_while(self.papers(), busy);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes until the desk is closed.
    fn serve(&self, writer: &CheckpointWriter, keep: Keep) {
        loop {
            let nothing = |papers: &mut Papers| papers.waiting.is_none() && !papers.is_closed;
            let waited = self.changed.wait_while(self.papers(), nothing);
            let mut papers = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(checkpoint) = papers.waiting.take() else { return };
            papers.is_writing = true;
            drop(papers);
            let step = checkpoint.state.step as usize;
            // A panic must not leave others waiting for what will never be done.
            let saving = AssertUnwindSafe(|| writer.save(&checkpoint, keep));
            let saved = catch_unwind(saving).unwrap_or_else(|_| {
                let folder = writer.folder().path();
                let reason = std::io::Error::other("the thread that saves panicked");
                Err(FileError::writing(folder, folder, reason).into())
            });
            let saved = saved.map(|folder| Saved { step, folder });
            let mut papers = self.papers();
            papers.is_writing = false;
            papers.done.push(saved);
            self.changed.notify_all();
        }
    }
}

impl Saver {
    /// Starts the thread.
    pub(crate) fn new(writer: Arc<CheckpointWriter>, keep: Keep) -> Saver {
        let desk = Arc::new(Desk::default());
        let own = Arc::clone(&desk);
        let thread = std::thread::spawn(move || own.serve(&writer, keep));
        Saver { desk, thread: Some(thread) }
    }

    /// Saves a checkpoint soon, or a newer one in its place.
    pub(crate) fn offer(&self, checkpoint: Checkpoint) {
        self.desk.papers().waiting = Some(checkpoint);
        self.desk.changed.notify_all();
    }

    /// Saves a checkpoint, this one, and waits for it.
    pub(crate) fn save(&self, checkpoint: Checkpoint) {
        self.desk.idle().waiting = Some(checkpoint);
        self.desk.changed.notify_all();
        drop(self.desk.idle());
    }

    /// Waits until everything is on disk.
    pub(crate) fn flush(&self) {
        drop(self.desk.idle());
    }

    /// What was saved since the last call, or why it was not.
    pub(crate) fn done(&self) -> Vec<Result<Saved, CheckpointError>> {
        std::mem::take(&mut self.desk.papers().done)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.desk.papers().is_closed = true;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by itself.
            let _ = thread.join();
        }
    }
}
