//! Records of one fixed width, one after the other: in memory as long as the budget lasts, and beyond it in a temporary file
//! without a name, which is gone when the process ends, however it ends.
//!
//! Memory comes in chunks, so that growing copies nothing. The file is read with positioned reads rather than mapped: a
//! mapping counts against limits on address space, and a failing disk would be a signal instead of an error.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory;
use crate::sample_error::SampleError;

/// How large a chunk is, unless one record is larger.
const CHUNK_BYTES: usize = 1 << 20;
/// The memory for data where the system tells nothing about itself.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// How much memory the data may still take; shared by all stores of a job.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicU64,
}

impl Budget {
    /// So many MiB, or half of what is free.
    pub(crate) fn new(mebibytes: Option<usize>) -> Arc<Self> {
        let bytes = match mebibytes {
            Some(mebibytes) => (mebibytes as u64).saturating_mul(1 << 20),
            None => memory::available().map_or(UNKNOWN_MEMORY, |bytes| bytes / 2),
        };
        Arc::new(Self { left: AtomicU64::new(bytes) })
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Records that can be read from any thread.
pub(crate) struct Store {
    width: usize,
    n_records: u64,
    /// Records a chunk, as a power of two.
    chunk_shift: u32,
    /// The first chunks; all of them unless there is a file.
    memory: Vec<Vec<u8>>,
    file: Option<Spilled>,
    /// Stands for all the records: other ones have another.
    digest: u64,
}

#[derive(Debug)]
struct Spilled {
    file: File,
    folder: PathBuf,
}

/// Without the records, of which there may be gigabytes.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("width", &self.width)
            .field("n_records", &self.n_records)
            .field("spilled_bytes", &self.spilled_bytes())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Stands for all the records: other ones have another.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes a record.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// How many records there are.
    pub(crate) fn n_records(&self) -> u64 {
        self.n_records
    }

    /// Whether every record is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// How many bytes are in the temporary file.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        match self.file {
            None => 0,
            Some(_) => {
                let in_memory = (self.memory.len() as u64) << self.chunk_shift;
                (self.n_records - in_memory) * self.width as u64
            }
        }
    }

    /// Consecutive records, where they lie in memory in one piece.
    #[inline]
    pub(crate) fn piece(&self, first: u64, n: usize) -> Option<&[u8]> {
        let chunk = self.memory.get((first >> self.chunk_shift) as usize)?;
        let start = (first & ((1 << self.chunk_shift) - 1)) as usize * self.width;
        chunk.get(start..start + n * self.width)
    }

    /// Copies consecutive records, wherever they are.
    pub(crate) fn read(&self, first: u64, out: &mut [u8]) -> Result<(), SampleError> {
        let chunk_bytes = (self.width as u64) << self.chunk_shift;
        let mut at = first * self.width as u64;
        let mut rest = out;
        while !rest.is_empty() {
            let (chunk_idx, start) = ((at / chunk_bytes) as usize, (at % chunk_bytes) as usize);
            let Some(chunk) = self.memory.get(chunk_idx) else {
                return self.read_file(at, rest);
            };
            let n = rest.len().min(chunk.len() - start);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&chunk[start..start + n]);
            at += n as u64;
            rest = later;
        }
        Ok(())
    }

    fn read_file(&self, at: u64, out: &mut [u8]) -> Result<(), SampleError> {
        let Some(Spilled { file, folder }) = &self.file else { return Ok(()) };
        file.read_exact_at(out, at).map_err(|error| SampleError::Spill {
            what: "reading",
            folder: folder.clone(),
            bytes: at,
            error,
        })
    }
}

/// Fills a store.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    store: Store,
    chunk: Vec<u8>,
    /// Chunks that were finished.
    n_chunks: u64,
    budget: Arc<Budget>,
    folder: PathBuf,
    /// Memory that reading a spilled store takes later.
    reserve: u64,
}

