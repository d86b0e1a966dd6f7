//! The coordinator's log: see `bodies/log.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/log.rs"]
mod log;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| log::body(bytes));
