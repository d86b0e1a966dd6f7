//! How often workers and their driver talk. Of short steps several are told, asked for and handed over at a time: whoever talks takes time from those who compute, also
//! from its own machine's.

/// Steps that take no longer than this together are told of at once.
const SECONDS_TOGETHER: f64 = 0.02;
/// Inputs of so many bytes are asked for at once: as many as are on the way without a copy.
const BYTES_TOGETHER: usize = 1 << 20;
/// The most steps that are told of at once.
const MOST_TOGETHER: u64 = 4;
/// The most steps that are handed over before it is known that the first of them is done: see [`Pace::depth`].
pub(super) const MOST_DEPTH: usize = 4 * MOST_TOGETHER as usize;

/// How many steps driver and workers talk of at a time. Both count alike; where they differ for a moment, somebody is asked before there is an answer, or woken for
/// nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    together: u64,
}

impl Pace {
    /// For steps that take so long, as far as that is known, and have inputs of so many bytes.
    pub(super) fn of(step_seconds: Option<f64>, input_bytes: usize) -> Pace {
        let in_time = step_seconds.map_or(0.0, |seconds| SECONDS_TOGETHER / seconds.max(1e-9));
        let by_bytes = (BYTES_TOGETHER / input_bytes.max(1)) as u64;
        Pace { together: (in_time as u64).min(by_bytes).clamp(1, MOST_TOGETHER) }
    }

    /// Whether a worker tells what it did up to this step, and asks for more.
    pub(super) fn talks_after(self, step: u64) -> bool {
        step.is_multiple_of(self.together)
    }

    /// For how many steps after one a worker asks ahead: some are there while the next words travel.
    pub(super) fn ahead(self) -> u64 {
        2 * self.together
    }

    /// How many steps the driver hands over before it hears that the first of them is done: those asked for ahead, those not told yet, and some on the way.
    pub(super) fn depth(self) -> usize {
        4 * self.together as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_or_large_steps_and_many_short_ones_are_talked_of_at_once() {
        let together = |seconds, n_bytes| Pace::of(seconds, n_bytes).together;
        assert_eq!(together(None, 10), 1, "nothing is known yet");
        assert_eq!(together(Some(0.5), 10), 1);
        assert_eq!(together(Some(0.009), 10), 2);
        assert_eq!(together(Some(0.0), 10), MOST_TOGETHER);
        assert_eq!(together(Some(0.001), 400 << 10), 2);
        assert_eq!(together(Some(0.001), 1 << 30), 1);
    }

    #[test]
    fn what_is_asked_for_is_there_before_it_is_told_that_it_was_used() {
        for seconds in [1.0, 0.008, 0.006, 0.001] {
            let pace = Pace::of(Some(seconds), 0);
            // A worker that has told of one step asks for others when it has done as many more as it tells of at once.
            assert!(pace.depth() as u64 >= pace.ahead() + pace.together);
            assert!(pace.depth() <= MOST_DEPTH);
            assert!(pace.ahead() > pace.together, "it has inputs while it waits for an answer");
        }
    }
}
