//! The handshake without sockets: every way to get it wrong ends in its own sentence, and no changed byte gets through.

use manyhands_net::secure::{
    HELLO_MAX, Handshake, HandshakeError, PROTOCOL_VERSION, Purpose, Secret, Stage,
};
use proptest::prelude::*;

const PURPOSE: Purpose = Purpose(3);
const OTHER: Purpose = Purpose(2);

fn sides(secret: &Secret) -> (Handshake, Handshake) {
    let one = Handshake::initiate(secret, PURPOSE, b"I connect").unwrap();
    let other = Handshake::respond(secret, [PURPOSE, OTHER], b"I answer").unwrap();
    (one, other)
}

/// Takes what a side has to send.
fn drain(side: &mut Handshake) -> Vec<u8> {
    let bytes = side.outgoing().to_vec();
    side.sent(bytes.len());
    bytes
}

/// Gives a side bytes in pieces, never more than it wants.
fn feed(
    side: &mut Handshake,
    mut bytes: &[u8],
    pieces: &mut impl Iterator<Item = usize>,
) -> Result<(), HandshakeError> {
    while !bytes.is_empty() && side.wants() > 0 {
        let count = pieces.next().unwrap().clamp(1, bytes.len()).min(side.wants());
        let taken = side.receive(&bytes[..count])?;
        assert_eq!(taken, count, "what it wants it takes");
        bytes = &bytes[count..];
    }
    Ok(())
}

/// One way of a session, in the order in which they are sent.
struct Recording {
    to_responder: Vec<u8>,
    to_initiator: Vec<u8>,
}

fn record(secret: &Secret) -> Recording {
    let (mut one, mut other) = sides(secret);
    let mut to_responder = drain(&mut one);
    other.receive(&to_responder).unwrap();
    let to_initiator = drain(&mut other);
    one.receive(&to_initiator).unwrap();
    let third = drain(&mut one);
    other.receive(&third).unwrap();
    assert_eq!((one.stage(), other.stage()), (Stage::Proven, Stage::Proven));
    to_responder.extend_from_slice(&third);
    Recording { to_responder, to_initiator }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cutting_ends_in_the_same_hellos_and_keys(
        hello in prop::collection::vec(any::<u8>(), 0..=HELLO_MAX),
        pieces in prop::collection::vec(1usize..2000, 1..20),
    ) {
        let secret = Secret::random().unwrap();
        let mut pieces = pieces.into_iter().cycle();
        let mut one = Handshake::initiate(&secret, PURPOSE, &hello).unwrap();
        let mut other = Handshake::respond(&secret, [PURPOSE], b"I answer").unwrap();
        while one.stage() != Stage::Proven || other.stage() != Stage::Proven {
            feed(&mut other, &drain(&mut one), &mut pieces).unwrap();
            feed(&mut one, &drain(&mut other), &mut pieces).unwrap();
        }
        prop_assert_eq!((one.wants(), other.wants()), (0, 0));
        let (mut one, mut other) = (one.finish().unwrap(), other.finish().unwrap());
        prop_assert_eq!(&other.hello, &hello);
        prop_assert_eq!(&one.hello[..], b"I answer");
        prop_assert_eq!((one.purpose, other.purpose), (PURPOSE, PURPOSE));
        let mut record = [0; 100];
        let mut opened = [0; 100];
        let len = one.keys.seal(b"there", &mut record).unwrap();
        let len = other.keys.open(&record[..len], &mut opened).unwrap();
        prop_assert_eq!(&opened[..len], b"there");
        let len = other.keys.seal(b"and back", &mut record).unwrap();
        let len = one.keys.open(&record[..len], &mut opened).unwrap();
        prop_assert_eq!(&opened[..len], b"and back");
    }

    #[test]
    fn no_changed_byte_gets_through(
        place in any::<prop::sample::Index>(),
        flip in 1u8..=255,
    ) {
        let secret = Secret::random().unwrap();
        let plain = record(&secret);
        let (first_len, answer_len) = (11 + 48, plain.to_initiator.len());
        let place = place.index(plain.to_responder.len() + answer_len);
        let (mut one, mut other) = sides(&secret);
        let mut sent = 0;
        // What crosses at positions `sent` on, with the one byte changed.
        let mut cross = |bytes: Vec<u8>| {
            let mut bytes = bytes;
            let len = bytes.len();
            if (sent..sent + len).contains(&place) {
                bytes[place - sent] ^= flip;
            }
            sent += len;
            bytes
        };
        let first = cross(drain(&mut one));
        prop_assert_eq!(first.len(), first_len);
        if other.receive(&first).is_err() {
            prop_assert_eq!(other.stage(), Stage::Unknown);
            prop_assert!(other.finish().is_none());
            return Ok(());
        }
        let answer = cross(drain(&mut other));
        if one.receive(&answer).is_err() {
            prop_assert!(one.finish().is_none());
            return Ok(());
        }
        let third = cross(drain(&mut one));
        prop_assert_eq!(other.receive(&third).unwrap_err(), HandshakeError::WrongSecret);
        prop_assert!(other.finish().is_none());
    }
}

