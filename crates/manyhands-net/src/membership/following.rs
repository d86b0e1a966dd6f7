//! What workers and drivers share in following a coordinator: connecting with growing pauses, noticing its silence, and obeying only the
//! newest life of one cluster (M1).

use std::time::Duration;

use super::arrivals::{Arrivals, HEARTBEAT};
use super::identity::{ClusterId, Incarnation};
use super::message::{FromCoordinator, Order};
use super::worker::TICK;

/// The first pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest: well below the time a restarted coordinator waits for members to return.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// An attempt that takes longer has failed.
const CONNECT: Duration = Duration::from_secs(2);

/// How a worker or driver stands with its coordinator.
#[derive(Debug)]
pub(super) struct Following {
    state: Connecting,
    /// The cluster and the newest life of its coordinator that was heard of.
    pub(super) follows: Option<(ClusterId, Incarnation)>,
    arrivals: Arrivals,
    pause: Duration,
    next_heartbeat: Duration,
    /// When something happened last.
    now: Duration,
}

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Connecting {
    /// There is none, the next attempt is at that time.
    Apart { until: Duration },
    /// An attempt began at that time.
    Trying { since: Duration },
    /// There is one; whether the coordinator has taken this process in on it.
    Connected { is_accepted: bool },
}

/// What a message comes to.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// An order to follow.
    Order(Order),
    /// Nothing: it came on a connection that was given up.
    Nothing,
    /// The connection is of no use, and was given up: why.
    Refused(String),
}

impl Following {
    pub(super) fn new(now: Duration) -> Following {
        Following {
            state: Connecting::Apart { until: now },
            follows: None,
            arrivals: Arrivals::new(now),
            pause: FIRST_PAUSE,
            next_heartbeat: now,
            now,
        }
    }

    /// Moves the time on, at every event. A gap much longer than a tick is this process's own sleep, which is nobody else's silence.
    pub(super) fn pass_time(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if gap > 6 * TICK {
            self.arrivals.forgive(gap);
        }
    }

    /// There is a connection. False if none is wanted any more: then it is to be closed.
    pub(super) fn connected(&mut self, now: Duration) -> bool {
        if !matches!(self.state, Connecting::Trying { .. }) {
            return false;
        }
        self.state = Connecting::Connected { is_accepted: false };
        self.arrivals = Arrivals::new(now);
        self.next_heartbeat = now;
        true
    }

    /// The connection is gone, or could not be made.
    pub(super) fn closed(&mut self, now: Duration) {
        if !matches!(self.state, Connecting::Apart { .. }) {
            self.apart(now);
        }
    }

    /// The connection is gone or of no use: the next attempt follows after a pause, twice the one before.
    pub(super) fn apart(&mut self, now: Duration) {
        self.state = Connecting::Apart { until: now + self.pause };
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }

    pub(super) fn accepted(&mut self) {
        self.state = Connecting::Connected { is_accepted: true };
        self.pause = FIRST_PAUSE;
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.state == Connecting::Connected { is_accepted: true }
    }

    /// Looks at who speaks before anything else (M1).
    pub(super) fn hear(&mut self, now: Duration, message: FromCoordinator) -> Heard {
        if !matches!(self.state, Connecting::Connected { .. }) {
            return Heard::Nothing;
        }
        self.arrivals.heard(now);
        if let Err(what) = message.check() {
            self.apart(now);
            return Heard::Refused(format!("the coordinator says what cannot be: {what}"));
        }
        let (cluster, incarnation) = (message.cluster, message.incarnation);
        let reason = match self.follows {
            Some((ours, _)) if ours != cluster => {
                format!(
                    "this coordinator is of cluster {cluster}, and this process belongs to {ours}"
                )
            }
            Some((_, newest)) if newest > incarnation => {
                format!(
                    "coordinator {incarnation} is older than {newest}, which this process follows"
                )
            }
            _ => {
                self.follows = Some((cluster, incarnation));
                return Heard::Order(message.order);
            }
        };
        self.apart(now);
        Heard::Refused(reason)
    }

    /// What time asks for.
    pub(super) fn tick(&mut self, now: Duration) -> Due {
        match self.state {
            Connecting::Apart { until } if now >= until => {
                self.state = Connecting::Trying { since: now };
                Due::Connect
            }
            Connecting::Trying { since } if now > since + CONNECT => {
                self.apart(now);
                Due::Disconnect("no connection within 2 s".to_string())
            }
            Connecting::Connected { .. } if self.arrivals.is_silent(now) => {
                let silence = self.arrivals.silent_for(now).as_secs_f64();
                self.apart(now);
                Due::Disconnect(format!("the coordinator has been silent for {silence:.1} s"))
            }
            Connecting::Connected { is_accepted: true } if now >= self.next_heartbeat => {
                self.next_heartbeat = now + HEARTBEAT;
                Due::Heartbeat
            }
            _ => Due::Nothing,
        }
    }
}

/// What time asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Due {
    Nothing,
    Connect,
    Disconnect(String),
    Heartbeat,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(epoch: u64) -> FromCoordinator {
        let incarnation = Incarnation { epoch, nonce: 1 };
        FromCoordinator { cluster: ClusterId(1), incarnation, order: Order::Alive }
    }

    fn followed(now: Duration) -> Following {
        let mut following = Following::new(now);
        assert_eq!(following.tick(now), Due::Connect);
        assert!(following.connected(now));
        following
    }

    #[test]
    fn an_older_life_is_not_followed_and_its_connection_given_up() {
        let now = Duration::ZERO;
        let mut following = followed(now);
        assert_eq!(following.hear(now, from(2)), Heard::Order(Order::Alive));
        assert!(matches!(following.hear(now, from(1)), Heard::Refused(_)));
        assert_eq!(following.hear(now, from(2)), Heard::Nothing);
        assert!(!following.connected(now), "a connection that nobody asked for");
    }

    #[test]
    fn who_was_asleep_blames_nobody_but_silence_afterwards_counts() {
        let mut now = Duration::ZERO;
        let mut following = followed(now);
        following.hear(now, from(1));
        now += Duration::from_secs(60);
        following.pass_time(now);
        assert_eq!(following.tick(now), Due::Nothing);
        for _ in 0..40 {
            now += TICK;
            following.pass_time(now);
        }
        assert!(matches!(following.tick(now), Due::Disconnect(_)));
    }
}
