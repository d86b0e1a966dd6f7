//! The door with real sockets: who knows the secret gets in promptly, whatever else happens at the door.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use manyhands_net::secure::{
    Handshake, HandshakeError, PROTOCOL_VERSION, Purpose, Secret, SecureLink, Stage,
};
use manyhands_net::transport::Link;
use manyhands_net::wire::{
    Admitted, DialError, Doorman, DoormanSettings, FrameError, FrameReader, Refusals, Socket, dial,
    write_frame,
};

use crate::memory_link::SocketLink;

const PURPOSE: Purpose = Purpose(1);
/// Against hangs only.
const PATIENCE: Duration = Duration::from_secs(30);

struct House {
    doorman: Doorman,
    address: SocketAddr,
    secret: Secret,
    admitted: Receiver<Admitted>,
}

impl House {
    fn new(change: impl FnOnce(&mut DoormanSettings)) -> House {
        let secret = Secret::random().unwrap();
        let mut settings = DoormanSettings::new(secret.clone(), [PURPOSE], *b"the house");
        change(&mut settings);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, admitted) = channel();
        let admit = move |who| drop(tell.send(who));
        let doorman = Doorman::start(listener, None, settings, admit).unwrap();
        House { doorman, address, secret, admitted }
    }

    fn dial(&self, secret: &Secret) -> Result<Admitted, DialError> {
        dial(&self.address.to_string(), secret, PURPOSE, b"a guest", PATIENCE)
    }

    /// A good guest, as both sides see it.
    fn guest(&self) -> (Admitted, Admitted) {
        let near = self.dial(&self.secret).unwrap();
        (near, self.admitted.recv_timeout(PATIENCE).unwrap())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Waits until the counts are as they should be.
    fn until(&self, what: &str, holds: impl Fn(&Refusals) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(&self.doorman.refusals()) {
            assert!(Instant::now() < end, "{what}: {:?}", self.doorman.refusals());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// All that the other side says until it closes.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    said
}

fn stream(admitted: Admitted) -> TcpStream {
    match admitted.socket {
        Socket::Tcp(stream) => stream,
        Socket::Unix(_) => panic!("not over TCP"),
    }
}

#[test]
fn who_knows_the_secret_gets_in_and_both_know_whom_they_talk_to() {
    let house = House::new(|_| ());
    let (near, far) = house.guest();
    assert_eq!(near.established.hello, b"the house");
    assert_eq!(far.established.hello, b"a guest");
    assert_eq!(far.established.purpose, PURPOSE);
    assert!(far.peer.starts_with("127.0.0.1:"), "{}", far.peer);
    let split = |admitted: Admitted| match admitted.socket {
        Socket::Tcp(stream) => SecureLink::new(SocketLink(stream), admitted.established.keys),
        Socket::Unix(_) => panic!("not over TCP"),
    };
    let (mut near, mut far) = (split(near), split(far));
    near.try_send(b"secret words").unwrap();
    let mut room = [0; 100];
    let end = Instant::now() + PATIENCE;
    let count = loop {
        match far.try_receive(&mut room).unwrap() {
            0 => assert!(Instant::now() < end, "nothing arrived"),
            count => break count,
        }
    };
    assert_eq!(&room[..count], b"secret words");
    assert_eq!(house.doorman.refusals(), Refusals { admitted: 1, ..Refusals::default() });
}

#[test]
fn a_unix_socket_is_a_door_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("door");
    let secret = Secret::random().unwrap();
    let settings = DoormanSettings::new(secret.clone(), [PURPOSE], *b"the house");
    let (tell, admitted) = channel();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(&path).unwrap();
    let admit = move |who| drop(tell.send(who));
    let doorman = Doorman::start(tcp, Some(unix), settings, admit).unwrap();
    let address = format!("unix:{}", path.display());
    let near = dial(&address, &secret, PURPOSE, b"a guest", PATIENCE).unwrap();
    let far: Admitted = admitted.recv_timeout(PATIENCE).unwrap();
    assert_eq!(near.established.hello, b"the house");
    assert_eq!(far.established.hello, b"a guest");
    assert!(matches!(far.socket, Socket::Unix(_)));
    drop(doorman);
    let gone = dial(&address, &secret, PURPOSE, b"", PATIENCE).unwrap_err();
    assert!(matches!(gone, DialError::Refused { .. }), "{gone}");
}

#[test]
fn another_secret_is_refused_on_both_sides() {
    let house = House::new(|_| ());
    let error = house.dial(&Secret::random().unwrap()).unwrap_err();
    let sentence =
        format!("no handshake with {}: the other side has another secret", house.address);
    assert_eq!(error.to_string(), sentence);
    house.until("counted", |refusals| refusals.wrong_secret == 1);
    assert!(house.admitted.try_recv().is_err());
    house.guest();
}

#[test]
fn another_version_is_refused_and_told_which_is_spoken() {
    let house = House::new(|_| ());
    let mut caller = house.connect();
    let mut first = Handshake::initiate(&house.secret, PURPOSE, b"").unwrap().outgoing().to_vec();
    first[8..10].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    caller.write_all(&first).unwrap();
    let said = until_closed(caller);
    assert_eq!(said[..8], *b"manyhand");
    assert_eq!(said[8..10], PROTOCOL_VERSION.to_le_bytes());
    assert_eq!(said.len(), 11);
    house.until("counted", |refusals| refusals.other_version == 1);
    house.guest();
}

/// What `dial` says of a server that reads a little, answers the given bytes, and closes.
fn dial_error(answer: &'static [u8], deadline: Duration) -> DialError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0; 59];
        stream.read_exact(&mut first).unwrap();
        stream.write_all(answer).unwrap();
        if answer == b"silence" {
            until_closed(stream);
        }
    });
    let error = dial(&address, &Secret::random().unwrap(), PURPOSE, b"", deadline).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    server.join().unwrap();
    error
}

