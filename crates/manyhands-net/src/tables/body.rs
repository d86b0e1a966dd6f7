//! Bytes beside messages, in memory that is used again.
//!
//! Bodies of a megabyte come and go thousands of times a second. Memory that is given back to the system and taken again costs a fault for each page, which is
//! more than the copying: so what is large is kept, up to a bound, and goes to whoever needs as much next.
//!
//! Better still is what is not copied: values go out from where a shard has them ([`Body::of`]), and a push from where the worker has it, who waits meanwhile ([`Lender`]). Processes
//! of one machine do not even send them: what lies in memory that others can read (`lendable.rs`) is read there ([`Body::seen`]).

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lendable::{self, Piece};
use crate::transport::showing::Seen;

/// Smaller memory is left to the allocator.
const SMALLEST: usize = 64 << 10;
/// What is kept in all, at most.
const MOST_KEPT: usize = 256 << 20;

/// Bytes that are shared: a push may be held, passed on and sent again.
#[derive(Clone)]
pub struct Body(Held);

#[derive(Clone)]
enum Held {
    Kept(Arc<Kept>),
    /// In memory that others can read.
    Lendable(Arc<Piece>),
    /// In memory of another process, which leaves it alone meanwhile.
    Seen(Arc<Seen>),
    /// A part of what somebody has too, and does not change.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
    /// A part of what somebody lends.
    OnLoan(Arc<Loan>, Range<usize>),
    /// The bytes came, and lie where they belong.
    Landed,
}

#[derive(Default)]
struct Kept(Vec<u8>);

impl Default for Body {
    fn default() -> Body {
        Body(Held::Kept(Arc::default()))
    }
}

impl Body {
    /// These bytes.
    pub fn new(bytes: Vec<u8>) -> Body {
        Body(Held::Kept(Arc::new(Kept(bytes))))
    }

