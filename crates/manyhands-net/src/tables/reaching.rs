//! What a server knows of its tries to reach others: whom it cannot reach for long the director must hear of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::identity::ServerId;

/// How long another is tried before the director hears of it: one that was lost is known to the director by then.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the director is told again: it may have decided something in between.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// Servers that are not reached.
#[derive(Default)]
pub(super) struct Reaching {
    tried: BTreeMap<ServerId, Tried>,
}

struct Tried {
    since: Instant,
    told: Option<Instant>,
}

impl Reaching {
    /// Another is called, or was last heard of then.
    pub(super) fn tries(&mut self, server: ServerId, since: Instant) {
        self.tried.entry(server).or_insert(Tried { since, told: None });
    }

    /// A try has failed. Whether the director must hear of it.
    pub(super) fn failed(&mut self, server: ServerId, now: Instant) -> bool {
        let Some(tried) = self.tried.get_mut(&server) else { return false };
        let is_due = tried.told.is_none_or(|told| now >= told + TELL_AGAIN);
        let is_told = is_due && now >= tried.since + PATIENCE;
        if is_told {
            tried.told = Some(now);
        }
        is_told
    }

    /// There is a link. Whether the director had heard that there is none.
    pub(super) fn reached(&mut self, server: ServerId) -> bool {
        self.tried.remove(&server).is_some_and(|tried| tried.told.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_director_hears_of_one_that_is_not_reached_for_long_and_again_after_a_while() {
        let (server, start) = (ServerId(2), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut reaching = Reaching::default();
        assert!(!reaching.failed(server, at(5000)), "nobody tried");
        reaching.tries(server, at(0));
        assert!(!reaching.failed(server, at(20)));
        reaching.tries(server, at(40));
        assert!(reaching.failed(server, at(1000)));
        assert!(!reaching.failed(server, at(1020)));
        assert!(reaching.failed(server, at(6000)));
        assert!(reaching.reached(server) && !reaching.reached(server));
        reaching.tries(server, at(7000));
        assert!(!reaching.failed(server, at(7500)));
        assert!(!reaching.reached(server));
    }
}
