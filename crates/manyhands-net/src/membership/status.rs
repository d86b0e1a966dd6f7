//! How a cluster stands, for people and for `status --json`.

use serde::{Deserialize, Serialize};

use super::identity::{ClusterId, Incarnation, JobId, MemberId, ViewId};
use super::message::{Doing, Reach};

/// How a cluster stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// The coordinator's life.
    pub incarnation: Incarnation,
    /// The view, if there is one.
    pub view: Option<ViewId>,
    /// One sentence: what the cluster does, or waits for.
    pub summary: String,
    /// The job's name, if there is one.
    pub job: Option<String>,
    /// The number of the job and where its driver is reached, if there is one: servers of parameters go there. A coordinator of an earlier
    /// build does not say.
    #[serde(default)]
    pub driver: Option<(JobId, Reach)>,
    /// Steps completed, the highest that a member or the driver told.
    pub steps: u64,
    /// Steps per second over the last heartbeats, if known.
    pub steps_per_second: Option<f64>,
    /// What workers may miss of what others did, in a word, where parameters live on servers. A coordinator of an earlier build does not say,
    /// nor who the servers are.
    #[serde(default)]
    pub consistency: Option<String>,
    /// The servers that hold parameters of the job.
    #[serde(default)]
    pub servers: Vec<ServerStanding>,
    /// The mesh in which workers do steps, where the model is spread over them and they do.
    #[serde(default)]
    pub mesh: Option<String>,
    /// The workers, in the order of joining.
    pub members: Vec<MemberStatus>,
    /// The last failure and its reason.
    pub last_failure: Option<String>,
    /// The latest decisions, oldest first.
    pub history: Vec<Decision>,
}

/// What the driver of a job tells of it beyond what its workers know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStanding {
    /// Steps that are done.
    pub steps: u64,
    /// What workers may miss of what others did, in a word, where parameters live on servers.
    pub consistency: Option<String>,
    /// The servers that hold parameters.
    pub servers: Vec<ServerStanding>,
    /// Workers that do not wait for each other at every step, or have places in a mesh.
    pub workers: Vec<WorkerStanding>,
    /// The mesh, where the model is spread over workers.
    pub mesh: Option<MeshStanding>,
}

/// How a mesh of workers stands. Its members' states are parts of one, so that what they say of their own steps means nothing: the driver speaks for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeshStanding {
    /// The mesh in which they do steps; none while there is none.
    pub formed: Option<String>,
    /// The view whose members' state the driver has: who is about to leave may go.
    pub saved_in: Option<ViewId>,
}

/// How a server of parameters stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStanding {
    /// What people call it.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Shards that it holds.
    pub shards: u64,
    /// Shards that it answers for; of the others it has copies.
    pub first_of: u64,
    /// Bytes of memory that they take.
    pub bytes: u64,
    /// Whether it is about to leave.
    pub is_leaving: bool,
}

/// How far a worker is that does not wait for the others at every step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStanding {
    /// What people call it.
    pub name: String,
    /// The step that it is at.
    pub step: u64,
    /// How many steps it may miss of what others did; none where that is not bounded.
    pub bound: Option<u64>,
}

/// How a worker stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its id.
    pub id: MemberId,
    /// What people call it.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// Threads it computes with.
    pub cores: u32,
    /// Whether it is in the view.
    pub is_in_view: bool,
    /// Whether it is about to leave.
    pub is_draining: bool,
    /// For how much longer it rests, in seconds, since it held the others up; none where it does not rest. A coordinator of an earlier
    /// build does not say.
    #[serde(default)]
    pub seconds_to_rest: Option<f64>,
    /// What it does, as it said last.
    pub doing: Doing,
    /// Steps its state has behind it; where workers do not wait for each other, the step that it is at.
    pub steps: Option<u64>,
    /// How many steps it may miss of what others did, where that is bounded and not the same for all at every step.
    #[serde(default)]
    pub bound: Option<u64>,
    /// How long one grain takes it.
    pub seconds_per_grain: Option<f64>,
    /// How long it waited for others, in all.
    pub seconds_waiting: f64,
    /// How long it has been silent.
    pub seconds_silent: f64,
}

/// Something that was decided (M4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When, in seconds since the coordinator's start.
    pub at: f64,
    /// What and why.
    pub sentence: String,
}
