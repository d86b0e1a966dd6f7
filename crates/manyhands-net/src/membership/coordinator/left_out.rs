//! Workers that are left out of views for a while, by name, so that a process that is started anew is left out as the one before was.
//!
//! There are two reasons, each with a history of its own: a worker was dropped for a bad connection and *pauses* before it is taken in again,
//! or it holds the others up and *rests* (see [`super::rests`]).

use std::collections::BTreeMap;
use std::time::Duration;

/// Who is left out for one reason, until when, and how often that was.
#[derive(Debug)]
pub(super) struct LeftOut {
    first: Duration,
    most: Duration,
    terms: BTreeMap<String, Term>,
}

/// The latest time for which a worker was left out.
#[derive(Clone, Copy, Debug)]
struct Term {
    until: Duration,
    length: Duration,
}

impl LeftOut {
    /// Nobody yet. The first time is so long, and each that follows twice the one before, up to the longest.
    pub(super) fn new(first: Duration, most: Duration) -> LeftOut {
        LeftOut { first, most, terms: BTreeMap::new() }
    }

    /// Leaves a worker out from now on. Gives for how long.
    pub(super) fn begin(&mut self, now: Duration, name: &str) -> Duration {
        // It is forgotten when four times its length has gone well.
        self.terms.retain(|_, term| now < term.until + 4 * term.length);
        let before = self.terms.get(name);
        let length = before.map_or(self.first, |term| term.length * 2).min(self.most);
        self.terms.insert(name.to_string(), Term { until: now + length, length });
        length
    }

    /// How much longer a worker is left out; none if it is not.
    pub(super) fn left(&self, now: Duration, name: &str) -> Option<Duration> {
        let left = self.terms.get(name)?.until.saturating_sub(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_twice_the_one_before_until_all_has_gone_well_for_long() {
        let second = Duration::from_secs(1);
        let mut left_out = LeftOut::new(second, 3 * second);
        assert_eq!(left_out.begin(second, "a"), second);
        assert_eq!(left_out.left(second + second / 4, "a"), Some(3 * second / 4));
        assert_eq!(left_out.left(2 * second, "a"), None);
        assert_eq!(left_out.begin(3 * second, "a"), 2 * second);
        assert_eq!(left_out.begin(6 * second, "a"), 3 * second, "the longest");
        assert_eq!(left_out.begin(6 * second, "b"), second, "it is another");
        assert_eq!(left_out.begin(9 * second + 12 * second, "a"), second, "it is forgotten");
    }
}
