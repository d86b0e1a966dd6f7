//! The encrypted link over another: bytes arrive whole and in order, and what was touched does not arrive.

use std::time::{Duration, Instant};

use manyhands_net::secure::{Handshake, Keys, Purpose, Secret, SecureLink, Stage};
use manyhands_net::transport::{Link, LinkError};
use proptest::prelude::*;

use crate::allocations::n_allocations;
use crate::memory_link::{MemoryLink, SocketLink, memory_pair};

const PURPOSE: Purpose = Purpose(1);

/// The keys of both ends.
fn keys() -> (Keys, Keys) {
    let secret = Secret::random().unwrap();
    let mut one = Handshake::initiate(&secret, PURPOSE, b"one").unwrap();
    let mut other = Handshake::respond(&secret, [PURPOSE], b"other").unwrap();
    while one.stage() != Stage::Proven || other.stage() != Stage::Proven {
        pass(&mut one, &mut other);
        pass(&mut other, &mut one);
    }
    (one.finish().unwrap().keys, other.finish().unwrap().keys)
}

fn pass(from: &mut Handshake, to: &mut Handshake) {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    assert_eq!(to.receive(&bytes).unwrap(), bytes.len());
}

fn secure_pair(room: usize, piece: usize) -> (SecureLink<MemoryLink>, SecureLink<MemoryLink>) {
    let (one, other) = memory_pair(room, piece);
    let (one_keys, other_keys) = keys();
    (SecureLink::new(one, one_keys), SecureLink::new(other, other_keys))
}

/// Sends everything from one end and receives it at the other, with the lengths of the calls going round.
fn through(
    from: &mut dyn Link,
    to: &mut dyn Link,
    bytes: &[u8],
    sends: &[usize],
    receives: &[usize],
) -> Vec<u8> {
    let end = Instant::now() + Duration::from_secs(60);
    let (mut sends, mut receives) = (sends.iter().cycle(), receives.iter().cycle());
    let (mut sent, mut arrived) = (0, Vec::new());
    while arrived.len() < bytes.len() {
        assert!(Instant::now() < end, "{sent} sent, {} arrived", arrived.len());
        let piece = &bytes[sent..][..(*sends.next().unwrap()).min(bytes.len() - sent)];
        sent += from.try_send(piece).unwrap();
        from.try_flush().unwrap();
        let mut room = vec![0; *receives.next().unwrap()];
        let count = to.try_receive(&mut room).unwrap();
        arrived.extend_from_slice(&room[..count]);
    }
    arrived
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_arrive_whole_and_in_order_however_they_are_cut(
        len in 0usize..300_000,
        sends in prop::collection::vec(1usize..100_000, 1..6),
        receives in prop::collection::vec(1usize..100_000, 1..6),
        room in 40usize..200_000,
        piece in 1000usize..100_000,
    ) {
        let (mut one, mut other) = secure_pair(room, piece);
        let bytes = pattern(len);
        prop_assert_eq!(&through(&mut one, &mut other, &bytes, &sends, &receives), &bytes);
        prop_assert_eq!(&through(&mut other, &mut one, &bytes, &sends, &receives), &bytes);
    }

    #[test]
    fn any_changed_byte_is_refused_and_nothing_after_the_last_whole_record_is_delivered(
        len in 1usize..100_000,
        place in any::<prop::sample::Index>(),
        flip in 1u8..=255,
    ) {
        let (one, other) = memory_pair(1 << 20, 1 << 20);
        let wire = one.out.clone();
        let (one_keys, other_keys) = keys();
        let mut one = SecureLink::new(one, one_keys);
        let mut other = SecureLink::new(other, other_keys);
        let bytes = pattern(len);
        prop_assert_eq!(one.try_send(&bytes).unwrap(), len);
        {
            let mut wire = wire.lock().unwrap();
            let place = place.index(wire.len());
            wire[place] ^= flip;
        }
        let mut arrived = vec![0; len];
        let (mut count, mut error) = (0, None);
        // A changed length may announce more than is there: then the link waits, and delivers nothing either.
        for _ in 0..8 {
            match other.try_receive(&mut arrived[count..]) {
                Ok(more) => count += more,
                Err(refusal) => error = Some(refusal),
            }
        }
        prop_assert!(count < len);
        prop_assert_eq!(&arrived[..count], &bytes[..count]);
        if let Some(error) = error {
            prop_assert!(matches!(error, LinkError::Forged));
            prop_assert!(matches!(other.try_send(b"more"), Err(LinkError::Forged)));
        }
    }
}

