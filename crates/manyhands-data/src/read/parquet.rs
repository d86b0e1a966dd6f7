//! Parquet files. They are stored by columns, so several threads read groups of columns side by side, in step.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use arrow::array::{Array, ArrayRef};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;

use super::lists::{self, ListFaultKind};
use super::{Block, Origin, Place, ReadError, ReadOptions, Reader};
use crate::files;

/// How many bytes of rows a block has, roughly; decoding wants longer runs than parsing text does.
const BLOCKS_PER_BATCH: usize = 4;

/// Opens Parquet files.
pub(super) fn open(
    files: &[Arc<Path>],
    options: &ReadOptions,
    block_bytes: usize,
) -> Result<Reader, ReadError> {
    let first = files.first().ok_or(ReadError::NoFiles)?;
    let opened = ParquetFile::open(first)?;
    let names: Vec<String> = opened.fields().iter().map(|field| field.name().clone()).collect();
    let selected = options.select(first, &names)?;
    let columns = plan_columns(&opened, &selected)?;
    let fields: Vec<Field> = columns.iter().map(|column| column.field.clone()).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let plan = Arc::new(Plan {
        files: files.to_vec(),
        columns,
        batch_rows: opened.batch_rows(&selected, block_bytes * BLOCKS_PER_BATCH),
        allows_others: options.columns.is_some(),
        options: options.clone(),
    });
    let lanes = share_columns(&opened, &selected, options.n_threads);
    let blocks = LaneBlocks::start(&plan, lanes, schema.clone());
    Ok(Reader::new(schema, blocks))
}

/// What is read, the same for all lanes.
struct Plan {
    files: Vec<Arc<Path>>,
    columns: Vec<Column>,
    batch_rows: usize,
    /// Whether files may have columns beside those that are read.
    allows_others: bool,
    options: ReadOptions,
}

/// A column as it comes and as it goes.
struct Column {
    /// What the file holds.
    stored: DataType,
    /// What the blocks hold.
    field: Field,
    /// The shape of a row, for lists.
    shape: Option<Vec<usize>>,
}

struct ParquetFile {
    file: Arc<Path>,
    opened: File,
    metadata: ArrowReaderMetadata,
}

impl ParquetFile {
    fn open(file: &Arc<Path>) -> Result<ParquetFile, ReadError> {
        let opened = files::open_seekable(file)?;
        // Without what Arrow notes about itself, dictionaries come as plain words and numbers.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = guarded(file, || ArrowReaderMetadata::load(&opened, options))?;
        let n_bytes =
            opened.metadata().map_err(|source| ReadError::Io { file: file.clone(), source })?.len();
        check_ranges(file, &metadata, n_bytes)?;
        Ok(ParquetFile { file: file.clone(), opened, metadata })
    }

    fn fields(&self) -> &[FieldRef] {
        self.metadata.schema().fields()
    }

    /// How many rows fill a batch of so many bytes.
    fn batch_rows(&self, selected: &[usize], batch_bytes: usize) -> usize {
        let sizes = self.column_bytes();
        let n_bytes: u64 = selected.iter().map(|&idx| sizes[idx]).sum();
        let n_rows = self.metadata.metadata().file_metadata().num_rows().max(1) as u64;
        let row_bytes = (n_bytes / n_rows).max(1);
        (batch_bytes as u64 / row_bytes).clamp(1, 1 << 16) as usize
    }

    /// The unpacked size of each top-level column.
    fn column_bytes(&self) -> Vec<u64> {
        let schema = self.metadata.parquet_schema();
        let mut sizes = vec![0; self.fields().len()];
        for group in self.metadata.metadata().row_groups() {
            for (leaf_idx, leaf) in group.columns().iter().enumerate() {
                sizes[schema.get_column_root_idx(leaf_idx)] +=
                    leaf.uncompressed_size().max(0) as u64;
            }
        }
        sizes
    }

