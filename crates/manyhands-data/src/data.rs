//! The data of a job, opened: read once, learned from, cut into parts.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::encoding::RecordIndexes;
use crate::encoding::{Encoding, Labels, Sampling, Target};
use crate::error::DataError;
use crate::hash::MOST_BITS;
use crate::layout::Layout;
use crate::sample_error::SampleError;
use crate::samples::{Part, Samples};
use crate::scan::{Counts, Destination};
use crate::spec::{DataSpec, HeldOut, Source};
use crate::split::{PartName, Split};
use crate::store::{Budget, Store};
use crate::{open_table, open_text};

/// The data of a job.
#[derive(Debug)]
pub struct Data {
    /// What is trained on.
    pub train: Part,
    /// What is looked at after each epoch.
    pub validation: Option<Part>,
    /// What is looked at when training is done.
    pub test: Option<Part>,
    /// What was learned from the training part.
    pub encoding: Encoding,
    /// What was read.
    pub summary: DataSummary,
}

/// What was read, for reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataSummary {
    /// Rows of tables, or tokens of text, that the files have.
    pub n_rows: u64,
    /// Rows that were left out for their empty cells.
    pub n_dropped: u64,
    /// Samples of the training part.
    pub n_train: usize,
    /// Samples of the validation part.
    pub n_validation: usize,
    /// Samples of the test part.
    pub n_test: usize,
    /// Bytes of all records.
    pub bytes: u64,
    /// Bytes of records in a temporary file, because they do not fit in memory.
    pub spilled_bytes: u64,
    /// The files, in the order in which they were read.
    pub files: Vec<PathBuf>,
    /// How long reading took.
    pub read: Duration,
}

impl DataSummary {
    fn count(&mut self, counts: &Counts) {
        self.n_rows += counts.n_rows;
        self.n_dropped += counts.n_dropped;
        self.files.extend(counts.files.iter().map(|file| file.to_path_buf()));
    }

    fn weigh(&mut self, store: &Store) {
        self.bytes += store.n_records() * store.width() as u64;
        self.spilled_bytes += store.spilled_bytes();
    }
}

/// Records with all that makes samples of them.
pub(crate) struct Opened {
    pub(crate) encoding: Encoding,
    pub(crate) layout: Layout,
    pub(crate) indexes: RecordIndexes,
    pub(crate) counts: Counts,
    /// The records of the training, validation and test part, each if it is there.
    pub(crate) parts: [Option<(Arc<Store>, Range<u64>)>; 3],
}

/// Where files and temporary files are.
#[derive(Clone, Copy)]
pub(crate) struct Folders<'a> {
    /// Relative paths start here.
    pub(crate) files: &'a Path,
    /// Temporary files go here.
    pub(crate) spill: &'a Path,
}

impl Data {
    /// Reads the data of a job and learns from its training part. Relative paths start at `folder`; what does not fit in
    /// memory goes into a temporary file in `spill`. Held-out shares are drawn by the seed.
    pub fn open(
        spec: &DataSpec,
        target: Target,
        seed: u64,
        folder: &Path,
        spill: &Path,
    ) -> Result<Self, DataError> {
        let started = Instant::now();
        check(spec)?;
        let split = Split::new(spec.validation.as_ref(), spec.test.as_ref(), seed)?;
        let budget = Budget::new(spec.memory);
        let folders = Folders { files: folder, spill };
        let opened = match target {
            Target::NextToken => open_text::open(spec, &split, folders, &budget)?,
            Target::Classes | Target::Numbers => {
                open_table::open(spec, target, &split, folders, &budget)?
            }
        };
        let mut summary = DataSummary::default();
        summary.count(&opened.counts);
        let held_out = [None, spec.validation.as_ref(), spec.test.as_ref()];
        let names = [PartName::Train, PartName::Validation, PartName::Test];
        let mut parts = [None, None, None];
        for (part, (name, held_out)) in parts.iter_mut().zip(names.into_iter().zip(held_out)) {
            *part = match held_out {
                Some(HeldOut::Files(source)) => {
                    let read = opened.encoding.read_counted(
                        spec,
                        (source, name),
                        folders,
                        Labels::Required,
                        &budget,
                    );
                    let (part, counts) = read?;
                    summary.count(&counts);
                    summary.weigh(&part.samples.store);
                    Some(part)
                }
                _ => opened.drawn_part(spec, name, &split, &mut summary)?,
            };
        }
        let n_samples = |part: &Option<Part>| part.as_ref().map_or(0, Part::n_samples);
        summary.n_train = n_samples(&parts[0]);
        summary.n_validation = n_samples(&parts[1]);
        summary.n_test = n_samples(&parts[2]);
        summary.read = started.elapsed();
        let [train, validation, test] = parts;
        let Some(train) = train else {
            return Err(SampleError::NothingToTrainOn {
                validation: split.validation,
                test: split.test,
            }
            .into());
        };
        Ok(Self { train, validation, test, encoding: opened.encoding, summary })
    }
}

