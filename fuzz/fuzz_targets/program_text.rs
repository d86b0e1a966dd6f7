//! Any bytes as the text form of a program: no panic, and what parses comes back from what it prints.

#![no_main]

use libfuzzer_sys::fuzz_target;
use manyhands_program::Program;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(program) = text.parse::<Program>() else { return };
    let printed = program.to_string();
    let again: Program = printed.parse().expect("what is printed parses");
    assert_eq!(again, program);
    assert_eq!(again.to_string(), printed);
});
