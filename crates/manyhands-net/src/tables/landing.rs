//! Memory of one who waits for an answer, into which its bytes go as they come: read once from the link, and not copied after.
//!
//! The thread that owns the links writes there, so whoever waits must be able to take its memory back at any time: every write is made under a lock, and after
//! [`Strips::take_back`] there is none. An answer may come twice, from a first holder and from the one after it: the first that begins has the memory for itself,
//! another one is received elsewhere.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of one who waits's memory, each for one answer. They are taken back at the end.
pub(super) struct Strips<'o> {
    strips: Vec<Arc<Strip>>,
    memory: PhantomData<&'o mut [f32]>,
}

/// Where the bytes of one answer belong.
pub(super) struct Strip(Mutex<State>);

struct State {
    start: *mut u8,
    len: usize,
    /// Whether it is still lent.
    is_lent: bool,
    is_claimed: bool,
}

// SAFETY: the memory is somebody's who has borrowed it for as long as it is lent, and is touched under the lock alone.
unsafe impl Send for State {}

impl<'o> Strips<'o> {
    /// These runs of the memory, which rise and lie apart; those that do not lie in it get nothing.
    pub(super) fn new(out: &'o mut [f32], runs: &[Range<usize>]) -> Strips<'o> {
        let (mut rest, mut at) = (out, 0);
        let mut strip = |run: &Range<usize>| {
            let fits = at <= run.start && run.start <= run.end && run.end - at <= rest.len();
            let own: &mut [f32] = match fits {
                true => {
                    let (before, after) = std::mem::take(&mut rest).split_at_mut(run.end - at);
                    rest = after;
                    let from = run.start - at;
                    at = run.end;
                    &mut before[from..]
                }
                false => &mut [],
            };
            let (start, len) = (own.as_mut_ptr().cast(), size_of_val(own));
            Arc::new(Strip(Mutex::new(State { start, len, is_lent: true, is_claimed: false })))
        };
        Strips { strips: runs.iter().map(&mut strip).collect(), memory: PhantomData }
    }

    /// Each of them.
    pub(super) fn all(&self) -> &[Arc<Strip>] {
        &self.strips
    }

    /// Fills one with bytes that came elsewhere. Whether they are as many as belong there.
    pub(super) fn fill(&self, idx: usize, bytes: &[u8]) -> bool {
        let Some(strip) = self.strips.get(idx) else { return false };
        let mut state = strip.lock();
        if state.len != bytes.len() || !state.is_lent {
            return false;
        }
        state.memory().copy_from_slice(bytes);
        // Who still receives the same answer must not write over it.
        state.is_lent = false;
        true
    }

    /// Nobody writes there any more.
    fn take_back(&self) {
        self.strips.iter().for_each(|strip| strip.lock().is_lent = false);
    }
}

impl Drop for Strips<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl State {
    fn memory(&mut self) -> &mut [u8] {
        // SAFETY: whoever lends it has borrowed it mutably until it is taken back, which needs the lock that is held here; the parts lie apart.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Strip {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it for an answer of so many bytes, unless it is taken back, too short or long, or another answer's.
    pub(super) fn claim(self: &Arc<Strip>, n_bytes: usize) -> Option<Claim> {
        let mut state = self.lock();
        let is_free = state.is_lent && !state.is_claimed && state.len == n_bytes;
        state.is_claimed |= is_free;
        is_free.then(|| Claim(Arc::clone(self)))
    }
}

/// An answer that goes to where it belongs, until it has come or is given up.
pub(super) struct Claim(Arc<Strip>);

impl Claim {
    /// The memory, from a byte on. Nothing where it was taken back.
    pub(super) fn write<R>(&self, from: usize, write: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut state = self.0.lock();
        let is_lent = state.is_lent;
        is_lent.then(|| write(&mut state.memory()[from..]))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.lock().is_claimed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(claim: &Claim, from: usize, bytes: &[u8]) -> bool {
        claim.write(from, |to| to[..bytes.len()].copy_from_slice(bytes)).is_some()
    }

    #[test]
    fn an_answer_goes_where_it_belongs_and_a_second_one_elsewhere() {
        let mut out = vec![0f32; 6];
        let strips = Strips::new(&mut out, &[1..3, 3..4]);
        let claim = strips.all()[0].claim(8).unwrap();
        assert!(strips.all()[0].claim(8).is_none() && strips.all()[1].claim(8).is_none());
        assert!(put(&claim, 4, &2f32.to_le_bytes()) && put(&claim, 0, &1f32.to_le_bytes()));
        assert!(strips.fill(1, &3f32.to_le_bytes()) && !strips.fill(1, &9f32.to_le_bytes()));
        drop(strips);
        assert!(!put(&claim, 0, &9f32.to_le_bytes()), "it was taken back");
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    }

    #[test]
    fn who_was_lost_on_the_way_makes_room_for_another() {
        let mut out = vec![0f32; 1];
        let strips = Strips::new(&mut out, &[0..1, 0..1, 1..9]);
        drop(strips.all()[0].claim(4).unwrap());
        assert!(strips.all()[0].claim(4).is_some());
        assert!(strips.all()[1].claim(4).is_none() && strips.all()[2].claim(32).is_none());
        assert!(!strips.fill(2, &[0; 32]) && !strips.fill(3, &[]));
    }
}
