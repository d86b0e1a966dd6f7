//! The keys of the strategy `parameter_server`: which parameters live on servers, and what moves between these and workers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::CheckError;
use super::{DistributeSpec, Strategy};

/// Beyond this many steps a bound bounds nothing.
const MOST_STALENESS: i64 = 1000;
/// The bound unless said.
const STALENESS: u64 = 4;
/// The most servers that a job may ask for.
const MOST_SERVERS: usize = 1024;
/// The most servers that may hold one parameter.
const MOST_REPLICATION: usize = 8;

/// What a worker may miss of what others did, when it reads parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Nothing: all wait for each other at every step, and the model is that of one worker, byte for byte.
    #[default]
    Bsp,
    /// What others did in the last `staleness` steps: nobody waits for all others at every step, and shares are equal.
    Ssp,
    /// As much as measured times and the loss say, for each worker: who waits may drift further, a slow one does less.
    Adaptive,
    /// Anything: nobody waits for others.
    Async,
}

/// Which parameters live on servers; those that do not are exchanged by all workers at every step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TablesSpec {
    /// `"auto"`: those that are large, as far as their update can be cut; of tables whose rows are updated alone (`sparse_linear`,
    /// `factorization_machine`, `embedding` with `sparse = true`) those of which a step uses at most half of the rows. `"all"`: all
    /// whose update can be cut. Or a list of names, in which `*` stands for anything: `["embedding/*"]`. Of tables whose rows are
    /// updated alone, workers hold the rows of their samples and no others.
    pub parameters: OnServers,
}

/// Which parameters live on servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OnServers {
    /// As a word says.
    Word(OnServersWord),
    /// Those whose names match one of these, in which `*` stands for anything.
    Names(Vec<String>),
}

impl Default for OnServers {
    fn default() -> OnServers {
        OnServers::Word(OnServersWord::Auto)
    }
}

/// Which parameters live on servers, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnServersWord {
    /// Those that are large, as far as their update can be cut.
    Auto,
    /// All whose update can be cut.
    All,
}

impl DistributeSpec {
    /// How many servers there are to be.
    pub fn n_servers(&self) -> usize {
        self.servers.unwrap_or(1)
    }

    /// How many steps a worker may miss of what others did, under `ssp`.
    pub fn staleness_bound(&self) -> u64 {
        self.staleness.map_or(STALENESS, |bound| u64::try_from(bound).unwrap_or(0))
    }

    /// How many servers hold each parameter: two where there are two.
    pub fn n_replicas(&self) -> usize {
        self.replication.unwrap_or(2).min(self.n_servers())
    }
}

/// Checks the keys of servers and tables.
pub(super) fn check_tables(distribute: &DistributeSpec) -> Result<(), CheckError> {
    let said = [
        ("distribute.servers", distribute.servers.is_some()),
        ("distribute.consistency", distribute.consistency != Consistency::default()),
        ("distribute.replication", distribute.replication.is_some()),
        ("distribute.tables", distribute.tables.is_some()),
        ("distribute.staleness", distribute.staleness.is_some()),
        ("distribute.foresight", distribute.foresight.is_some()),
        ("distribute.traffic", distribute.traffic.is_some()),
    ];
    let is_meant = distribute.strategy == Strategy::ParameterServer;
    if let Some((key, _)) = said.into_iter().find(|(_, is_said)| *is_said && !is_meant) {
        let what = "servers, which only the strategy `parameter_server` has";
        return Err(CheckError::Needs { key, what, other: "distribute.strategy" });
    }
    within("distribute.servers", distribute.servers, MOST_SERVERS)?;
    within("distribute.replication", distribute.replication, MOST_REPLICATION)?;
    if let (Some(replication), n_servers) = (distribute.replication, distribute.n_servers())
        && replication > n_servers
    {
        return Err(CheckError::Replication { replication, n_servers });
    }
    if let Some(found) = distribute.staleness {
        if !(0..=MOST_STALENESS).contains(&found) {
            let range =
                "a number of steps from 0 to 1000 (`consistency = \"async\"` waits for nobody)";
            let key = "distribute.staleness".to_string();
            return Err(CheckError::Range { key, range, found: found as f64 });
        }
        if distribute.consistency != Consistency::Ssp {
            let (key, what) = ("distribute.staleness", "the consistency `ssp`");
            return Err(CheckError::Needs { key, what, other: "distribute.consistency" });
        }
    }
    if distribute.foresight.is_some() && distribute.consistency == Consistency::Bsp {
        let (key, what) = (
            "distribute.foresight",
            "workers that need not wait for each other (`ssp`, `adaptive` or `async`)",
        );
        return Err(CheckError::Needs { key, what, other: "distribute.consistency" });
    }
    if let (false, Some(_)) = (distribute.consistency == Consistency::Bsp, &distribute.tables) {
        let (one, other) = ("distribute.consistency", "distribute.tables");
        return Err(CheckError::Exclusive { one, other });
    }
    let tables = distribute.tables.as_ref().map(|tables| &tables.parameters);
    if let Some(OnServers::Names(names)) = tables
        && (names.is_empty() || names.iter().any(String::is_empty))
    {
        let wanted = "name parameters, such as [\"embedding/*\"], or write \"auto\"";
        return Err(CheckError::Empty { key: "distribute.tables.parameters", wanted });
    }
    Ok(())
}

fn within(key: &'static str, found: Option<usize>, most: usize) -> Result<(), CheckError> {
    match found {
        Some(0) => Err(CheckError::AtLeast { key, least: 1, found: 0 }),
        Some(found) if found > most => {
            let range = "as many as there can be machines for";
            Err(CheckError::Range { key: key.to_string(), range, found: found as f64 })
        }
        _ => Ok(()),
    }
}

/// Whether a name matches a pattern in which `*` stands for anything.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    if after.is_empty() {
        return true;
    }
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    let mut starts = starts;
    starts.any(|at| matches(after, &rest[at..]))
}
