//! Training on many processes and machines: the driver, which has the job, and workers, which have devices.
//!
//! The driver (`driver.rs`, `table.rs`, `serving.rs`) stands in for a device of its own process: the training loop hands it steps. A worker (`worker.rs`, `plane.rs`, `step.rs`, `job_at_hand.rs`) gets programs and inputs (`inputs.rs`, or reads these itself: `reading.rs`), exchanges
//! sums with the other workers (`overlap.rs`: while it still computes) and updates its parameters. Who takes part is decided elsewhere (`manyhands_net::membership`).

mod dispatch;
mod driver;
mod halt;
mod inputs;
mod job_at_hand;
mod launched;
mod lent_sums;
mod local;
mod meshes;
mod offer;
mod outer;
mod overlap;
mod pace;
mod padding;
mod plane;
mod programs;
mod reading;
mod servers;
mod serving;
mod shares;
mod standstill;
mod step;
mod sums;
mod table;
mod talk;
mod turns;
mod watch;
mod words;
mod worker;

pub use driver::ClusterAddress;
pub(crate) use driver::Remote;
pub use launched::{Launched, LaunchedCluster, LaunchedWorker, launched};
pub use local::{LocalCluster, LocalWorkers};
pub(crate) use offer::DataOffer;
pub use padding::{Stragglers, Straggling};
pub(crate) use programs::{DriverPlan, plan_programs};
pub use servers::{ServerSettings, ServerTraffic, run_server};
pub use talk::TalkError;
pub use watch::{Point, Watcher};
pub(crate) use words::PlanPrograms;
pub use words::WorkSeconds;
#[doc(hidden)]
pub use words::read_words;
pub use worker::{WorkerSettings, end_with_parent, run_worker};

pub use manyhands_net::control::{
    ControlError, CoordinatorError, CoordinatorProcess, CoordinatorSettings, ask_drain, ask_status,
};
pub use manyhands_net::membership::status::{Decision, MemberStatus, ServerStanding, Status};
pub use manyhands_net::secure::{SECRET_VARIABLE, Secret, SecretError};
pub use manyhands_net::station::{Route, StationError};
