//! Batches, filled ahead by a thread of their own.
//!
//! A training step may take only microseconds, so small batches travel in groups, and the memory of a group comes back to be
//! filled again when its last batch is dropped.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::DataError;
use crate::sample_error::SampleError;
use crate::samples::Samples;
use crate::shuffle::Order;
use crate::visit::Visit;

/// A group is sent when it has so many bytes or so many batches.
const GROUP_BYTES: usize = 2 << 20;
const GROUP_BATCHES: usize = 64;
/// How many groups wait to be taken.
const QUEUE: usize = 2;

/// The batches of an epoch. Ends after the last one, or after an error.
#[derive(Debug)]
pub struct Batches {
    groups: Option<Receiver<Message>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    group: Option<Arc<Group>>,
    /// Samples of the group that were handed out.
    taken: usize,
    batch: usize,
    sample_bytes: Arc<[usize]>,
    n_inputs: usize,
    n_batches: usize,
    /// Why the thread could not start.
    failed: Option<SampleError>,
}

type Message = Result<Arc<Group>, SampleError>;

/// Samples that travel together, and the way back for their memory.
#[derive(Debug)]
struct Group {
    memory: Memory,
    back: Option<Sender<Memory>>,
}

/// The memory of a group: bytes for each output, and which samples they are.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    outputs: Vec<Vec<u8>>,
    samples: Vec<u64>,
}

impl Memory {
    /// Makes it hold the samples at these places of a walk, and no others.
    pub(crate) fn fill(
        &mut self,
        visit: &mut Visit<'_>,
        sample_bytes: &[usize],
        places: &[Range<u64>],
    ) -> Result<(), SampleError> {
        let n: u64 = places.iter().map(|range| range.end - range.start).sum();
        self.prepare(n as usize, sample_bytes);
        for range in places {
            visit.move_to(range.start);
            let n = self.samples.len() + (range.end - range.start) as usize;
            visit.fill(n, &mut self.samples, &mut self.outputs)?;
        }
        Ok(())
    }

    fn prepare(&mut self, n: usize, sample_bytes: &[usize]) {
        self.outputs.resize_with(sample_bytes.len(), Vec::new);
        for (output, bytes) in self.outputs.iter_mut().zip(sample_bytes) {
            output.resize(n * bytes, 0);
        }
        self.samples.clear();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(back) = &self.back {
            // Nobody takes it back when the epoch is over.
            let _ = back.send(std::mem::take(&mut self.memory));
        }
    }
}

/// Samples to be used in one step.
#[derive(Clone, Debug)]
pub struct Batch {
    group: Arc<Group>,
    samples: Range<usize>,
    sample_bytes: Arc<[usize]>,
    n_inputs: usize,
    waited: Duration,
}

impl Batch {
    /// A batch of its own.
    pub(crate) fn new(
        memory: Memory,
        back: Option<Sender<Memory>>,
        sample_bytes: Arc<[usize]>,
        n_inputs: usize,
    ) -> Self {
        let samples = 0..memory.samples.len();
        let (group, waited) = (Arc::new(Group { memory, back }), Duration::ZERO);
        Self { group, samples, sample_bytes, n_inputs, waited }
    }

    /// How many samples it has; fewer than asked for in the last batch of an epoch.
    pub fn n_samples(&self) -> usize {
        self.samples.len()
    }

    /// The bytes of some of its samples for the input of that place in [`Encoding::inputs`](crate::Encoding::inputs).
    ///
    /// # Panics
    /// Where there is no such input or sample.
    pub fn input(&self, idx: usize, samples: Range<usize>) -> &[u8] {
        assert!(idx < self.n_inputs, "there are {} inputs, not {}", self.n_inputs, idx + 1);
        self.output(idx, samples)
    }

    /// The bytes of some of its samples for the target, where there are labels.
    ///
    /// # Panics
    /// Where there is no such sample.
    pub fn target(&self, samples: Range<usize>) -> Option<&[u8]> {
        (self.n_inputs < self.sample_bytes.len()).then(|| self.output(self.n_inputs, samples))
    }

    /// The places of its samples in the stored order of the part.
    pub fn samples(&self) -> &[u64] {
        &self.group.memory.samples[self.samples.clone()]
    }

    /// How long the one who asked for it had to wait.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn output(&self, idx: usize, samples: Range<usize>) -> &[u8] {
        let n = self.samples.len();
        assert!(samples.end <= n, "the batch has {n} samples, not {}", samples.end);
        let (first, bytes) = (self.samples.start, self.sample_bytes[idx]);
        &self.group.memory.outputs[idx]
            [(first + samples.start) * bytes..(first + samples.end) * bytes]
    }
}