#[test]
fn a_changed_byte_of_a_record_is_named_as_forged_for_ever() {
    let (one, other) = memory_pair(1 << 20, 1 << 20);
    let wire = one.out.clone();
    let (one_keys, other_keys) = keys();
    let mut one = SecureLink::new(one, one_keys);
    let mut other = SecureLink::new(other, other_keys);
    one.try_send(b"first").unwrap();
    *wire.lock().unwrap().back_mut().unwrap() ^= 1;
    for _ in 0..3 {
        assert!(matches!(other.try_receive(&mut [0; 100]), Err(LinkError::Forged)));
    }
    assert!(matches!(other.sleepy(false), Err(LinkError::Forged)));
}

/// Sends three records and lets `change` do to them what an attacker on the wire would. What arrived, and whether a forgery was noticed.
fn attacked(change: impl FnOnce(&mut Vec<Vec<u8>>)) -> (Vec<u8>, bool) {
    let (one, other) = memory_pair(1 << 20, 1 << 20);
    let wire = one.out.clone();
    let (one_keys, other_keys) = keys();
    let mut one = SecureLink::new(one, one_keys);
    let mut other = SecureLink::new(other, other_keys);
    let mut records = Vec::new();
    for bytes in [b"one ", b"two ", b"end "] {
        one.try_send(bytes).unwrap();
        records.push(wire.lock().unwrap().drain(..).collect());
    }
    change(&mut records);
    wire.lock().unwrap().extend(records.concat());
    let (mut room, mut arrived) = ([0; 100], Vec::new());
    loop {
        match other.try_receive(&mut room) {
            Ok(0) => return (arrived, false),
            Ok(count) => arrived.extend_from_slice(&room[..count]),
            Err(error) => {
                assert!(matches!(error, LinkError::Forged));
                return (arrived, true);
            }
        }
    }
}

#[test]
fn repeated_left_out_and_moved_records_are_refused() {
    assert_eq!(attacked(|_| {}), (b"one two end ".to_vec(), false));
    let repeated = attacked(|records| records.insert(1, records[0].clone()));
    assert_eq!(repeated, (b"one ".to_vec(), true));
    assert_eq!(attacked(|records| drop(records.remove(1))), (b"one ".to_vec(), true));
    assert_eq!(attacked(|records| records.swap(0, 1)), (Vec::new(), true));
}

#[test]
fn a_record_that_comes_back_to_its_sender_is_refused() {
    let (inner, _other_end) = memory_pair(1 << 20, 1 << 20);
    let (out, into) = (inner.out.clone(), inner.into.clone());
    let mut link = SecureLink::new(inner, keys().0);
    link.try_send(b"who are you?").unwrap();
    into.lock().unwrap().extend(out.lock().unwrap().drain(..));
    assert!(matches!(link.try_receive(&mut [0; 100]), Err(LinkError::Forged)));
}

#[test]
fn more_records_than_one_key_is_used_for_still_open() {
    let (mut one, mut other) = keys();
    let (mut record, mut opened) = ([0; 32], [0; 32]);
    for count in 0..140_000u32 {
        let len = one.seal(&count.to_le_bytes(), &mut record).unwrap();
        assert_eq!(other.open(&record[..len], &mut opened).unwrap(), 4);
        assert_eq!(opened[..4], count.to_le_bytes());
    }
}

