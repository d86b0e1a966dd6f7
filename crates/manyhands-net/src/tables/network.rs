//! How those who work with tables reach each other: by stations, or within one process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::Reach;
use crate::host::host_id;
use crate::station::{Call, Station, StationError};
use crate::transport::{Link, LinkError, in_process};

/// Bytes of a ring within a process.
const RING: usize = 1 << 20;

/// Calls out, and calls that come in.
pub trait Network: Send + Sync {
    /// Where others reach this side, at a door of this name.
    fn reach(&self, door: &str) -> Reach;

    /// Calls somebody. The key of the call is its door.
    fn call(
        &self,
        to: &Reach,
        deadline: Instant,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError>;

    /// The next call for a door.
    fn next_call(&self, door: &str, wait: Duration) -> Option<Call>;

    /// Somebody listens at a door from now on.
    fn open(&self, _door: &str) {}

    /// Nobody listens at a door any more.
    fn close(&self, _door: &str) {}
}

/// A station, with the address that others are told where it listens on all.
pub struct OnStation {
    station: Arc<Station>,
    public: Option<std::net::IpAddr>,
}

impl OnStation {
    /// Calls by this station. `public` as for [`Station::addresses`].
    pub fn new(station: Arc<Station>, public: Option<std::net::IpAddr>) -> OnStation {
        OnStation { station, public }
    }
}

impl Network for OnStation {
    fn reach(&self, door: &str) -> Reach {
        let addresses = self.station.addresses(self.public);
        Reach { host: host_id().to_string(), addresses, door: door.to_string() }
    }

    fn call(
        &self,
        to: &Reach,
        deadline: Instant,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        self.station.call(&to.addresses, &to.host, &to.door, deadline, gives_up)
    }

    fn next_call(&self, door: &str, wait: Duration) -> Option<Call> {
        self.station.next_call(door, wait)
    }
}

/// A network within one process: everyone has the same one.
#[derive(Clone, Default)]
pub struct WithinProcess {
    shared: Arc<Doors>,
}

#[derive(Default)]
struct Doors {
    calls: Mutex<BTreeMap<String, VecDeque<Call>>>,
    arrived: Condvar,
}

impl Doors {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, VecDeque<Call>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WithinProcess {
    /// A network of its own.
    pub fn new() -> WithinProcess {
        WithinProcess::default()
    }
}

impl Network for WithinProcess {
    fn reach(&self, door: &str) -> Reach {
        Reach { host: host_id().to_string(), addresses: Vec::new(), door: door.to_string() }
    }

    fn call(
        &self,
        to: &Reach,
        _deadline: Instant,
        _gives_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        let failed = |source| StationError::Link { peer: to.door.clone(), source };
        let (one, other) = in_process::pair(RING).map_err(failed)?;
        let call: Call = (to.door.clone(), Ok(Box::new(other)));
        match self.shared.lock().get_mut(&to.door) {
            Some(door) => door.push_back(call),
            None => return Err(failed(LinkError::Closed)),
        }
        self.shared.arrived.notify_all();
        Ok(Box::new(one))
    }

    fn next_call(&self, door: &str, wait: Duration) -> Option<Call> {
        let deadline = Instant::now() + wait;
        let mut calls = self.shared.lock();
        loop {
            if let Some(call) = calls.get_mut(door).and_then(VecDeque::pop_front) {
                return Some(call);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.arrived.wait_timeout(calls, left);
            calls = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    fn open(&self, door: &str) {
        self.shared.lock().entry(door.to_string()).or_default();
    }

    fn close(&self, door: &str) {
        self.shared.lock().remove(door);
    }
}
