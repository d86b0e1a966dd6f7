//! Links between processes of one host: rings in a memory file, which one side makes and passes to the other over a
//! Unix-domain socket. The socket is the bell from then on; the system hangs it up when a process ends, however it ends.
//!
//! The file is sealed against shrinking: without that the other process could make it shorter, and touching what is gone
//! would kill this one (SIGBUS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, getrlimit};

use super::LinkError;
use super::region::Region;
use super::ring_link::RingLink;

const KIND: &str = "shared memory";

/// What the offer begins with: the name and version of the layout of the memory.
const MAGIC: [u8; 8] = *b"mh-ring4";

/// How often it is looked whether to give up.
const LOOK_UP: Duration = Duration::from_millis(20);

/// The offer: the magic, then the capacity of a ring in little-endian bytes. The file comes beside it.
const OFFER_LEN: usize = 16;

/// Makes rings that hold `capacity` bytes in each direction, a power of two, and offers them to the process at the other
/// end of the socket, which is to call [`accept`]. Does not wait for that.
pub fn offer(socket: UnixStream, capacity: usize) -> Result<RingLink, LinkError> {
    let file = memory_file(Region::len_for(capacity)?)?;
    let region = Region::in_file(file.as_fd(), capacity)?;
    send_offer(&socket, capacity, &file)?;
    Ok(RingLink::new(Arc::new(region), 0, socket, KIND)?)
}

/// Takes the rings that the process at the other end of the socket offers, or fails at the deadline.
pub fn accept(socket: UnixStream, deadline: Instant) -> Result<RingLink, LinkError> {
    accept_unless(socket, deadline, || false)
}

/// As [`accept`], until `gives_up` says so: it is asked every few milliseconds.
pub fn accept_unless(
    socket: UnixStream,
    deadline: Instant,
    gives_up: impl Fn() -> bool,
) -> Result<RingLink, LinkError> {
    socket.set_nonblocking(true)?;
    let (offer, file) = receive_offer(&socket, deadline, &gives_up)?;
    let capacity = capacity_of(&offer)?;
    check_file(&file, Region::len_for(capacity)?)?;
    let region = Region::in_file(file.as_fd(), capacity)?;
    Ok(RingLink::new(Arc::new(region), 1, socket, KIND)?)
}

/// The longest file that this process may have: a longer one would end it (SIGXFSZ), also in memory.
pub(crate) fn longest_file() -> usize {
    let limit = getrlimit(Resource::Fsize).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// A file of zeros in memory whose size nobody can change.
pub(super) fn memory_file(len: usize) -> io::Result<OwnedFd> {
    if len > longest_file() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = memfd_create("manyhands-link", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Sends the offer and the file in one message.
fn send_offer(socket: &UnixStream, capacity: usize, file: &OwnedFd) -> io::Result<()> {
    let mut offer = [0; OFFER_LEN];
    offer[..8].copy_from_slice(&MAGIC);
    offer[8..].copy_from_slice(&(capacity as u64).to_le_bytes());
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(&offer)], &mut beside, flags)?;
    if sent == OFFER_LEN {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::WriteZero, "the socket took a part of the offer only"))
    }
}

/// Receives the offer and the file, and not a byte more: rings of the bell may follow.
fn receive_offer(
    socket: &UnixStream,
    deadline: Instant,
    gives_up: &dyn Fn() -> bool,
) -> Result<([u8; OFFER_LEN], OwnedFd), LinkError> {
    let mut offer = [0; OFFER_LEN];
    let mut file = None;
    let mut done = 0;
    while done < OFFER_LEN {
        wait_readable(socket, deadline, gives_up)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut rest = [IoSliceMut::new(&mut offer[done..])];
        let message = match recvmsg(socket, &mut rest, &mut beside, flags) {
            Ok(message) if message.bytes == 0 => return Err(LinkError::Closed),
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        let mut has_too_many = message.flags.contains(ReturnFlags::CTRUNC);
        done += message.bytes;
        for item in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = item {
                for another in files {
                    has_too_many |= file.replace(another).is_some();
                }
            }
        }
        if has_too_many {
            return Err(refused("it brings more than one file"));
        }
    }
    Ok((offer, file.ok_or_else(|| refused("it brings no file"))?))
}

/// Waits until there is something to receive.
fn wait_readable(
    socket: &UnixStream,
    deadline: Instant,
    gives_up: &dyn Fn() -> bool,
) -> Result<(), LinkError> {
    loop {
        if gives_up() {
            return Err(LinkError::Aborted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let moment = Timespec::try_from(left.min(LOOK_UP)).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], moment.as_ref()) {
            Ok(0) if left.is_zero() => {
                let sentence = "no offer of shared memory came";
                return Err(io::Error::new(io::ErrorKind::TimedOut, sentence).into());
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
}

/// The capacity that an offer names, where it is an offer.
fn capacity_of(offer: &[u8; OFFER_LEN]) -> Result<usize, LinkError> {
    let (magic, capacity) = offer.split_at(8);
    let capacity: Result<[u8; 8], _> = capacity.try_into();
    match capacity.map(u64::from_le_bytes).map(usize::try_from) {
        Ok(Ok(capacity)) if magic == MAGIC => Ok(capacity),
        _ => Err(refused("it is of another version")),
    }
}

/// Makes sure that every byte of the rings is in the file and stays there.
fn check_file(file: &OwnedFd, len: usize) -> Result<(), LinkError> {
    let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !is_sealed {
        return Err(refused("its file could shrink"));
    }
    let stat = fstat(file).map_err(io::Error::from)?;
    if u64::try_from(stat.st_size).is_ok_and(|size| size >= len as u64) {
        Ok(())
    } else {
        Err(refused("its file is too short"))
    }
}

fn refused(why: &str) -> LinkError {
    let sentence = format!("the offer of shared memory is refused: {why}");
    io::Error::new(io::ErrorKind::InvalidData, sentence).into()
}
