//! Frames of collectives: see `bodies/collective.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/collective.rs"]
mod collective;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| collective::body(bytes));