#[test]
fn another_secret_is_noticed_by_both() {
    let mut one = Handshake::initiate(&Secret::random().unwrap(), PURPOSE, b"").unwrap();
    let mut other = Handshake::respond(&Secret::random().unwrap(), [PURPOSE], b"").unwrap();
    let refusal = other.receive(&drain(&mut one)).unwrap_err();
    assert_eq!(refusal, HandshakeError::WrongSecret);
    assert_eq!(refusal.to_string(), "the other side has another secret");
    assert_eq!(one.receive(&drain(&mut other)).unwrap_err(), HandshakeError::WrongSecret);
}

#[test]
fn another_version_is_named_by_both() {
    let secret = Secret::random().unwrap();
    let (mut one, mut other) = sides(&secret);
    let mut first = drain(&mut one);
    first[8..10].copy_from_slice(&7u16.to_le_bytes());
    let refusal = other.receive(&first).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        format!(
            "the other side speaks version 7 of the protocol, this one version {PROTOCOL_VERSION}"
        )
    );
    // What a responder of version 7 would say to the same.
    let mut answer = drain(&mut other);
    answer[8..10].copy_from_slice(&7u16.to_le_bytes());
    assert_eq!(
        one.receive(&answer).unwrap_err(),
        HandshakeError::OtherVersion { ours: PROTOCOL_VERSION, theirs: 7 }
    );
}

#[test]
fn another_purpose_is_refused_and_cannot_be_swapped_on_the_way() {
    let secret = Secret::random().unwrap();
    let mut one = Handshake::initiate(&secret, Purpose(9), b"").unwrap();
    let (_, mut other) = sides(&secret);
    let refusal = HandshakeError::OtherPurpose { purpose: Purpose(9) };
    assert_eq!(other.receive(&drain(&mut one)).unwrap_err(), refusal);
    assert_eq!(one.receive(&drain(&mut other)).unwrap_err(), refusal);

    let (mut one, mut other) = sides(&secret);
    let mut first = drain(&mut one);
    first[10] = OTHER.0;
    assert_eq!(other.receive(&first).unwrap_err(), HandshakeError::WrongSecret);
}

#[test]
fn a_recorded_handshake_is_refused_by_both_sides() {
    let secret = Secret::random().unwrap();
    let recording = record(&secret);
    let (mut one, mut other) = sides(&secret);
    let (first, third) = recording.to_responder.split_at(11 + 48);
    other.receive(first).unwrap();
    assert_eq!(other.stage(), Stage::Plausible, "the first message alone proves nothing new");
    assert_eq!(other.receive(third).unwrap_err(), HandshakeError::WrongSecret);
    assert!(other.finish().is_none());

    drain(&mut one);
    assert_eq!(one.receive(&recording.to_initiator).unwrap_err(), HandshakeError::WrongSecret);
    assert!(one.finish().is_none());
}

#[test]
fn something_else_and_an_early_end_are_told_apart() {
    let secret = Secret::random().unwrap();
    let (mut one, mut other) = sides(&secret);
    let refusal = other.receive(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert_eq!(refusal, HandshakeError::NotManyhands);
    assert!(other.outgoing().is_empty(), "nothing is said to strangers");
    assert_eq!(other.receive(b"more").unwrap_err(), refusal, "and it stays refused");

    let (_, mut other) = sides(&secret);
    other.receive(&drain(&mut one)[..30]).unwrap();
    assert_eq!(
        other.cut_off().to_string(),
        "the connection ended after 19 of the 48 bytes of the proof of the secret"
    );
}

#[test]
fn a_hello_has_a_bound() {
    let secret = Secret::random().unwrap();
    let long = [0; HELLO_MAX + 1];
    let refusal = HandshakeError::LongHello { len: HELLO_MAX + 1 };
    assert_eq!(Handshake::initiate(&secret, PURPOSE, &long).err(), Some(refusal.clone()));
    assert_eq!(Handshake::respond(&secret, [PURPOSE], &long).err(), Some(refusal));
}

/// xorshift64*: the same bytes for the same seed, everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Changes bytes in one of the ways in which parsers are caught.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let place = self.below(bytes.len());
        match self.below(5) {
            0 => bytes[place] ^= 1 << self.below(8),
            1 => bytes.truncate(place),
            2 => bytes.insert(place, self.below(256) as u8),
            3 => drop(bytes.remove(place)),
            _ => bytes[place..].fill(self.below(256) as u8),
        }
    }
}

#[test]
fn mutations_of_a_recording_never_prove_anything() {
    let secret = Secret::random().unwrap();
    let recording = record(&secret);
    let mut reached = [0; 3];
    for seed in 1..=4000 {
        let mut chance = Chance(seed);
        let (mut one, mut other) = sides(&secret);
        drain(&mut one);
        for (side, bytes) in
            [(&mut other, &recording.to_responder), (&mut one, &recording.to_initiator)]
        {
            let mut bytes = bytes.clone();
            for _ in 0..chance.below(4) {
                if !bytes.is_empty() {
                    chance.mutate(&mut bytes);
                }
            }
            let mut pieces = std::iter::repeat_with(|| 1 + chance.below(200));
            let refused = feed(side, &bytes, &mut pieces).is_err();
            reached[usize::from(refused) + usize::from(side.stage() == Stage::Plausible)] += 1;
            assert_ne!(side.stage(), Stage::Proven, "seed {seed}");
            assert!(side.outgoing().len() <= 11 + 1074, "seed {seed}");
        }
    }
    assert!(
        reached[0] > 0 && reached[1] > 0,
        "short ones wait, whole ones are refused: {reached:?}"
    );
}
