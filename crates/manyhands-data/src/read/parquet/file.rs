//! One Parquet file: its footer, checked against its length, and readers of some of its columns.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use arrow::record_batch::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::reader::Length;

use super::super::ReadError;
use crate::files::{self, Seekable};
use crate::objects::{ObjectFile, Stamp};

/// A file whose footer is read.
pub(super) struct ParquetFile {
    pub(super) file: Arc<Path>,
    opened: Seekable,
    metadata: ArrowReaderMetadata,
}

/// Reads the rows of some columns of a file.
pub(super) struct ColumnsReader {
    file: Arc<Path>,
    reader: ParquetRecordBatchReader,
    /// What is read, where the file is behind a URL.
    object: Option<ObjectFile>,
}

impl ParquetFile {
    /// Opens a file; with a stamp, the object that had it when others opened it.
    pub(super) fn open(file: &Arc<Path>, stamp: Option<Stamp>) -> Result<ParquetFile, ReadError> {
        let opened = files::open_seekable(file, stamp)?;
        // Without what Arrow notes about itself, dictionaries come as plain words and numbers.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let object = object_of(&opened);
        let metadata = guarded(file, object, || ArrowReaderMetadata::load(&opened, options))?;
        check_ranges(file, &metadata, opened.len())?;
        Ok(ParquetFile { file: file.clone(), opened, metadata })
    }

    /// What tells the object that is open from one that takes its place, if the file is behind a URL.
    pub(super) fn stamp(&self) -> Option<&Stamp> {
        object_of(&self.opened).map(ObjectFile::stamp)
    }

    pub(super) fn fields(&self) -> &[FieldRef] {
        self.metadata.schema().fields()
    }

    /// How many rows fill a batch of so many bytes.
    pub(super) fn batch_rows(&self, selected: &[usize], batch_bytes: usize) -> usize {
        let sizes = self.column_bytes();
        let n_bytes: u64 = selected.iter().map(|&idx| sizes[idx]).sum();
        let n_rows = self.metadata.metadata().file_metadata().num_rows().max(1) as u64;
        let row_bytes = (n_bytes / n_rows).max(1);
        (batch_bytes as u64 / row_bytes).clamp(1, 1 << 16) as usize
    }

    /// The unpacked size of each top-level column.
    pub(super) fn column_bytes(&self) -> Vec<u64> {
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

    pub(super) fn reader(
        &self,
        roots: &[usize],
        batch_rows: usize,
        limit: Option<usize>,
    ) -> Result<ColumnsReader, ReadError> {
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots.iter().copied());
        let opened = match &self.opened {
            Seekable::File(file) => Seekable::File(file.clone()),
            Seekable::Object(object) => {
                let (ranges, n_leaves) = self.ranges_of(&mask);
                Seekable::Object(object.for_ranges(ranges, n_leaves))
            }
        };
        let object = object_of(&opened).cloned();
        let reader = guarded(&self.file, object.as_ref(), || {
            let builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(opened, self.metadata.clone())
                    .with_projection(mask)
                    .with_batch_size(batch_rows);
            match limit {
                Some(n_rows) => builder.with_limit(n_rows).build(),
                None => builder.build(),
            }
        })?;
        Ok(ColumnsReader { file: self.file.clone(), reader, object })
    }

    /// Where the columns of a mask lie, and how many they are. `check_ranges` has seen to it that no length is negative.
    fn ranges_of(&self, mask: &ProjectionMask) -> (Vec<Range<u64>>, usize) {
        let n_leaves = self.metadata.parquet_schema().num_columns();
        let wanted: Vec<usize> = (0..n_leaves).filter(|&idx| mask.leaf_included(idx)).collect();
        let groups = self.metadata.metadata().row_groups();
        let range = |group_idx: usize, leaf_idx: usize| {
            let (start, n_bytes) = groups[group_idx].column(leaf_idx).byte_range();
            start..start + n_bytes
        };
        let of_group = |idx| wanted.iter().map(move |&leaf_idx| range(idx, leaf_idx));
        ((0..groups.len()).flat_map(of_group).collect(), wanted.len())
    }
}

impl ColumnsReader {
    /// The next rows.
    pub(super) fn next_batch(&mut self) -> Result<Option<RecordBatch>, ReadError> {
        let reader = &mut self.reader;
        let next = || reader.next().transpose().map_err(ParquetError::from);
        guarded(&self.file, self.object.as_ref(), next)
    }
}

fn object_of(opened: &Seekable) -> Option<&ObjectFile> {
    match opened {
        Seekable::Object(object) => Some(object),
        Seekable::File(_) => None,
    }
}

/// Damaged files make the decoder panic in places; that is an error of the file like any other. An object that could not
/// be read says so itself: what the decoder makes of it is text.
pub(super) fn guarded<T>(
    file: &Arc<Path>,
    object: Option<&ObjectFile>,
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, ReadError> {
    let damaged = |_| Err(ParquetError::General("the file is damaged".into()));
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(damaged).map_err(|source| {
        match object.and_then(ObjectFile::take_failure) {
            Some(failure) => failure.into(),
            None => ReadError::Parquet { file: file.clone(), source },
        }
    })
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
