//! What happens to a worker, and what it is to do.

use crate::membership::identity::{MemberId, ViewId};
use crate::membership::message::{FromCoordinator, Go, Peer, ToCoordinator};

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection to the coordinator is there.
    Connected,
    /// It could not be made, or is gone.
    Closed,
    /// The coordinator said something.
    Received(FromCoordinator),
    /// A grain of the step in flight is done.
    GrainDone {
        /// In which view.
        view: ViewId,
        /// Which.
        grain: u32,
        /// How long it took.
        seconds: f64,
    },
    /// Waits for these: until they have brought their sums, or, before grains are run, until they have come to the exchange.
    Waiting {
        /// In which view.
        view: ViewId,
        /// For whom; nobody any more if empty.
        waiting_for: Vec<Peer>,
    },
    /// Gives its state to members that copy it, or does so no more.
    Gives {
        /// In which view.
        view: ViewId,
        /// Whether it does.
        is_giving: bool,
    },
    /// The sums of a step are there, and it counts; the parameters are updated next.
    StepDone {
        /// In which view.
        view: ViewId,
        /// How many steps the state has behind it now.
        steps: u64,
    },
    /// The next step has begun.
    StepBegun {
        /// In which view.
        view: ViewId,
        /// How many of its grains are assigned to this worker.
        n_to_do: usize,
    },
    /// Of all members, this one was waited for alone for longest.
    HeldUp {
        /// In which view.
        view: ViewId,
        /// Which.
        by: MemberId,
        /// For how long, in all.
        seconds: f64,
    },
    /// A connection to another failed, in an exchange or while state was copied.
    Failed {
        /// In which view.
        view: ViewId,
        /// To whom.
        peer: Peer,
        /// What went wrong, for people. Said if it is not clear soon what came of it.
        reason: String,
    },
    /// The state was copied.
    Copied {
        /// In which view.
        view: ViewId,
        /// How many steps it has behind it.
        steps: u64,
    },
    /// The state is of no step any more: what it was being made from changed meanwhile. In whatever view, there is none.
    StateLost {
        /// How that came, for people.
        reason: String,
    },
    /// A person asks for this worker to be drained.
    Drain,
    /// Time went by; sent every [`super::TICK`].
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Connect to the coordinator, by the next of its addresses.
    Connect,
    /// Close the connection to the coordinator.
    Disconnect,
    /// Send to the coordinator.
    Send(Box<ToCoordinator>),
    /// Stop the exchange and all grains, at once; a grain that cannot be stopped is not reported when it ends. Grains
    /// reported done are kept until the next step.
    Abort,
    /// Give up the state: it is of another job, or about to be copied over.
    Forget,
    /// Copy the state from there, then begin the view.
    Copy {
        /// The view, which says from whom.
        go: Box<Go>,
        /// This worker's rank in it.
        rank: usize,
    },
    /// Begin a view: do the grains of its first step that are assigned to this rank, exchange, and go on.
    Start {
        /// The view.
        go: Box<Go>,
        /// This worker's rank in it.
        rank: usize,
    },
    /// Tell people.
    Say(String),
    /// This worker is drained and may end.
    End,
}