    fn reader(
        &self,
        roots: &[usize],
        batch_rows: usize,
        limit: Option<usize>,
    ) -> Result<ParquetRecordBatchReader, ReadError> {
        let cloned = self.opened.try_clone();
        let opened = cloned.map_err(|source| ReadError::Io { file: self.file.clone(), source })?;
        guarded(&self.file, || {
            let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots.iter().copied());
            let builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(opened, self.metadata.clone())
                    .with_projection(mask)
                    .with_batch_size(batch_rows);
            match limit {
                Some(n_rows) => builder.with_limit(n_rows).build(),
                None => builder.build(),
            }
        })
    }
}

/// Damaged files make the decoder panic in places; that is an error of the file like any other.
fn guarded<T>(
    file: &Arc<Path>,
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, ReadError> {
    let damaged = |_| Err(ParquetError::General("the file is damaged".into()));
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(damaged)
        .map_err(|source| ReadError::Parquet { file: file.clone(), source })
}

/// Lengths in the footer must fit the file, since memory is taken for them.
fn check_ranges(
    file: &Arc<Path>,
    metadata: &ArrowReaderMetadata,
    n_bytes: u64,
) -> Result<(), ReadError> {
    let damaged = || ReadError::Parquet {
        file: file.clone(),
        source: ParquetError::EOF("a column lies beyond the end of the file".into()),
    };
    for group in metadata.metadata().row_groups() {
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let end = start.checked_add(column.compressed_size()).filter(|_| start >= 0);
            let end = end.and_then(|end| u64::try_from(end).ok());
            if column.compressed_size() < 0 || end.is_none_or(|end| end > n_bytes) {
                return Err(damaged());
            }
        }
    }
    Ok(())
}

fn plan_columns(opened: &ParquetFile, selected: &[usize]) -> Result<Vec<Column>, ReadError> {
    let mut columns = Vec::with_capacity(selected.len());
    for &idx in selected {
        let field = &opened.fields()[idx];
        let unsupported = || ReadError::UnsupportedColumn {
            file: opened.file.clone(),
            column: field.name().clone(),
            found: field.data_type().to_string(),
        };
        let stored = field.data_type().clone();
        let (element, depth) = lists::element_of(&stored);
        let element = plain_type(element).ok_or_else(unsupported)?;
        let (field, shape) = if depth == 0 {
            (Field::new(field.name(), element, true), None)
        } else {
            if !element.is_numeric() {
                return Err(unsupported());
            }
            let shape = list_shape(opened, idx)?.unwrap_or(vec![0; depth]);
            (lists::list_field(field.name(), element, &shape), Some(shape))
        };
        columns.push(Column { stored, field, shape });
    }
    Ok(columns)
}

/// What a type is in a block; `None` for what cannot be part of a sample.
fn plain_type(stored: &DataType) -> Option<DataType> {
    match stored {
        DataType::Float16 => Some(DataType::Float32),
        DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Null => Some(DataType::Float64),
        DataType::LargeUtf8 | DataType::Utf8View => Some(DataType::Utf8),
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Some(DataType::Binary)
        }
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Boolean | DataType::Utf8 | DataType::Binary => Some(stored.clone()),
        _ if stored.is_numeric() || stored.is_temporal() => Some(stored.clone()),
        _ => None,
    }
}

/// The shape of the first list of a column.
fn list_shape(opened: &ParquetFile, idx: usize) -> Result<Option<Vec<usize>>, ReadError> {
    let reader = opened.reader(&[idx], 64, Some(1024))?;
    for batch in reader {
        let batch = guarded(&opened.file, || batch.map_err(ParquetError::from))?;
        if let Some(shape) = lists::first_shape(batch.column(0)) {
            return Ok(Some(shape));
        }
    }
    Ok(None)
}

/// Shares the columns among at most `n_threads` lanes so that each has about as many bytes: the largest first, each to the
/// lane that has least. Positions are those of the blocks.
fn share_columns(opened: &ParquetFile, selected: &[usize], n_threads: usize) -> Vec<Vec<usize>> {
    let sizes = opened.column_bytes();
    let mut by_size: Vec<usize> = (0..selected.len()).collect();
    by_size.sort_by_key(|&position| std::cmp::Reverse(sizes[selected[position]]));
    let n_lanes = n_threads.min(selected.len()).max(1);
    let mut lanes = vec![(0, Vec::new()); n_lanes];
    for position in by_size {
        if let Some(lane) = lanes.iter_mut().min_by_key(|lane| lane.0) {
            lane.0 += sizes[selected[position]];
            lane.1.push(position);
        }
    }
    lanes.into_iter().map(|(_, positions)| positions).collect()
}

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
    current: Option<OpenLane>,
}

