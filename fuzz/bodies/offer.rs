//! Any offer of shared memory, and anything written into the memory of one that was taken: an error or a link, never more than that.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use manyhands_net::transport::{Link, shared_memory};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const OFFER: usize = 16;
const HEADER: u64 = 4096;

/// What the bytes are: how the file is made (two bytes), the offer, and what is written at the head of the memory.
pub(crate) fn body(bytes: &[u8]) {
    let [how, pages, rest @ ..] = bytes else { return };
    let (offer, written) = rest.split_at(rest.len().min(OFFER));
    if offer.is_empty() {
        return;
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("offer", flags).expect("a file in memory"));
    file.set_len(HEADER + 128 * u64::from(*pages)).expect("a file has a length");
    if how & 1 == 0 {
        fcntl_add_seals(&file, SealFlags::SHRINK).expect("a file can be sealed");
    }
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let files = [file.as_fd(), file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let n_files = usize::from(how >> 1 & 3).min(2);
    if n_files > 0 {
        beside.push(SendAncillaryMessage::ScmRights(&files[..n_files]));
    }
    sendmsg(&one, &[IoSlice::new(offer)], &mut beside, SendFlags::empty()).expect("room");
    if how & 8 == 0 {
        // Nothing more comes.
        one.shutdown(std::net::Shutdown::Write).expect("an open socket");
    }
    let deadline = Instant::now() + Duration::from_millis(1);
    let Ok(mut link) = shared_memory::accept(other, deadline) else { return };
    for piece in written.chunks(64).take(8) {
        // Everything of the head can be written, and at any time.
        let at = u64::from(piece[0]) * 8;
        file.write_all_at(piece, at).expect("the file is long enough");
        let mut room = [0; 100];
        let _ = link.try_receive(&mut room);
        let _ = link.try_send(&room);
        let _ = link.sleepy(true);
        link.awake();
    }
}

/// Offers of small rings that are taken, with honest positions and others.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let offer = |capacity: u64| [&b"mh-ring1"[..], &capacity.to_le_bytes()].concat();
    let positions = |place: u8, sent: u64| {
        let mut piece = vec![place];
        piece.extend_from_slice(&[0; 7]);
        piece.extend_from_slice(&sent.to_le_bytes());
        piece.resize(64, 0);
        piece
    };
    let memory = [positions(15, 10), positions(16, 64), positions(80, u64::MAX), positions(0, 1)];
    let memory = memory.concat();
    vec![
        [vec![2, 1], offer(64), memory.clone()].concat(),
        [vec![2, 8], offer(512), memory.clone()].concat(),
        [vec![3, 1], offer(64), memory.clone()].concat(),
        [vec![4, 1], offer(64), memory].concat(),
    ]
}
