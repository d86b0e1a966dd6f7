//! What filters of traffic send: see `bodies/traffic.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/traffic.rs"]
mod traffic;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| traffic::body(bytes));
