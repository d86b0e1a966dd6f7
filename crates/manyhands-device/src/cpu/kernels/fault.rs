//! What can go wrong while a kernel runs: only what the data decides.
//!
//! Shapes and types are settled before anything runs, so a fault always names a value that came in
//! with the data.

use super::cross_entropy::BadLabel;

/// A value in the data that an operation cannot work with.
///
/// Where several parts of one operation fault, the fault of the lowest part is the one to report,
/// so that the message does not depend on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An index that points outside the axis it selects from.
    #[error("index {index} at position {position} is outside an axis of size {size}")]
    IndexOutOfRange {
        /// What it says.
        index: i64,
        /// The size of the axis.
        size: usize,
        /// Which of the indices it is, counted row-major.
        position: usize,
    },
    /// A class label that is not one of the classes.
    #[error("label {label} in row {row} is not one of the {n_classes} classes")]
    LabelOutOfRange {
        /// What it says.
        label: i64,
        /// How many classes there are.
        n_classes: usize,
        /// Which of the labels it is, counted row-major.
        row: usize,
    },
}

impl From<BadLabel> for Fault {
    fn from(bad: BadLabel) -> Fault {
        Fault::LabelOutOfRange { label: bad.label, n_classes: bad.n_classes, row: bad.row }
    }
}
