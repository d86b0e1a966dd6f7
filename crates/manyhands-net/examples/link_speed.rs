//! How fast each kind of link is between two processes (two threads for the in-process kind):
//! the time of a ping-pong of a few bytes, and the bytes per second one way and both ways at once.
//!
//! `cargo run --release -p manyhands-net --example link_speed -- [KIND ...] [pairs=2] [capacity=1048576] [len=16777216]`
//!
//! With more than one pair the pairs run at the same time, so that ranks outnumber cores.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program that prints numbers, and stops where it cannot

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use manyhands_net::transport::wait::{Interest, Waiting, Woken};
use manyhands_net::transport::{Link, TcpLink, in_process, shared_memory};

const KINDS: [&str; 3] = ["in-process", "shared-memory", "tcp"];
const N_ROUNDS: usize = 20_000;
const N_TRANSFERS: usize = 32;

/// What to measure, as given on the command line.
#[derive(Clone, Copy)]
struct Sizes {
    n_pairs: usize,
    capacity: usize,
    len: usize,
}

fn main() {
    let mut sizes = Sizes { n_pairs: 1, capacity: 1 << 20, len: 16 << 20 };
    let mut kinds = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("pairs", n)) => sizes.n_pairs = n.parse().unwrap(),
            Some(("capacity", n)) => sizes.capacity = n.parse().unwrap(),
            Some(("len", n)) => sizes.len = n.parse().unwrap(),
            Some(("connect", address)) => return other_process(address, sizes),
            _ => kinds.push(argument),
        }
    }
    if kinds.is_empty() {
        kinds = KINDS.map(String::from).to_vec();
    }
    println!(
        "{} pair(s), rings of {} KiB, {} KiB each way",
        sizes.n_pairs,
        sizes.capacity >> 10,
        sizes.len >> 10
    );
    for kind in &kinds {
        measure(kind, sizes);
    }
}

/// Runs all pairs of one kind and prints a line for each.
fn measure(kind: &str, sizes: Sizes) {
    let pairs: Vec<_> = (0..sizes.n_pairs).map(|_| start(kind, sizes)).collect();
    let threads: Vec<_> = pairs
        .into_iter()
        .map(|(link, other)| {
            let kind = kind.to_owned();
            std::thread::spawn(move || {
                println!("{kind:14}{}", one_side(Side::new(link), sizes.len, true));
                other.wait();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Who runs the other side.
enum Other {
    Thread(std::thread::JoinHandle<()>),
    Process(Child),
}

impl Other {
    fn wait(self) {
        match self {
            Other::Thread(thread) => thread.join().unwrap(),
            Other::Process(mut child) => assert!(child.wait().unwrap().success()),
        }
    }
}

/// A link to an other side that runs.
fn start(kind: &str, sizes: Sizes) -> (Box<dyn Link>, Other) {
    match kind {
        "in-process" => {
            let (one, other) = in_process::pair(sizes.capacity).unwrap();
            let side = Side::new(Box::new(other));
            let other = std::thread::spawn(move || drop(one_side(side, sizes.len, false)));
            (Box::new(one), Other::Thread(other))
        }
        "shared-memory" => {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let child = start_process(&format!("unix:{}", path.display()), sizes);
            let socket = listener.accept().unwrap().0;
            (Box::new(shared_memory::offer(socket, sizes.capacity).unwrap()), Other::Process(child))
        }
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let child = start_process(&listener.local_addr().unwrap().to_string(), sizes);
            let stream = listener.accept().unwrap().0;
            (Box::new(TcpLink::new(stream).unwrap()), Other::Process(child))
        }
        _ => panic!("no kind {kind}: it is one of {KINDS:?}"),
    }
}

fn start_process(address: &str, sizes: Sizes) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([format!("len={}", sizes.len), format!("connect={address}")])
        .spawn()
        .unwrap()
}

/// What the other process does.
fn other_process(address: &str, sizes: Sizes) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let link: Box<dyn Link> = match address.strip_prefix("unix:") {
        Some(path) => {
            let socket = UnixStream::connect(path).unwrap();
            Box::new(shared_memory::accept(socket, deadline).unwrap())
        }
        None => Box::new(TcpLink::new(TcpStream::connect(address).unwrap()).unwrap()),
    };
    drop(one_side(Side::new(link), sizes.len, false));
}

/// One side's turn at everything; the numbers, as a line.
fn one_side(mut side: Side, len: usize, begins: bool) -> String {
    let bytes = vec![7; len];
    let mut arrived = vec![0; len];
    side.ping_pong(N_ROUNDS / 10, begins);
    let mut line = String::new();
    for n_bytes in [8, 4096] {
        let start = Instant::now();
        side.ping_pong_of(N_ROUNDS, begins, n_bytes);
        let half = start.elapsed().as_secs_f64() / N_ROUNDS as f64 / 2.0;
        line += &format!(" {n_bytes:5} B one way {:7.3} us", half * 1e6);
    }
    let start = Instant::now();
    for _ in 0..N_TRANSFERS {
        if begins {
            side.exchange(&bytes, &mut []);
        } else {
            side.exchange(&[], &mut arrived);
        }
    }
    side.ping_pong(1, begins);
    line += &format!("  one way {:6.2} GB/s", rate(len, start));
    let start = Instant::now();
    for _ in 0..N_TRANSFERS {
        side.exchange(&bytes, &mut arrived);
    }
    line += &format!("  both ways {:6.2} GB/s each", rate(len, start));
    line
}

fn rate(len: usize, start: Instant) -> f64 {
    (len * N_TRANSFERS) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// A link with what is needed to wait on it.
struct Side {
    link: [Option<Box<dyn Link>>; 1],
    waiting: Waiting,
}

impl Side {
    fn new(link: Box<dyn Link>) -> Side {
        Side { link: [Some(link)], waiting: Waiting::new() }
    }

    fn ping_pong(&mut self, n_rounds: usize, begins: bool) {
        self.ping_pong_of(n_rounds, begins, 8);
    }

    fn ping_pong_of(&mut self, n_rounds: usize, begins: bool, len: usize) {
        let mut bytes = vec![1; len];
        for _ in 0..n_rounds {
            if begins {
                self.exchange(&bytes, &mut []);
                self.exchange(&[], &mut bytes);
            } else {
                self.exchange(&[], &mut bytes);
                self.exchange(&bytes, &mut []);
            }
        }
    }

    /// Sends all and receives all, at the same time.
    fn exchange(&mut self, outgoing: &[u8], incoming: &mut [u8]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut n_sent, mut n_received) = (0, 0);
        loop {
            let link = self.link[0].as_mut().unwrap();
            // Alternating in small amounts keeps what is copied in the cache.
            let end = outgoing.len().min(n_sent + (256 << 10));
            let sent = link.try_send(&outgoing[n_sent..end]).unwrap();
            let received = link.try_receive(&mut incoming[n_received..]).unwrap();
            n_sent += sent;
            n_received += received;
            if n_sent == outgoing.len() && n_received == incoming.len() {
                return;
            }
            if sent + received > 0 {
                self.waiting.progressed();
                continue;
            }
            let interest = |_| {
                if n_sent < outgoing.len() { Interest::ReceiveOrRoom } else { Interest::Receive }
            };
            let woken = self.waiting.wait(&mut self.link, interest, None, deadline).unwrap();
            assert_eq!(woken, Woken::Ready);
        }
    }
}