fn why(error: DialError) -> HandshakeError {
    match error {
        DialError::Handshake { source, .. } => source,
        other => panic!("not a failed handshake: {other}"),
    }
}

#[test]
fn a_caller_is_told_what_is_wrong_with_the_other_side() {
    let ours = PROTOCOL_VERSION;
    let version = why(dial_error(b"manyhand\x09\x00\x03", PATIENCE));
    assert_eq!(version, HandshakeError::OtherVersion { ours, theirs: 9 });
    assert_eq!(why(dial_error(b"HTTP/1.1 400 Bad", PATIENCE)), HandshakeError::NotManyhands);
    let cut = why(dial_error(b"many", PATIENCE));
    assert!(matches!(cut, HandshakeError::WrongLength { had: 4, wanted: 11, .. }), "{cut}");
    let late = dial_error(b"silence", Duration::from_millis(200));
    assert!(matches!(late, DialError::TimedOut { .. }), "{late}");
    assert!(late.to_string().ends_with("while waiting for its proof of the secret"));

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = dial(&closed, &Secret::random().unwrap(), PURPOSE, b"", PATIENCE).unwrap_err();
    assert_eq!(refused.to_string(), format!("nothing listens at {closed}"));
    let nowhere =
        dial("no.such.host.invalid:1", &Secret::random().unwrap(), PURPOSE, b"", PATIENCE);
    assert!(matches!(nowhere, Err(DialError::Unfindable { .. } | DialError::TimedOut { .. })));
}

#[test]
fn garbage_and_early_ends_are_dropped_without_a_word() {
    let house = House::new(|_| ());
    let mut garbage = house.connect();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(until_closed(garbage), b"");
    house.until("garbage", |refusals| refusals.garbage == 1);
    let mut short = house.connect();
    short.write_all(b"manyh").unwrap();
    drop(short);
    house.until("cut off", |refusals| refusals.cut_off == 1);
    house.guest();
}

#[test]
fn who_says_nothing_is_sent_away_and_keeps_nobody_waiting() {
    let house = House::new(|settings| settings.deadline = Duration::from_millis(300));
    let silent: Vec<_> = (0..10).map(|_| house.connect()).collect();
    house.guest();
    for stream in silent {
        assert_eq!(until_closed(stream), b"");
    }
    house.until("too slow", |refusals| refusals.too_slow == 10);
    house.guest();
}

#[test]
fn the_oldest_stranger_makes_room_when_the_room_is_full() {
    let house = House::new(|settings| {
        settings.max_unproven = 4;
        settings.deadline = PATIENCE;
    });
    let mut strangers: Vec<_> = (0..4).map(|_| house.connect()).collect();
    house.guest();
    house.until("crowded out", |refusals| refusals.crowded_out == 1);
    assert_eq!(until_closed(strangers.remove(0)), b"");
    // Who came later is still in the room, and may still prove itself.
    let mut handshake = Handshake::initiate(&house.secret, PURPOSE, b"late").unwrap();
    say_slowly(&mut strangers[0], &mut handshake, Duration::ZERO);
    assert_eq!(house.admitted.recv_timeout(PATIENCE).unwrap().established.hello, b"late");
}

#[test]
fn who_has_shown_the_secret_does_not_make_room_for_strangers() {
    let house = House::new(|settings| {
        settings.max_unproven = 4;
        settings.deadline = PATIENCE;
    });
    let mut guest = house.connect();
    let mut handshake = Handshake::initiate(&house.secret, PURPOSE, b"patient").unwrap();
    let first = handshake.outgoing().to_vec();
    handshake.sent(first.len());
    guest.write_all(&first).unwrap();
    let mut answer = vec![0; handshake.wants()];
    guest.read_exact(&mut answer).unwrap();
    handshake.receive(&answer).unwrap();
    let strangers: Vec<_> = (0..20).map(|_| house.connect()).collect();
    house.until("crowded out", |refusals| refusals.crowded_out >= 17);
    say_slowly(&mut guest, &mut handshake, Duration::ZERO);
    assert_eq!(house.admitted.recv_timeout(PATIENCE).unwrap().established.hello, b"patient");
    drop(strangers);
}

