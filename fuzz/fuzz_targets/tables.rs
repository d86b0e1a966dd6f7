//! What directors, servers and clients of tables hear: see `bodies/tables.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/tables.rs"]
mod tables;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tables::body(bytes));
