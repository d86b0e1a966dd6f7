//! When silence is suspicious: a deadline from the measured intervals between messages of one sender.

use std::time::Duration;

/// How often heartbeats are sent.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// No sender is suspected sooner, so that a busy machine's scheduling is no failure.
pub const FLOOR: Duration = Duration::from_millis(600);
/// Every silent sender is suspected by then, so that a bad network cannot teach endless patience.
pub const CEILING: Duration = Duration::from_secs(10);
/// How many deviations beyond the mean are still usual: with normal intervals one in 10^15 is later.
const DEVIATIONS: f64 = 8.0;
/// How many times longer one is waited for whose loss would cost far more than the waiting.
const LONG_FACTOR: u32 = 16;
/// Even such a one is suspected by then.
pub const LONG_CEILING: Duration = Duration::from_secs(30);
/// The weight of a new interval: about the last twenty count.
const WEIGHT: f64 = 0.05;

/// The intervals between messages of one sender.
#[derive(Clone, Debug)]
pub struct Arrivals {
    last: Duration,
    mean: f64,
    variance: f64,
}

impl Arrivals {
    /// Of a sender first heard of now; it is expected to send every [`HEARTBEAT`].
    pub fn new(now: Duration) -> Arrivals {
        let mean = HEARTBEAT.as_secs_f64();
        Arrivals { last: now, mean, variance: (mean / 2.0).powi(2) }
    }

    /// A message arrived.
    pub fn heard(&mut self, now: Duration) {
        let difference = now.saturating_sub(self.last).as_secs_f64() - self.mean;
        self.last = self.last.max(now);
        self.mean += WEIGHT * difference;
        self.variance = (1.0 - WEIGHT) * (self.variance + WEIGHT * difference * difference);
    }

    /// Time in which the listener itself was asleep does not count against the sender.
    pub fn forgive(&mut self, gap: Duration) {
        self.last += gap;
    }

    /// How long the sender may be silent.
    pub fn patience(&self) -> Duration {
        let usual = self.mean + DEVIATIONS * self.variance.sqrt();
        Duration::from_secs_f64(usual.clamp(FLOOR.as_secs_f64(), CEILING.as_secs_f64()))
    }

    /// How long it may be silent where its loss would cost far more than the waiting: about ten seconds for a steady sender.
    pub fn long_patience(&self) -> Duration {
        (LONG_FACTOR * self.patience()).min(LONG_CEILING)
    }

    /// How long it has been silent.
    pub fn silent_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last)
    }

    /// Whether it has been silent for too long.
    pub fn is_silent(&self, now: Duration) -> bool {
        self.silent_for(now) > self.patience()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(intervals: impl IntoIterator<Item = u64>) -> (Arrivals, Duration) {
        let mut now = Duration::from_secs(5);
        let mut arrivals = Arrivals::new(now);
        for interval in intervals {
            now += Duration::from_millis(interval);
            arrivals.heard(now);
        }
        (arrivals, now)
    }

    #[test]
    fn a_steady_sender_is_missed_within_a_second() {
        let (arrivals, now) = after((0..200).map(|i| 90 + i * 7 % 20));
        assert!(!arrivals.is_silent(now + Duration::from_millis(500)));
        assert!(arrivals.is_silent(now + Duration::from_millis(900)));
    }

    #[test]
    fn long_patience_is_many_times_the_usual_and_ends_too() {
        let (arrivals, _) = after((0..200).map(|i| 90 + i * 7 % 20));
        assert!(arrivals.long_patience() > 9 * Duration::from_secs(1));
        let (arrivals, _) = after((0..50).map(|_| 60_000));
        assert_eq!(arrivals.long_patience(), LONG_CEILING);
    }

    #[test]
    fn an_unsteady_sender_is_given_more_time_but_not_endless() {
        let (arrivals, _) = after((0..200).map(|i| if i % 5 == 0 { 900 } else { 20 }));
        assert!(arrivals.patience() > Duration::from_secs(2), "{:?}", arrivals.patience());
        let (arrivals, now) = after((0..50).map(|_| 60_000));
        assert!(arrivals.is_silent(now + CEILING + Duration::from_millis(1)));
    }
}
