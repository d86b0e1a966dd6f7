//! How long steps take as training goes: from the end of one to the end of the next, where nothing else came between.

use std::time::Instant;

/// The most steps that are kept.
const MOST_STEPS: usize = 10_000;
/// Steps at the start that find cold caches.
const UNMEASURED_STEPS: usize = 2;

/// The seconds of full steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    n_before: usize,
    seconds: Vec<f64>,
}

impl Pace {
    /// A step was done now.
    pub(super) fn step(&mut self, now: Instant, is_full: bool) {
        let last = self.last.replace(now);
        self.n_before += 1;
        let counts = is_full && self.n_before > UNMEASURED_STEPS && self.seconds.len() < MOST_STEPS;
        if let Some(last) = last.filter(|_| counts) {
            self.seconds.push((now - last).as_secs_f64());
        }
    }

    /// Something else happens before the next step.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }

    /// The median.
    pub(super) fn seconds(&self) -> Option<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_lies_between_epochs_is_no_step() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        for ms in [0, 500, 510, 520] {
            pace.step(at(ms), true);
        }
        pace.pause();
        pace.step(at(9000), true);
        pace.step(at(9010), true);
        pace.step(at(9300), false);
        let found = pace.seconds().map(|seconds| (seconds * 1e3).round());
        assert_eq!(found, Some(10.0));
        assert_eq!(pace.seconds.len(), 3);
    }
}
