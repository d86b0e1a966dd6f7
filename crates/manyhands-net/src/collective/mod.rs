//! Operations that all ranks of a group do together.
//!
//! An operation is a number of frames between each two ranks; the head of a frame says which call of which operation it belongs to, so ranks that call
//! different ones, or one with other sizes, find out at the first frame. A rank whose operation does not move for longer than its patience, or
//! that finds another elsewhere, tells all others where it is and hears where they are: every rank's error says who is where (N2).

mod algorithm;
mod call;
pub(crate) mod compress;
mod direct;
mod element;
mod error;
mod exchange;
mod flat;
mod group;
mod hierarchical;
mod operations;
mod plan;
mod pointers;
mod port;
mod run;
mod seen;
mod table;
mod transfer;
pub(crate) mod tree;
mod underway;
mod uneven;

pub use algorithm::Algorithm;
pub use call::{Call, Kind};
pub use compress::{Compression, Compressor};
pub use direct::Brought;
pub use element::{Element, ElementType, Reduction};
pub use error::{At, CollectiveError, Place, Places};
pub use group::Group;
pub use seen::SeenSums;
pub use tree::subtrees;
pub use underway::Underway;
