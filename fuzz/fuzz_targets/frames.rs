//! Any bytes as frames of control messages, in any pieces: no panic, no memory beyond the bound, and the same messages however they are cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use manyhands_net::wire::FrameReader;

const MAX_LEN: usize = 4096;

/// All bodies that come before the first error, which ends the stream.
fn read(bytes: &[u8], piece_len: usize) -> Vec<Vec<u8>> {
    let mut reader = FrameReader::new(MAX_LEN);
    let mut bodies = Vec::new();
    for mut piece in bytes.chunks(piece_len) {
        loop {
            match reader.next_body(&mut piece) {
                Ok(Some(body)) => bodies.push(body.to_vec()),
                Ok(None) => break,
                Err(_) => return bodies,
            }
        }
        assert!(reader.memory() <= MAX_LEN);
    }
    bodies
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece_len, bytes)) = bytes.split_first() else { return };
    let bodies = read(bytes, usize::from(piece_len).max(1));
    assert_eq!(bodies, read(bytes, bytes.len().max(1)));
    let mut reader = FrameReader::new(MAX_LEN);
    let mut rest = bytes;
    while let Ok(Some(_)) = reader.next::<serde_json::Value>(&mut rest) {}
});
