//! Any bytes to either side of a handshake, in any pieces: no panic, no proof, and no more said than a handshake has to say.

use manyhands_net::secure::{Handshake, Purpose, Secret, Stage};

const PURPOSE: Purpose = Purpose(1);
/// What a caller's first message begins with.
const GREETING: &[u8] = b"manyhand\x01\x00\x01";

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

pub(crate) fn body(bytes: &[u8]) {
    let Some((&piece_len, bytes)) = bytes.split_first() else { return };
    let piece_len = usize::from(piece_len).max(1);
    let secret = Secret::random().expect("random bytes");
    let responder = Handshake::respond(&secret, [PURPOSE], b"hello").expect("a short hello");
    feed(responder, bytes, piece_len);
    let initiator = Handshake::initiate(&secret, PURPOSE, b"hello").expect("a short hello");
    feed(initiator, bytes, piece_len);
    // With the right first bytes, so that what follows is looked at.
    let mut greeted = Handshake::respond(&secret, [PURPOSE], b"hello").expect("a short hello");
    greeted.receive(GREETING).expect("the right first bytes");
    feed(greeted, bytes, piece_len);
}

/// What both sides say where they know the same secret, which is another one than the body's.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let secret = Secret::random().expect("random bytes");
    let mut caller = Handshake::initiate(&secret, PURPOSE, b"a caller").expect("a short hello");
    let mut called = Handshake::respond(&secret, [PURPOSE], b"a called one").expect("short");
    let (mut from_caller, mut from_called) = (vec![16], vec![200]);
    for _ in 0..4 {
        pass(&mut caller, &mut called, &mut from_caller);
        pass(&mut called, &mut caller, &mut from_called);
    }
    assert!(caller.stage() == Stage::Proven && called.stage() == Stage::Proven);
    vec![from_caller, from_called]
}

/// Gives what one side has to say to the other, and notes it.
fn pass(from: &mut Handshake, to: &mut Handshake, noted: &mut Vec<u8>) {
    let bytes = from.outgoing().to_vec();
    noted.extend_from_slice(&bytes);
    from.sent(bytes.len());
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let n = to.receive(rest).expect("the same secret");
        assert!(n > 0, "a message is taken");
        rest = &rest[n..];
    }
}
