//! Control messages: see `bodies/control.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| control::body(bytes));
