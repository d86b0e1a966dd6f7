//! Another process may offer anything and write anything into what it shares: an error, never more than that.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use manyhands_net::transport::{Link, LinkError, RingLink, shared_memory};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::scene::deadline;

const CAPACITY: usize = 64;
const LEN: u64 = 4096 + 2 * CAPACITY as u64;

/// Where the layout has what the offering side writes: bytes it sent, and bytes it received.
const SENT: u64 = 128;
const RECEIVED: u64 = 128 + 3 * 128 + 128;

fn memory_file(len: u64, seals: SealFlags) -> File {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(file);
    file.set_len(len).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn offer_of(magic: &[u8; 8], capacity: u64) -> Vec<u8> {
    [magic.as_slice(), &capacity.to_le_bytes()].concat()
}

fn send(socket: &UnixStream, offer: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::empty();
    assert_eq!(sendmsg(socket, &[IoSlice::new(offer)], &mut beside, flags).unwrap(), offer.len());
}

/// What a correct acceptor says to an offer.
fn answer(offer: &[u8], files: &[BorrowedFd<'_>]) -> String {
    let (one, other) = UnixStream::pair().unwrap();
    send(&one, offer, files);
    match shared_memory::accept(other, deadline()) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn only_offers_that_are_safe_are_accepted() {
    let good = offer_of(b"mh-ring4", CAPACITY as u64);
    let sealed = memory_file(LEN, SealFlags::SHRINK);
    let check = |offer: &[u8], files: &[BorrowedFd<'_>], expected: &str| {
        let answer = answer(offer, files);
        assert!(answer.contains(expected), "{answer:?} instead of {expected:?}");
    };
    check(&good, &[sealed.as_fd()], "accepted");
    check(&good, &[], "no file");
    check(&good, &[sealed.as_fd(); 2], "more than one file");
    check(&good, &[sealed.as_fd(); 4], "more than one file");
    check(&good, &[memory_file(LEN, SealFlags::GROW).as_fd()], "could shrink");
    check(&good, &[tempfile::tempfile().unwrap().as_fd()], "could shrink");
    check(&good, &[memory_file(LEN - 1, SealFlags::SHRINK).as_fd()], "too short");
    check(&offer_of(b"mh-ring3", CAPACITY as u64), &[sealed.as_fd()], "another version");
    for capacity in [0, 1, 63, 96, 1 << 40, u64::MAX] {
        check(&offer_of(b"mh-ring4", capacity), &[sealed.as_fd()], "power of two");
    }
    let unwritable = memory_file(LEN, SealFlags::SHRINK | SealFlags::WRITE);
    check(&good, &[unwritable.as_fd()], "the connection failed");
}

#[test]
fn an_offer_in_pieces_is_put_together_and_an_end_in_it_is_noticed() {
    let offer = offer_of(b"mh-ring4", CAPACITY as u64);
    let file = memory_file(LEN, SealFlags::SHRINK);
    let (mut one, other) = UnixStream::pair().unwrap();
    send(&one, &offer[..5], &[file.as_fd()]);
    let acceptor = std::thread::spawn(move || shared_memory::accept(other, deadline()).map(drop));
    one.write_all(&offer[5..]).unwrap();
    acceptor.join().unwrap().unwrap();

    let (one, other) = UnixStream::pair().unwrap();
    send(&one, &offer[..5], &[file.as_fd()]);
    drop(one);
    let result = shared_memory::accept(other, deadline());
    assert!(matches!(result, Err(LinkError::Closed)));
}

#[test]
fn an_offer_that_never_comes_is_given_up_at_the_deadline() {
    let (_one, other) = UnixStream::pair().unwrap();
    let error = shared_memory::accept(other, Instant::now() + Duration::from_millis(30));
    let message = error.err().unwrap().to_string();
    assert!(message.contains("no offer"), "{message}");
}

/// A link whose other side is this test with a pen: the socket, the file, the link.
fn link_to_a_pen() -> (UnixStream, File, RingLink) {
    let file = memory_file(LEN, SealFlags::SHRINK);
    let (one, other) = UnixStream::pair().unwrap();
    send(&one, &offer_of(b"mh-ring4", CAPACITY as u64), &[file.as_fd()]);
    let link = shared_memory::accept(other, deadline()).unwrap();
    (one, file, link)
}

#[test]
fn a_pen_that_keeps_to_the_layout_is_understood() {
    let (_socket, file, mut link) = link_to_a_pen();
    file.write_all_at(b"hello", 4096).unwrap();
    file.write_all_at(&5u64.to_ne_bytes(), SENT).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(link.try_receive(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!(link.try_send(&[1; 100]).unwrap(), 64);
    file.write_all_at(&10u64.to_ne_bytes(), RECEIVED).unwrap();
    assert_eq!(link.try_send(&[1; 100]).unwrap(), 10);
}

#[test]
fn positions_that_cannot_be_are_an_error() {
    for garbage in [CAPACITY as u64 + 6, u64::MAX, 1 << 63, 4] {
        let (_socket, file, mut link) = link_to_a_pen();
        file.write_all_at(&5u64.to_ne_bytes(), SENT).unwrap();
        assert_eq!(link.try_receive(&mut [0; 64]).unwrap(), 5);
        file.write_all_at(&garbage.to_ne_bytes(), SENT).unwrap();
        assert!(matches!(link.try_receive(&mut [0; 64]), Err(LinkError::Garbage)));
        assert!(matches!(link.sleepy(false), Err(LinkError::Garbage)));
    }
    for garbage in [70, u64::MAX, 9] {
        let (_socket, file, mut link) = link_to_a_pen();
        assert_eq!(link.try_send(&[0; 100]).unwrap(), 64);
        file.write_all_at(&10u64.to_ne_bytes(), RECEIVED).unwrap();
        assert_eq!(link.try_send(&[0; 5]).unwrap(), 5);
        // 69 bytes went. Five bytes of room are known of; only the need for more makes it look.
        file.write_all_at(&garbage.to_ne_bytes(), RECEIVED).unwrap();
        assert!(matches!(link.try_send(&[0; 6]), Err(LinkError::Garbage)));
    }
}

proptest! {
    /// Whatever is written, whenever: every call returns, and nothing outside the ring is touched.
    #[test]
    fn no_scribble_does_more_than_an_error(
        scribbles in prop::collection::vec((0..LEN - 8, any::<u64>(), 0..4u8), 1..60)
    ) {
        let (_socket, file, mut link) = link_to_a_pen();
        let mut bytes = [0; 200];
        for (position, value, width) in scribbles {
            // Mostly where it hurts.
            let position = if width > 0 { position % 1024 / 8 * 8 } else { position };
            let value = if width > 1 { value % 200 } else { value };
            file.write_all_at(&value.to_ne_bytes(), position).unwrap();
            let results = [link.try_receive(&mut bytes), link.try_send(&bytes)];
            for result in results {
                prop_assert!(result.is_err() || result.is_ok_and(|n| n <= CAPACITY));
            }
            let _ = link.sleepy(true);
            link.awake();
        }
    }
}
