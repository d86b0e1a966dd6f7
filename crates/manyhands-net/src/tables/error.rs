//! What can go wrong with tables.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::identity::{Place, ServerId};

/// Why a table cannot do what was asked. Servers send it to clients, so it is plain data.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableError {
    /// The specification makes no sense.
    #[error("the table {table} cannot be: {what}")]
    Spec {
        /// Which.
        table: String,
        /// What is wrong.
        what: String,
    },
    /// A bound that bounds nothing.
    #[error(
        "the table {table} cannot have a staleness of {staleness} clocks: at most {} mean anything; \"async\" waits for nobody",
        super::spec::MOST_STALENESS
    )]
    AbsurdStaleness {
        /// Which.
        table: String,
        /// The bound.
        staleness: u32,
    },
    /// A filter that changes values, where bits are promised.
    #[error(
        "the table {table} cannot have {setting} under bsp, which promises every bit: take ssp, adaptive or async"
    )]
    NotExact {
        /// Which.
        table: String,
        /// What changes values.
        setting: String,
    },
    /// Two who open a table do not agree.
    #[error("the table {table} is open already, and it is another: {what} differs")]
    OtherSpec {
        /// Which.
        table: String,
        /// In what.
        what: String,
    },
    /// A rule that the servers do not know, or that refuses.
    #[error("the table {table}: {what}")]
    Rule {
        /// Which.
        table: String,
        /// What the rule says.
        what: String,
    },
    /// Nobody opened it.
    #[error("there is no table {table}")]
    UnknownTable {
        /// What was asked for.
        table: String,
    },
    /// Keys and values do not fit each other.
    #[error("{n_values} values for {n_keys} keys of the table {table}, whose rows have {width}")]
    WrongWidth {
        /// Which.
        table: String,
        /// How many keys.
        n_keys: usize,
        /// How many values.
        n_values: usize,
        /// Elements under a key.
        width: usize,
    },
    /// Keys must come in order.
    #[error("the keys for the table {table} are not in order: {after} comes after {before}")]
    UnsortedKeys {
        /// Which.
        table: String,
        /// A key.
        before: u64,
        /// The smaller one that follows.
        after: u64,
    },
    /// A key must come once.
    #[error("the key {key} comes twice for the table {table}")]
    DuplicateKey {
        /// Which.
        table: String,
        /// The key.
        key: u64,
    },
    /// There are fewer elements.
    #[error("the table {table} has {n_elements} elements; {start}..{end} is beyond them")]
    OutOfRange {
        /// Which.
        table: String,
        /// How many it has.
        n_elements: u64,
        /// The first that was asked for.
        start: u64,
        /// The end of what was asked for.
        end: u64,
    },
    /// Rows were asked for of a dense table, or elements of one of rows.
    #[error("the table {table} {is}: {what} cannot be asked of it")]
    WrongKind {
        /// Which.
        table: String,
        /// What it is.
        is: String,
        /// What was asked.
        what: String,
    },
    /// Parts of a step are of whole shards.
    #[error(
        "{start}..{end} of the table {table} is not made of whole shards: parts of a step must be"
    )]
    PartOfShard {
        /// Which.
        table: String,
        /// The first element.
        start: u64,
        /// The end.
        end: u64,
    },
    /// Grains that are no subtree.
    #[error(
        "grains {start}..{end} of {n_grains} are no complete subtree: push each of them for itself"
    )]
    NoSubtree {
        /// The first grain.
        start: usize,
        /// The end.
        end: usize,
        /// Grains of the step.
        n_grains: usize,
    },
    /// A value that is no number.
    #[error("{worker} pushed {value} to key {key} of the table {table}; values must be finite")]
    NotFinite {
        /// Who.
        worker: String,
        /// Where.
        table: String,
        /// The key or element.
        key: u64,
        /// What: `NaN`, `inf`.
        value: String,
    },
    /// The other side speaks another version.
    #[error(
        "{who} speaks version {theirs} of the tables, this process {ours}: both must run the same manyhands"
    )]
    OtherVersion {
        /// The other side.
        who: String,
        /// Its version.
        theirs: u32,
        /// The version here.
        ours: u32,
    },
    /// There is no more memory that may be used.
    #[error(
        "{server} may use {limit} bytes for tables and has {used}: {wanted} more do not fit; add servers, or raise its limit"
    )]
    MemoryLimit {
        /// Which.
        server: String,
        /// What it may use.
        limit: u64,
        /// What it uses.
        used: u64,
        /// What was to come.
        wanted: u64,
    },
    /// More than goes at once.
    #[error(
        "{who}: {what} has {n_bytes} bytes for one shard, and at most {} go at once: take fewer keys, or open the table with more shards",
        super::message::MOST_BYTES
    )]
    TooLarge {
        /// Whose.
        who: String,
        /// What.
        what: String,
        /// How much.
        n_bytes: u64,
    },
    /// All holders of a shard are gone.
    #[error(
        "shard {shard} of the table {table} was lost with {server}: nobody else held it (replication = {replication})"
    )]
    LostShard {
        /// Which.
        table: String,
        /// The shard.
        shard: u32,
        /// The last of its holders.
        server: String,
        /// How many servers held a shard at most.
        replication: usize,
    },
    /// A wait ended.
    #[error("{what} did not end within {:.1} s: {waits_for}", after.as_secs_f64())]
    Deadline {
        /// What was to be done.
        what: String,
        /// For whom, or for what, it was waited.
        waits_for: String,
        /// How long.
        after: Duration,
    },
    /// A read of a step that is over.
    #[error("{place} stands at {found} steps: what it was after {asked} is gone")]
    StepPassed {
        /// The shard.
        place: Place,
        /// Steps that the read asked for.
        asked: u64,
        /// Steps that it has.
        found: u64,
    },
    /// A part of a step that is too far ahead.
    #[error("{place} has {has} steps behind it: a part of step {step} is too far ahead")]
    StepAhead {
        /// The shard.
        place: Place,
        /// Steps that it has.
        has: u64,
        /// The step of the part.
        step: u64,
    },
    /// Parts of one step that do not agree.
    #[error("parts of step {step} of {place} differ in {what}")]
    PartsDiffer {
        /// The shard.
        place: Place,
        /// The step.
        step: u64,
        /// In what: the number of grains, the rate.
        what: String,
    },
    /// Pushes that a server must have are not there.
    #[error(
        "{place} has {has} pushes of {client}, and number {number} came: some in between are lost"
    )]
    MissingPushes {
        /// The shard.
        place: Place,
        /// Whose.
        client: String,
        /// How many are there.
        has: u64,
        /// The one that came.
        number: u64,
    },
    /// This client was taken for lost, and its pushes are not counted any more.
    #[error("{client} was taken for lost: {reason}")]
    ClientLost {
        /// Which.
        client: String,
        /// Why.
        reason: String,
    },
    /// Nobody directs any more.
    #[error("the director of the tables is gone: {reason}")]
    DirectorLost {
        /// What was seen.
        reason: String,
    },
    /// A server that ended in the middle of its work.
    #[error("{server} ended in the middle of its work: its thread panicked")]
    ServerFailed {
        /// Which.
        server: ServerId,
    },
    /// Somebody asked to give up.
    #[error("{what} was given up")]
    Stopped {
        /// What was underway.
        what: String,
    },
    /// A state that is none.
    #[error("the saved state of the table {table} cannot be used: {what}")]
    Snapshot {
        /// Which.
        table: String,
        /// What is wrong.
        what: String,
    },
    /// What was said makes no sense: a defect, or somebody else's bytes.
    #[error("{who} said what cannot be: {what}")]
    Nonsense {
        /// Who.
        who: String,
        /// What.
        what: String,
    },
    /// Two servers that are both there.
    #[error("{from} cannot reach {to}: {reason}")]
    Unreachable {
        /// Who calls.
        from: String,
        /// Who is called.
        to: String,
        /// What was seen.
        reason: String,
    },
    /// No link could be made, or it failed.
    #[error("no link to {who}: {what}")]
    NoLink {
        /// To whom.
        who: String,
        /// What was seen.
        what: String,
    },
}
