//! Two sides of a link, of any kind, with the other one played by a thread or a process.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_net::transport::wait::{Interest, Waiting, Woken};
use manyhands_net::transport::{Link, LinkError, in_process, shared_memory, tcp};

use super::conformance::Role;

/// A hang is found out after this; nothing takes near as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the bytes travel through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InProcess,
    SharedMemory,
    SharedMemoryOfTwoProcesses,
    Tcp,
    TcpOfTwoProcesses,
}

impl Kind {
    /// What a sender can send without a receiver, where it is known.
    pub(crate) fn has_capacity(self) -> bool {
        !matches!(self, Kind::Tcp | Kind::TcpOfTwoProcesses)
    }
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Starts the other side in its role; our side, and a handle on the other.
pub(crate) fn start(kind: Kind, capacity: usize, role: Role) -> (Side, Other) {
    match kind {
        Kind::InProcess => {
            let (one, other) = in_process::pair(capacity).unwrap();
            (Side::new(one), Other::thread(Side::new(other), role))
        }
        Kind::SharedMemory => {
            let (one, other) = UnixStream::pair().unwrap();
            let one = shared_memory::offer(one, capacity).unwrap();
            let other = shared_memory::accept(other, deadline()).unwrap();
            (Side::new(one), Other::thread(Side::new(other), role))
        }
        Kind::SharedMemoryOfTwoProcesses => {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let other = Other::process(path.to_str().unwrap(), role);
            listener.set_nonblocking(true).unwrap();
            let socket = until_there(|| listener.accept()).0;
            (Side::new(shared_memory::offer(socket, capacity).unwrap()), other)
        }
        Kind::Tcp => {
            let (listener, address) = tcp_listener();
            let other = tcp::connect(address.parse().unwrap(), deadline()).unwrap();
            let one = tcp::TcpLink::new(until_there(|| listener.accept()).0).unwrap();
            (Side::new(one), Other::thread(Side::new(other), role))
        }
        Kind::TcpOfTwoProcesses => {
            let (listener, address) = tcp_listener();
            let other = Other::process(&address, role);
            let stream: TcpStream = until_there(|| listener.accept()).0;
            (Side::new(tcp::TcpLink::new(stream).unwrap()), other)
        }
    }
}

fn tcp_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Tries until it succeeds.
fn until_there<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    let deadline = deadline();
    loop {
        match attempt() {
            Ok(there) => return there,
            Err(error) => {
                assert!(Instant::now() < deadline, "the other side did not come: {error}")
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In the other process: connects and plays the role, where there is one.
pub(crate) fn play_role_of_environment() {
    let Ok(role) = std::env::var("LINKS_ROLE") else { return };
    let address = std::env::var("LINKS_ADDRESS").unwrap();
    let side = if Path::new(&address).exists() {
        let socket = UnixStream::connect(&address).unwrap();
        Side::new(shared_memory::accept(socket, deadline()).unwrap())
    } else {
        Side::new(tcp::connect(address.parse().unwrap(), deadline()).unwrap())
    };
    let role: Role = serde_json::from_str(&role).unwrap();
    role.play(side, &mut std::io::stdin());
}

/// The other side, while it runs.
pub(crate) enum Other {
    Thread { thread: JoinHandle<()>, gate: UnixStream },
    Process(Child),
}

impl Other {
    fn thread(side: Side, role: Role) -> Other {
        let (gate, mut gate_of_other) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || role.play(side, &mut gate_of_other));
        Other::Thread { thread, gate }
    }

    fn process(address: &str, role: Role) -> Other {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["the_other_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("LINKS_ROLE", serde_json::to_string(&role).unwrap())
            .env("LINKS_ADDRESS", address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Other::Process(child)
    }

    /// Lets a role that waits at its gate go on.
    pub(crate) fn open_gate(&mut self) {
        match self {
            Other::Thread { gate, .. } => gate.shutdown(std::net::Shutdown::Both).unwrap(),
            Other::Process(child) => drop(child.stdin.take()),
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        match self {
            Other::Thread { .. } => panic!("a thread cannot be killed"),
            Other::Process(child) => child.kill().unwrap(),
        }
    }

    /// Waits until the role is over. Whether it went well.
    pub(crate) fn end(self) -> bool {
        match self {
            Other::Thread { thread, gate } => {
                drop(gate);
                thread.join().is_ok()
            }
            Other::Process(mut child) => child.wait().unwrap().success(),
        }
    }
}

/// Waits until the gate opens: until its other end is closed.
pub(crate) fn pass_gate(gate: &mut dyn Read) {
    let _ = gate.read(&mut [0]);
}

/// One side of a link, with what is needed to wait on it.
pub(crate) struct Side {
    link: [Option<Box<dyn Link>>; 1],
    pub(crate) waiting: Waiting,
}

impl Side {
    pub(crate) fn new(link: impl Link + 'static) -> Side {
        Side { link: [Some(Box::new(link))], waiting: Waiting::new() }
    }

    pub(crate) fn link(&mut self) -> &mut dyn Link {
        self.link[0].as_mut().unwrap().as_mut()
    }

    /// Waits until something may go on; panics where nothing ever does.
    pub(crate) fn wait(&mut self, interest: Interest, deadline: Instant) {
        let woken = self.waiting.wait(&mut self.link, |_| interest, None, deadline).unwrap();
        assert_eq!(woken, Woken::Ready, "nothing came and nothing went: a lost wake-up");
    }

    pub(crate) fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        let deadline = deadline();
        while !bytes.is_empty() {
            match self.link().try_send(bytes)? {
                0 => self.wait(Interest::ReceiveOrRoom, deadline),
                n => {
                    bytes = &bytes[n..];
                    self.waiting.progressed();
                }
            }
        }
        Ok(())
    }

    /// Receives at least one byte.
    pub(crate) fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let deadline = deadline();
        loop {
            match self.link().try_receive(bytes)? {
                0 => self.wait(Interest::Receive, deadline),
                n => {
                    self.waiting.progressed();
                    return Ok(n);
                }
            }
        }
    }

    pub(crate) fn receive_exact(&mut self, bytes: &mut [u8]) -> Result<(), LinkError> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.receive_some(&mut bytes[done..])?;
        }
        Ok(())
    }

    /// Makes sure that nothing comes any more but the end, again and again.
    pub(crate) fn expect_closed(&mut self) {
        for _ in 0..2 {
            let result = self.receive_some(&mut [0; 16]);
            assert!(matches!(result, Err(LinkError::Closed)), "{result:?} instead of the end");
        }
    }
}

/// Numbers that look random and are the same for the same seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) % end as u64) as usize
    }

    /// Lets up to about a microsecond pass.
    pub(crate) fn moment(&mut self) {
        (0..self.below(60)).for_each(|_| std::hint::spin_loop());
    }

    /// Does nothing for a while: mostly not at all, sometimes long enough that the other side falls asleep.
    pub(crate) fn pause(&mut self) {
        match self.below(8) {
            0 => std::thread::sleep(Duration::from_micros(self.below(200) as u64)),
            1 => std::thread::yield_now(),
            2 => (0..self.below(5000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

/// The bytes of an endless sequence from a position on.
pub(crate) fn sequence(seed: u64, position: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        (((at as u64).wrapping_add(seed)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
    };
    (position..position + len).map(byte).collect()
}
