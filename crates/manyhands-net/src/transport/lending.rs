//! Memory of a process that those it is linked to by shared memory may read: what lies there need not be sent.
//!
//! A process lends a whole memory file; the other side maps it to read, and holds one end of a pipe as long as it has it mapped. That the bytes are those which were meant is the owner's word: while others may read them it
//! leaves them alone. What is shown it leaves alone until they are done ([`super::showing`]). Sums of a step it does not wait for: where it cannot any longer it says so
//! (`Lending::withdraw`) before it writes again, and who reads those looks afterwards whether that was said meanwhile, and if so has read nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use rustix::fs::{Mode, OFlags, SealFlags, fchmod, fcntl_get_seals, fstat, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::shared_memory::memory_file;

/// What stands before the bytes, on a page of its own.
#[repr(C)]
struct Head {
    /// How often what was lent was withdrawn.
    n_withdrawn: AtomicU64,
}

const HEAD_LEN: usize = 4096;
/// Everything that is taken begins at a multiple of this, a cache line.
const ALIGNMENT: usize = 64;

/// A mapped file.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that belongs to no thread. Its head is atomics; of its bytes callers get addresses only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the system chooses the address, so no memory in use is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a page that nothing else is in; a head is valid as any bytes, since it is atomic integers.
        unsafe { self.start.cast::<Head>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody has an address of it any more. It cannot fail on such an address.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Memory of this process that others may read.
#[derive(Debug)]
pub struct Lending {
    /// Open for reading alone: it is what others get.
    file: OwnedFd,
    mapping: Mapping,
    n_taken: AtomicUsize,
}

impl Lending {
    /// Memory with room for so many bytes. What is never touched takes nothing from the machine.
    pub fn new(n_bytes: usize) -> io::Result<Lending> {
        let len = n_bytes.checked_next_multiple_of(ALIGNMENT).and_then(|n| n.checked_add(HEAD_LEN));
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let writable = memory_file(len)?;
        let mapping = Mapping::new(writable.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE)?;
        let file = to_be_read(&writable)?;
        Ok(Lending { file, mapping, n_taken: AtomicUsize::new(HEAD_LEN) })
    }

    /// Zeroed memory of so many bytes, at a cache line, which is given to nobody else and stays as long as this does; `None` where there is no room.
    pub fn take(&self, n_bytes: usize) -> Option<NonNull<u8>> {
        let n_bytes = n_bytes.checked_next_multiple_of(ALIGNMENT)?;
        let after =
            |taken: usize| taken.checked_add(n_bytes).filter(|end| *end <= self.mapping.len);
        let offset = self.n_taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()?;
        // SAFETY: `offset + n_bytes` is within the mapping.
        Some(unsafe { self.mapping.start.add(offset) })
    }

    /// Says that nothing of what others may be reading is to be counted on: about to be written again.
    pub fn withdraw(&self) {
        self.mapping.head().n_withdrawn.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// How often that was said.
    pub(crate) fn n_withdrawn(&self) -> u64 {
        self.mapping.head().n_withdrawn.load(Ordering::SeqCst)
    }

    /// Where these bytes are in this memory, if all of them are.
    pub(crate) fn place_of(&self, start: *const u8, n_bytes: usize) -> Option<u64> {
        let offset = (start as usize).checked_sub(self.mapping.start.as_ptr() as usize)?;
        let end = offset.checked_add(n_bytes)?;
        (offset >= HEAD_LEN && end <= self.mapping.len).then_some(offset as u64)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A memory file for those who may read it and not write: opened anew, and by its mode not open for more to other users.
fn to_be_read(file: &OwnedFd) -> io::Result<OwnedFd> {
    fchmod(file, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Memory of another process, to be read.
#[derive(Debug)]
pub struct Lent {
    mapping: Mapping,
    /// The end of a pipe, whose other one hangs up when nobody here can read any more. Behind the mapping, so that it goes last.
    _held: OwnedFd,
}

impl Lent {
    /// Maps a file that another process sent. It must be sealed: touching what is gone would kill this process.
    pub(super) fn new(file: &OwnedFd, held: OwnedFd) -> io::Result<Lent> {
        let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let len = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
        if !is_sealed || len <= HEAD_LEN {
            let sentence = "the memory that the other side lends is too short, or could shrink";
            return Err(io::Error::new(io::ErrorKind::InvalidData, sentence));
        }
        Ok(Lent { mapping: Mapping::new(file.as_fd(), len, ProtFlags::READ)?, _held: held })
    }

    /// Whether bytes at a place can be told of: all others are sent.
    pub(super) fn can_be_at(place: u64) -> bool {
        place.is_multiple_of(ALIGNMENT as u64)
    }

    #[cfg(test)]
    pub(super) fn new_for_tests(lending: &Lending, held: OwnedFd) -> Lent {
        Lent::new(&lending.file, held).unwrap()
    }

    /// The address of so many bytes at a place that the other side names, where there are as many. The other side may write there at any
    /// time; whether it did is known afterwards.
    pub fn at(&self, place: u64, n_bytes: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(place).ok()?;
        let end = offset.checked_add(n_bytes)?;
        let is_within = offset >= HEAD_LEN && end <= self.mapping.len;
        // SAFETY: the offset is within the mapping.
        (is_within && offset.is_multiple_of(ALIGNMENT))
            .then(|| unsafe { self.mapping.start.add(offset) })
    }

    /// Whether what was read since `n_withdrawn` was told is what was lent.
    pub(crate) fn is_still_lent(&self, n_withdrawn: u64) -> bool {
        // All reads are done before the look.
        fence(Ordering::SeqCst);
        self.mapping.head().n_withdrawn.load(Ordering::SeqCst) == n_withdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(start: NonNull<u8>, n: usize) -> Vec<u8> {
        // SAFETY: the tests ask for memory that is there, and write nothing meanwhile.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), n) }.to_vec()
    }

    #[test]
    fn what_is_written_is_read_at_its_place_until_it_is_withdrawn() {
        let lending = Lending::new(1000).unwrap();
        let (first, second) = (lending.take(100).unwrap(), lending.take(10).unwrap());
        // SAFETY: as many bytes were taken, and nobody else writes there.
        unsafe { second.write_bytes(7, 10) };
        let lent = Lent::new_for_tests(&lending, io::pipe().unwrap().1.into());
        let at = |start: NonNull<u8>, n: usize| {
            lent.at(lending.place_of(start.as_ptr(), n).unwrap(), n).unwrap()
        };
        assert_eq!(bytes(at(second, 10), 10), [7; 10]);
        assert_eq!(bytes(at(first, 100), 100), [0; 100]);
        let told = lending.n_withdrawn();
        assert!(lent.is_still_lent(told));
        lending.withdraw();
        assert!(!lent.is_still_lent(told) && lent.is_still_lent(lending.n_withdrawn()));
    }

    #[test]
    fn who_is_lent_memory_cannot_write_there() {
        let lending = Lending::new(1000).unwrap();
        let map = |prot| Mapping::new(lending.file(), 1000, prot);
        assert!(map(ProtFlags::READ).is_ok());
        let refused = map(ProtFlags::READ | ProtFlags::WRITE).expect_err("it is to be read alone");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn nothing_lies_outside() {
        let lending = Lending::new(1000).unwrap();
        assert!(lending.take(usize::MAX).is_none() && lending.take(1025).is_none());
        let start = lending.take(900).unwrap();
        assert!(lending.take(100).is_none());
        assert_eq!(lending.place_of(start.as_ptr(), 1025), None);
        assert_eq!(lending.place_of([0u8; 8].as_ptr(), 8), None);
        let lent = Lent::new_for_tests(&lending, io::pipe().unwrap().1.into());
        let place = lending.place_of(start.as_ptr(), 900).unwrap();
        assert!(lent.at(place, 1024).is_some() && lent.at(place, 1025).is_none());
        assert!(lent.at(0, 8).is_none() && lent.at(place + 1, 8).is_none());
        assert!(lent.at(u64::MAX, 8).is_none());
    }
}
