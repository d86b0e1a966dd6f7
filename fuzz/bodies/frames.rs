//! Any bytes as frames of messages, in any pieces: no panic, no memory beyond the bound, and the same messages however they are cut.

use manyhands_net::wire::{FrameReader, write_frame_with};

const MAX_LEN: usize = 4096;

/// Text and bytes of every frame before the first error, which ends the stream.
fn read(bytes: &[u8], piece_len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut reader = FrameReader::with_bytes(MAX_LEN, MAX_LEN);
    let mut frames = Vec::new();
    for mut piece in bytes.chunks(piece_len) {
        loop {
            let text = match reader.next_body(&mut piece) {
                Ok(Some(text)) => text.to_vec(),
                Ok(None) => break,
                Err(_) => return frames,
            };
            frames.push((text, reader.bytes().to_vec()));
        }
        assert!(reader.memory() <= 2 * MAX_LEN);
    }
    frames
}

pub(crate) fn body(bytes: &[u8]) {
    let Some((&piece_len, bytes)) = bytes.split_first() else { return };
    let frames = read(bytes, usize::from(piece_len).max(1));
    assert_eq!(frames, read(bytes, bytes.len().max(1)));
    let mut reader = FrameReader::with_bytes(MAX_LEN, MAX_LEN);
    let mut rest = bytes;
    while let Ok(Some(_)) = reader.next::<serde_json::Value>(&mut rest) {}
}

/// What a correct sender sends.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut stream = vec![7];
    for (text, beside) in [("a word", &b""[..]), ("", b"beside it"), ("[[{}]]", &[0; 300])] {
        write_frame_with(&mut stream, &text, &[beside], MAX_LEN).expect("a short message");
    }
    vec![stream]
}
