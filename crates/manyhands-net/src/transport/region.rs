//! The memory of a link's two rings: on the heap for one process, in a memory file for two.
//!
//! The other side writes into it too, and in another process it may write anything. So nothing read from it is trusted:
//! copies go through [`Region::write`] and [`Region::read`], which stay inside whatever position they are given.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::copies::stream;

/// The fewest bytes a ring holds.
pub const SMALLEST_CAPACITY: usize = 64;

/// The most bytes a ring holds: what a stranger may make us map is bounded.
pub const LARGEST_CAPACITY: usize = 1 << 30;

/// A field alone on its cache lines: processors fetch pairs of 64 bytes.
#[repr(C, align(128))]
pub(super) struct Alone<T>(pub(super) T);

/// Where the two sides of one ring stand. Positions count bytes since the beginning and never turn back.
#[repr(C)]
pub(super) struct Positions {
    /// Bytes put in, written by the sending side.
    pub(super) sent: Alone<AtomicU64>,
    /// Bytes taken out, written by the receiving side.
    pub(super) received: Alone<AtomicU64>,
    /// Not on the lines above, so that looking at it costs nothing while nobody sleeps.
    pub(super) sleeping: Alone<Sleeping>,
}

/// Which side of one ring wants the bell rung. Set by that side, taken back by whoever rings.
#[repr(C)]
pub(super) struct Sleeping {
    pub(super) for_bytes: AtomicU32,
    pub(super) for_room: AtomicU32,
}

/// How much one side may show the other at a time (`showing.rs`).
pub(super) const FLAGS: usize = 1024;

/// What stands before the bytes. All zeros is the beginning.
#[repr(C)]
pub(super) struct Header {
    /// Which side has closed the link.
    pub(super) closed: Alone<[AtomicU32; 2]>,
    pub(super) rings: [Positions; 2],
    /// Which side can read the memory that the other lends.
    pub(super) sees: Alone<[AtomicU32; 2]>,
    /// What each side shows that the other has not done with.
    pub(super) shown: [Alone<[AtomicU8; FLAGS]>; 2],
}

/// A page, so that the bytes begin on one.
const HEADER_LEN: usize = 4096;
const _: () = assert!(size_of::<Header>() <= HEADER_LEN);

/// Memory of two rings.
pub(super) struct Region {
    start: NonNull<u8>,
    capacity: usize,
    is_mapped: bool,
}

// SAFETY: the region is plain memory that belongs to no thread; its header is atomics, and its bytes are reached only
// through `read` and `write`, whose callers own one side of one ring each.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The size of a region with rings of this capacity, where that capacity is allowed.
    pub(super) fn len_for(capacity: usize) -> io::Result<usize> {
        let allowed = SMALLEST_CAPACITY..=LARGEST_CAPACITY;
        if !capacity.is_power_of_two() || !allowed.contains(&capacity) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a ring of {capacity} bytes: it must be a power of two from {SMALLEST_CAPACITY} to {LARGEST_CAPACITY}"
                ),
            ));
        }
        Ok(HEADER_LEN + 2 * capacity)
    }

    /// A region for the threads of this process.
    pub(super) fn on_heap(capacity: usize) -> io::Result<Region> {
        let layout = Self::heap_layout(capacity)?;
        // SAFETY: the layout is not of size zero: it has a header.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, capacity, is_mapped: false })
    }

    /// A region in a file that other processes map too. The file must be at least [`Region::len_for`] long and sealed
    /// against shrinking; its pages are fetched now, not while sending.
    pub(super) fn in_file(file: BorrowedFd<'_>, capacity: usize) -> io::Result<Region> {
        let len = Self::len_for(capacity)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the system chooses the address, so no memory in use is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, capacity, is_mapped: true })
    }

    /// The bytes that one ring holds.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// What stands before the bytes.
    pub(super) fn header(&self) -> &Header {
        // SAFETY: the region begins with a header, aligned to a page, that is valid as zeros and as anything else, since
        // it is made of atomic integers; it lives as long as the region.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    /// Copies bytes into a ring at a position, past the caches where that is asked for. The caller owns the ring's sending side and has made sure of the room.
    pub(super) fn write(&self, ring_idx: usize, position: u64, bytes: &[u8], streams: bool) {
        let (offset, first) = self.pieces(ring_idx, position, bytes.len());
        let ring = self.ring(ring_idx);
        // SAFETY: `pieces` keeps `offset + first` and the rest within the ring's `capacity` bytes; the source is a slice of
        // that many bytes outside the region. An honest other side does not read this part until it is published; a
        // dishonest one gets torn bytes of ours, and nothing here depends on what is in the ring.
        unsafe {
            let copy = |from: *const u8, to: NonNull<u8>, n: usize| match streams {
                true => stream(from, to.as_ptr(), n),
                false => from.copy_to_nonoverlapping(to.as_ptr(), n),
            };
            copy(bytes.as_ptr(), ring.add(offset), first);
            copy(bytes[first..].as_ptr(), ring, bytes.len() - first);
        }
    }

    /// Copies bytes out of a ring from a position. The caller owns the ring's receiving side.
    pub(super) fn read(&self, ring_idx: usize, position: u64, bytes: &mut [u8]) {
        let (offset, first) = self.pieces(ring_idx, position, bytes.len());
        let ring = self.ring(ring_idx);
        // SAFETY: as in `write`, with the directions changed; a dishonest other side makes us receive torn bytes.
        unsafe {
            ring.add(offset).copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), first);
            let rest = &mut bytes[first..];
            let rest_len = rest.len();
            ring.copy_to_nonoverlapping(NonNull::from(rest).cast(), rest_len);
        }
    }

    /// Where a copy begins in the ring and how much of it fits before the ring's end.
    fn pieces(&self, ring_idx: usize, position: u64, len: usize) -> (usize, usize) {
        assert!(ring_idx < 2 && len <= self.capacity, "a copy of {len} bytes leaves the ring");
        let offset = (position & (self.capacity as u64 - 1)) as usize;
        (offset, len.min(self.capacity - offset))
    }

    /// The first byte of a ring.
    fn ring(&self, ring_idx: usize) -> NonNull<u8> {
        // SAFETY: `ring_idx` is 0 or 1 (checked by `pieces`), and the region is a header and two rings long.
        unsafe { self.start.add(HEADER_LEN + ring_idx * self.capacity) }
    }

    fn heap_layout(capacity: usize) -> io::Result<Layout> {
        let len = Self::len_for(capacity)?;
        Layout::from_size_align(len, HEADER_LEN)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.is_mapped {
            // SAFETY: mapped by `in_file` with this length; nothing borrows from the region any more. It cannot fail on
            // such an address.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), HEADER_LEN + 2 * self.capacity) };
        } else if let Ok(layout) = Self::heap_layout(self.capacity) {
            // SAFETY: allocated by `on_heap` with this layout; nothing borrows from the region any more.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
