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
pub(super) struct Pace {
    /// Steps that are measured together: since when, how many there are, and when the last was done.
    group: Option<(Instant, u32, Instant)>,
    n_before: usize,
    /// Of a step, as the mean of each group.
    seconds: Vec<f64>,
}

impl Pace {
    /// A step was done now.
    pub(super) fn step(&mut self, now: Instant, is_full: bool) {
        self.n_before += 1;
        if !is_full {
            self.pause();
        }
        if self.n_before <= UNMEASURED_STEPS {
            self.group = Some((now, 0, now));
            return;
        }
        let (since, n, _) = self.group.unwrap_or((now, 0, now));
        // The first after a pause is where measuring begins.
        let n = if self.group.is_some() { n + 1 } else { 0 };
        self.group = Some((since, n, now));
        if n == TOGETHER || (n > 0 && now - since >= LONG) {
            self.pause();
            self.group = Some((now, 0, now));
        }
    }

    /// Something else happens before the next step.
    pub(super) fn pause(&mut self) {
        let Some((since, n, last)) = self.group.take() else { return };
        if n > 0 && self.seconds.len() < MOST_KEPT {
            self.seconds.push((last - since).as_secs_f64() / f64::from(n));
        }
    }

    /// The median.
    pub(super) fn seconds(&self) -> Option<f64> {
        let mut whole = self.clone();
        whole.pause();
        whole.seconds.sort_by(f64::total_cmp);
        whole.seconds.get(whole.seconds.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds of a step that ends at these, `None` being a pause and 0 the first.
    fn check(ends: impl IntoIterator<Item = Option<u64>>, expected: f64) {
        let (start, mut pace) = (Instant::now(), Pace::default());
        for end in ends {
            match end {
                Some(ms) => pace.step(start + Duration::from_millis(ms), true),
                None => pace.pause(),
            }
        }
        let found = pace.seconds().map(|seconds| (seconds * 1e4).round() / 10.0);
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn what_lies_between_epochs_is_no_step() {
        check([0, 500, 510, 520].map(Some).into_iter().chain([None, Some(9000), Some(9010)]), 10.0);
    }

    #[test]
    fn a_long_step_is_measured_by_itself() {
        check([0, 1, 301, 601, 1601].map(Some), 300.0);
    }

    #[test]
    fn steps_that_are_told_of_four_at_a_time_take_a_quarter_each() {
        check((0..400u64).map(|step| Some(step / 4 * 8)), 2.0);
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
