//! Training on many processes and machines: the driver, which has the job, and workers, which have devices.
//!
//! The driver (`driver.rs`) stands in for a device of its own process: the training loop hands it steps. A worker (`worker.rs`, `plane.rs`, `job_at_hand.rs`) gets programs and inputs, exchanges
//! sums with the other workers and updates its parameters. Who takes part is decided elsewhere (`manyhands_net::membership`).

mod driver;
mod halt;
mod job_at_hand;
mod launched;
mod local;
mod outer;
mod plane;
mod shares;
mod sums;
mod talk;
mod words;
mod worker;

pub use driver::ClusterAddress;
pub(crate) use driver::{DriverPlan, Remote};
pub use launched::{Launched, LaunchedCluster, LaunchedWorker, launched};
pub use local::{LocalCluster, LocalWorkers};
pub use plane::{Point, Watcher};
pub use talk::TalkError;
pub use words::WorkSeconds;
pub use worker::{WorkerSettings, end_with_parent, run_worker};

pub use manyhands_net::control::{
    ControlError, CoordinatorError, CoordinatorProcess, CoordinatorSettings, ask_drain, ask_status,
};
pub use manyhands_net::membership::status::{Decision, MemberStatus, Status};
pub use manyhands_net::secure::{SECRET_VARIABLE, Secret, SecretError};
pub use manyhands_net::station::{Route, StationError};
