//! What driver and workers say to each other: see `bodies/words.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/words.rs"]
mod words;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| words::body(bytes));
