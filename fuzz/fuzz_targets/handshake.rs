//! Any bytes to either side of a handshake, in any pieces: no panic, no proof, and no more said than a handshake has to say.

#![no_main]

use libfuzzer_sys::fuzz_target;
use manyhands_net::secure::{Handshake, Purpose, Secret, Stage};

const PURPOSE: Purpose = Purpose(1);

fn feed(mut side: Handshake, bytes: &[u8], piece_len: usize) {
    for piece in bytes.chunks(piece_len) {
        let wants = side.wants();
        match side.receive(piece) {
            Ok(taken) => assert!(taken <= piece.len() && (wants > 0 || taken == 0)),
            Err(_) => assert_eq!(side.wants(), 0),
        }
        assert_ne!(side.stage(), Stage::Proven);
        assert!(side.outgoing().len() <= 2048);
    }
    assert!(side.finish().is_none());
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece_len, bytes)) = bytes.split_first() else { return };
    let piece_len = usize::from(piece_len).max(1);
    let secret = Secret::random().expect("random bytes");
    let responder = Handshake::respond(&secret, [PURPOSE], b"hello").expect("a short hello");
    feed(responder, bytes, piece_len);
    let initiator = Handshake::initiate(&secret, PURPOSE, b"hello").expect("a short hello");
    feed(initiator, bytes, piece_len);
    // With the right first bytes, so that what follows is looked at.
    let mut greeted = Handshake::respond(&secret, [PURPOSE], b"hello").expect("a short hello");
    greeted.receive(b"manyhand\x01\x00\x01").expect("the right first bytes");
    feed(greeted, bytes, piece_len);
});
