//! Lines of libsvm files: see `bodies/libsvm.rs`.

#![no_main]

#[allow(dead_code)] // what a test begins with is not needed here
#[path = "../bodies/libsvm.rs"]
mod libsvm;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| libsvm::body(bytes));
