//! Handshakes: see `bodies/handshake.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/handshake.rs"]
mod handshake;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| handshake::body(bytes));
