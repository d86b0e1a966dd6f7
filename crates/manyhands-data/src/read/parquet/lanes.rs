//! Threads that read some of the columns each, and the blocks that they make together.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use arrow::array::{Array, ArrayRef};
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::errors::ParquetError;

use super::super::lists::{self, ListFaultKind};
use super::super::{Block, Origin, Place, ReadError};
use super::file::{ColumnsReader, ParquetFile, guarded};
use super::{Column, Plan};

/// The next rows of some columns.
struct LaneBatch {
    file: Arc<Path>,
    first_row: u64,
    n_rows: usize,
    columns: Vec<ArrayRef>,
}

/// Reads some of the columns of all files.
struct Lane {
    plan: Arc<Plan>,
    /// Which columns of the blocks.
    positions: Vec<usize>,
    next_file_idx: usize,
    /// The first file, which is open already.
    first: Option<Arc<ParquetFile>>,
    current: Option<OpenLane>,
}

struct OpenLane {
    /// Kept, so that the other lanes find it open.
    opened: Arc<ParquetFile>,
    reader: ColumnsReader,
    /// For each of the lane's columns: which one of the reader's batches.
    order: Vec<usize>,
    n_rows: u64,
}

impl Lane {
    fn next_batch(&mut self) -> Result<Option<LaneBatch>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                if self.next_file_idx == self.plan.files.len() {
                    return Ok(None);
                }
                self.current = Some(self.open_next()?);
                continue;
            };
            let file = current.opened.file.clone();
            let batch = current.reader.next_batch()?;
            let Some(batch) = batch else {
                self.current = None;
                continue;
            };
            let (first_row, n_rows) = (current.n_rows, batch.num_rows());
            current.n_rows += n_rows as u64;
            let mut columns = Vec::with_capacity(self.positions.len());
            for (&position, &idx) in self.positions.iter().zip(&current.order) {
                let column = &self.plan.columns[position];
                columns.push(convert(batch.column(idx), column, &file, first_row)?);
            }
            return Ok(Some(LaneBatch { file, first_row, n_rows, columns }));
        }
    }

    fn open_next(&mut self) -> Result<OpenLane, ReadError> {
        let opened = match self.first.take() {
            Some(first) => first,
            None => self.plan.files.open(self.next_file_idx)?,
        };
        self.next_file_idx += 1;
        let mut roots = Vec::with_capacity(self.positions.len());
        for &position in &self.positions {
            roots.push(self.plan.root_of(&opened, position)?);
        }
        self.plan.check_others(&opened)?;
        let reader = opened.reader(&roots, self.plan.batch_rows, None)?;
        // The reader keeps the order of the file.
        let mut sorted = roots.clone();
        sorted.sort_unstable();
        let order = roots.iter().map(|root| sorted.partition_point(|other| other < root)).collect();
        Ok(OpenLane { opened, reader, order, n_rows: 0 })
    }
}

fn convert(
    stored: &ArrayRef,
    column: &Column,
    file: &Arc<Path>,
    first_row: u64,
) -> Result<ArrayRef, ReadError> {
    if let Some(shape) = &column.shape {
        return lists::flatten(stored, shape, &column.field).map_err(|fault| {
            let row = first_row + fault.row_idx as u64;
            let place = Place { file: file.clone(), row, line: None }.to_string();
            let column = column.field.name().clone();
            match fault.kind {
                ListFaultKind::Null => ReadError::ListNull { place, column },
                ListFaultKind::Length { n_found, n_expected } => {
                    ReadError::ListLength { place, column, n_found, n_expected }
                }
            }
        });
    }
    if stored.data_type() == column.field.data_type() {
        return Ok(stored.clone());
    }
    guarded(file, None, || cast(stored, column.field.data_type()).map_err(ParquetError::from))
}

/// The lanes in step: one block of all their columns after the other.
pub(super) struct LaneBlocks {
    lanes: Lanes,
    /// For each lane: the positions of its columns.
    positions: Vec<Vec<usize>>,
    schema: SchemaRef,
}

enum Lanes {
    /// Read by whoever asks for blocks.
    Here(Box<Lane>),
    Threads(Vec<LaneThread>),
}

struct LaneThread {
    batches: Option<Receiver<Result<LaneBatch, ReadError>>>,
    thread: Option<JoinHandle<()>>,
}

impl LaneBlocks {
    pub(super) fn start(
        plan: &Arc<Plan>,
        first: &Arc<ParquetFile>,
        positions: Vec<Vec<usize>>,
        schema: SchemaRef,
    ) -> Result<LaneBlocks, ReadError> {
        let lane = |positions: &Vec<usize>| Lane {
            plan: plan.clone(),
            positions: positions.clone(),
            next_file_idx: 0,
            first: Some(first.clone()),
            current: None,
        };
        let lanes = match positions.as_slice() {
            [only] => Lanes::Here(Box::new(lane(only))),
            many => {
                let threads: Result<_, ReadError> =
                    many.iter().map(|each| LaneThread::start(lane(each))).collect();
                Lanes::Threads(threads?)
            }
        };
        Ok(LaneBlocks { lanes, positions, schema })
    }

    fn next_block(&mut self) -> Result<Option<Block>, ReadError> {
        let mut batches = Vec::with_capacity(self.positions.len());
        match &mut self.lanes {
            Lanes::Here(lane) => batches.extend(lane.next_batch()?),
            Lanes::Threads(threads) => {
                for thread in threads {
                    batches.extend(thread.next_batch()?);
                }
            }
        }
        let Some(first) = batches.first() else { return Ok(None) };
        let origin = Origin {
            file: first.file.clone(),
            first_row: first.first_row,
            first_line: 0,
            row_lines: None,
            n_skipped: 0,
        };
        let is_even = batches.len() == self.positions.len()
            && batches.iter().all(|batch| batch.n_rows == first.n_rows);
        if !is_even {
            let source = ParquetError::General("its columns differ in length".into());
            return Err(ReadError::Parquet { file: origin.file, source });
        }
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
        for (batch, positions) in batches.into_iter().zip(&self.positions) {
            for (column, &position) in batch.columns.into_iter().zip(positions) {
                columns[position] = Some(column);
            }
        }
        let columns = columns.into_iter().flatten().collect();
        let rows = RecordBatch::try_new(self.schema.clone(), columns)
            .expect("every column is read by one lane and has the type of its field");
        Ok(Some(Block::new(rows, origin)))
    }
}

impl LaneThread {
    fn start(mut lane: Lane) -> Result<LaneThread, ReadError> {
        let (sender, batches) = sync_channel(2);
        let run = move || {
            while let Some(batch) = lane.next_batch().transpose() {
                let is_last = batch.is_err();
                if sender.send(batch).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("read".into()).spawn(run);
        let thread = Some(thread.map_err(|source| ReadError::Threads { source })?);
        Ok(LaneThread { batches: Some(batches), thread })
    }

    fn next_batch(&mut self) -> Result<Option<LaneBatch>, ReadError> {
        self.batches.as_ref().and_then(|batches| batches.recv().ok()).transpose()
    }
}

impl Drop for LaneThread {
    fn drop(&mut self) {
        // Without a receiver the thread ends at its next batch.
        drop(self.batches.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Iterator for LaneBlocks {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_block().transpose()
    }
}
