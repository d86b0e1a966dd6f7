//! From files to batches, as a job uses them.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod batches;
mod bytes;
mod pairs;
mod refusals;
mod splits;
mod tables;
mod texts;
mod windows;

use std::path::Path;

use manyhands_data::{Data, DataSpec, Order, Part, Target};

/// A folder of files that is gone after the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        std::fs::write(self.path().join(name), content).unwrap();
        self
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self, spec: &DataSpec, target: Target) -> Data {
        Data::open(spec, target, 1, self.path(), self.path()).unwrap()
    }

    /// The sentence of the error, with the folder taken out of paths.
    fn refused(&self, spec: &DataSpec, target: Target) -> String {
        let error = Data::open(spec, target, 1, self.path(), self.path()).unwrap_err();
        error.to_string().replace(&format!("{}/", self.path().display()), "")
    }
}

/// The `[data]` table that this JSON says.
fn spec(json: serde_json::Value) -> DataSpec {
    serde_json::from_value(json).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b)).collect()
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| i32::from_ne_bytes(b)).collect()
}

/// All samples of a part in stored order: the bytes of an input.
fn input(part: &Part, idx: usize) -> Vec<u8> {
    let batches = part.batches(Order::Stored, 7, 0);
    let batches = batches.map(|batch| batch.unwrap());
    batches.flat_map(|batch| batch.input(idx, 0..batch.n_samples()).to_vec()).collect()
}

/// All samples of a part in stored order: the bytes of the target.
fn target(part: &Part) -> Vec<u8> {
    let batches = part.batches(Order::Stored, 5, 0);
    let batches = batches.map(|batch| batch.unwrap());
    batches.flat_map(|batch| batch.target(0..batch.n_samples()).unwrap().to_vec()).collect()
}
