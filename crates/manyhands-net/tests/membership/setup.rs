//! What a simulated cluster is like, what can be planted in it, and what is looked for in what it says.

use manyhands_net::membership::message::GrainCounts;

use crate::chance::Chance;
use crate::world::{MS, Time};

/// What a simulated cluster is like.
pub(crate) struct Setup {
    pub(crate) n_workers: usize,
    pub(crate) grains: GrainCounts,
    pub(crate) grain_time: Vec<Time>,
    pub(crate) copy_time: Time,
    pub(crate) n_steps: u64,
    pub(crate) is_unordered: bool,
    /// Processes start within this time.
    pub(crate) start: Time,
}

impl Setup {
    pub(crate) fn drawn(chance: &mut Chance) -> Setup {
        let n_workers = chance.between(1, 7) as usize;
        let full = chance.between(1, 13) as u32;
        let last = chance.between(1, u64::from(full) + 1) as u32;
        let grains = GrainCounts { full, last, steps_per_epoch: chance.between(1, 9) };
        let usual = chance.between(10, 150) * MS;
        let uneven = chance.between(1, 4);
        Setup {
            n_workers,
            grains,
            grain_time: (0..n_workers).map(|_| usual * chance.between(1, uneven + 1)).collect(),
            copy_time: chance.between(5, 500) * MS,
            n_steps: chance.between(10, 120),
            is_unordered: chance.once_in(4),
            start: 800 * MS,
        }
    }

    /// Equal workers that start together.
    pub(crate) fn plain(n_workers: usize) -> Setup {
        Setup {
            n_workers,
            grains: GrainCounts { full: 8, last: 5, steps_per_epoch: 7 },
            grain_time: vec![20 * MS; n_workers],
            copy_time: 50 * MS,
            n_steps: 200,
            is_unordered: false,
            start: 50 * MS,
        }
    }
}

/// Words of the sentences by which kinds of decisions are told apart.
pub(crate) const KINDS: [&str; 25] = [
    "the driver did not take up view",
    "the connection of worker",
    "has been silent for",
    "is far slower than usual",
    "nothing passes between",
    "the connection between",
    "did not stop for view",
    "did not take up view",
    "drains:",
    "is drained",
    "was started anew",
    "is here already",
    "is back",
    "did not return after the restart",
    "it returns from its log",
    "the coordinator restarted while a view changed",
    "which is newer than this one",
    "the driver of job has been silent",
    "is gone, and another came",
    "the state from the driver",
    "no workers are left",
    "idle: a step has",
    "joined",
    "and is waited for up to",
    "is waited for no longer",
];

/// A defect put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Planted {
    /// The coordinator takes what a worker said for an older view as said for this one.
    OldReady,
    /// The data plane goes on when a new view is prepared.
    NoAbort,
    /// Two members are to do the same grain.
    GrainTwice,
    /// Exchanges mix what members brought in different views.
    MixedViews,
    /// The log is written after what depends on it was sent.
    LateLog,
    /// Stalls are not reported.
    NoStalls,
}
