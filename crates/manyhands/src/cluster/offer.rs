//! The training data as a driver offers it to workers that can read it themselves, and how a worker finds out whether it can.
//!
//! What the driver read is the measure: a worker reads the same files, learns from them as the driver did, and takes what it has for
//! the same only where all records and all that was learned are equal. From then on both make the same bytes of every sample.

use std::ops::Range;
use std::path::{Path, PathBuf};

use manyhands_data::{
    Data, DataError, DataSpec, HeldOut, Part, Source, Take, Target, available_memory,
};
use serde::{Deserialize, Serialize};

use crate::job::{Job, ReadBy};
use crate::train::{Recipe, order_of};

/// The training data of a job, for those who can read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DataOffer {
    /// Where it is and how it is read; paths are absolute.
    spec: DataSpec,
    target: Target,
    seed: u64,
    /// What the driver learned from it, as text: equal numbers are written alike.
    encoding: String,
    /// Stands for the records of the training part.
    digest: u64,
    n_samples: usize,
    /// Samples of a step.
    batch: usize,
    /// Samples of a grain.
    grain: usize,
    /// Whether workers that could be sent their samples cheaply read them too.
    pub(super) is_for_all: bool,
}

/// Where a worker looks for data, and how much of it may be in memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Surroundings {
    /// A copy of the data lies below this folder.
    pub(super) folder: Option<PathBuf>,
    /// Workers of this machine that may read at the same time.
    pub(super) n_sharing: u64,
}

/// Why a worker is sent its samples.
#[derive(Debug, thiserror::Error)]
pub(super) enum CannotRead {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("{source_files} holds other records there than where the job was started")]
    OtherRecords { source_files: Source },
    #[error("other values are learned from {source_files} there than where the job was started")]
    OtherValues { source_files: Source },
    #[error("the thread that reads the data ended")]
    Ended,
    #[error("no thread can be started to read with: {0}")]
    Thread(std::io::Error),
}

impl DataOffer {
    /// The offer for a job whose data is open, unless the job wants none to be made.
    pub(crate) fn new(job: &Job, recipe: &Recipe, data: &Data) -> Option<DataOffer> {
        let read = job.distribute.read;
        if read == ReadBy::Driver {
            return None;
        }
        let mut spec = job.data.clone();
        // Shares that are held out decide what is left to train on; files of their own do not.
        for held_out in [&mut spec.test, &mut spec.validation] {
            held_out.take_if(|held_out| matches!(held_out, HeldOut::Files(_)));
        }
        Some(DataOffer {
            spec,
            target: recipe.encoding.target_kind(),
            seed: job.train.seed,
            encoding: serde_json::to_string(&recipe.encoding).ok()?,
            digest: data.train.digest(),
            n_samples: data.train.n_samples(),
            batch: recipe.batch,
            grain: recipe.grain,
            is_for_all: read == ReadBy::Workers,
        })
    }

    /// Reads the data, and makes sure that it is what was offered.
    pub(super) fn open(&self, around: &Surroundings) -> Result<Part, CannotRead> {
        let mut spec = self.spec.clone();
        if let Some(folder) = &around.folder {
            spec.train = spec.train.found_below(folder);
        }
        if spec.memory.is_none() {
            // Half of what is free, shared with the others who read here.
            let bytes = available_memory().map(|bytes| bytes / 2 / around.n_sharing.max(1));
            spec.memory = bytes.map(|bytes| (bytes >> 20) as usize);
        }
        let folder = around.folder.as_deref().unwrap_or(Path::new("/"));
        let data = Data::open(&spec, self.target, self.seed, folder, &std::env::temp_dir())?;
        let source_files = self.spec.train.clone();
        let is_same =
            data.train.digest() == self.digest && data.train.n_samples() == self.n_samples;
        if !is_same {
            return Err(CannotRead::OtherRecords { source_files });
        }
        match serde_json::to_string(&data.encoding) {
            Ok(encoding) if encoding == self.encoding => Ok(data.train),
            _ => Err(CannotRead::OtherValues { source_files }),
        }
    }

    /// Where the samples of these grains of a step (from 1) are.
    pub(super) fn take(&self, step: u64, grains: &[Range<usize>]) -> Take {
        let steps_per_epoch = self.n_samples.div_ceil(self.batch.max(1)).max(1) as u64;
        let (epoch, at) = ((step - 1) / steps_per_epoch, (step - 1) % steps_per_epoch);
        let first = at as usize * self.batch;
        let end = self.n_samples.min(first + self.batch);
        let place = |grain: usize| end.min(first + grain * self.grain) as u64;
        let places = grains.iter().map(|range| place(range.start)..place(range.end)).collect();
        Take { order: order_of(&self.spec, self.seed, epoch), places }
    }
}

#[cfg(test)]
mod tests {
    use manyhands_data::Order;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_grains_of_an_epochs_steps_are_all_its_samples_in_order(
            n_samples in 1usize..300, n_grains in 1usize..6, grain in 1usize..9, epoch in 0u64..4,
        ) {
            let batch = n_grains * grain;
            let spec = serde_json::from_str(r#"{ "train": "x.csv" }"#).unwrap();
            let offer = DataOffer {
                spec, target: Target::Classes, seed: 7, encoding: String::new(), digest: 0,
                n_samples, batch, grain, is_for_all: false,
            };
            let n_steps = n_samples.div_ceil(batch) as u64;
            let mut end = 0;
            for step in epoch * n_steps + 1..=(epoch + 1) * n_steps {
                for idx in 0..n_grains {
                    let grains: Vec<Range<usize>> = std::iter::once(idx..idx + 1).collect();
                    let take = offer.take(step, &grains);
                    prop_assert_eq!(take.order, Order::Shuffled { seed: 7, epoch });
                    prop_assert_eq!(take.places[0].start, end);
                    prop_assert!(take.places[0].end - end <= grain as u64);
                    end = take.places[0].end;
                }
            }
            prop_assert_eq!(end, n_samples as u64);
        }
    }
}