#[test]
fn decrypted_bytes_inside_keep_it_from_sleeping() {
    let (mut one, mut other) = secure_pair(1 << 20, 1 << 20);
    assert!(other.sleepy(false).unwrap(), "nothing has come");
    other.awake();
    one.try_send(b"two bytes and more").unwrap();
    one.try_send(b"another record").unwrap();
    assert_eq!(other.try_receive(&mut [0; 2]).unwrap(), 2);
    assert!(!other.sleepy(false).unwrap(), "the rest of the record is inside");
    other.awake();
    assert_eq!(other.try_receive(&mut [0; 16]).unwrap(), 16);
    assert!(!other.sleepy(false).unwrap(), "the second record is inside");
    other.awake();
    assert_eq!(other.try_receive(&mut [0; 100]).unwrap(), 14);
    assert!(other.sleepy(false).unwrap());
    assert!(!other.sleepy(true).unwrap(), "there is room");
    other.awake();
}

#[test]
fn sealed_bytes_that_were_not_sent_wait_for_room_of_the_inner_link() {
    let (mut one, mut other) = secure_pair(100, 100);
    let bytes = pattern(1000);
    assert_eq!(one.try_send(&bytes).unwrap(), 1000, "taken, and sealed");
    assert!(!one.try_flush().unwrap(), "but not sent");
    assert!(one.sleepy(true).unwrap(), "the inner link is full");
    one.awake();
    assert_eq!(other.try_receive(&mut [0; 2000]).unwrap(), 0, "no whole record yet");
    let mut arrived = vec![0; 2000];
    let mut count = 0;
    for _ in 0..20 {
        one.try_flush().unwrap();
        count += other.try_receive(&mut arrived[count..]).unwrap();
    }
    assert_eq!(&arrived[..count], &bytes);
}

#[test]
fn it_works_over_a_socket_and_says_when_the_other_side_is_gone() {
    let (near, far) = socket_pair();
    let (near_keys, far_keys) = keys();
    let mut near = SecureLink::new(near, near_keys);
    let mut far = SecureLink::new(far, far_keys);
    assert_eq!(near.kind(), "tcp, encrypted");
    assert!(near.room_is_writable());
    let bytes = pattern(3 << 20);
    assert_eq!(through(&mut near, &mut far, &bytes, &[1 << 20], &[1 << 20]), bytes);
    assert_eq!(through(&mut far, &mut near, &bytes, &[70_000], &[9]).len(), bytes.len());
    near.try_send(b"last words").unwrap();
    drop(near);
    let mut room = [0; 100];
    assert_eq!(far.try_receive(&mut room).unwrap(), 10, "what came before the end is delivered");
    assert!(matches!(far.try_receive(&mut room), Err(LinkError::Closed)));
}

/// Prints how fast a core seals and opens: `cargo test --release -p manyhands-net --test secure speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement to be run by hand on a quiet machine: no test asserts a time"]
fn speed_of_sealing_and_opening() {
    let (mut one, mut other) = keys();
    let bytes = pattern(16 << 20);
    for carried in [4 << 10, 16 << 10, 32 << 10, 48 << 10, 65535 - 16] {
        let mut records = vec![0; bytes.len() + bytes.len().div_ceil(carried) * 16];
        let mut opened = vec![0; carried + 16];
        let (mut sealing, mut opening) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..8 {
            let start = Instant::now();
            for (piece, record) in bytes.chunks(carried).zip(records.chunks_mut(carried + 16)) {
                one.seal(piece, record).unwrap();
            }
            sealing = sealing.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            for record in records.chunks(carried + 16) {
                other.open(record, &mut opened).unwrap();
            }
            opening = opening.min(start.elapsed().as_secs_f64());
        }
        let rate = |seconds: f64| bytes.len() as f64 / seconds / 1e9;
        println!(
            "{carried:6} bytes: seal {:.2} GB/s, open {:.2} GB/s",
            rate(sealing),
            rate(opening)
        );
    }
}

fn socket_pair() -> (SocketLink, SocketLink) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (SocketLink(near), SocketLink(far))
}

#[test]
fn ends_that_sleep_whenever_they_may_are_woken() {
    let (near, far) = socket_pair();
    let (near_keys, far_keys) = keys();
    let mut near = SecureLink::new(near, near_keys);
    let mut far = SecureLink::new(far, far_keys);
    let lens = [1, 100, 32 << 10, (32 << 10) + 1, 5 << 20, 7];
    let echo = std::thread::spawn(move || {
        for len in lens {
            let mut room = vec![0; len];
            receive_all(&mut far, &mut room);
            send_all(&mut far, &room);
        }
    });
    for len in lens {
        let bytes = pattern(len);
        let mut back = vec![0; len];
        send_all(&mut near, &bytes);
        receive_all(&mut near, &mut back);
        assert!(back == bytes, "{len} bytes came back changed");
    }
    echo.join().unwrap();
}

