//! What a server is told when it starts.

use std::time::Duration;

use crate::tables::history::HistoryWriter;
use crate::tables::message::Reach;
use crate::tables::rules::Rules;

/// What a server needs to know.
pub struct ServerSettings {
    /// What people call it.
    pub name: String,
    /// Where the director is reached.
    pub director: Reach,
    /// The rules that it knows.
    pub rules: Rules,
    /// Bytes that it may use for tables.
    pub memory_limit: u64,
    /// How long joining may take.
    pub deadline: Duration,
    /// Where it writes at the end how its shards stand.
    pub history: Option<HistoryWriter>,
}

impl ServerSettings {
    /// A server with the built-in rules, which may use four fifths of the memory that the machine has free now.
    pub fn new(name: impl Into<String>, director: Reach) -> ServerSettings {
        ServerSettings {
            name: name.into(),
            director,
            rules: Rules::with_built_in(),
            memory_limit: free_memory().map_or(u64::MAX, |free| free / 5 * 4),
            deadline: Duration::from_secs(60),
            history: None,
        }
    }
}

/// Bytes that this machine can give without swapping, as far as it says so.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}
