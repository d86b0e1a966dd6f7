//! Memory of this process that others of its machine can read: what is to be sent lies there, and the values of dense tables, so that links which can show it need not send it
//! (`transport/showing.rs`).
//!
//! There is one such memory for a process. Pieces of it come in few sizes and are used again. What nobody used for a while gives its pages back: a thread looks now and then.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use rustix::system::sysinfo;

use crate::transport::lending::Lending;
use crate::transport::shared_memory::longest_file;
use crate::transport::showing::let_go_of_left;

/// Smaller pieces are not worth it: sent, they are as fast.
pub(super) const SMALLEST: usize = 64 << 10;
/// How often it is looked what nobody uses any more.
const LOOK: Duration = Duration::from_secs(1);
/// Addresses are taken for so many times the memory of the machine, since a piece goes to its own size only. They cost nothing.
const TIMES_MEMORY: u64 = 4;
/// But no more than this: every link to another process takes as many there, and a process has 128 TiB.
const MOST: usize = 1 << 40;

/// Memory that others can read.
pub(super) struct Lendable {
    lending: Arc<Lending>,
    /// By their size.
    free: Mutex<BTreeMap<usize, Free>>,
}

/// Pieces of a size that nobody has.
#[derive(Default)]
struct Free {
    /// With their pages.
    warm: Vec<Start>,
    /// How many of these, from the first on, were not used since the last look.
    n_unused: usize,
    /// Without.
    cold: Vec<Start>,
}

/// Where a piece begins. Whoever has it has the piece.
struct Start(NonNull<u8>);

// SAFETY: an address of memory that lives as long as the process, and belongs to whoever has it.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

static MEMORY: OnceLock<Option<Lendable>> = OnceLock::new();

/// The memory, which is there from the first call on; nothing where the system gives none.
pub(super) fn memory() -> Option<&'static Lendable> {
    MEMORY.get_or_init(Lendable::new).as_ref()
}

/// A piece of so many bytes with anything in them, where links of this process can show it.
pub(super) fn piece(n_bytes: usize) -> Option<Piece> {
    if n_bytes < SMALLEST {
        return None;
    }
    MEMORY.get()?.as_ref()?.take(n_bytes)
}

impl Lendable {
    fn new() -> Option<Lendable> {
        let machine = sysinfo();
        let n_bytes = (machine.totalram as u64).checked_mul(u64::from(machine.mem_unit.max(1)))?;
        let n_bytes = usize::try_from(n_bytes.checked_mul(TIMES_MEMORY)?).ok()?;
        // What stands before the bytes has room in it, too.
        let n_bytes = n_bytes.min(MOST).min(longest_file() / 2);
        let lending = Arc::new(Lending::new(n_bytes).ok()?);
        let looking = std::thread::Builder::new().name("lendable".into());
        looking.spawn(look_for_unused).ok()?;
        Some(Lendable { lending, free: Mutex::default() })
    }

    /// What links lend.
    pub(super) fn lending(&self) -> &Arc<Lending> {
        &self.lending
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self, n_bytes: usize) -> Option<Piece> {
        let capacity = capacity_for(n_bytes)?;
        let take = || self.free().get_mut(&capacity).and_then(Free::take);
        let start = take().or_else(|| {
            let_go_of_left();
            take()
        });
        let start = start.or_else(|| self.lending.take(capacity).map(Start))?;
        Some(Piece { start, len: n_bytes, capacity, of: self })
    }

    /// Gives back the pages of what nobody used since the last look.
    fn look(&self) {
        let mut unused: Vec<(usize, Start)> = Vec::new();
        for (capacity, free) in self.free().iter_mut() {
            unused.extend(free.unused().map(|start| (*capacity, start)));
        }
        for (capacity, start) in unused {
            give_pages_back(start.0, capacity);
            self.free().entry(capacity).or_default().cold.push(start);
        }
    }
}

