//! The threads of one device, and where they meet.
//!
//! A [`Team`] starts its threads once and gives all of them the same work again and again. Between
//! two pieces of work a thread first spins, since the next usually follows within microseconds, and
//! then sleeps, so that an idle team costs nothing and several teams in one process leave the cores
//! to each other. Inside a piece of work the threads meet at a [`Barrier`].
//!
//! Nothing waits forever for a thread that panicked: the others leave their barriers, and
//! [`Team::run`] passes the panic on when all have stopped.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins for the next piece of work, and the caller for the last to finish,
/// before it sleeps.
const SPIN_FOR_WORK: Duration = Duration::from_micros(60);

/// How long a thread spins at a barrier before it offers its core to others.
const SPIN_AT_BARRIER: Duration = Duration::from_micros(20);

/// Looks between two looks at the clock.
const LOOKS: u32 = 64;

thread_local! {
    /// Set while this thread does a team's work: whether a thread of that team has panicked.
    static PANICKED: Cell<*const AtomicBool> = const { Cell::new(null()) };
}

/// Threads that do work together. The thread that calls [`Team::run`] is one of them.
pub(super) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

type Work<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// Counts pieces of work; a new value is the sign to start.
    round: Line<AtomicU64>,
    /// Helpers that have not finished the present piece.
    n_busy: Line<AtomicUsize>,
    /// The present piece of work; written before `round`, while no helper works.
    work: UnsafeCell<Option<*const Work<'static>>>,
    stop: AtomicBool,
    /// One per helper: it sleeps or is about to.
    asleep: Vec<Line<AtomicBool>>,
    /// The caller, when it sleeps or is about to.
    caller: Mutex<Option<Thread>>,
    caller_asleep: AtomicBool,
    panicked: AtomicBool,
    /// What the first panic carried.
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    /// There are more threads than cores, so spinning only keeps the others from working.
    crowded: bool,
}

