//! How long something that does not move is waited for, from how long it took before.

use std::time::{Duration, Instant};

/// How long a first operation is waited for, before there is anything to measure.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);
/// The patience that measured times can lead to.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// How many times the longest pause between operations is waited for.
const PAUSES: u32 = 10;

/// How long an operation without progress is waited for.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    fixed: Option<Duration>,
    last_end: Option<Instant>,
    longest_pause: Duration,
}

impl Patience {
    /// So long, whatever was measured.
    pub(crate) fn fix(&mut self, patience: Duration) {
        self.fixed = Some(patience);
    }

    /// How long to wait now.
    pub(crate) fn now(&self) -> Duration {
        let measured = self.longest_pause.saturating_mul(PAUSES).clamp(PATIENCE.0, PATIENCE.1);
        self.fixed.unwrap_or(match self.last_end {
            Some(_) => measured,
            None => FIRST_PATIENCE,
        })
    }

    /// Takes note that an operation has ended.
    pub(crate) fn ended(&mut self, end: Instant) {
        if let Some(last) = self.last_end.replace(end) {
            self.longest_pause = self.longest_pause.max(end - last);
        }
    }
}
