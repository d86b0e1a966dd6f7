//! TensorBoard event files: scalars, histograms and the graph, as the real TensorBoard reads them.
//!
//! An event file is a sequence of TFRecords (`record.rs`), each a protobuf message (`message.rs`) written by hand: the few
//! fields that are needed are older than most protobuf libraries and will not change. Records are appended whole, so
//! TensorBoard follows a run while it goes on.

mod event;
mod graph;
mod histogram;
mod message;
mod record;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use manyhands_program::{Program, Tensor};

use crate::files::FileError;
use event::Event;

/// Writes one event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
}

/// The most elements of a tensor that a histogram looks at.
const MOST_ELEMENTS: usize = 1 << 16;

impl EventWriter {
    /// Starts a new event file in a folder, making the folder if need be. A run that goes on after step `resumed` tells
    /// TensorBoard to forget what its killed predecessor wrote of later steps.
    pub fn create(folder: &Path, resumed: Option<u64>) -> Result<EventWriter, FileError> {
        let now = seconds();
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
        let name = format!("events.out.tfevents.{:010}.{host}", now as u64);
        let failed = |source| FileError::writing(folder, folder, source);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let (path, file) = new_file(folder, &name).map_err(failed)?;
        let mut writer = EventWriter { path, file, pending: Vec::new() };
        writer.add(Event::version(now));
        if let Some(step) = resumed {
            writer.add(Event::restart(now, step + 1));
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the value of something, such as `train/loss`, after a step.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f64) {
        self.add(Event::scalar(seconds(), step, tag, value));
    }

    /// Adds the distribution of a tensor's elements after a step. Elements that are not finite are left out; of many
    /// elements every so manieth is taken, which shows the same.
    pub fn histogram(&mut self, step: u64, tag: &str, tensor: &Tensor) {
        let elements = tensor.to_f64();
        let stride = elements.len().div_ceil(MOST_ELEMENTS).max(1);
        let elements: Vec<f64> = elements.into_iter().step_by(stride).collect();
        self.add(Event::histogram(seconds(), step, tag, &elements));
    }

    /// Adds the graph of a program.
    pub fn graph(&mut self, program: &Program) {
        self.add(Event::graph(seconds(), program));
    }

    /// Hands everything added so far to the operating system, from where TensorBoard sees it.
    pub fn flush(&mut self) -> Result<(), FileError> {
        let folder = self.path.parent().unwrap_or(&self.path);
        self.file
            .write_all(&self.pending)
            .map_err(|source| FileError::writing(folder, &self.path, source))?;
        self.pending.clear();
        Ok(())
    }

    fn add(&mut self, event: Event) {
        record::append(&mut self.pending, &event.into_bytes());
    }
}

impl Drop for EventWriter {
    /// What was added and never flushed is written if it can be.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A file that was not there before: runs started in the same second get names that sort one after the other.
fn new_file(folder: &Path, name: &str) -> std::io::Result<(PathBuf, File)> {
    let suffixes = std::iter::once(String::new()).chain((1..).map(|idx: u32| format!(".{idx}")));
    for suffix in suffixes {
        let path = folder.join(format!("{name}{suffix}"));
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (path, file)),
        }
    }
    unreachable!("the suffixes never end")
}

/// Seconds since 1970.
fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests;
