//! The samples of an epoch's steps: read ahead where this process uses them, only counted where workers read for themselves.

use std::sync::{Arc, OnceLock};

use manyhands_data::{Batch, Batches, DataSpec, Order, Part, Take};

use crate::error::Error;

/// The order in which an epoch visits the samples.
pub(crate) fn order_of(data: &DataSpec, seed: u64, epoch: u64) -> Order {
    match data.shuffle {
        true => Order::Shuffled { seed, epoch },
        false => Order::Stored,
    }
}

/// The samples of a step: read, or known by their places and read when somebody wants them. Cloning it copies no samples.
#[derive(Clone, Debug)]
pub(crate) struct StepBatch {
    n_samples: usize,
    part: Part,
    take: Take,
    read: Arc<OnceLock<Batch>>,
}

impl StepBatch {
    /// How many samples it has.
    pub(crate) fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// Whether its samples are in memory.
    pub(crate) fn is_read(&self) -> bool {
        self.read.get().is_some()
    }

    /// The samples.
    pub(crate) fn read(&self) -> Result<&Batch, Error> {
        if let Some(batch) = self.read.get() {
            return Ok(batch);
        }
        let batch = self.part.take(&self.take)?;
        Ok(self.read.get_or_init(|| batch))
    }
}

/// The steps of an epoch, one after the other.
pub(crate) struct EpochBatches<'a> {
    part: &'a Part,
    order: Order,
    batch: usize,
    /// The next batch.
    next: usize,
    /// Reads ahead, where samples are wanted.
    ahead: Option<Batches>,
}

impl<'a> EpochBatches<'a> {
    /// Those of an epoch of this order, without the first `first`.
    pub(crate) fn new(part: &'a Part, order: Order, batch: usize, first: usize) -> Self {
        EpochBatches { part, order, batch: batch.max(1), next: first, ahead: None }
    }

    /// The next one, read already where its samples are wanted here.
    pub(crate) fn next(&mut self, is_wanted: bool) -> Option<Result<StepBatch, Error>> {
        let first = self.next.saturating_mul(self.batch).min(self.part.n_samples());
        let end = self.part.n_samples().min(first + self.batch);
        if first == end {
            return None;
        }
        let read = OnceLock::new();
        if is_wanted {
            let start = || self.part.batches(self.order, self.batch, self.next);
            match self.ahead.get_or_insert_with(start).next()? {
                Ok(batch) => drop(read.set(batch)),
                Err(error) => return Some(Err(error.into())),
            }
        } else {
            self.ahead = None;
        }
        self.next += 1;
        let places = std::iter::once(first as u64..end as u64).collect();
        let take = Take { order: self.order, places };
        let (part, read) = (self.part.clone(), Arc::new(read));
        Some(Ok(StepBatch { n_samples: end - first, part, take, read }))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use manyhands_data::{Data, Target};
    use proptest::prelude::*;

    use super::*;

    fn open(folder: &Path, n_rows: usize) -> Data {
        let rows: String = (0..n_rows).map(|row| format!("{row},{}\n", row % 3)).collect();
        std::fs::write(folder.join("x.csv"), format!("x,class\n{rows}")).unwrap();
        let spec = r#"{ "train": "x.csv", "label": "class", "columns": { "class": "category" } }"#;
        let spec: DataSpec = serde_json::from_str(spec).unwrap();
        Data::open(&spec, Target::Classes, 1, folder, folder).unwrap()
    }

    fn samples(batch: &Batch) -> (Vec<u64>, Vec<u8>) {
        (batch.samples().to_vec(), batch.input(0, 0..batch.n_samples()).to_vec())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn steps_have_the_same_samples_read_ahead_or_when_wanted(
            n_rows in 3usize..60, size in 1usize..20, first in 0usize..4, epoch in 0u64..3,
            wanted in prop::collection::vec(any::<bool>(), 60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let data = open(folder.path(), n_rows);
            let order = Order::Shuffled { seed: 5, epoch };
            let expected = data.train.batches(order, size, first).map(Result::unwrap);
            let expected: Vec<_> = expected.map(|batch| samples(&batch)).collect();
            let mut batches = EpochBatches::new(&data.train, order, size, first);
            let mut found = Vec::new();
            for is_wanted in wanted {
                let Some(batch) = batches.next(is_wanted) else { break };
                let batch = batch.unwrap();
                prop_assert_eq!(batch.read.get().is_some(), is_wanted);
                prop_assert_eq!(batch.read().unwrap().n_samples(), batch.n_samples());
                found.push(samples(batch.read().unwrap()));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
