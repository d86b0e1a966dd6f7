//! What coordinator, workers and drivers say to each other. Everything is small and bounded: see [`ToCoordinator::check`].

use serde::{Deserialize, Serialize};

use super::identity::{ClusterId, Incarnation, Instance, JobId, MemberId, ViewId};
use super::status::{JobStanding, Status};

/// The longest name, address or reason, in bytes.
pub const MAX_TEXT: usize = 1024;
/// The most addresses of one process.
pub const MAX_ADDRESSES: usize = 16;
/// The most servers of a job.
pub const MAX_SERVERS: usize = 1 << 12;
/// The most grains of a step.
pub const MAX_GRAINS: u32 = 1 << 16;
/// The largest of numbers that count up: steps, views, jobs, lives. None is ever reached by counting, and all can be added to.
pub const MAX_COUNT: u64 = 1 << 62;

/// The grains from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grains {
    /// The first.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Grains {
    /// How many.
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How many grains the steps of a job have: an epoch's last step may have fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrainCounts {
    /// Of every step but an epoch's last.
    pub full: u32,
    /// Of an epoch's last step.
    pub last: u32,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
}

impl GrainCounts {
    /// How many grains the step after `steps` completed ones has.
    pub fn of_step(&self, steps: u64) -> u32 {
        let is_last = (steps + 1).is_multiple_of(self.steps_per_epoch.max(1));
        if is_last { self.last } else { self.full }
    }

    /// The most grains that a step has.
    pub fn most(&self) -> u32 {
        self.full.max(self.last)
    }
}

/// Said by workers and drivers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// A worker wants in, or is back on a new connection.
    Join(Join),
    /// A worker is alive.
    Heartbeat(Heartbeat),
    /// A worker or driver stopped for a view.
    Ready(Ready),
    /// A worker waits for others longer than steps used to take.
    Stalled(Stalled),
    /// A worker wants to leave after the step it is in.
    Draining,
    /// A worker heard nothing on this connection for too long: it gives it up, and comes back on another.
    Returning,
    /// A driver has a job, or is back on a new connection.
    Submit(Submit),
    /// A driver is alive.
    DriverHeartbeat(DriverHeartbeat),
    /// The job is done.
    Finished {
        /// Which.
        job: JobId,
    },
    /// The driver ends before the job is done.
    Failed {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// Anyone wants to know how things stand.
    StatusRequest,
    /// A person asks for a worker to be drained.
    Drain {
        /// The worker's name.
        name: String,
    },
}

/// A worker introduces itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// What people call it; one process at a time has it.
    pub name: String,
    /// The life of its process.
    pub instance: Instance,
    /// The machine it runs on.
    pub host: String,
    /// Where other workers reach it.
    pub addresses: Vec<String>,
    /// Threads it computes with.
    pub cores: u32,
    /// The kernels it can run.
    pub kernel_set: String,
    /// The cluster and coordinator it followed before, if any.
    pub follows: Option<(ClusterId, Incarnation)>,
    /// The id it had there, if it still takes part as far as it knows.
    pub previous: Option<MemberId>,
    /// The view it works in, if any.
    pub view: Option<ViewId>,
}

/// What a worker does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    /// Waits for work.
    Nothing,
    /// Has stopped for a view.
    Stopped,
    /// Copies state, or gives it to others that do.
    Copying,
    /// Runs grains.
    Computing,
    /// Exchanges sums, or waits for others that have not come to it; mostly its grains are done.
    Exchanging,
}

/// A worker is alive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Counts up over the life of the process: one that was overtaken by a later one is passed over.
    pub number: u64,
    /// The newest view it acts on.
    pub view: Option<ViewId>,
    /// How many steps its state has behind it; none if it holds no state of the job.
    pub steps: Option<u64>,
    /// What it does.
    pub doing: Doing,
    /// How long one grain takes it, if known.
    pub seconds_per_grain: Option<f64>,
    /// How long it waited for others, in all.
    pub seconds_waiting: f64,
    /// Whom it waited for alone for longest in this view, and for how many seconds in all.
    pub held_up: Option<(MemberId, f64)>,
}

/// A worker or driver has stopped for a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// The view that is being prepared.
    pub view: ViewId,
    /// How many steps its state has behind it; none if it holds no state of the job.
    pub steps: Option<u64>,
    /// The grains of the step after those that it has done, in order.
    pub done: Vec<Grains>,
    /// How long one grain takes it, if known.
    pub seconds_per_grain: Option<f64>,
    /// How long a step used to take, if known.
    pub step_seconds: Option<f64>,
}