struct OpenLane {
    file: Arc<Path>,
    reader: ParquetRecordBatchReader,
    /// For each of the lane's columns: which one of the reader's batches.
    order: Vec<usize>,
    n_rows: u64,
}

impl Lane {
    fn next_batch(&mut self) -> Result<Option<LaneBatch>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(file) = self.plan.files.get(self.next_file_idx).cloned() else {
                    return Ok(None);
                };
                self.next_file_idx += 1;
                self.current = Some(self.open(&file)?);
                continue;
            };
            let file = current.file.clone();
            let reader = &mut current.reader;
            let batch = guarded(&file, || reader.next().transpose().map_err(ParquetError::from))?;
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

    fn open(&self, file: &Arc<Path>) -> Result<OpenLane, ReadError> {
        let opened = ParquetFile::open(file)?;
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
        Ok(OpenLane { file: file.clone(), reader, order, n_rows: 0 })
    }
}

impl Plan {
    /// Where a column stands in a file.
    fn root_of(&self, opened: &ParquetFile, position: usize) -> Result<usize, ReadError> {
        let column = &self.columns[position];
        let (file, first) = (opened.file.clone(), self.files[0].clone());
        let name = column.field.name();
        let root = opened.fields().iter().position(|field| field.name() == name);
        let Some(root) = root else {
            return Err(ReadError::LostColumn { file, column: name.clone(), first });
        };
        let found = opened.fields()[root].data_type();
        if !found.equals_datatype(&column.stored) {
            let (found, expected) = (found.to_string(), column.stored.to_string());
            let column = name.clone();
            return Err(ReadError::OtherType { file, column, found, expected, first });
        }
        Ok(root)
    }

    /// Columns that the first file does not have are an error, unless columns were asked for by name.
    fn check_others(&self, opened: &ParquetFile) -> Result<(), ReadError> {
        let is_known = |name: &String| {
            self.options.is_ignored(name) || self.columns.iter().any(|c| c.field.name() == name)
        };
        let extra = opened.fields().iter().find(|field| !is_known(field.name()));
        match extra {
            Some(field) if !self.allows_others => Err(ReadError::ExtraColumn {
                file: opened.file.clone(),
                column: field.name().clone(),
                first: self.files[0].clone(),
            }),
            _ => Ok(()),
        }
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
    guarded(file, || cast(stored, column.field.data_type()).map_err(ParquetError::from))
}

/// The lanes in step: one block of all their columns after the other.
struct LaneBlocks {
    lanes: Lanes,
    /// For each lane: the positions of its columns.
    positions: Vec<Vec<usize>>,
    schema: SchemaRef,
}

enum Lanes {
    /// Read by whoever asks for blocks.
    Here(Lane),
    Threads(Vec<LaneThread>),
}

struct LaneThread {
    batches: Option<Receiver<Result<LaneBatch, ReadError>>>,
    thread: Option<JoinHandle<()>>,
}

impl LaneBlocks {
    fn start(plan: &Arc<Plan>, positions: Vec<Vec<usize>>, schema: SchemaRef) -> LaneBlocks {
        let lane = |positions: &Vec<usize>| Lane {
            plan: plan.clone(),
            positions: positions.clone(),
            next_file_idx: 0,
            current: None,
        };
        let lanes = match positions.as_slice() {
            [only] => Lanes::Here(lane(only)),
            many => Lanes::Threads(many.iter().map(|each| LaneThread::start(lane(each))).collect()),
        };
        LaneBlocks { lanes, positions, schema }
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
    fn start(mut lane: Lane) -> LaneThread {
        let (sender, batches): (SyncSender<_>, _) = sync_channel(2);
        let run = move || {
            while let Some(batch) = lane.next_batch().transpose() {
                let is_last = batch.is_err();
                if sender.send(batch).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("read".into()).spawn(run).ok();
        LaneThread { batches: Some(batches), thread }
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
