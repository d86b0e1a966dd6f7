//! How long steps take as training goes: from the end of one to the end of another, where nothing else came between.
//!
//! Workers of a cluster tell of several short steps at a time, so that some end together and some after a while: several are measured together.

use std::time::{Duration, Instant};

/// So many steps are measured together, a multiple of those that workers tell of at once, or fewer that take as long as this.
const TOGETHER: u32 = 16;
const LONG: Duration = Duration::from_millis(200);
/// The most measurements that are kept.
const MOST_KEPT: usize = 10_000;
/// Steps at the start that find cold caches.
const UNMEASURED_STEPS: usize = 2;

/// The seconds of full steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    group: Option<Group>,
    n_before: usize,
    /// Of a step, as the mean of each group.
    seconds: Vec<f64>,
    measured: MeasuredSteps,
}

/// Steps that are measured together.
#[derive(Clone, Copy, Debug)]
struct Group {
    since: Instant,
    last: Instant,
    n_steps: u32,
}

/// What was measured so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MeasuredSteps {
    pub(crate) n_steps: u32,
    pub(crate) in_all: Duration,
}

impl Pace {
    /// A step was done now.
    pub(crate) fn step(&mut self, now: Instant, is_full: bool) {
        self.n_before += 1;
        if !is_full {
            self.pause();
        }
        let is_cold = self.n_before <= UNMEASURED_STEPS;
        let Some(group) = self.group.as_mut().filter(|_| !is_cold) else {
            // Measuring begins here.
            self.group = Some(Group { since: now, last: now, n_steps: 0 });
            return;
        };
        (group.last, group.n_steps) = (now, group.n_steps + 1);
        if group.n_steps == TOGETHER || now - group.since >= LONG {
            self.pause();
            self.group = Some(Group { since: now, last: now, n_steps: 0 });
        }
    }

    /// Something else happens before the next step.
    pub(crate) fn pause(&mut self) {
        let Some(Group { since, last, n_steps }) = self.group.take() else { return };
        if n_steps > 0 && self.seconds.len() < MOST_KEPT {
            self.seconds.push((last - since).as_secs_f64() / f64::from(n_steps));
            self.measured.n_steps += n_steps;
            self.measured.in_all += last - since;
        }
    }

    /// What was measured so far, those included that are still to be followed by others.
    pub(crate) fn measured(&self) -> MeasuredSteps {
        let MeasuredSteps { n_steps, in_all } = self.measured;
        match self.group {
            Some(group) => MeasuredSteps {
                n_steps: n_steps + group.n_steps,
                in_all: in_all + (group.last - group.since),
            },
            None => self.measured,
        }
    }

    /// The median.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let mut whole = self.clone();
        whole.pause();
        whole.seconds.sort_by(f64::total_cmp);
        whole.seconds.get(whole.seconds.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds of a step that ends at these, `None` being a pause, and how many were measured.
    fn check(ends: impl IntoIterator<Item = Option<u64>>, expected: f64, n_steps: u32) {
        let (start, mut pace) = (Instant::now(), Pace::default());
        for end in ends {
            match end {
                Some(ms) => pace.step(start + Duration::from_millis(ms), true),
                None => pace.pause(),
            }
        }
        let found = pace.seconds().map(|seconds| (seconds * 1e4).round() / 10.0);
        assert_eq!((found, pace.measured().n_steps), (Some(expected), n_steps));
        let before = pace.measured();
        pace.pause();
        assert_eq!(pace.measured(), before);
    }

    #[test]
    fn what_lies_between_epochs_is_no_step() {
        let ends = [0, 500, 510, 520].map(Some).into_iter();
        check(ends.chain([None, Some(9000), Some(9010)]), 10.0, 3);
    }

    #[test]
    fn a_long_step_is_measured_by_itself() {
        check([0, 1, 301, 601, 1601].map(Some), 300.0, 3);
    }

    #[test]
    fn steps_that_are_told_of_four_at_a_time_take_a_quarter_each() {
        check((0..400u64).map(|step| Some(step / 4 * 8)), 2.0, 398);
    }

    #[test]
    fn a_pause_of_the_machine_does_not_count() {
        check((0..100u64).map(|step| Some(10 * step + 500 * (step / 40))), 10.0, 98);
    }

    #[test]
    fn a_short_step_is_not_measured() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        for ms in [0, 10, 20, 30] {
            pace.step(at(ms), true);
        }
        pace.step(at(31), false);
        assert_eq!(pace.seconds().map(|seconds| (seconds * 1e3).round()), Some(10.0));
    }
}
