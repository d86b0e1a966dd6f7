//! Whoever calls or is called gives up when told so, however far the call is: the other may be frozen, and its system still accepts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use manyhands_net::host::host_id;
use manyhands_net::secure::Secret;
use manyhands_net::station::{PEER, Route, Station, StationError};
use manyhands_net::wire::dial;

/// Far beyond the time in which everybody must have given up.
const LONG: Duration = Duration::from_secs(60);
/// Generous, for a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn station() -> Station {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Station::open(here, Secret::random().unwrap(), Route::Auto).unwrap()
}

/// Checks that a wait ends soon after it is told to, and not before.
fn check<T>(wait: impl FnOnce(&dyn Fn() -> bool) -> Result<T, StationError>) {
    let n_asked = AtomicU32::new(0);
    let start = Instant::now();
    let outcome = wait(&|| n_asked.fetch_add(1, Ordering::Relaxed) == 3);
    assert!(matches!(outcome, Err(StationError::Aborted)), "{:?}", outcome.err());
    assert_eq!(n_asked.into_inner(), 4, "asked again after each moment, and not once more");
    assert!(start.elapsed() < SOON);
}

fn call(address: &str) {
    // Another address to try does not make it go on.
    let addresses = [address.to_string(), address.to_string()];
    let own = station();
    check(|gives_up| own.call(&addresses, host_id(), "key", Instant::now() + LONG, gives_up));
}

#[test]
fn a_call_of_one_who_never_takes_it_is_given_up() {
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    call(&frozen.local_addr().unwrap().to_string());
}

#[test]
fn a_call_by_a_local_name_is_given_up() {
    let name = format!("manyhands-test-{}", std::process::id());
    let place = UnixAddr::from_abstract_name(&name).unwrap();
    let frozen = UnixListener::bind_addr(&place).unwrap();
    call(&format!("unix:@{name}"));
    // That call is still in the queue, which is full now: not even the system takes another.
    rustix::net::listen(frozen.as_fd(), 0).unwrap();
    call(&format!("unix:@{name}"));
}

#[test]
fn a_call_whose_first_packet_is_swallowed_is_given_up() {
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(frozen.as_fd(), 0).unwrap();
    let place = frozen.local_addr().unwrap();
    // A full queue drops what comes.
    let waits = |place: &SocketAddr| TcpStream::connect_timeout(place, Duration::from_millis(200));
    let mut full = Vec::new();
    while let Ok(stream) = waits(&place) {
        full.push(stream);
        assert!(full.len() < 10, "the queue does not fill");
    }
    call(&place.to_string());
}

#[test]
fn one_who_waits_for_a_call_gives_up() {
    let own = station();
    check(|gives_up| own.await_call("key", Instant::now() + LONG, gives_up));
}

#[test]
fn one_who_was_called_and_is_offered_no_memory_gives_up() {
    let secret = Secret::random().unwrap();
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let own = Station::open(here, secret.clone(), Route::Auto).unwrap();
    let hello = serde_json::json!({ "key": "key", "host": host_id(), "route": "auto" });
    let local = own.addresses(None).swap_remove(0);
    let silent = dial(&local, &secret, PEER, hello.to_string().as_bytes(), SOON).unwrap();
    // So that the call is there before it is waited for.
    let end = Instant::now() + SOON;
    while own.refusals().admitted == 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    check(|gives_up| own.await_call("key", Instant::now() + LONG, gives_up));
    drop(silent);
}
