//! A part of the data as samples: which rows of the store each is made of, and how they become inputs.

use std::ops::Range;
use std::sync::Arc;

use crate::batches::Batches;
use crate::gather::Output;
use crate::shuffle::{Blocks, Order};
use crate::store::{Store, mix};

/// A part of the data: what is trained on, validated on, tested on or predicted from. Cloning it copies no data.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) samples: Arc<Samples>,
}

impl Part {
    /// How many samples there are.
    pub fn n_samples(&self) -> usize {
        self.samples.n_samples as usize
    }

    /// Stands for the records behind the samples, labels included: other data has another.
    pub fn digest(&self) -> u64 {
        let Samples { store, rows, n_samples, .. } = &*self.samples;
        [rows.start, rows.end, *n_samples].into_iter().fold(store.digest(), mix)
    }

    /// Whether the samples have labels.
    pub fn has_labels(&self) -> bool {
        self.samples.target.is_some()
    }

    /// Whether all of it is in memory, rather than in a temporary file.
    pub fn is_in_memory(&self) -> bool {
        self.samples.store.is_in_memory()
    }

    /// The samples in batches of `batch` (0 counts as 1), the last one shorter where it does not divide, filled ahead by a
    /// thread of its own. The first `first_batch` batches are left out without being read.
    pub fn batches(&self, order: Order, batch: usize, first_batch: usize) -> Batches {
        Batches::start(Arc::clone(&self.samples), order, batch.max(1), first_batch)
    }
}

/// Samples of a store: runs of `span` records, each `stride` records after the one before.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) store: Arc<Store>,
    /// The records of this part.
    pub(crate) rows: Range<u64>,
    pub(crate) n_samples: u64,
    pub(crate) span: usize,
    pub(crate) stride: u64,
    pub(crate) inputs: Vec<Output>,
    pub(crate) target: Option<Output>,
    /// How many samples are shuffled together, where the job says.
    pub(crate) shuffle_window: Option<u64>,
}

impl Samples {
    pub(crate) fn new(
        store: Arc<Store>,
        rows: Range<u64>,
        stride: u64,
        (inputs, target): (Vec<Output>, Option<Output>),
        shuffle_window: Option<u64>,
    ) -> Self {
        let ends = inputs.iter().chain(&target).map(|output| output.first_row + output.n_rows);
        let span = ends.max().unwrap_or(1);
        let n_samples = count(rows.end - rows.start, span, stride);
        Self { store, rows, n_samples, span, stride, inputs, target, shuffle_window }
    }

    /// The first record of a sample.
    pub(crate) fn first_record(&self, sample: u64) -> u64 {
        self.rows.start + sample * self.stride
    }

    /// How samples are grouped to be shuffled. Only what a sample does not share with the one before it counts as its own.
    pub(crate) fn blocks(&self) -> Blocks {
        let bytes = self.stride.saturating_mul(self.store.width() as u64);
        Blocks::new(self.n_samples, bytes, self.shuffle_window)
    }

    /// Bytes of a sample for each input, then the target.
    pub(crate) fn sample_bytes(&self) -> Arc<[usize]> {
        self.outputs().map(Output::sample_bytes).collect()
    }

    /// The inputs, then the target.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Output> {
        self.inputs.iter().chain(&self.target)
    }
}

/// How many samples of so many records, each `stride` after the one before, fit into so many records.
pub(crate) fn count(n_rows: u64, span: usize, stride: u64) -> u64 {
    match n_rows.checked_sub(span as u64) {
        Some(last) => last / stride + 1,
        None => 0,
    }
}
