//! Where other processes reach this one, and how it reaches them: links by shared memory on one machine, by TCP between machines.
//!
//! Whoever calls says who it is and what for (a *key*); the called side waits for that key. Calls that nobody waits for are dropped when others
//! come after them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::host::{host_id, random_number};
use crate::secure::{Purpose, Secret, SecureLink};
use crate::transport::{Link, LinkError, TcpLink, shared_memory};
use crate::wire::{
    Admitted, DialError, Doorman, DoormanError, DoormanSettings, Refusals, Socket, dial_unless,
};

/// Bytes that a ring in shared memory holds.
pub const RING: usize = 1 << 20;
/// The most calls that wait to be taken.
const MOST_WAITING: usize = 256;
/// How often somebody who waits looks whether to give up.
const LOOK_UP: Duration = Duration::from_millis(20);
/// How long one who has called may take to offer memory.
const OFFERING: Duration = Duration::from_secs(2);

/// What connections between two members of a cluster are for.
pub const PEER: Purpose = Purpose(2);

/// How ranks may be linked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Shared memory on one machine, TCP between machines, encrypted there.
    #[default]
    Auto,
    /// TCP everywhere, encrypted between machines.
    Tcp,
    /// TCP everywhere, encrypted.
    TcpEncrypted,
}

/// What a caller says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    /// What the called side waits for.
    key: String,
    host: String,
    route: Route,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// No address of the other answers.
    #[error("{0}")]
    Dial(DialError),
    /// The connection failed after the handshake.
    #[error("the link to {peer} failed: {source}")]
    Link {
        /// To whom.
        peer: String,
        /// What failed.
        source: LinkError,
    },
    /// The other did not call.
    #[error("nobody called as {key} within {:.1} s", after.as_secs_f64())]
    NoCall {
        /// Whom this side waited for.
        key: String,
        /// For how long.
        after: Duration,
    },
    /// Somebody asked to give up.
    #[error("it was given up")]
    Aborted,
    /// The station cannot be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The door cannot be served.
    #[error(transparent)]
    Door(#[from] DoormanError),
    /// The other has no address.
    #[error("the other side has no address")]
    NoAddress,
    /// Others cannot be told where this process is.
    #[error(
        "no address of this machine was found at which others can reach it: pass one of its addresses (--bind ADDRESS)"
    )]
    NoOwnAddress,
}

impl From<DialError> for StationError {
    fn from(error: DialError) -> StationError {
        match error {
            DialError::Aborted { .. } => StationError::Aborted,
            error => StationError::Dial(error),
        }
    }
}

/// What others are told instead of "all addresses", where a process of the coordinator's cluster listens on all.
pub fn public_address(coordinator: &str, bind: IpAddr) -> Result<Option<IpAddr>, StationError> {
    if !bind.is_unspecified() {
        return Ok(None);
    }
    let found = crate::host::public_address(coordinator);
    // One of another family would lead to where nobody listens.
    let found = found.filter(|ip| ip.is_ipv4() == bind.is_ipv4());
    found.map(Some).ok_or(StationError::NoOwnAddress)
}

/// A call: what the caller says it is, and the link to it.
pub type Call = (String, Result<Box<dyn Link>, StationError>);

/// A process's place in the network.
pub struct Station {
    secret: Secret,
    route: Route,
    addresses: Vec<String>,
    waiting: Arc<Waiting>,
    doorman: Doorman,
}