/// Does the rest of an initiator's side, a byte at a time. What was said is returned.
fn say_slowly(stream: &mut TcpStream, handshake: &mut Handshake, pause: Duration) -> Vec<u8> {
    let mut said = Vec::new();
    loop {
        for byte in handshake.outgoing().to_vec() {
            stream.write_all(&[byte]).unwrap();
            said.push(byte);
            std::thread::sleep(pause);
        }
        handshake.sent(usize::MAX / 2);
        if handshake.stage() == Stage::Proven {
            return said;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        handshake.receive(&byte).unwrap();
    }
}

#[test]
fn a_guest_may_speak_slowly_but_not_for_ever() {
    let house = House::new(|settings| settings.deadline = PATIENCE);
    let mut slow = house.connect();
    let mut handshake = Handshake::initiate(&house.secret, PURPOSE, b"slow").unwrap();
    say_slowly(&mut slow, &mut handshake, Duration::from_micros(50));
    assert_eq!(house.admitted.recv_timeout(PATIENCE).unwrap().established.hello, b"slow");

    let house = House::new(|settings| settings.deadline = Duration::from_millis(200));
    let mut endless = house.connect();
    let first = Handshake::initiate(&house.secret, PURPOSE, b"").unwrap().outgoing().to_vec();
    for byte in &first[..40] {
        // The door closes in the middle of it.
        let _ = endless.write_all(&[*byte]);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(until_closed(endless), b"");
    house.until("too slow", |refusals| refusals.too_slow == 1);
}

#[test]
fn a_recorded_handshake_gets_nobody_in() {
    let house = House::new(|_| ());
    let mut honest = house.connect();
    let mut handshake = Handshake::initiate(&house.secret, PURPOSE, b"honest").unwrap();
    let recording = say_slowly(&mut honest, &mut handshake, Duration::ZERO);
    house.admitted.recv_timeout(PATIENCE).unwrap();

    let mut thief = house.connect();
    thief.write_all(&recording).unwrap();
    house.until("noticed", |refusals| refusals.wrong_secret == 1);
    until_closed(thief);
    assert!(house.admitted.try_recv().is_err());
    assert_eq!(house.doorman.refusals().admitted, 1);
}

#[test]
fn an_announced_length_beyond_the_bound_ends_the_reading_of_a_guest() {
    let house = House::new(|_| ());
    let (near, far) = house.guest();
    let (mut near, mut far) = (stream(near), stream(far));
    let mut bytes = Vec::new();
    write_frame(&mut bytes, &"a word", 1000).unwrap();
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    near.write_all(&bytes).unwrap();
    far.set_nonblocking(false).unwrap();
    let mut reader = FrameReader::new(1000);
    let mut words: Vec<String> = Vec::new();
    let error = 'reading: loop {
        let mut room = [0; 5];
        let count = far.read(&mut room).unwrap();
        assert!(count > 0);
        let mut rest = &room[..count];
        loop {
            match reader.next(&mut rest) {
                Ok(Some(word)) => words.push(word),
                Ok(None) => break,
                Err(error) => break 'reading error,
            }
        }
    };
    assert_eq!(words, ["a word"]);
    assert!(matches!(error, FrameError::TooLong { len: 0xffff_ffff, max_len: 1000 }));
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// One connection that will not get in: garbage, silence, another secret, another version, half a handshake, or a recording's start.
fn nuisance(address: SocketAddr, secret: &Secret, kind: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let other = Secret::random().unwrap();
    let mut first = Handshake::initiate(&other, PURPOSE, b"").unwrap().outgoing().to_vec();
    match kind % 6 {
        0 => first = vec![0xa5; 3000],
        1 => first.clear(),
        2 => {}
        3 => first[8] ^= 0x40,
        4 => first.truncate(30),
        _ => first = Handshake::initiate(secret, PURPOSE, b"").unwrap().outgoing().to_vec(),
    }
    // It may be thrown out while it talks.
    let _ = stream.write_all(&first);
    stream
}

#[test]
fn two_thousand_strangers_neither_keep_a_guest_out_nor_fill_the_memory() {
    let house = House::new(|_| ());
    house.guest();
    let before = resident();
    let done = AtomicBool::new(false);
    let (address, secret) = (house.address, &house.secret);
    let guests = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut crowd = std::collections::VecDeque::new();
            for kind in 0..2000 {
                crowd.push_back(nuisance(address, secret, kind));
                if crowd.len() > 200 {
                    crowd.pop_front();
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut guests = 0;
        while !done.load(Ordering::Acquire) {
            let near = house.dial(&house.secret).expect("a guest gets in, whatever the crowd does");
            assert_eq!(near.established.hello, b"the house");
            house.admitted.recv_timeout(PATIENCE).unwrap();
            guests += 1;
        }
        guests
    });
    let grown = resident().saturating_sub(before);
    assert!(guests > 0, "the crowd was there at the same time");
    assert!(grown < 32 << 10, "{grown} KiB more than before");
    house.until("all sent away", |refusals| refusals.total() == 2000);
    let refusals = house.doorman.refusals();
    assert!(refusals.garbage > 0 && refusals.wrong_secret > 0, "{refusals:?}");
    house.guest();
}