impl Opened {
    /// A part of the training files, if the job wants it.
    fn drawn_part(
        &self,
        spec: &DataSpec,
        name: PartName,
        split: &Split,
        summary: &mut DataSummary,
    ) -> Result<Option<Part>, SampleError> {
        let Some((store, rows)) = &self.parts[name as usize] else { return Ok(None) };
        let part = self.part(spec, store, rows);
        let share = (name != PartName::Train).then(|| split.share(name));
        let reason = || few(&part.samples, self.counts.n_rows - self.counts.n_dropped, share);
        fill_check(&part, name, self.encoding.sampling(), reason)?;
        // The parts of rows that follow each other share one store.
        if rows.start == 0 {
            summary.weigh(store);
        }
        Ok(Some(part))
    }

    fn part(&self, spec: &DataSpec, store: &Arc<Store>, rows: &Range<u64>) -> Part {
        let outputs = self.encoding.outputs(&self.layout, &self.indexes);
        let stride = self.encoding.sampling().stride();
        let window = spec.shuffle_window.map(|n| n as u64);
        let samples = Samples::new(Arc::clone(store), rows.clone(), stride, outputs, window);
        Part { samples: Arc::new(samples) }
    }
}

impl Encoding {
    /// Reads new data as the training part was read, to evaluate or predict. The job says how files are read; columns that
    /// the model was not trained on are left alone.
    pub fn read(
        &self,
        spec: &DataSpec,
        source: &Source,
        folder: &Path,
        spill: &Path,
        labels: Labels,
    ) -> Result<Part, DataError> {
        check(spec)?;
        let folders = Folders { files: folder, spill };
        let budget = Budget::new(spec.memory);
        let source = (source, PartName::New);
        Ok(self.read_counted(spec, source, folders, labels, &budget)?.0)
    }

    fn read_counted(
        &self,
        spec: &DataSpec,
        (source, name): (&Source, PartName),
        folders: Folders<'_>,
        labels: Labels,
        budget: &Arc<Budget>,
    ) -> Result<(Part, Counts), DataError> {
        let opened = match self.target_kind() {
            Target::NextToken => open_text::read(self, spec, source, folders, budget)?,
            Target::Classes | Target::Numbers => {
                open_table::read(self, spec, source, folders, labels, budget)?
            }
        };
        let Opened { counts, parts: [train, ..], .. } = &opened;
        let Some((store, rows)) = train else {
            return Err(SampleError::NoFeatures.into());
        };
        let part = opened.part(spec, store, rows);
        let reason = || few(&part.samples, counts.n_rows - counts.n_dropped, None);
        fill_check(&part, name, self.sampling(), reason)?;
        Ok((part, counts.clone()))
    }
}

impl Destination<'_> {
    pub(crate) fn new<'a>(
        spec: &DataSpec,
        folders: Folders<'a>,
        budget: &'a Arc<Budget>,
    ) -> Destination<'a> {
        let shuffle_window = spec.shuffle_window.map(|n| n as u64);
        Destination { budget, spill: folders.spill, shuffle_window }
    }
}

/// Refuses settings that make no sense whatever the data is.
fn check(spec: &DataSpec) -> Result<(), SampleError> {
    let at_least_one = [
        ("data.window.length", spec.window.map(|window| window.length)),
        ("data.window.stride", spec.window.map(|window| window.stride)),
        ("data.text.length", spec.text.map(|text| text.length)),
        ("data.text.stride", spec.text.and_then(|text| text.stride)),
        ("data.text.vocabulary", spec.text.and_then(|text| text.vocabulary)),
        ("data.shuffle_window", spec.shuffle_window),
        ("data.hash.most", spec.hash.and_then(|hash| hash.most)),
    ];
    for (key, number) in at_least_one {
        if number == Some(0) {
            return Err(SampleError::Zero { key });
        }
    }
    match spec.hash.and_then(|hash| hash.bits) {
        Some(bits) if !(1..=MOST_BITS).contains(&bits) => {
            Err(SampleError::HashBits { bits, most: MOST_BITS })
        }
        _ => Ok(()),
    }
}

/// Refuses a part without samples.
fn fill_check(
    part: &Part,
    name: PartName,
    sampling: Sampling,
    reason: impl FnOnce() -> String,
) -> Result<(), SampleError> {
    if part.n_samples() > 0 {
        return Ok(());
    }
    let what = match sampling {
        Sampling::Rows => "rows",
        Sampling::Windows(_) => "windows",
        Sampling::Tokens { .. } => "sequences",
    };
    Err(SampleError::EmptyPart { part: name, what, reason: reason() })
}

/// Why a part has no samples.
fn few(samples: &Samples, n_kept: u64, share: Option<f64>) -> String {
    let n_rows = samples.rows.end - samples.rows.start;
    match (n_kept, share) {
        (0, _) => "there are none in the files, or all have empty cells".into(),
        _ if samples.span > 1 => {
            let span = samples.span;
            format!("it has {n_rows} rows or tokens, and a sample with its target takes {span}")
        }
        (_, Some(share)) => format!("none of the {n_kept} rows fell to its share of {share}"),
        (_, None) => format!("all of the {n_kept} rows were held out of it"),
    }
}
