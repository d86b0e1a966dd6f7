//! What workers and drivers share in following a coordinator: connecting with growing pauses, noticing its silence, and obeying only the
//! newest life of one cluster (M1).

use std::time::Duration;

use super::arrivals::{Arrivals, HEARTBEAT};
use super::identity::{ClusterId, Incarnation};
use super::message::FromCoordinator;

/// The first pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest: well below the time a restarted coordinator waits for members to return.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// An attempt that takes longer has failed.
const CONNECT: Duration = Duration::from_secs(2);

/// How a worker or driver stands with its coordinator.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) state: Connecting,
    /// The cluster and the newest life of its coordinator that was heard of.
    pub(super) follows: Option<(ClusterId, Incarnation)>,
    arrivals: Arrivals,
    pause: Duration,
    next_heartbeat: Duration,
}

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Connecting {
    /// There is none, the next attempt is at that time.
    Apart { until: Duration },
    /// An attempt began at that time.
    Trying { since: Duration },
    /// There is one; whether the coordinator has taken this process in on it.
    Connected { is_accepted: bool },
}

/// Whether to obey a message.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Obey,
    /// Not, and why: the connection is of no use.
    Refuse(String),
}

impl Following {
    pub(super) fn new(now: Duration) -> Following {
        Following {
            state: Connecting::Apart { until: now },
            follows: None,
            arrivals: Arrivals::new(now),
            pause: FIRST_PAUSE,
            next_heartbeat: now,
        }
    }

    pub(super) fn connected(&mut self, now: Duration) {
        self.state = Connecting::Connected { is_accepted: false };
        self.arrivals = Arrivals::new(now);
        self.next_heartbeat = now;
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

    pub(super) fn heard(&mut self, now: Duration, message: &FromCoordinator) -> Verdict {
        self.arrivals.heard(now);
        let (cluster, incarnation) = (message.cluster, message.incarnation);
        match self.follows {
            Some((ours, _)) if ours != cluster => Verdict::Refuse(format!(
                "this coordinator is of cluster {cluster}, and this process belongs to {ours}"
            )),
            Some((_, newest)) if newest > incarnation => Verdict::Refuse(format!(
                "coordinator {incarnation} is older than {newest}, which this process follows"
            )),
            _ => {
                self.follows = Some((cluster, incarnation));
                Verdict::Obey
            }
        }
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