impl Batches {
    pub(crate) fn start(
        samples: Arc<Samples>,
        order: Order,
        batch: usize,
        first_batch: usize,
    ) -> Self {
        let first = (first_batch as u64).saturating_mul(batch as u64).min(samples.n_samples);
        let sample_bytes = samples.sample_bytes();
        let n_inputs = samples.inputs.len();
        let n_batches = ((samples.n_samples - first) as usize).div_ceil(batch);
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, groups) = sync_channel(QUEUE);
        let filler = Filler { sample_bytes: Arc::clone(&sample_bytes), batch, sender };
        let stopped = Arc::clone(&stop);
        let fill = move || filler.fill(Visit::new(&samples, order, first, &stopped));
        let (thread, failed) =
            match std::thread::Builder::new().name("manyhands-data".into()).spawn(fill) {
                Ok(thread) => (Some(thread), None),
                Err(error) => (None, Some(SampleError::Thread(error))),
            };
        let groups = Some(groups);
        let (group, taken) = (None, 0);
        Self {
            groups,
            thread,
            stop,
            group,
            taken,
            batch,
            sample_bytes,
            n_inputs,
            n_batches,
            failed,
        }
    }

    /// The next group, or the error that ends the epoch.
    fn receive(&mut self) -> Option<Message> {
        if let Some(error) = self.failed.take() {
            self.groups = None;
            return Some(Err(error));
        }
        match self.groups.as_ref()?.recv() {
            Ok(Ok(group)) => Some(Ok(group)),
            Ok(Err(error)) => {
                self.groups = None;
                Some(Err(error))
            }
            Err(_) => {
                self.groups = None;
                let panic = self.thread.take()?.join().err()?;
                Some(Err(SampleError::ThreadStopped { reason: said(&*panic) }))
            }
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut waited = Duration::ZERO;
        if self.group.as_ref().is_none_or(|group| self.taken == group.memory.samples.len()) {
            // The memory of the last group goes back first.
            self.group = None;
            self.taken = 0;
            let asked = Instant::now();
            match self.receive()? {
                Ok(group) => self.group = Some(group),
                Err(error) => {
                    self.n_batches = 0;
                    return Some(Err(error.into()));
                }
            }
            waited = asked.elapsed();
        }
        let group = Arc::clone(self.group.as_ref()?);
        let end = (self.taken + self.batch).min(group.memory.samples.len());
        let samples = self.taken..end;
        self.taken = end;
        self.n_batches = self.n_batches.saturating_sub(1);
        let sample_bytes = Arc::clone(&self.sample_bytes);
        Some(Ok(Batch { group, samples, sample_bytes, n_inputs: self.n_inputs, waited }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may come at any time, in place of all that would follow.
        (0, Some(self.n_batches + 1))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Without a receiver the thread's next group goes nowhere, and it ends.
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a thread said when it panicked.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").into()
}

/// The thread's side.
struct Filler {
    sample_bytes: Arc<[usize]>,
    batch: usize,
    sender: SyncSender<Message>,
}

impl Filler {
    fn fill(self, mut visit: Visit<'_>) {
        let batch_bytes = self.batch.saturating_mul(self.sample_bytes.iter().sum()).max(1);
        let n_batches = (GROUP_BYTES / batch_bytes).clamp(1, GROUP_BATCHES);
        let (back, returned) = channel();
        while visit.n_left() > 0 {
            let n = (self.batch.saturating_mul(n_batches) as u64).min(visit.n_left()) as usize;
            let mut memory: Memory = returned.try_recv().unwrap_or_default();
            let message = match self.fill_group(&mut visit, n, &mut memory) {
                Ok(()) => Ok(Arc::new(Group { memory, back: Some(back.clone()) })),
                Err(error) => Err(error),
            };
            let last = message.is_err();
            if self.sender.send(message).is_err() || last {
                return;
            }
        }
    }

    fn fill_group(
        &self,
        visit: &mut Visit<'_>,
        n: usize,
        memory: &mut Memory,
    ) -> Result<(), SampleError> {
        memory.prepare(n, &self.sample_bytes);
        visit.fill(n, &mut memory.samples, &mut memory.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::{Output, Step};
    use crate::layout::Scalar;
    use crate::store::{Budget, StoreWriter};

    /// Samples of four bytes, read from a place in them.
    fn samples(from: usize, memory: usize, rows: Range<u64>) -> Arc<Samples> {
        let folder = std::env::temp_dir();
        let mut writer = StoreWriter::new(4, &Budget::new(Some(memory)), &folder, 0);
        writer.append(&[7; 400]).unwrap();
        let step = Step::Indexes { from, scalar: Scalar::I32, n: 1, indexes: None, to: 0 };
        let output = Output { first_row: 0, n_rows: 1, row_bytes: 8, steps: vec![step; 2] };
        let store = Arc::new(writer.finish().unwrap());
        Arc::new(Samples::new(store, rows, 1, (vec![output], None), None))
    }

    #[test]
    fn a_panic_of_the_thread_is_an_error_and_the_end() {
        let mut batches = Batches::start(samples(99, 1, 0..100), Order::Stored, 10, 0);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("the thread that fills batches stopped: range"), "{error}");
        assert!(batches.next().is_none());
    }

    #[test]
    fn an_error_of_the_thread_is_an_item_and_the_end() {
        // The file has 100 records, not the 300,000 that are asked for.
        let mut batches = Batches::start(samples(0, 0, 0..300_000), Order::Stored, 10, 0);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("reading the temporary file"), "{error}");
        assert!(batches.next().is_none());
    }
}
