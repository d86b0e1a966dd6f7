//! The event loops around membership: the coordinator's, and that of those who follow it.
//!
//! A loop moves messages, keeps time, and carries out what the state machines of [`membership`](crate::membership) decide. It decides nothing.

mod connection;
mod coordinator;
mod follower;
mod log_file;

pub use connection::{ControlError, ask_drain, ask_status};
pub use coordinator::{CoordinatorError, CoordinatorProcess, CoordinatorSettings};
pub use follower::{Apart, Errand, Follower, Side, Teller};

use crate::secure::Purpose;

/// What connections to a coordinator are for.
pub const CONTROL: Purpose = Purpose(1);
/// The longest control message in bytes.
const MAX_MESSAGE: usize = 1 << 20;