#[derive(Default)]
struct Waiting {
    calls: Mutex<VecDeque<(String, Admitted)>>,
    arrived: Condvar,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Admitted)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Station {
    /// Listens on a free port of an address, and for processes of this machine.
    pub fn open(bind: IpAddr, secret: Secret, route: Route) -> Result<Station, StationError> {
        let listening = |address: String| move |source| StationError::Listen { address, source };
        let place = SocketAddr::new(bind, 0);
        let tcp = TcpListener::bind(place).map_err(listening(place.to_string()))?;
        let port = tcp.local_addr().map_err(listening(place.to_string()))?.port();
        let number = random_number().map_err(listening("a local name".to_string()))?;
        let name = format!("manyhands-{number:016x}");
        let local = || UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?);
        let unix = local().map_err(listening(name.clone()))?;
        let addresses = vec![format!("unix:@{name}"), SocketAddr::new(bind, port).to_string()];
        let waiting = Arc::<Waiting>::default();
        let hello =
            serde_json::to_vec(&Hello { key: String::new(), host: host_id().to_string(), route })
                .unwrap_or_default();
        let settings = DoormanSettings::new(secret.clone(), [PEER], hello);
        let arrivals = Arc::clone(&waiting);
        let doorman = Doorman::start(tcp, Some(unix), settings, move |admitted| {
            let Ok(hello) = serde_json::from_slice::<Hello>(&admitted.established.hello) else {
                return;
            };
            let mut calls = arrivals.lock();
            if calls.len() == MOST_WAITING {
                calls.pop_front();
            }
            calls.push_back((hello.key, admitted));
            arrivals.arrived.notify_all();
        })?;
        Ok(Station { secret, route, addresses, waiting, doorman })
    }

    /// Where others reach this process. A machine's own name for itself is not known here: where it listens on all addresses, `public` is told instead.
    pub fn addresses(&self, public: Option<IpAddr>) -> Vec<String> {
        let mut addresses = self.addresses.clone();
        if let (Some(public), Some(tcp)) = (public, addresses.get_mut(1))
            && let Ok(mut place) = tcp.parse::<SocketAddr>()
            && place.ip().is_unspecified()
        {
            place.set_ip(public);
            *tcp = place.to_string();
        }
        addresses
    }

    /// Whether processes of one machine are linked by memory.
    pub fn shares_memory(&self) -> bool {
        self.route == Route::Auto
    }

    /// Who was let in and who was not.
    pub fn refusals(&self) -> Refusals {
        self.doorman.refusals()
    }

    /// Calls another by one of its addresses, as `key`. `gives_up` is asked every few milliseconds, so that one who accepts and does not answer keeps nobody.
    pub fn call(
        &self,
        addresses: &[String],
        host: &str,
        key: &str,
        deadline: Instant,
        gives_up: impl Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        let hello = Hello { key: key.to_string(), host: host_id().to_string(), route: self.route };
        let hello = serde_json::to_vec(&hello).unwrap_or_default();
        let is_near = host == host_id() && self.route == Route::Auto;
        // Local names come first, and are tried on one machine only.
        let usable = addresses.iter().filter(|address| is_near || !address.starts_with("unix:"));
        let mut last = StationError::NoAddress;
        for address in usable {
            let left = deadline.saturating_duration_since(Instant::now());
            match dial_unless(address, &self.secret, PEER, &hello, left, &gives_up) {
                Ok(admitted) => return self.link(admitted, true, deadline, &gives_up),
                Err(error @ DialError::Aborted { .. }) => return Err(error.into()),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    /// Waits for a call as `key`.
    pub fn await_call(
        &self,
        key: &str,
        deadline: Instant,
        gives_up: impl Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        let start = Instant::now();
        let mut calls = self.waiting.lock();
        loop {
            // Of several calls the last is the one that the caller still holds.
            if let Some(place) = calls.iter().rposition(|(of, _)| of == key)
                && let Some((_, admitted)) = calls.remove(place)
            {
                drop(calls);
                return self.link(admitted, false, deadline, &gives_up);
            }
            if gives_up() {
                return Err(StationError::Aborted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StationError::NoCall { key: key.to_string(), after: start.elapsed() });
            }
            let waited = self.waiting.arrived.wait_timeout(calls, left.min(LOOK_UP));
            calls = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next call of anyone whose key begins with this.
    pub fn next_call(&self, prefix: &str, wait: Duration) -> Option<Call> {
        let deadline = Instant::now() + wait;
        let mut calls = self.waiting.lock();
        loop {
            if let Some(place) = calls.iter().position(|(of, _)| of.starts_with(prefix))
                && let Some((key, admitted)) = calls.remove(place)
            {
                drop(calls);
                let deadline = Instant::now() + OFFERING;
                return Some((key, self.link(admitted, false, deadline, &|| false)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.waiting.arrived.wait_timeout(calls, left);
            calls = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A link over a proven connection. Both sides come to the same kind, since both know hosts and routes of both.
    fn link(
        &self,
        admitted: Admitted,
        calls: bool,
        deadline: Instant,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        let Admitted { socket, peer, established } = admitted;
        let theirs = serde_json::from_slice::<Hello>(&established.hello).ok();
        let is_near = theirs.as_ref().is_some_and(|theirs| theirs.host == host_id());
        let routes = [Some(self.route), theirs.map(|theirs| theirs.route)];
        let is_encrypted = !is_near || routes.contains(&Some(Route::TcpEncrypted));
        let link = match socket {
            Socket::Unix(stream) => match calls {
                true => shared_memory::offer(stream, RING),
                false => shared_memory::accept_unless(stream, deadline, gives_up),
            }
            .map(|link| Box::new(link) as Box<dyn Link>),
            Socket::Tcp(stream) => TcpLink::new(stream).map(|link| match is_encrypted {
                true => Box::new(SecureLink::new(link, established.keys)) as Box<dyn Link>,
                false => Box::new(link),
            }),
        };
        link.map_err(|source| match source {
            LinkError::Aborted => StationError::Aborted,
            source => StationError::Link { peer, source },
        })
    }
}
