//! Why a program cannot be cut as asked, and what would fit.

use thiserror::Error;

use crate::error::ProgramError;

/// Why a program cannot be cut.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CutError {
    /// It has no loss or nothing to train.
    #[error("only a training program can be cut: {missing}")]
    NoTraining {
        /// What it lacks.
        missing: &'static str,
    },
    /// Nothing is not a number of chunks.
    #[error("a program is cut into at least 1 chunk, not 0")]
    NoChunks,
    /// There are not so many operations.
    #[error(
        "{n_chunks} chunks are too many: the way to the loss has {most} operations behind which it can be cut, so at most {most} chunks; fewer stages, or fewer chunks at each, would do"
    )]
    TooManyChunks {
        /// How many were asked for.
        n_chunks: usize,
        /// How many there can be.
        most: usize,
    },
    /// Places and chunks do not fit together.
    #[error(
        "{n_chunks} chunks take {} named layers to cut before, one less than there are chunks; {n_places} given",
        n_chunks.saturating_sub(1)
    )]
    PlaceCount {
        /// How many places were named.
        n_places: usize,
        /// How many chunks were asked for.
        n_chunks: usize,
    },
    /// Nothing has that name.
    #[error("there is no layer `{name}` to cut before; {known}")]
    NoPlace {
        /// The name.
        name: String,
        /// Those that there are, as a sentence.
        known: String,
    },
    /// It lies in a body.
    #[error(
        "`{name}` lies inside the body of a {op}, which runs as one operation; cut before `{around}`, or behind it"
    )]
    InsideBody {
        /// The name.
        name: String,
        /// The operation with the body.
        op: &'static str,
        /// Where that operation is.
        around: String,
    },
    /// Nothing comes before it.
    #[error(
        "`{name}` is where the model begins, so a cut before it leaves the first chunk empty; name a later layer"
    )]
    AtTheBeginning {
        /// The name.
        name: String,
    },
    /// Two names for one place.
    #[error("`{first}` and `{second}` are the same place to cut before; name different ones")]
    SamePlace {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// Positions are not those of this program.
    #[error(
        "{n_chunks} chunks cannot begin at the positions {positions:?}: they take one less than there are chunks, each beyond the one before and below {most}"
    )]
    Positions {
        /// Those that were given.
        positions: Vec<usize>,
        /// How many chunks were asked for.
        n_chunks: usize,
        /// How many positions there are.
        most: usize,
    },
    /// The program for the last grain is another one.
    #[error(
        "the program for a shorter last grain is not the same program with other sizes: {what}"
    )]
    LastDiffers {
        /// Where they differ.
        what: String,
    },
    /// A piece cannot be written.
    #[error(transparent)]
    Program(#[from] ProgramError),
}
