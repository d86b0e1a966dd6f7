//! What files become, for every format, block size and number of threads.

mod arrays;
mod csv;
mod damage;
mod files;
mod jsonl;
mod libsvm;
mod object_faults;
mod objects;
mod parquet;
mod server;
mod text;

use std::path::{Path, PathBuf};

use ::arrow::array::{Array, ArrayRef, AsArray};
use ::arrow::compute::concat_batches;
use ::arrow::datatypes::{DataType, Float64Type};
use ::arrow::record_batch::RecordBatch;

use super::{Block, ReadError, ReadOptions, read_blocks};
use crate::spec::Source;

/// A folder that goes away with the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn blocks(&self, source: &Source, how: &How) -> Result<Vec<Block>, ReadError> {
        let mut options = how.options.clone();
        options.n_threads = how.n_threads;
        let mut reader = read_blocks(source, self.path(), &options, how.block_bytes)?;
        let schema = reader.schema().clone();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            let block = block?;
            assert_eq!(block.rows.schema(), schema);
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// All rows of a source as one batch.
    fn read(&self, source: &Source, how: &How) -> Result<RecordBatch, ReadError> {
        let mut options = how.options.clone();
        options.n_threads = how.n_threads;
        let schema = read_blocks(source, self.path(), &options, how.block_bytes)?.schema().clone();
        let batches: Vec<RecordBatch> =
            self.blocks(source, how)?.into_iter().map(|block| block.rows).collect();
        Ok(concat_batches(&schema, &batches).unwrap())
    }

    /// The error of a source, as a sentence with the folder taken out.
    fn error(&self, source: &Source, how: &How) -> String {
        let sentence = self.blocks(source, how).map(|_| ()).unwrap_err().to_string();
        sentence.replace(&format!("{}/", self.path().display()), "")
    }
}

struct How {
    options: ReadOptions,
    block_bytes: usize,
    n_threads: usize,
}

impl Default for How {
    fn default() -> How {
        How { options: ReadOptions::default(), block_bytes: 1 << 20, n_threads: 1 }
    }
}

fn one(pattern: &str) -> Source {
    Source::One(pattern.into())
}

fn numbers(rows: &RecordBatch, column: &str) -> Vec<Option<f64>> {
    rows.column_by_name(column).unwrap().as_primitive::<Float64Type>().iter().collect()
}

fn words(rows: &RecordBatch, column: &str) -> Vec<Option<String>> {
    let words = rows.column_by_name(column).unwrap().as_string::<i32>();
    words.iter().map(|word| word.map(String::from)).collect()
}

fn names(rows: &RecordBatch) -> Vec<String> {
    rows.schema().fields().iter().map(|field| field.name().clone()).collect()
}

/// The elements of a column of lists, row after row.
fn elements(lists: &ArrayRef) -> ArrayRef {
    assert!(matches!(lists.data_type(), DataType::FixedSizeList(..)));
    lists.as_fixed_size_list().values().clone()
}