/// Looks now and then, as long as the process lives.
fn look_for_unused() {
    loop {
        std::thread::sleep(LOOK);
        let_go_of_left();
        if let Some(memory) = MEMORY.get().and_then(Option::as_ref) {
            memory.look();
        }
    }
}

/// Few sizes, each at most an eighth more than is wanted; a quarter, of the smallest.
fn capacity_for(n_bytes: usize) -> Option<usize> {
    let step = (n_bytes.checked_next_power_of_two()? / 16).max(SMALLEST / 4);
    n_bytes.checked_next_multiple_of(step)
}

impl Free {
    fn take(&mut self) -> Option<Start> {
        let start = self.warm.pop();
        self.n_unused = self.n_unused.min(self.warm.len());
        start.or_else(|| self.cold.pop())
    }

    /// Takes what was not used since this was called last.
    fn unused(&mut self) -> impl Iterator<Item = Start> {
        let n_unused = self.n_unused;
        self.n_unused = self.warm.len() - n_unused;
        self.warm.drain(..n_unused)
    }
}

/// Some of the memory.
pub(super) struct Piece {
    start: Start,
    len: usize,
    capacity: usize,
    of: &'static Lendable,
}

impl Piece {
    /// Where it begins: at the edge of a cache line.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start.0
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes, which were zero at first, are this piece's alone.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Others only read what they are shown, which stays as it is until they have.
        unsafe { std::slice::from_raw_parts_mut(self.start.0.as_ptr(), self.len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let start = Start(self.start.0);
        self.of.free().entry(self.capacity).or_default().warm.push(start);
    }
}

/// Gives the pages of free memory back to the system. Where that fails it keeps them, and nothing else changes.
fn give_pages_back(start: NonNull<u8>, n_bytes: usize) {
    let page = rustix::param::page_size();
    let skipped = start.align_offset(page).min(n_bytes);
    let whole = (n_bytes - skipped) / page * page;
    if whole > 0 {
        // SAFETY: the pages lie within memory that nobody has. It reads as zeros from then on.
        let _ = unsafe { madvise(start.add(skipped).as_ptr().cast(), whole, Advice::LinuxRemove) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_used_again_and_lie_apart() {
        assert!(memory().is_some());
        let size = 5 * SMALLEST + 1000;
        let (mut one, mut other) = (piece(size).unwrap(), piece(size).unwrap());
        one.fill(1);
        other.fill(2);
        assert!(one.iter().all(|byte| *byte == 1) && other.iter().all(|byte| *byte == 2));
        assert_eq!((one.len(), other.len()), (size, size));
        let start = one.start();
        drop(one);
        let again: Vec<Piece> = (0..3).map(|_| piece(size - 1).unwrap()).collect();
        assert!(again.iter().any(|piece| piece.start() == start));
        assert!(piece(SMALLEST - 1).is_none(), "it is sent");
        assert!(piece(usize::MAX).is_none() && piece(1 << 62).is_none());
    }

    #[test]
    fn sizes_are_few_and_hardly_larger_than_wanted() {
        let sizes: std::collections::BTreeSet<usize> =
            (SMALLEST..4 * SMALLEST).map(|n| capacity_for(n).unwrap()).collect();
        assert!(sizes.len() <= 32, "{sizes:?}");
        for n in [SMALLEST, SMALLEST + 1, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let capacity = capacity_for(n).unwrap();
            assert!(n <= capacity && capacity <= n + n / 4, "{n}: {capacity}");
        }
    }

    #[test]
    fn memory_whose_pages_went_back_is_there_again() {
        let memory = memory().unwrap();
        let mut own = memory.take(3 << 20).unwrap();
        own.fill(7);
        give_pages_back(own.start(), own.capacity);
        // All but what shares a page with others.
        let page = rustix::param::page_size();
        assert!(own[page..own.len() - page].iter().all(|byte| *byte == 0), "its pages are gone");
        own.fill(8);
        assert!(own.iter().all(|byte| *byte == 8));
    }
}
