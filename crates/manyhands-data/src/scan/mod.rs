//! From blocks to stores of records, and what is learned on the way.
//!
//! Files are read once. Values and tokens get numbers as they are seen, and rows go to the store of their part at once;
//! `fit` turns what was seen of the training part into an encoding, and numbers into indexes.

mod cells;
mod dictionary;
mod fields;
mod fit;
mod plan;
mod rows;
mod statistics;
mod text;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) use dictionary::Dictionary;
pub(crate) use fields::{FieldContent, FieldScan};
pub(crate) use fit::{fit, hash_bits};
pub(crate) use plan::{Plan, Planned, PlannedContent};
pub(crate) use text::{TextScan, fit_text};

use crate::error::DataError;
use crate::layout::{Layout, Scalar};
use crate::read::{Block, Reader};
use crate::sample_error::SampleError;
use crate::shuffle::Blocks;
use crate::split::{PartName, Split};
use crate::store::{Budget, Store, StoreWriter};
use rows::{DROPPED, Rows};
use statistics::{Statistics, Summary};

/// Rows are turned into records so many bytes at a time, which stay in the nearest caches meanwhile.
const TILE_BYTES: usize = 64 << 10;

/// Where records go.
pub(crate) struct Destination<'a> {
    pub(crate) budget: &'a Arc<Budget>,
    /// The folder for the temporary file.
    pub(crate) spill: &'a Path,
    /// How many samples are shuffled together, where the job says.
    pub(crate) shuffle_window: Option<u64>,
}

impl Destination<'_> {
    /// A store that leaves room for the two windows that are read of it.
    pub(crate) fn store(&self, width: usize, stride: u64) -> StoreWriter {
        let sample_bytes = stride.saturating_mul(width as u64);
        let window = Blocks::window_bytes(sample_bytes, self.shuffle_window);
        StoreWriter::new(width, self.budget, self.spill, window.saturating_mul(2))
    }
}

/// How much was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) n_rows: u64,
    pub(crate) n_dropped: u64,
    pub(crate) files: Vec<Arc<Path>>,
}

impl Counts {
    fn see(&mut self, block: &Block) {
        for column in 0..block.rows.num_columns() {
            let file = block.place(0, column).file;
            // The files that came up last: one, or one for each column.
            if !self.files.iter().rev().take(column + 1).any(|known| *known == file) {
                self.files.push(file);
            }
        }
    }
}

/// Blocks of a table on their way into stores.
pub(crate) struct Scan<'a> {
    fields: Vec<FieldScan>,
    layout: Layout,
    /// Of the training, validation and test part.
    stores: [Option<StoreWriter>; 3],
    /// Draws the part of each row; without it all rows are of the training part.
    split: Option<&'a Split>,
    /// Collected while rows are read where their parts are known then.
    statistics: Option<Statistics>,
    counts: Counts,
    records: Vec<u8>,
    parts: Vec<u8>,
}

/// The stores of a table, and what was seen.
pub(crate) struct Scanned {
    pub(crate) fields: Vec<FieldScan>,
    pub(crate) layout: Layout,
    pub(crate) stores: [Option<Arc<Store>>; 3],
    pub(crate) statistics: Vec<Summary>,
    pub(crate) counts: Counts,
}

impl<'a> Scan<'a> {
    /// A scan that learns: rows are drawn into parts, or all go into one store that is cut later.
    pub(crate) fn learning(
        fields: Vec<FieldScan>,
        layout: Layout,
        split: Option<&'a Split>,
        stride: u64,
        to: &Destination<'_>,
    ) -> Self {
        let mut scan = Self::known(fields, layout, stride, to);
        scan.statistics = split.map(|_| statistics_of(&scan.fields));
        for part in [PartName::Validation, PartName::Test] {
            if split.is_some_and(|split| split.share(part) > 0.0) {
                scan.stores[part as usize] = Some(to.store(scan.layout.width, stride));
            }
        }
        scan.split = split;
        scan
    }

    /// A scan with nothing to learn.
    pub(crate) fn known(
        fields: Vec<FieldScan>,
        layout: Layout,
        stride: u64,
        to: &Destination<'_>,
    ) -> Self {
        let stores = [Some(to.store(layout.width, stride)), None, None];
        let (split, statistics, counts) = (None, None, Counts::default());
        let (records, parts) = (Vec::new(), Vec::new());
        Self { fields, layout, stores, split, statistics, counts, records, parts }
    }

