//! The bodies: what every kind of link promises.

use std::io::Read;
use std::time::{Duration, Instant};

use manyhands_net::transport::LinkError;
use manyhands_net::transport::wait::{Interest, Waiting};
use serde::{Deserialize, Serialize};

use super::scene::{Chance, Kind, Side, deadline, pass_gate, sequence, start};

/// What the other side does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Sends and receives so many bytes, both at once.
    Exchange { seed: u64, n_bytes: usize },
    /// Sends back what it receives, a few bytes at a time, until the end.
    Echo { seed: u64, sleeps_at_once: bool },
    /// Sends back every byte soon, without ever sleeping, until the end.
    EchoAwake { seed: u64 },
    /// Waits at the gate, then receives so many bytes and says so with one.
    ReceivePastGate { seed: u64, n_bytes: usize },
    /// Sends so many bytes and closes.
    SendAndClose { seed: u64, n_bytes: usize },
    /// Sends so many bytes and crashes.
    SendAndCrash { seed: u64, n_bytes: usize },
    /// Waits at the gate, then closes.
    ClosePastGate,
}

impl Role {
    pub(crate) fn play(self, mut side: Side, gate: &mut dyn Read) {
        match self {
            Role::Exchange { seed, n_bytes } => exchange(&mut side, seed + 1, seed, n_bytes),
            Role::Echo { seed, sleeps_at_once } => echo(&mut side, seed, sleeps_at_once),
            Role::EchoAwake { seed } => echo_awake(&mut side, seed),
            Role::ReceivePastGate { seed, n_bytes } => {
                pass_gate(gate);
                receive_sequence(&mut side, seed, n_bytes);
                side.send_all(&[1]).unwrap();
            }
            Role::SendAndClose { seed, n_bytes } => {
                side.send_all(&sequence(seed, 0, n_bytes)).unwrap();
            }
            Role::SendAndCrash { seed, n_bytes } => {
                side.send_all(&sequence(seed, 0, n_bytes)).unwrap();
                rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                )
                .unwrap();
            }
            Role::ClosePastGate => pass_gate(gate),
        }
    }
}

/// Sends one sequence and checks the arrival of another, in pieces of any length, with pauses.
fn exchange(side: &mut Side, outgoing: u64, incoming: u64, n_bytes: usize) {
    let mut chance = Chance::new(outgoing);
    let deadline = deadline();
    let (mut n_sent, mut n_received) = (0, 0);
    let mut arrived = vec![0; 3000];
    while n_sent < n_bytes || n_received < n_bytes {
        let len = chance.below(3000).min(n_bytes - n_sent);
        // In one slice or in two, which must come to the same.
        let bytes = sequence(outgoing, n_sent, len);
        let sent = match chance.below(2) {
            0 => side.link().try_send(&bytes).unwrap(),
            _ => {
                let (first, second) = bytes.split_at(chance.below(len + 1));
                side.link().try_send_both(first, second).unwrap()
            }
        };
        assert!(sent <= len);
        let len = chance.below(3000).min(n_bytes - n_received);
        let received = match chance.below(2) {
            0 => side.link().try_receive(&mut arrived[..len]).unwrap(),
            _ => {
                let (first, second) = arrived[..len].split_at_mut(chance.below(len + 1));
                side.link().try_receive_both(first, second).unwrap()
            }
        };
        assert_eq!(arrived[..received], sequence(incoming, n_received, received));
        n_sent += sent;
        n_received += received;
        chance.pause();
        if sent + received > 0 {
            side.waiting.progressed();
        } else if n_sent < n_bytes {
            side.wait(Interest::ReceiveOrRoom, deadline);
        } else if n_received < n_bytes {
            side.wait(Interest::Receive, deadline);
        }
    }
}

