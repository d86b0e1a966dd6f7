//! From files to batches: tables, images, text and time series.
//!
//! Files are read once, in order, into records of one fixed width, in memory or, where they do not fit, in a file beside the
//! output (`store`). What was learned on the way (means, categories, vocabularies) is the [`Encoding`], which is saved with
//! the model. Epochs then visit the samples in an order that depends on the seed and the epoch alone.

mod error;
mod files;
mod read;
mod spec;

pub use error::DataError;
pub use read::{Block, Origin, Place, ReadError, ReadOptions, Reader, read};
pub use spec::{
    CategoryForm, ColumnKind, Compression, DataSpec, FileFormat, HeldOut, Missing, Normalise,
    Source, TextSpec, TextUnit, Unknown, WindowSpec,
};
