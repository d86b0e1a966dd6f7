//! Samples at given places of an epoch: for a worker that is to do some grains of a step and needs no others.
//!
//! What is wanted soon is read ahead by a thread of its own. No more is held than was wanted and has not been dropped, besides
//! the windows of a store that has spilled.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::batches::{Batch, Memory, said};
use crate::error::DataError;
use crate::sample_error::SampleError;
use crate::samples::{Part, Samples};
use crate::shuffle::Order;
use crate::visit::Visit;

/// Samples of an epoch, by their places in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The order of the epoch.
    pub order: Order,
    /// The places, those of one range after those of the other.
    pub places: Vec<Range<u64>>,
}

impl Part {
    /// Reads the samples at some places of an epoch. Of data that is not in memory it reads them one by one: for many there is
    /// [`Part::takes`].
    ///
    /// # Panics
    /// Where there is no such place.
    pub fn take(&self, take: &Take) -> Result<Batch, DataError> {
        let samples = &*self.samples;
        assert_within(take, samples);
        let (stop, sample_bytes) = (AtomicBool::new(false), samples.sample_bytes());
        let mut visit = Visit::new(samples, take.order, 0, &stop).without_windows();
        let mut memory = Memory::default();
        memory.fill(&mut visit, &sample_bytes, &take.places)?;
        Ok(Batch::new(memory, None, sample_bytes, samples.inputs.len()))
    }

    /// Starts a thread that reads samples at the places that are wanted of it.
    pub fn takes(&self) -> Result<Takes, DataError> {
        let samples = Arc::clone(&self.samples);
        let stop = Arc::new(AtomicBool::new(false));
        let (wants, wanted) = channel();
        let (sender, taken) = channel();
        let (reads, stopped) = (Arc::clone(&samples), Arc::clone(&stop));
        let read = move || read(&reads, &wanted, &sender, &stopped);
        let thread = std::thread::Builder::new().name("manyhands-takes".into()).spawn(read);
        let thread = Some(thread.map_err(SampleError::Thread)?);
        Ok(Takes { samples, wants: Some(wants), taken, thread, stop, n_under_way: 0 })
    }
}

fn assert_within(take: &Take, samples: &Samples) {
    for range in &take.places {
        let n = samples.n_samples;
        assert!(range.start <= range.end && range.end <= n, "no places {range:?} among {n}");
    }
}

/// A thread that reads samples at the places that are wanted of it, in the order in which they are wanted.
#[derive(Debug)]
pub struct Takes {
    samples: Arc<Samples>,
    wants: Option<Sender<Take>>,
    taken: Receiver<(Take, Result<Batch, SampleError>)>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    n_under_way: usize,
}

impl Takes {
    /// Has samples read.
    ///
    /// # Panics
    /// Where there is no such place.
    pub fn want(&mut self, take: Take) {
        assert_within(&take, &self.samples);
        // A thread that has ended says why when it is asked for the samples.
        let _ = self.wants.as_ref().map(|wants| wants.send(take));
        self.n_under_way += 1;
    }

