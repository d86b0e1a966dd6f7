//! One Parquet file: its footer, checked against its length, and readers of some of its columns.

use std::fs::File;
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

use super::super::ReadError;
use crate::files;

/// A file whose footer is read.
pub(super) struct ParquetFile {
    pub(super) file: Arc<Path>,
    opened: File,
    metadata: ArrowReaderMetadata,
}

impl ParquetFile {
    pub(super) fn open(file: &Arc<Path>) -> Result<ParquetFile, ReadError> {
        let opened = files::open_seekable(file)?;
        // Without what Arrow notes about itself, dictionaries come as plain words and numbers.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = guarded(file, || ArrowReaderMetadata::load(&opened, options))?;
        let n_bytes =
            opened.metadata().map_err(|source| ReadError::Io { file: file.clone(), source })?.len();
        check_ranges(file, &metadata, n_bytes)?;
        Ok(ParquetFile { file: file.clone(), opened, metadata })
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

/// The next rows of a reader of the file.
pub(super) fn next_batch(
    file: &Arc<Path>,
    reader: &mut ParquetRecordBatchReader,
) -> Result<Option<RecordBatch>, ReadError> {
    guarded(file, || reader.next().transpose().map_err(ParquetError::from))
}

/// Damaged files make the decoder panic in places; that is an error of the file like any other.
pub(super) fn guarded<T>(
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
