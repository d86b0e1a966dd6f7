//! What can go wrong between files and batches, as sentences for the person whose data it is.

use crate::read::ReadError;
use crate::sample_error::SampleError;

/// An error of the data: it says what happened, in which file and where in it, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file cannot be found, opened or parsed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The columns, values or samples are not what they must be.
    #[error(transparent)]
    Sample(#[from] SampleError),
}
