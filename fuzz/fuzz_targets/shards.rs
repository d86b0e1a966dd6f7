//! Snapshots of shards: see `bodies/shards.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/shards.rs"]
mod shards;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shards::body(bytes));
