//! Instructions: what a compiled program is made of, and what they see while they run.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::kernels::Part;
use super::kernels::cross_entropy::BadLabel;
use super::kernels::fault::Fault;
use super::memory::Place;
use super::simd::Isa;
use super::team::Barrier;

/// Why a thread stops before the end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// This thread's part of an instruction met data that it cannot work with.
    Fault(Fault),
    /// A body inside the instruction has stopped, on all threads at the same turn.
    Body,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl From<BadLabel> for Stop {
    fn from(bad: BadLabel) -> Stop {
        Stop::Fault(bad.into())
    }
}

/// A fault, with where it happened.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// How many instructions the thread had done.
    pub(super) turn: u64,
    pub(super) fault: Fault,
    pub(super) op: String,
    pub(super) scope: String,
}

/// What threads of one launch agree on: the first turn at which any of them met a fault.
#[derive(Debug)]
pub(super) struct Halt(AtomicU64);

impl Halt {
    pub(super) fn new() -> Halt {
        Halt(AtomicU64::new(u64::MAX))
    }

    pub(super) fn reset(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }

    fn at(&self, turn: u64) {
        self.0.fetch_min(turn, Ordering::AcqRel);
    }

    /// Whether all threads, having met after this turn, stop there. A fast thread may already have failed at a later one;
    /// the others stop at that one too, when they get there.
    fn holds_after(&self, turn: u64) -> bool {
        self.0.load(Ordering::Acquire) <= turn
    }
}

/// A thread's own account of a run.
#[derive(Debug, Default)]
pub(super) struct Account {
    turn: Cell<u64>,
    pub(super) trouble: RefCell<Option<Trouble>>,
}

impl Account {
    pub(super) fn reset(&self) {
        self.turn.set(0);
        *self.trouble.borrow_mut() = None;
    }
}

/// Does one thread's part of an instruction.
pub(super) type Action = Box<dyn Fn(&Context<'_>, Part) -> Result<(), Stop> + Send + Sync>;

/// One step of a compiled program. All threads run it, each its part; then they meet.
pub(super) struct Instruction {
    pub(super) action: Action,
    /// Bytes of scratch that each thread needs.
    pub(super) scratch_bytes: usize,
    /// The program's node that it comes from.
    pub(super) node_idx: usize,
}

/// What a thread sees while it runs instructions.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) isa: Isa,
    /// The base pointers that places refer to.
    pub(super) bases: &'a [*mut u8],
    /// This thread's scratch.
    pub(super) scratch: *mut u8,
    pub(super) scratch_bytes: usize,
    /// Where the threads of this run meet.
    pub(super) barrier: &'a Barrier,
    pub(super) halt: &'a Halt,
    pub(super) account: &'a Account,
}

impl<'a> Context<'a> {
    /// Notes a fault of this thread at the present turn.
    pub(super) fn note(&self, fault: Fault, op: &str, scope: &str) {
        let turn = self.account.turn.get();
        let (op, scope) = (op.to_string(), scope.to_string());
        self.account.trouble.borrow_mut().get_or_insert(Trouble { turn, fault, op, scope });
        self.halt.at(turn);
    }

    /// Ends a turn: the threads meet, and all learn whether one of them met a fault.
    #[inline(always)]
    pub(super) fn end_turn(&self, part: Part) -> Result<(), Stop> {
        if part.count > 1 {
            self.barrier.wait();
        }
        let turn = self.account.turn.get();
        self.account.turn.set(turn + 1);
        if self.halt.holds_after(turn) { Err(Stop::Body) } else { Ok(()) }
    }

    /// The address of a place.
    #[inline(always)]
    pub(super) fn at<T>(&self, place: Place) -> *mut T {
        self.bases[place.base as usize].wrapping_add(place.offset).cast()
    }

    /// This thread's scratch as floats.
    ///
    /// # Safety
    /// Only one such slice is alive at a time.
    #[inline(always)]
    pub(super) unsafe fn scratch_f32(&self) -> &'a mut [f32] {
        // SAFETY: the scratch is this thread's own, aligned to a cache line, and no other slice of it is alive.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.cast(), self.scratch_bytes / 4) }
    }
}
