//! What driver and workers say to each other besides sums: messages with bytes beside them, over a link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_net::transport::wait::{Interest, Waiting};
use manyhands_net::transport::{Link, LinkError};
use manyhands_net::wire::{Bounds, Framed, FramedError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What driver and workers may say to each other: programs of large models are the longest messages, parameters the most bytes. What waits to
/// be sent is this side's own.
const BOUNDS: Bounds = Bounds { text: 256 << 20, bytes: 64 << 30, unsent: usize::MAX };

/// Why a talk is over.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The link failed, or what it carries is no message.
    #[error(transparent)]
    Framed(#[from] FramedError),
    /// What arrived cannot be.
    #[error("it says what cannot be: {reason}")]
    Impossible {
        /// What is wrong.
        reason: String,
    },
    /// Nothing moved for too long.
    #[error("the other side did not answer for {:.1} s", after.as_secs_f64())]
    Silent {
        /// How long.
        after: Duration,
    },
    /// Somebody asked to give up.
    #[error("it was given up")]
    Aborted,
}

/// A message whose numbers and lists have bounds: whoever says it knows the secret, and may still be broken.
pub(crate) trait Checked {
    /// Whether it is within its bounds; else what is not.
    fn check(&self) -> Result<(), String>;
}

/// Messages over a link.
pub(crate) struct Talk {
    framed: [Option<Framed>; 1],
    waiting: Waiting,
}

/// How long to wait.
pub(crate) struct Until<'a> {
    /// When nothing has moved by then.
    pub(crate) deadline: Option<Instant>,
    /// Set to give up at once.
    pub(crate) stop: &'a AtomicBool,
}

impl Talk {
    pub(crate) fn new(link: Box<dyn Link>) -> Talk {
        Talk { framed: [Some(Framed::new(link, BOUNDS))], waiting: Waiting::new() }
    }

    /// The driver's side of one: it sleeps at once where there is nothing to do, since workers may need its core.
    pub(crate) fn of_driver(link: Box<dyn Link>) -> Talk {
        Talk { waiting: Waiting::sleeping_at_once(), ..Talk::new(link) }
    }

    fn framed(&mut self) -> Result<&mut Framed, TalkError> {
        let [framed] = &mut self.framed;
        framed.as_mut().ok_or_else(|| FramedError::from(LinkError::Closed).into())
    }

    /// Queues a message with bytes beside it, which come in parts.
    pub(crate) fn say(
        &mut self,
        message: &impl Serialize,
        parts: &[&[u8]],
    ) -> Result<(), TalkError> {
        Ok(self.framed()?.queue(message, parts)?)
    }

    /// Sends what there is room for. Whether anything moved.
    pub(crate) fn push(&mut self) -> Result<bool, TalkError> {
        Ok(self.framed()?.push()?)
    }

    /// The next message, if all of it has arrived. Its bytes are in [`Talk::bytes`] until the next.
    pub(crate) fn hear<T: DeserializeOwned + Checked>(
        &mut self,
        moved: &mut bool,
    ) -> Result<Option<T>, TalkError> {
        let Some(message) = self.framed()?.next::<T>(moved)? else { return Ok(None) };
        message.check().map_err(|reason| TalkError::Impossible { reason })?;
        Ok(Some(message))
    }

    /// The bytes beside the last message.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.framed[0].as_ref().map_or(&[], Framed::bytes)
    }

    /// Waits for the next message.
    pub(crate) fn await_message<T: DeserializeOwned + Checked>(
        &mut self,
        until: &Until<'_>,
    ) -> Result<T, TalkError> {
        let start = Instant::now();
        loop {
            // What waits to be sent can go with more while there is something to hear.
            let mut moved = false;
            if let Some(message) = self.hear(&mut moved)? {
                return Ok(message);
            }
            moved |= self.push()?;
            self.pause(moved, until, start, None)?;
        }
    }

    /// Whether everything has left.
    pub(crate) fn is_sent(&mut self) -> Result<bool, TalkError> {
        Ok(self.framed()?.is_sent()?)
    }

    /// Waits until everything has left.
    pub(crate) fn await_sent(&mut self, until: &Until<'_>) -> Result<(), TalkError> {
        let start = Instant::now();
        loop {
            let moved = self.push()?;
            if self.framed()?.is_sent()? {
                return Ok(());
            }
            self.pause(moved, until, start, None)?;
        }
    }

    /// Waits a moment where nothing moved, or until the bell rings.
    pub(crate) fn pause(
        &mut self,
        moved: bool,
        until: &Until<'_>,
        start: Instant,
        bell: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<(), TalkError> {
        if moved {
            self.waiting.progressed();
            return Ok(());
        }
        if until.stop.load(Ordering::SeqCst) {
            return Err(TalkError::Aborted);
        }
        if until.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(TalkError::Silent { after: start.elapsed() });
        }
        let interest = match self.framed()?.is_sent()? {
            true => Interest::Receive,
            false => Interest::ReceiveOrRoom,
        };
        let soon = Instant::now() + Duration::from_millis(20);
        // A link that fails says so when it is used next.
        let _ = self.waiting.wait(&mut self.framed, |_| interest, bell, soon);
        Ok(())
    }
}
