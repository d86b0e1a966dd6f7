//! A way to a process through this one, on which bytes can be held up: the two ends stay connected, and nothing moves.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A way to an address, which is there until the tests end.
pub(crate) struct Passage {
    /// Where it begins.
    pub(crate) address: String,
    is_held: Arc<AtomicBool>,
}

impl Passage {
    /// A way that leads to an address.
    pub(crate) fn to(address: &str) -> Passage {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let is_held = Arc::<AtomicBool>::default();
        let own = Passage {
            address: listener.local_addr().unwrap().to_string(),
            is_held: Arc::clone(&is_held),
        };
        let to = address.to_string();
        std::thread::spawn(move || {
            while let Ok((one, _)) = listener.accept() {
                let Ok(other) = TcpStream::connect(&to) else { continue };
                let back = (other.try_clone().unwrap(), one.try_clone().unwrap());
                for (from, to) in [(one, other), back] {
                    let is_held = Arc::clone(&is_held);
                    std::thread::spawn(move || carry(from, to, &is_held));
                }
            }
        });
        own
    }

    /// Nothing moves from now on, or it does again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
    }
}

/// Carries bytes until one side ends.
fn carry(mut from: TcpStream, mut to: TcpStream, is_held: &AtomicBool) {
    let mut bytes = [0; 4096];
    loop {
        let n = from.read(&mut bytes).unwrap_or(0);
        while is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if n == 0 || to.write_all(&bytes[..n]).is_err() {
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