fn echo(side: &mut Side, seed: u64, sleeps_at_once: bool) {
    if sleeps_at_once {
        side.waiting = Waiting::sleeping_at_once();
    }
    let mut chance = Chance::new(seed);
    let mut bytes = [0; 100];
    loop {
        match side.receive_some(&mut bytes) {
            Ok(n) => {
                chance.pause();
                side.send_all(&bytes[..n]).unwrap();
            }
            Err(LinkError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn echo_awake(side: &mut Side, seed: u64) {
    let mut chance = Chance::new(seed);
    let mut byte = [0];
    loop {
        match side.link().try_receive(&mut byte) {
            Ok(0) => std::thread::yield_now(),
            Ok(_) => {
                chance.moment();
                assert_eq!(side.link().try_send(&byte).unwrap(), 1);
            }
            Err(LinkError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn receive_sequence(side: &mut Side, seed: u64, n_bytes: usize) {
    let mut bytes = vec![0; 1 << 16];
    let mut done = 0;
    while done < n_bytes {
        let len = bytes.len().min(n_bytes - done);
        let n = side.receive_some(&mut bytes[..len]).unwrap();
        assert_eq!(bytes[..n], sequence(seed, done, n), "wrong bytes at {done}");
        done += n;
    }
}

pub(crate) fn bytes_arrive_in_order_both_ways_at_once(kind: Kind) {
    for (seed, capacity) in [(10, 64), (20, 1024), (30, 1 << 16)] {
        let n_bytes = 100 * capacity.min(4096);
        let (mut side, other) = start(kind, capacity, Role::Exchange { seed, n_bytes });
        exchange(&mut side, seed, seed + 1, n_bytes);
        drop(side);
        assert!(other.end());
    }
}

pub(crate) fn calls_of_no_bytes_move_nothing(kind: Kind) {
    let (mut side, other) = start(kind, 64, Role::Echo { seed: 1, sleeps_at_once: false });
    for _ in 0..3 {
        assert_eq!(side.link().try_send(&[]).unwrap(), 0);
        assert_eq!(side.link().try_receive(&mut []).unwrap(), 0);
    }
    side.send_all(b"abc").unwrap();
    let mut bytes = [0; 3];
    side.receive_exact(&mut bytes[..1]).unwrap();
    assert_eq!(side.link().try_receive(&mut []).unwrap(), 0);
    side.receive_exact(&mut bytes[1..]).unwrap();
    assert_eq!(&bytes, b"abc");
    drop(side);
    assert!(other.end());
}

pub(crate) fn a_sender_without_room_stops_and_goes_on(kind: Kind) {
    let capacity = 4096;
    // More than sockets ever buffer.
    let n_bytes = if kind.has_capacity() { 5 * capacity } else { 96 << 20 };
    let (mut side, mut other) = start(kind, capacity, Role::ReceivePastGate { seed: 5, n_bytes });
    let mut n_sent = fill(&mut side, 5, n_bytes);
    assert!(n_sent < n_bytes, "it never stopped");
    if kind.has_capacity() {
        assert_eq!(n_sent, capacity);
    }
    other.open_gate();
    while n_sent < n_bytes {
        let len = (n_bytes - n_sent).min(1 << 16);
        side.send_all(&sequence(5, n_sent, len)).unwrap();
        n_sent += len;
    }
    side.receive_exact(&mut [0]).unwrap();
    assert!(other.end());
}

/// Sends until there is no room for a while. How much was taken.
fn fill(side: &mut Side, seed: u64, n_bytes: usize) -> usize {
    let mut n_sent = 0;
    let mut n_refused = 0;
    while n_refused < 20 && n_sent < n_bytes {
        let len = (n_bytes - n_sent).min(1 << 16);
        match side.link().try_send(&sequence(seed, n_sent, len)).unwrap() {
            0 => {
                n_refused += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            n => {
                n_sent += n;
                n_refused = 0;
            }
        }
    }
    n_sent
}

pub(crate) fn no_wake_up_is_lost_between_pauses(kind: Kind) {
    ping_pong(kind, false, 4000);
}

pub(crate) fn no_wake_up_is_lost_by_sleeping_at_once(kind: Kind) {
    ping_pong(kind, true, 4000);
}

pub(crate) fn no_wake_up_is_lost_in_the_moment_of_falling_asleep(kind: Kind) {
    let (mut side, other) = start(kind, 64, Role::EchoAwake { seed: 7 });
    side.waiting = Waiting::sleeping_at_once();
    let mut chance = Chance::new(9);
    for round in 0..30_000 {
        let byte = [round as u8];
        side.send_all(&byte).unwrap();
        chance.moment();
        let mut back = [0];
        side.receive_exact(&mut back).unwrap();
        assert_eq!(back, byte);
    }
    drop(side);
    assert!(other.end());
}

/// Messages of any length, longer than a ring too, there and back with pauses.
fn ping_pong(kind: Kind, sleeps_at_once: bool, n_rounds: usize) {
    let (mut side, other) = start(kind, 64, Role::Echo { seed: 2, sleeps_at_once });
    if sleeps_at_once {
        side.waiting = Waiting::sleeping_at_once();
    }
    let mut chance = Chance::new(3);
    let mut back = [0; 100];
    for round in 0..n_rounds {
        // Both rings together hold 128 bytes: the echo of a message always fits.
        let bytes = sequence(round as u64, 0, 1 + chance.below(100));
        side.send_all(&bytes).unwrap();
        chance.pause();
        side.receive_exact(&mut back[..bytes.len()]).unwrap();
        assert_eq!(back[..bytes.len()], bytes);
        chance.pause();
    }
    drop(side);
    assert!(other.end());
}

pub(crate) fn bytes_sent_before_the_close_arrive_then_closed(kind: Kind) {
    let role = Role::SendAndClose { seed: 8, n_bytes: 60_000 };
    let (mut side, other) = start(kind, 1 << 16, role);
    assert!(other.end(), "it could not send without a receiver");
    receive_sequence(&mut side, 8, 60_000);
    side.expect_closed();
    expect_no_more_sending(&mut side);
}

pub(crate) fn closing_wakes_who_sleeps(kind: Kind) {
    let (mut side, mut other) = start(kind, 64, Role::ClosePastGate);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.open_gate();
        other.end()
    });
    side.expect_closed();
    assert!(opener.join().unwrap());
}

pub(crate) fn a_killed_process_closes_a_link_that_sleeps(kind: Kind) {
    let (mut side, mut other) = start(kind, 64, Role::ClosePastGate);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.kill();
        let killed = Instant::now();
        assert!(!other.end());
        killed
    });
    side.expect_closed();
    // A second is what is promised; a machine that is busy with other tests gets more.
    assert!(killer.join().unwrap().elapsed() < Duration::from_secs(5));
    expect_no_more_sending(&mut side);
}

pub(crate) fn a_killed_process_closes_a_link_that_never_sleeps(kind: Kind) {
    let (mut side, mut other) = start(kind, 64, Role::ClosePastGate);
    other.kill();
    assert!(!other.end());
    let deadline = deadline();
    let error = loop {
        match side.link().try_receive(&mut [0; 8]) {
            Ok(n) => assert_eq!(n, 0),
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline, "the end is never noticed");
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
}

pub(crate) fn a_killed_process_closes_a_link_that_waits_for_room(kind: Kind) {
    let n_bytes = 96 << 20;
    let (mut side, mut other) = start(kind, 64, Role::ReceivePastGate { seed: 4, n_bytes });
    fill(&mut side, 4, n_bytes);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        other.kill();
        assert!(!other.end());
    });
    let error = loop {
        match side.send_all(&[0; 1000]) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
    killer.join().unwrap();
}

pub(crate) fn bytes_sent_before_a_crash_arrive_then_closed(kind: Kind) {
    let role = Role::SendAndCrash { seed: 6, n_bytes: 60_000 };
    let (mut side, other) = start(kind, 1 << 16, role);
    assert!(!other.end(), "it did not crash");
    receive_sequence(&mut side, 6, 60_000);
    side.expect_closed();
}

/// Makes sure that sending fails by now or soon: a socket learns of it by the answer to the first bytes.
fn expect_no_more_sending(side: &mut Side) {
    let deadline = deadline();
    loop {
        match side.link().try_send(b"is somebody there?") {
            Ok(_) => assert!(Instant::now() < deadline, "sending to nobody goes on"),
            Err(LinkError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
