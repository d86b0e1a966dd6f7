//! From files to batches: tables, images, text and time series.
//!
//! Files are read once, in order, into records of one fixed width, in memory or, where they do not fit, in a file beside the
//! output (`store`). What was learned on the way (means, categories, vocabularies) is the [`Encoding`], which is saved with
//! the model. Epochs then visit the samples in an order that depends on the seed and the epoch alone.

mod error;
mod files;
mod objects;
mod read;
mod spec;

mod batches;
mod data;
mod encoding;
mod gather;
mod hash;
mod layout;
mod memory;
mod open_table;
mod open_text;
mod prefetch;
mod random;
mod sample_error;
mod samples;
mod scan;
mod shuffle;
mod split;
mod store;
mod take;
mod visit;

pub use batches::{Batch, Batches};
pub use data::{Data, DataSummary};
pub use encoding::{Element, Encoding, Input, Labels, Target};
pub use error::DataError;
pub use memory::available as available_memory;
pub use objects::{ObjectError, is_url};
#[doc(hidden)]
pub use read::parse_libsvm;
pub use read::{Block, Origin, Place, ReadError, ReadOptions, Reader, read};
pub use sample_error::SampleError;
pub use samples::Part;
pub use shuffle::Order;
pub use spec::{
    CategoryForm, ColumnKind, Compression, DataSpec, FileFormat, HashSpec, HeldOut, Missing,
    Normalise, Source, TextSpec, TextUnit, Unknown, WindowSpec,
};
pub use split::PartName;
pub use take::{Take, Takes};
