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
    /// Steps completed, the highest that a member told.
    pub steps: u64,
    /// Steps per second over the last heartbeats, if known.
    pub steps_per_second: Option<f64>,
    /// The workers, in the order of joining.
    pub members: Vec<MemberStatus>,
    /// The last failure and its reason.
    pub last_failure: Option<String>,
    /// The latest decisions, oldest first.
    pub history: Vec<Decision>,
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
    /// Steps its state has behind it.
    pub steps: Option<u64>,
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