#[test]
fn records_allocate_nothing() {
    let (near, far) = socket_pair();
    let (near_keys, far_keys) = keys();
    let mut near = SecureLink::new(near, near_keys);
    let mut far = SecureLink::new(far, far_keys);
    let bytes = pattern(100_000);
    let mut room = vec![0; 100_000];
    let before = n_allocations();
    // Rooms that records fit into, and rooms that they do not, among them those that only the tag does not fit into.
    for room_len in [100_000, 1000, 32 << 10, (32 << 10) + 8] {
        let (mut sent, mut count) = (0, 0);
        while count < bytes.len() {
            sent += near.try_send(&bytes[sent..]).unwrap();
            near.try_flush().unwrap();
            let len = room_len.min(bytes.len() - count);
            count += far.try_receive(&mut room[..len]).unwrap();
        }
    }
    assert_eq!(n_allocations() - before, 0);
    let counted = n_allocations();
    drop(std::hint::black_box(vec![1]));
    assert!(n_allocations() > counted, "allocations are counted");
}

/// Prints how fast 16 MiB go over a loopback socket, plain and encrypted, with a thread at each end.
#[test]
#[ignore = "a measurement to be run by hand on a quiet machine: no test asserts a time"]
fn speed_over_a_socket() {
    let bytes = pattern(16 << 20);
    let (near, far) = socket_pair();
    println!("plain      {}", rates_between(near, far, &bytes));
    let (near, far) = socket_pair();
    let (near_keys, far_keys) = keys();
    let (near, far) = (SecureLink::new(near, near_keys), SecureLink::new(far, far_keys));
    println!("encrypted  {}", rates_between(near, far, &bytes));
}

/// Sleeps as the contract of links says until there is something to receive or, where asked for, room.
fn sleep(link: &mut impl Link, wants_room: bool) {
    use rustix::event::{PollFd, PollFlags};
    if link.sleepy(wants_room).unwrap() {
        let flags = if wants_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        let mut polled = [PollFd::from_borrowed_fd(link.bell(), flags)];
        assert!(rustix::event::poll(&mut polled, Some(&limit)).unwrap() > 0, "nothing happens");
    }
    link.awake();
}

fn send_all(link: &mut impl Link, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        match link.try_send(&bytes[sent..]).unwrap() {
            0 => sleep(link, true),
            more => sent += more,
        }
    }
    while !link.try_flush().unwrap() {
        sleep(link, true);
    }
}

fn receive_all(link: &mut impl Link, room: &mut [u8]) {
    let mut count = 0;
    while count < room.len() {
        match link.try_receive(&mut room[count..]).unwrap() {
            0 => sleep(link, false),
            more => count += more,
        }
    }
}

/// Seconds of processor time that this thread has used.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// The rates of some transfers in a row, taken together: one alone may begin with bytes that the system still held of the one before.
fn rates_between(mut near: impl Link, mut far: impl Link + 'static, bytes: &[u8]) -> String {
    const ROUNDS: usize = 24;
    let len = bytes.len();
    let receiver = std::thread::spawn(move || {
        let mut room = vec![0; len];
        let cpu_start = cpu_seconds();
        for _ in 0..ROUNDS {
            receive_all(&mut far, &mut room);
        }
        cpu_seconds() - cpu_start
    });
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    for _ in 0..ROUNDS {
        send_all(&mut near, bytes);
    }
    let sending = cpu_seconds() - cpu_start;
    let receiving = receiver.join().unwrap();
    let rate = |seconds: f64| (ROUNDS * len) as f64 / seconds / 1e9;
    let (all, sending, receiving) =
        (rate(start.elapsed().as_secs_f64()), rate(sending), rate(receiving));
    format!("{all:.2} GB/s; per core sending {sending:.2}, receiving {receiving:.2}")
}
