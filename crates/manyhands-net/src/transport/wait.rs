//! Waiting on many links at once: a short time awake, since the other side is mostly about to answer, then asleep.
//!
//! ```no_run
//! # use manyhands_net::transport::{Link, LinkError, wait::{Interest, WaitError, Waiting, Woken}};
//! # fn go_on(_: &mut [Option<Box<dyn Link>>]) -> Result<usize, LinkError> { Ok(0) }
//! # fn example(mut links: Vec<Option<Box<dyn Link>>>, deadline: std::time::Instant) -> Result<(), WaitError> {
//! let mut waiting = Waiting::new();
//! loop {
//!     // Send and receive on every link what goes.
//!     let n_moved = go_on(&mut links).unwrap_or(0);
//!     if n_moved > 0 {
//!         waiting.progressed();
//!         continue;
//!     }
//!     match waiting.wait(&mut links, |_peer_idx| Interest::Receive, None, deadline)? {
//!         Woken::Ready => {}
//!         Woken::Interrupted | Woken::TimeOver => break,
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::io;
use std::ops::DerefMut;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Link, LinkError};

/// What is waited for on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Nothing: the link is left alone, and its end is not noticed.
    Nothing,
    /// Something to receive. It must then be received, or the next wait ends at once.
    Receive,
    /// Something to receive, or room to send.
    ReceiveOrRoom,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something may go on. Or not: try all, and wait again.
    Ready,
    /// The descriptor for interruptions is readable; whoever waits takes in what made it so.
    Interrupted,
    /// The deadline is over and nothing can go on.
    TimeOver,
}

/// Why waiting is impossible.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// A link failed when it was told of the sleep.
    #[error("link {link_idx} failed: {source}")]
    Link {
        /// Which of the links.
        link_idx: usize,
        /// How it failed.
        source: LinkError,
    },
    /// The system refused to wait.
    #[error("waiting on links failed: {0}")]
    Poll(#[from] io::Error),
}

/// How long to try again at once. A time, not a count: a try costs 30 ns on a ring and a call of the system on a socket.
const BUSY_FOR: Duration = Duration::from_micros(1);

/// How long to stay awake in all, offering the processor to others between tries. Measured over shared memory with more ranks than cores: 20 us
/// makes a ping-pong twice as slow, since falling asleep and waking up cost about that; being busy for longer than 1 us
/// keeps the core from the one waited for.
const AWAKE_FOR: Duration = Duration::from_micros(50);

/// The state of somebody who waits again and again. It remembers how long nothing has moved.
#[derive(Debug)]
pub struct Waiting {
    awake_for: Duration,
    still_since: Option<Instant>,
    /// Kept for its memory only: always empty between waits.
    polled: Vec<PollFd<'static>>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { awake_for: AWAKE_FOR, still_since: None, polled: Vec::new() }
    }
}

impl Waiting {
    /// Somebody who has not waited yet.
    pub fn new() -> Waiting {
        Waiting::default()
    }

    /// Somebody who waits on up to so many links, and takes no memory for it later.
    pub fn on(n_links: usize) -> Waiting {
        // One more for interruptions.
        Waiting { polled: Vec::with_capacity(n_links + 1), ..Waiting::default() }
    }

    /// Somebody who sleeps at once: for those who mostly wait long and whose time does not matter.
    pub fn sleeping_at_once() -> Waiting {
        Waiting { awake_for: Duration::ZERO, ..Waiting::default() }
    }

    /// Stays awake for so long from now on.
    pub fn stay_awake_for(&mut self, awake_for: Duration) {
        self.awake_for = awake_for;
    }

    /// Says that something moved: the next waits are awake again.
    pub fn progressed(&mut self) {
        self.still_since = None;
    }

    /// To be called when a try on every link moved nothing. While little time has passed since something moved it returns
    /// at once, for another try; then it sleeps until something may go on, `interruption` becomes readable, or the deadline.
    /// Interruptions are looked at only when sleeping, so up to some 50 us late.
    pub fn wait<L>(
        &mut self,
        links: &mut [Option<L>],
        interest: impl Fn(usize) -> Interest,
        interruption: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<Woken, WaitError>
    where
        L: DerefMut<Target: Link>,
    {
        if self.stays_awake() {
            return Ok(Woken::Ready);
        }
        let result = match all_sleepy(links, &interest) {
            Ok(true) => self.sleep(links, &interest, interruption, deadline),
            Ok(false) => Ok(Woken::Ready),
            Err(error) => Err(error),
        };
        for (_, link, _) in interesting(links, &interest) {
            link.awake();
        }
        self.progressed();
        result
    }

    /// Whether it is too early to sleep.
    fn stays_awake(&mut self) -> bool {
        if self.awake_for.is_zero() {
            return false;
        }
        let now = Instant::now();
        let still_for = now.duration_since(*self.still_since.get_or_insert(now));
        if still_for < BUSY_FOR {
            std::hint::spin_loop();
        } else if still_for < self.awake_for {
            // There may be more ranks than cores: the one waited for may need this one.
            std::thread::yield_now();
        }
        still_for < self.awake_for
    }

    /// Sleeps on the bells.
    fn sleep<L>(
        &mut self,
        links: &[Option<L>],
        interest: &impl Fn(usize) -> Interest,
        interruption: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<Woken, WaitError>
    where
        L: DerefMut<Target: Link>,
    {
        let mut polled: Vec<PollFd<'_>> = std::mem::take(&mut self.polled);
        polled.extend(interruption.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        for (link_idx, link) in links.iter().enumerate() {
            let (Some(link), Some(wants_room)) = (link, wants_room(interest(link_idx))) else {
                continue;
            };
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, wants_room && link.room_is_writable());
            polled.push(PollFd::from_borrowed_fd(link.bell(), events));
        }
        let result = poll_until(&mut polled, deadline);
        let interrupted = interruption.is_some() && !polled[0].revents().is_empty();
        polled.clear();
        // Collecting nothing keeps the memory and changes the lifetime.
        self.polled = polled.into_iter().map(|_| unreachable!("it was cleared")).collect();
        Ok(match result? {
            _ if interrupted => Woken::Interrupted,
            true => Woken::Ready,
            false => Woken::TimeOver,
        })
    }
}

/// Tells all links of the sleep. Whether none has anything to do.
fn all_sleepy<L>(
    links: &mut [Option<L>],
    interest: &impl Fn(usize) -> Interest,
) -> Result<bool, WaitError>
where
    L: DerefMut<Target: Link>,
{
    for (link_idx, link, wants_room) in interesting(links, interest) {
        match link.sleepy(wants_room) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(source) => return Err(WaitError::Link { link_idx, source }),
        }
    }
    Ok(true)
}

/// The links something is waited for on, with their index and whether it is also room.
fn interesting<'a, L>(
    links: &'a mut [Option<L>],
    interest: &'a impl Fn(usize) -> Interest,
) -> impl Iterator<Item = (usize, &'a mut L::Target, bool)>
where
    L: DerefMut<Target: Link> + 'a,
{
    links.iter_mut().enumerate().filter_map(|(link_idx, link)| {
        Some((link_idx, &mut **link.as_mut()?, wants_room(interest(link_idx))?))
    })
}

/// Whether room is waited for too, where anything is.
fn wants_room(interest: Interest) -> Option<bool> {
    match interest {
        Interest::Nothing => None,
        Interest::Receive => Some(false),
        Interest::ReceiveOrRoom => Some(true),
    }
}

/// Whether one of the descriptors came up before the deadline. A signal counts as that: whoever waits looks again.
fn poll_until(polled: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).ok(); // longer than the system counts is for ever
    match poll(polled, timeout.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