/// Whom one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Peer {
    /// A member of the view.
    Member(MemberId),
    /// The driver.
    Driver,
}

/// A worker waits for others longer than steps used to take, or a connection to them failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stalled {
    /// The view it is in.
    pub view: ViewId,
    /// How many steps it has behind it.
    pub steps: Option<u64>,
    /// Whom it waits for.
    pub waiting_for: Vec<Peer>,
    /// For how long.
    pub seconds: f64,
    /// Whether a connection failed, so that waiting longer is of no use.
    pub is_broken: bool,
}

/// Where a process is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The machine it runs on.
    pub host: String,
    /// Its addresses there.
    pub addresses: Vec<String>,
}

/// A driver has a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// The job's name.
    pub name: String,
    /// The life of the driver's process.
    pub instance: Instance,
    /// Grains of its steps.
    pub grains: GrainCounts,
    /// The kernels that its workers must have.
    pub kernel_set: String,
    /// Where workers reach the driver.
    pub driver: Reach,
    /// The cluster and coordinator it followed before, if any.
    pub follows: Option<(ClusterId, Incarnation)>,
    /// The job's id, if the driver is back on a new connection.
    pub previous: Option<JobId>,
}

/// A driver is alive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverHeartbeat {
    /// The newest view it acts on.
    pub view: Option<ViewId>,
    /// How many steps the state has behind it that the driver holds itself.
    pub saved: u64,
    /// It has sent all inputs of the steps before this one.
    pub inputs_sent: u64,
    /// What it tells of the job beyond what workers know, where there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Box<JobStanding>>,
}

/// Said by the coordinator. A follower looks at the first two fields before anything else (M1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FromCoordinator {
    /// The cluster it speaks for.
    pub cluster: ClusterId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it says.
    pub order: Order,
}

/// What the coordinator says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// To a worker: it is a member.
    Welcome {
        /// Its id.
        id: MemberId,
    },
    /// To a driver: its job runs as soon as there are workers.
    Accepted {
        /// The job's id.
        job: JobId,
    },
    /// It cannot take part.
    Refused {
        /// A sentence.
        reason: String,
    },
    /// Stop, and say how far you are.
    Prepare {
        /// The view that is to come.
        view: ViewId,
        /// Its job.
        job: JobId,
        /// Why there is a new one.
        reason: String,
    },
    /// Go on like this.
    Go(Go),
    /// The job has ended.
    Stop {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// To a worker: it is no member any more, and may join anew.
    Dropped {
        /// Why.
        reason: String,
    },
    /// To a worker: nothing of it is needed any more, it may end.
    Drained,
    /// An answer to a heartbeat: the coordinator is alive.
    Alive,
    /// An answer to a request.
    Status(Box<Status>),
}

/// A view: who takes part and how it goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Go {
    /// Its number.
    pub view: ViewId,
    /// Its job.
    pub job: JobId,
    /// Grains of the job's steps.
    pub grains: GrainCounts,
    /// Where the driver is.
    pub driver: Reach,
    /// Who takes part, in the order of ranks.
    pub members: Vec<Seat>,
    /// How many steps the state has behind it that the view goes on from.
    pub steps: u64,
    /// Who has that state; those that do not copy it from there.
    pub source: Peer,
    /// Who must copy it.
    pub copiers: Vec<MemberId>,
    /// How long a step used to take, if known: newcomers derive their deadlines from it.
    pub step_seconds: Option<f64>,
    /// Why there is a new view.
    pub reason: String,
}

/// A member's place in a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    /// Who.
    pub id: MemberId,
    /// What people call it.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Grains of the view's first step that it has done already, in order.
    pub done: Vec<Grains>,
    /// Grains of the view's first step that it is still to do, in order.
    pub to_do: Vec<Grains>,
    /// How long one grain takes it, if known: where the balance of the steps that follow starts from.
    pub seconds_per_grain: Option<f64>,
    /// Whether it gets no grains in later steps, since it is about to leave.
    pub is_leaving: bool,
}

impl Go {
    /// The rank of a member.
    pub fn rank(&self, id: MemberId) -> Option<usize> {
        self.members.iter().position(|seat| seat.id == id)
    }
}