/// Mixes one more word into a digest.
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Goes on with a digest. Not against malice: against data that changed between two runs.
fn digest(before: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(before, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = rest.iter().fold(hash, |hash, &byte| mix(hash, u64::from(byte)));
    mix(hash, bytes.len() as u64)
}

impl StoreWriter {
    /// A store of records of so many bytes, which spills into the folder when the budget is spent.
    pub(crate) fn new(width: usize, budget: &Arc<Budget>, folder: &Path, reserve: u64) -> Self {
        let chunk_shift = (CHUNK_BYTES / width.max(1)).max(1).ilog2();
        let memory = Vec::new();
        let store = Store { width, n_records: 0, chunk_shift, memory, file: None, digest: 0 };
        let budget = Arc::clone(budget);
        Self { store, chunk: Vec::new(), n_chunks: 0, budget, folder: folder.into(), reserve }
    }

    /// Appends whole records.
    pub(crate) fn append(&mut self, mut records: &[u8]) -> Result<(), SampleError> {
        self.store.n_records += (records.len() / self.store.width) as u64;
        let chunk_bytes = self.chunk_bytes();
        while !records.is_empty() {
            if !self.store.memory.is_empty() {
                // More than one chunk means that this one will be full too; the first grows as it needs.
                self.chunk.reserve_exact(chunk_bytes - self.chunk.len());
            }
            let (now, later) = records.split_at(records.len().min(chunk_bytes - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            records = later;
            if self.chunk.len() == chunk_bytes {
                self.finish_chunk()?;
            }
        }
        Ok(())
    }

    /// The store, complete.
    pub(crate) fn finish(mut self) -> Result<Store, SampleError> {
        if !self.chunk.is_empty() {
            self.finish_chunk()?;
        }
        Ok(self.store)
    }

    fn chunk_bytes(&self) -> usize {
        self.store.width << self.store.chunk_shift
    }

    fn finish_chunk(&mut self) -> Result<(), SampleError> {
        let chunk_idx = self.n_chunks;
        self.n_chunks += 1;
        self.store.digest = digest(self.store.digest, &self.chunk);
        if self.store.file.is_none() && self.budget.take(self.chunk.len() as u64) {
            self.chunk.shrink_to_fit();
            self.store.memory.push(std::mem::take(&mut self.chunk));
            return Ok(());
        }
        if self.store.file.is_none() {
            self.spill()?;
        }
        self.write(chunk_idx, &self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    /// Opens the file and makes room for the windows that will be read from it.
    fn spill(&mut self) -> Result<(), SampleError> {
        let file = tempfile::tempfile_in(&self.folder).map_err(|error| self.failed(0, error))?;
        self.store.file = Some(Spilled { file, folder: self.folder.clone() });
        while !self.budget.take(self.reserve) {
            let Some(chunk) = self.store.memory.pop() else { break };
            self.write(self.store.memory.len() as u64, &chunk)?;
            self.budget.give(chunk.len() as u64);
        }
        Ok(())
    }

    fn write(&self, chunk_idx: u64, chunk: &[u8]) -> Result<(), SampleError> {
        let Some(Spilled { file, .. }) = &self.store.file else { return Ok(()) };
        let at = chunk_idx * self.chunk_bytes() as u64;
        file.write_all_at(chunk, at).map_err(|error| self.failed(at + chunk.len() as u64, error))
    }

    fn failed(&self, bytes: u64, error: std::io::Error) -> SampleError {
        SampleError::Spill { what: "writing", folder: self.folder.clone(), bytes, error }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fill(width: usize, n: usize, budget: &Arc<Budget>, reserve: u64) -> (Store, Vec<u8>) {
        let folder = std::env::temp_dir();
        let mut writer = StoreWriter::new(width, budget, &folder, reserve);
        let bytes: Vec<u8> = (0..width * n).map(|i| (i * 31 % 251) as u8).collect();
        for piece in bytes.chunks(width * 777) {
            writer.append(piece).unwrap();
        }
        (writer.finish().unwrap(), bytes)
    }

    fn check_reads(store: &Store, bytes: &[u8]) {
        let (width, n) = (store.width(), store.n_records() as usize);
        for (first, len) in [(0, n), (n / 3, n / 2), (n - 1, 1), (n / 2, 0)] {
            let mut out = vec![0; len * width];
            store.read(first as u64, &mut out).unwrap();
            assert!(out == bytes[first * width..][..len * width], "{len} records from {first}");
            if let Some(piece) = store.piece(first as u64, len) {
                assert!(piece == out, "{len} records from {first} in one piece");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_written_is_read_in_memory_and_spilled(
            width in prop_oneof![1usize..40, 1000usize..3000], n in 1usize..4000,
            budget in 0usize..5, reserve in 0u64..(3 << 20),
        ) {
            let (store, bytes) = fill(width, n, &Budget::new(Some(budget)), reserve);
            prop_assert_eq!(store.n_records(), n as u64);
            prop_assert_eq!(store.is_in_memory(), store.spilled_bytes() == 0);
            check_reads(&store, &bytes);
        }
    }

    #[test]
    fn spilling_leaves_memory_for_reading_the_file() {
        let budget = Budget::new(Some(4));
        let (store, bytes) = fill(1024, 8 << 10, &budget, 2 << 20);
        assert_eq!(store.memory.len(), 2);
        assert_eq!(store.spilled_bytes(), 6 << 20);
        check_reads(&store, &bytes);
    }

    #[test]
    fn records_wider_than_a_chunk_are_chunks_of_their_own() {
        let (store, bytes) = fill(3 << 20, 3, &Budget::new(Some(100)), 0);
        check_reads(&store, &bytes);
        assert!(store.piece(1, 1).is_some() && store.piece(1, 2).is_none());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let mut writer = StoreWriter::new(8, &Budget::new(Some(0)), Path::new("nowhere/at/all"), 0);
        writer.append(&[0; 16]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("temporary file for it in nowhere/at/all failed"), "{error}");
        assert!(error.contains("`data.memory`"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error_that_names_the_folder() {
        let mut writer = StoreWriter::new(8, &Budget::new(Some(0)), Path::new("out"), 0);
        let full = File::options().write(true).open("/dev/full").unwrap();
        writer.store.file = Some(Spilled { file: full, folder: "out".into() });
        writer.append(&[0; 16]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("in out failed at 16 bytes: No space left"), "{error}");
    }
}
