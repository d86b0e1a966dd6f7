//! Offers of shared memory: see `bodies/offer.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/offer.rs"]
mod offer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| offer::body(bytes));