/// Keeps a value on cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: `work` is written only while no helper reads it (`round` and `n_busy` order this), and
// what it points to is `Sync` and outlives the round; the rest is shareable by itself.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Team {
    /// Starts a team of so many threads, the caller of [`Team::run`] included.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub(super) fn new(n_threads: usize) -> io::Result<Team> {
        let shared = Arc::new(Shared {
            round: Line(AtomicU64::new(0)),
            n_busy: Line(AtomicUsize::new(0)),
            work: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            asleep: (1..n_threads).map(|_| Line(AtomicBool::new(false))).collect(),
            caller: Mutex::new(None),
            caller_asleep: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            payload: Mutex::new(None),
            crowded: is_crowded(n_threads),
        });
        let start = |thread_idx: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name(format!("manyhands-cpu-{thread_idx}"))
                .spawn(move || help(&shared, thread_idx))
        };
        let mut team = Team { shared: Arc::clone(&shared), helpers: Vec::new() };
        // Those already started stop when the team is dropped.
        for thread_idx in 1..n_threads {
            team.helpers.push(start(thread_idx)?);
        }
        Ok(team)
    }

    /// The number of threads, the caller included.
    pub(super) fn n_threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(thread_idx)` once on every thread (the caller is thread 0) and returns when all
    /// are done. Allocates nothing.
    ///
    /// # Panics
    /// If `work` panics on any thread: with the first panic, after all threads have stopped.
    /// Threads that wait at a [`Barrier`] are released from it; it is unusable afterwards.
    pub(super) fn run(&mut self, work: &(dyn Fn(usize) + Sync)) {
        if self.helpers.is_empty() {
            return work(0);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is forgotten. No helper works now, so none reads the cell, and
        // this function returns only when all have finished with `work`.
        unsafe {
            *shared.work.get() =
                Some(std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work));
        }
        shared.n_busy.0.store(self.helpers.len(), Relaxed);
        shared.round.0.fetch_add(1, SeqCst);
        for (asleep, helper) in shared.asleep.iter().zip(&self.helpers) {
            if asleep.0.load(SeqCst) {
                helper.thread().unpark();
            }
        }
        shared.do_work(work, 0);
        shared.wait_for_helpers();
        if shared.panicked.load(Acquire) {
            shared.panicked.store(false, Relaxed);
            let payload = shared.payload.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(payload.unwrap_or_else(|| Box::new("a thread of the team panicked")));
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.round.0.fetch_add(1, SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // Its panics were caught; there is nothing to learn from the outcome.
            let _ = helper.join();
        }
    }
}

/// The life of a helper.
fn help(shared: &Shared, thread_idx: usize) {
    let mut seen = 0;
    loop {
        shared.wait_for_round(seen, thread_idx);
        seen += 1;
        if shared.stop.load(SeqCst) {
            return;
        }
        // SAFETY: the round has begun, so the cell is written, and stays until this helper is done.
        if let Some(work) = unsafe { *shared.work.get() } {
            // SAFETY: the caller of `run` keeps the work alive until `n_busy` is zero.
            shared.do_work(unsafe { &*work }, thread_idx);
        }
        if shared.n_busy.0.fetch_sub(1, SeqCst) == 1 && shared.caller_asleep.load(SeqCst) {
            // The handle stays: were it taken, a helper that is late from the round before would take this round's.
            let caller = shared.caller.lock().unwrap_or_else(PoisonError::into_inner);
            caller.as_ref().inspect(|thread| thread.unpark());
        }
    }
}

impl Shared {
    fn do_work(&self, work: &Work<'_>, thread_idx: usize) {
        let outer = PANICKED.replace(&self.panicked);
        let outcome = catch_unwind(AssertUnwindSafe(|| work(thread_idx)));
        PANICKED.set(outer);
        if let Err(payload) = outcome {
            let mut first = self.payload.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(payload);
            self.panicked.store(true, Release);
        }
    }

    fn wait_for_round(&self, seen: u64, thread_idx: usize) {
        let begun = || self.round.0.load(SeqCst) != seen;
        if spin(SPIN_FOR_WORK, self.crowded, begun) {
            return;
        }
        let asleep = &self.asleep[thread_idx - 1].0;
        asleep.store(true, SeqCst);
        // Either the caller sees the flag, or this sees the round that the caller began.
        while !begun() {
            thread::park();
        }
        asleep.store(false, SeqCst);
    }

    fn wait_for_helpers(&self) {
        let done = || self.n_busy.0.load(SeqCst) == 0;
        if spin(SPIN_FOR_WORK, self.crowded, done) {
            return;
        }
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.caller_asleep.store(true, SeqCst);
        while !done() {
            thread::park();
        }
        self.caller_asleep.store(false, SeqCst);
    }
}

/// Looks until `ready` or the time is up; says which.
#[inline]
fn spin(limit: Duration, crowded: bool, ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if crowded {
            thread::yield_now();
        }
        let start = *start.get_or_insert_with(Instant::now);
        if start.elapsed() >= limit {
            return ready();
        }
    }
}

fn is_crowded(n_threads: usize) -> bool {
    thread::available_parallelism().is_ok_and(|n_cores| n_threads > n_cores.get())
}

/// Where `n` threads meet: each waits until all have come. What a thread wrote before is seen by
/// all after.
pub(super) struct Barrier {
    /// From the low end: how many have come to this meeting, which meeting it is, and whether the
    /// barrier is broken.
    state: Line<AtomicU64>,
    n_threads: u64,
    crowded: bool,
}

const BROKEN: u64 = 1 << 63;
const ONE_MEETING: u64 = 1 << 32;
const MEETING: u64 = BROKEN - ONE_MEETING;

impl Barrier {
    /// A barrier for so many threads.
    pub(super) fn new(n_threads: usize) -> Barrier {
        Barrier {
            state: Line(AtomicU64::new(0)),
            n_threads: n_threads as u64,
            crowded: is_crowded(n_threads),
        }
    }

    /// Waits until all threads of the barrier have called this.
    ///
    /// # Panics
    /// If a thread of the team that is at work here panics meanwhile: the meeting cannot take
    /// place. The barrier is broken from then on, and every wait panics.
    #[inline]
    pub(super) fn wait(&self) {
        if self.n_threads <= 1 {
            return;
        }
        let before = self.state.0.fetch_add(1, SeqCst);
        let meeting = before & MEETING;
        if before & BROKEN != 0 {
            leave();
        }
        if before - meeting + 1 == self.n_threads {
            // The last to come: nobody else writes until this is seen.
            self.state.0.store(meeting.wrapping_add(ONE_MEETING) & MEETING, SeqCst);
            return;
        }
        let met = || self.state.0.load(Acquire) & (BROKEN | MEETING) != meeting;
        for _ in 0..LOOKS {
            if met() {
                return self.check();
            }
            std::hint::spin_loop();
        }
        self.wait_longer(met);
        self.check();
    }

    #[cold]
    fn wait_longer(&self, met: impl Fn() -> bool) {
        let panicked = PANICKED.get();
        while !spin(SPIN_AT_BARRIER, self.crowded, &met) {
            // SAFETY: set only while a team's work runs on this thread, and the team outlives it.
            if !panicked.is_null() && unsafe { (*panicked).load(Acquire) } {
                self.state.0.fetch_or(BROKEN, SeqCst);
            }
            thread::yield_now();
        }
    }

    /// After a wait: did all come, or did one break the barrier?
    #[inline]
    fn check(&self) {
        if self.state.0.load(Relaxed) & BROKEN != 0 {
            leave();
        }
    }
}

/// Stops this thread's work quietly: the panic that matters has been reported.
#[cold]
fn leave() -> ! {
    resume_unwind(Box::new("another thread of the team panicked"))
}

#[cfg(test)]
mod tests;