    /// Copies of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Body {
        Body::filled(bytes.len(), |memory| memory.copy_from_slice(bytes))
    }

    /// So many bytes, which `fill` writes: where others can read them, or in memory that was used before, where there is some. It finds anything there.
    pub(super) fn filled(n_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Body {
        match lendable::piece(n_bytes) {
            Some(mut piece) => {
                fill(&mut piece);
                Body(Held::Lendable(Arc::new(piece)))
            }
            None => {
                let mut memory = any(n_bytes);
                fill(&mut memory);
                Body::new(memory)
            }
        }
    }

    /// The same, of so many floats.
    pub(super) fn filled_floats(n: usize, fill: impl FnOnce(&mut [f32])) -> Body {
        Body::filled(4 * n, |bytes| match bytemuck::try_cast_slice_mut(bytes) {
            Ok(floats) => fill(floats),
            Err(_) => {
                let mut floats = vec![0.0; n];
                fill(&mut floats);
                bytes.copy_from_slice(bytemuck::cast_slice(&floats));
            }
        })
    }

    /// Bytes that another process shows.
    pub(super) fn seen(bytes: Seen) -> Body {
        Body(Held::Seen(Arc::new(bytes)))
    }

    /// These of the bytes of something that does not change: nothing is copied.
    pub(super) fn of(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Body {
        Body(Held::Shared(owner, range))
    }

    /// What stands for bytes that were put where they belong when they came.
    pub(super) fn landed() -> Body {
        Body(Held::Landed)
    }

    pub(super) fn is_landed(&self) -> bool {
        matches!(self.0, Held::Landed)
    }

    /// How many have it in memory that others can read; none where it lies elsewhere.
    #[cfg(test)]
    pub(super) fn n_owners(&self) -> Option<usize> {
        match &self.0 {
            Held::Lendable(piece) => Some(Arc::strong_count(piece)),
            _ => None,
        }
    }

    /// Whether it is read where another process has it.
    #[cfg(test)]
    pub(super) fn is_seen(&self) -> bool {
        matches!(self.0, Held::Seen(_))
    }

    /// The same in memory of this process, where another process has it.
    pub(super) fn held_here(&self) -> Body {
        match self.0 {
            Held::Seen(_) => Body::copy_of(self),
            _ => self.clone(),
        }
    }

    /// Gives what is lent back, and goes on with a copy.
    pub(super) fn give_back(&mut self) {
        if matches!(self.0, Held::OnLoan(..)) {
            *self = Body::copy_of(self);
        }
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Kept(kept) => &kept.0,
            Held::Lendable(piece) => piece,
            Held::Seen(seen) => seen,
            Held::Shared(owner, range) => &(**owner).as_ref()[range.clone()],
            Held::OnLoan(loan, range) => &loan.bytes()[range.clone()],
            Held::Landed => &[],
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::new(bytes)
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// One who lends bytes to what is on its way. It does not end before it has them back.
pub(super) struct Lender<'v> {
    loan: Arc<Loan>,
    bytes: PhantomData<&'v [u8]>,
}

struct Loan {
    start: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and are there for as long as there is a loan: its lender waits for that.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Loan {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the lender has borrowed them, and its end waits until all bodies with this loan have.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Between two looks of a lender who waits.
const LOOK: Duration = Duration::from_micros(100);

impl<'v> Lender<'v> {
    /// Lends these bytes. A lender must come to its end, so it stays in the function that made it.
    pub(super) fn new(bytes: &'v [u8]) -> Lender<'v> {
        let loan = Arc::new(Loan { start: bytes.as_ptr(), len: bytes.len() });
        Lender { loan, bytes: PhantomData }
    }

    /// Some of them.
    pub(super) fn body(&self, range: Range<usize>) -> Body {
        Body(Held::OnLoan(Arc::clone(&self.loan), range))
    }

    /// Whether nobody has any of it.
    pub(super) fn has_all_back(&mut self) -> bool {
        Arc::get_mut(&mut self.loan).is_some()
    }
}

impl Drop for Lender<'_> {
    fn drop(&mut self) {
        while !self.has_all_back() {
            std::thread::sleep(LOOK);
        }
    }
}

/// Memory that waits to be used again.
static POOL: Mutex<Pool> = Mutex::new(Pool { kept: Vec::new(), n_bytes: 0, n_out: 0, most_out: 0 });

struct Pool {
    kept: Vec<Vec<u8>>,
    n_bytes: usize,
    /// Bytes that were given out and did not come back, and the most that these ever were: more is never needed. Bodies that somebody else made come here too, and would fill the pool
    /// up with what nobody takes.
    n_out: usize,
    most_out: usize,
}

impl Pool {
    fn give_out(&mut self, n_bytes: usize) {
        self.n_out += n_bytes;
        self.most_out = self.most_out.max(self.n_out);
    }

    fn take_back(&mut self, memory: Vec<u8>) {
        let n_bytes = memory.capacity();
        self.n_out = self.n_out.saturating_sub(n_bytes);
        if self.n_bytes + n_bytes <= MOST_KEPT.min(self.most_out) {
            self.n_bytes += n_bytes;
            self.kept.push(memory);
        }
    }
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Kept {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let capacity = memory.capacity();
        if capacity < SMALLEST {
            return;
        }
        pool().take_back(memory);
    }
}

/// Memory for so many bytes, with whatever is in it: a length below that may have been used before. None where there is none, and new memory is to be taken.
fn taken(n: usize) -> Option<Vec<u8>> {
    if n < SMALLEST {
        return None;
    }
    let mut pool = pool();
    // Not far more than is needed, or small bodies would sit on the memory of large ones.
    let fits = |memory: &&Vec<u8>| (n..=4 * n).contains(&memory.capacity());
    let Some(best) = pool.kept.iter().filter(fits).map(Vec::capacity).min() else {
        pool.give_out(n);
        return None;
    };
    let idx = pool.kept.iter().rposition(|memory| memory.capacity() == best)?;
    pool.n_bytes -= best;
    pool.give_out(best);
    Some(pool.kept.swap_remove(idx))
}

/// Nothing, with room for so many bytes.
pub(super) fn empty(n: usize) -> Vec<u8> {
    let mut memory = taken(n).unwrap_or_else(|| Vec::with_capacity(n));
    memory.clear();
    memory
}

/// So many bytes, which are to be overwritten: zeros, or what somebody had before.
pub(super) fn any(n: usize) -> Vec<u8> {
    match taken(n) {
        Some(mut memory) => {
            memory.resize(n, 0);
            memory
        }
        None => vec![0; n],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bytes_are_those_that_were_put_in() {
        let bytes: Vec<u8> = (0..SMALLEST * 3).map(|n| n as u8).collect();
        let body = Body::copy_of(&bytes);
        let other = body.clone();
        drop(body);
        assert_eq!(other[..], bytes[..]);
        drop(other);
        let mut again = any(bytes.len() - 1);
        assert_eq!(again.len(), bytes.len() - 1);
        again.fill(7);
        assert!(empty(bytes.len()).is_empty());
    }

    #[test]
    fn the_pool_keeps_no_more_than_was_out_at_a_time() {
        let mut pool = Pool { kept: Vec::new(), n_bytes: 0, n_out: 0, most_out: 0 };
        pool.give_out(3000);
        let of_others = || Vec::with_capacity(1000);
        (0..9).for_each(|_| pool.take_back(of_others()));
        assert_eq!((pool.kept.len(), pool.n_bytes, pool.n_out), (3, 3000, 0));
    }

    #[test]
    fn who_lends_goes_on_when_all_is_given_back() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut lender = Lender::new(&bytes);
        let (one, mut other) = (lender.body(10..20), lender.body(20..100));
        assert_eq!((&one[..], other.len()), (&bytes[10..20], 80));
        assert!(!lender.has_all_back());
        let elsewhere = std::thread::spawn(move || drop(one));
        other.give_back();
        assert_eq!(other[..], bytes[20..]);
        drop(lender);
        drop(elsewhere.join());
        assert_eq!(other.len(), 80);
    }
}