    /// The oldest of the wanted samples that have not been handed out, when they are there within so long.
    pub fn next_within(&mut self, most: Duration) -> Result<Option<(Take, Batch)>, DataError> {
        if self.n_under_way == 0 {
            return Ok(None);
        }
        match self.taken.recv_timeout(most) {
            Ok((take, batch)) => {
                self.n_under_way -= 1;
                Ok(Some((take, batch?)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let panic = self.thread.take().and_then(|thread| thread.join().err());
                let reason = panic.map_or_else(|| "it ended".to_string(), |panic| said(&*panic));
                Err(SampleError::ThreadStopped { reason }.into())
            }
        }
    }

    /// How many wanted samples were not handed out: as many calls give some.
    pub fn n_under_way(&self) -> usize {
        self.n_under_way
    }
}

impl Drop for Takes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wants = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
fn read(
    samples: &Samples,
    wanted: &Receiver<Take>,
    sender: &Sender<(Take, Result<Batch, SampleError>)>,
    stop: &AtomicBool,
) {
    let (back, returned) = channel();
    let (sample_bytes, n_inputs) = (samples.sample_bytes(), samples.inputs.len());
    let mut walk: Option<(Order, Visit<'_>)> = None;
    while let Ok(take) = wanted.recv() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (_, visit) = match walk.take() {
            Some(before) if before.0 == take.order => walk.insert(before),
            _ => walk.insert((take.order, Visit::new(samples, take.order, 0, stop))),
        };
        let mut memory: Memory = returned.try_recv().unwrap_or_default();
        let filled = memory.fill(visit, &sample_bytes, &take.places);
        let batch = filled
            .map(|()| Batch::new(memory, Some(back.clone()), Arc::clone(&sample_bytes), n_inputs));
        if sender.send((take, batch)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gather::{Output, Step};
    use crate::layout::Scalar;
    use crate::store::{Budget, StoreWriter};

    /// Long enough for anything that does not hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Numbers, two to a sample, in windows of so many samples, in memory or on disk.
    fn part(n: u64, window: u64, mebibytes: usize) -> Part {
        let folder = std::env::temp_dir();
        let mut writer = StoreWriter::new(8, &Budget::new(Some(mebibytes)), &folder, 0);
        (0..n).for_each(|i| writer.append(&i.to_ne_bytes()).unwrap());
        let step = Step::Indexes { from: 0, scalar: Scalar::I32, n: 1, indexes: None, to: 0 };
        let output = |first_row| Output {
            first_row,
            n_rows: 2 - first_row,
            row_bytes: 4,
            steps: vec![step.clone()],
        };
        let store = Arc::new(writer.finish().unwrap());
        let outputs = (vec![output(0)], Some(output(1)));
        let samples = Samples::new(store, 0..n, 1, outputs, Some(window));
        Part { samples: Arc::new(samples) }
    }

    /// The samples of a whole epoch, with the bytes of their input and target.
    fn epoch(part: &Part, order: Order) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        for batch in part.batches(order, 7, 0) {
            all.extend(samples_of(&batch.unwrap()));
        }
        all
    }

    fn samples_of(batch: &Batch) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let one = |idx: usize| {
            let target = batch.target(idx..idx + 1).unwrap();
            (batch.samples()[idx], batch.input(0, idx..idx + 1).to_vec(), target.to_vec())
        };
        (0..batch.n_samples()).map(one).collect()
    }

    fn expected(part: &Part, take: &Take) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let all = epoch(part, take.order);
        let ranges = take.places.iter();
        ranges.flat_map(|range| all[range.start as usize..range.end as usize].to_vec()).collect()
    }

    /// Takes ahead and behind, within an epoch and in another.
    fn any_takes(n: u64) -> impl Strategy<Value = Vec<Take>> {
        let range = (0..=n, 0..40u64).prop_map(move |(start, len)| start..n.min(start + len));
        let order = prop_oneof![
            1 => Just(Order::Stored),
            3 => (0u64..2).prop_map(|epoch| Order::Shuffled { seed: 3, epoch }),
        ];
        let take = (order, prop::collection::vec(range, 0..4))
            .prop_map(|(order, places)| Take { order, places });
        prop::collection::vec(take, 1..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_taken_is_what_the_epoch_has_there(
            (takes, n) in (2u64..900).prop_flat_map(|n| (any_takes(n - 1), Just(n))),
            window in 1u64..300, mebibytes in 0usize..2,
        ) {
            let part = part(n, window, mebibytes);
            prop_assert_eq!(part.is_in_memory(), mebibytes > 0);
            let mut ahead = part.takes().unwrap();
            takes.iter().for_each(|take| ahead.want(take.clone()));
            for take in &takes {
                let expected = expected(&part, take);
                let (found, batch) = ahead.next_within(PATIENCE).unwrap().unwrap();
                prop_assert_eq!(&found, take);
                prop_assert_eq!(&samples_of(&batch), &expected);
                prop_assert_eq!(samples_of(&part.take(take).unwrap()), expected);
            }
            prop_assert!(ahead.next_within(PATIENCE).unwrap().is_none());
        }
    }

    #[test]
    fn an_error_comes_with_what_it_befell_and_the_thread_goes_on() {
        // The file has 100 records, not the 300,000 that are asked for.
        let whole = part(100, 64, 0);
        let samples = Samples {
            rows: 0..300_000,
            n_samples: 299_999,
            store: Arc::clone(&whole.samples.store),
            inputs: whole.samples.inputs.clone(),
            target: whole.samples.target.clone(),
            ..*whole.samples
        };
        let part = Part { samples: Arc::new(samples) };
        let mut takes = part.takes().unwrap();
        for range in [200_000..200_001, 3..5] {
            takes.want(Take { order: Order::Stored, places: std::iter::once(range).collect() });
        }
        let error = takes.next_within(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("reading the temporary file"), "{error}");
        let (_, batch) = takes.next_within(PATIENCE).unwrap().unwrap();
        assert_eq!(batch.samples(), [3, 4]);
    }
}