    /// Reads all blocks.
    pub(crate) fn run(mut self, reader: Reader) -> Result<Scanned, DataError> {
        for block in reader {
            self.block(&block?)?;
        }
        let stores = self.stores.map(|store| store.map(StoreWriter::finish).transpose());
        let [train, validation, test] = stores;
        let stores = [train?, validation?, test?].map(|store| store.map(Arc::new));
        let statistics = self.statistics.map(Statistics::finish).unwrap_or_default();
        Ok(Scanned {
            fields: self.fields,
            layout: self.layout,
            stores,
            statistics,
            counts: self.counts,
        })
    }

    fn block(&mut self, block: &Block) -> Result<(), SampleError> {
        self.counts.see(block);
        let n_rows = block.rows.num_rows();
        let cells: Vec<_> =
            self.fields.iter().map(|field| field.cells(block)).collect::<Result<_, _>>()?;
        let n_tile = (TILE_BYTES / self.layout.width.max(1)).max(1);
        for first in (0..n_rows).step_by(n_tile) {
            let range = first..(first + n_tile).min(n_rows);
            self.draw_parts(range.len());
            self.records.resize(range.len() * self.layout.width, 0);
            let mut rows = Rows {
                records: &mut self.records,
                width: self.layout.width,
                parts: &mut self.parts,
            };
            for (field, cells) in self.fields.iter_mut().zip(&cells) {
                field.write(block, cells, range.clone(), &mut rows)?;
            }
            for field in &mut self.fields {
                field.observe(block, range.start, &rows);
            }
            self.store()?;
        }
        Ok(())
    }

    /// The parts of the rows that come next.
    fn draw_parts(&mut self, n: usize) {
        self.parts.clear();
        match self.split {
            None => self.parts.resize(n, PartName::Train as u8),
            Some(split) => {
                let rows = self.counts.n_rows..self.counts.n_rows + n as u64;
                self.parts.extend(rows.map(|row| split.part(row) as u8));
            }
        }
        self.counts.n_rows += n as u64;
    }

    /// Puts the records where they belong.
    fn store(&mut self) -> Result<(), SampleError> {
        let width = self.layout.width;
        let mut first = 0;
        for run in self.parts.chunk_by(|a, b| a == b) {
            let records = &self.records[first * width..(first + run.len()) * width];
            first += run.len();
            if run[0] == DROPPED {
                self.counts.n_dropped += run.len() as u64;
                continue;
            }
            if let Some(statistics) = &mut self.statistics
                && run[0] == PartName::Train as u8
            {
                records.chunks_exact(width).for_each(|record| statistics.add(record));
            }
            if let Some(store) = &mut self.stores[usize::from(run[0])] {
                store.append(records)?;
            }
        }
        Ok(())
    }
}

impl Scanned {
    /// Learns from some of the rows of the training store, after it is known which they are.
    pub(crate) fn learn(&mut self, rows: Range<u64>) -> Result<(), SampleError> {
        let Some(store) = &self.stores[0] else { return Ok(()) };
        let mut statistics = statistics_of(&self.fields);
        self.fields.iter_mut().for_each(FieldScan::forget_counts);
        let width = store.width();
        let n_tile = (TILE_BYTES / width.max(1)).max(1) as u64;
        let mut records = Vec::new();
        let mut first = rows.start;
        while first < rows.end {
            let n = n_tile.min(rows.end - first);
            records.resize(n as usize * width, 0);
            store.read(first, &mut records)?;
            records.chunks_exact(width).for_each(|record| statistics.add(record));
            for field in &mut self.fields {
                records.chunks_exact(width).for_each(|record| field.count(record));
            }
            first += n;
        }
        self.statistics = statistics.finish();
        Ok(())
    }
}

/// Collects the statistics of all numbers. Bytes of lists are pixels and have none.
fn statistics_of(fields: &[FieldScan]) -> Statistics {
    Statistics::new(fields.iter().filter(|field| field.has_statistics()).map(|field| field.field))
}

impl FieldScan {
    /// Whether its numbers are scaled by what was learned of them.
    pub(crate) fn has_statistics(&self) -> bool {
        match self.planned.content {
            PlannedContent::Number(_) => true,
            PlannedContent::List(scalar, _) => scalar != Scalar::U8,
            PlannedContent::Categories { .. }
            | PlannedContent::Text
            | PlannedContent::Hashed { .. }
            | PlannedContent::Buckets(_)
            | PlannedContent::PairValues(_) => false,
        }
    }
}
