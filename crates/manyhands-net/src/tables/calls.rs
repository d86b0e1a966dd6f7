//! Calls out and in beside an event loop: threads that may block bring links, and ring its bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::message::Reach;
use super::network::Network;
use crate::transport::Link;

/// How often it is looked whether it is over.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How long a call may take.
const CALLING: Duration = Duration::from_secs(5);

/// What wakes an event loop.
#[derive(Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> std::io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(Arc::new(eventfd(0, flags)?)))
    }

    pub(super) fn ring(&self) {
        // A counter that is full rings already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A link that was called for, or a sentence why there is none.
pub(super) type Called<K> = (K, Result<Box<dyn Link>, String>);

/// The calls of an event loop.
pub(super) struct Calls<K> {
    network: Arc<dyn Network>,
    bell: Bell,
    stop: Arc<AtomicBool>,
    outgoing: (Sender<Called<K>>, Receiver<Called<K>>),
    incoming: Option<Receiver<Box<dyn Link>>>,
    door: Option<String>,
    thread: Option<JoinHandle<()>>,
}

impl<K: Clone + Send + 'static> Calls<K> {
    /// Calls of one who is not called.
    pub(super) fn new(network: Arc<dyn Network>, bell: Bell) -> Calls<K> {
        Calls {
            network,
            bell,
            stop: Arc::default(),
            outgoing: channel(),
            incoming: None,
            door: None,
            thread: None,
        }
    }

    /// Calls of one who listens at a door.
    pub(super) fn listening(
        network: Arc<dyn Network>,
        bell: Bell,
        door: &str,
    ) -> std::io::Result<Calls<K>> {
        let mut calls = Calls::new(network, bell);
        let (sender, incoming) = channel();
        let (network, bell) = (Arc::clone(&calls.network), calls.bell.clone());
        let (stop, at) = (Arc::clone(&calls.stop), door.to_string());
        network.open(door);
        let listen = move || {
            while !stop.load(Ordering::Relaxed) {
                if let Some((_, Ok(link))) = network.next_call(&at, LOOK_UP) {
                    let _ = sender.send(link);
                    bell.ring();
                }
            }
        };
        let thread = std::thread::Builder::new().name("tables door".into());
        calls.thread = Some(thread.spawn(listen)?);
        calls.incoming = Some(incoming);
        calls.door = Some(door.to_string());
        Ok(calls)
    }

    /// Calls somebody, beside. The answer comes by [`Calls::next_called`], also where there is no thread for it.
    pub(super) fn call(&self, key: K, to: Reach) {
        let (network, bell) = (Arc::clone(&self.network), self.bell.clone());
        let (stop, answer) = (Arc::clone(&self.stop), self.outgoing.0.clone());
        let called = key.clone();
        let call = move || {
            let gives_up = || stop.load(Ordering::Relaxed);
            let called = network.call(&to, Instant::now() + CALLING, &gives_up);
            let _ = answer.send((key, called.map_err(|error| error.to_string())));
            bell.ring();
        };
        let thread = std::thread::Builder::new().name("tables call".into());
        if let Err(error) = thread.spawn(call) {
            let reason = format!("no thread can be started to call it: {error}");
            let _ = self.outgoing.0.send((called, Err(reason)));
            self.bell.ring();
        }
    }

    pub(super) fn next_called(&self) -> Option<Called<K>> {
        self.outgoing.1.try_recv().ok()
    }

    pub(super) fn next_incoming(&self) -> Option<Box<dyn Link>> {
        self.incoming.as_ref()?.try_recv().ok()
    }
}

impl<K> Drop for Calls<K> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.door.iter().for_each(|door| self.network.close(door));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
