//! What driver and workers say to each other besides sums: messages with bytes beside them, over a link.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_net::transport::wait::{Interest, Waiting};
use manyhands_net::transport::{Link, LinkError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest text of a message: programs of large models are the longest.
const MAX_TEXT: usize = 256 << 20;
/// The most bytes beside a message.
const MAX_BYTES: u64 = 64 << 30;
/// Lengths of text and bytes.
const HEAD: usize = 12;
/// Memory is taken in steps of this, as bytes really arrive.
const STEP: usize = 1 << 20;

/// Why a talk is over.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What arrived means nothing.
    #[error("a message of {n_bytes} bytes means nothing here: {reason}")]
    Meaningless {
        /// How long it is.
        n_bytes: usize,
        /// What is wrong.
        reason: String,
    },
    /// A length beyond all bounds.
    #[error("a message of {n_bytes} bytes is too long")]
    TooLong {
        /// How long it would be.
        n_bytes: u64,
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

/// Messages over a link.
pub(crate) struct Talk {
    link: [Option<Box<dyn Link>>; 1],
    waiting: Waiting,
    unsent: Vec<u8>,
    n_sent: usize,
    head: [u8; HEAD],
    n_head: usize,
    text: Vec<u8>,
    bytes: Vec<u8>,
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
        Talk {
            link: [Some(link)],
            waiting: Waiting::new(),
            unsent: Vec::new(),
            n_sent: 0,
            head: [0; HEAD],
            n_head: 0,
            text: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Queues a message with bytes beside it, which come in parts.
    pub(crate) fn say(
        &mut self,
        message: &impl Serialize,
        parts: &[&[u8]],
    ) -> Result<(), TalkError> {
        let text = serde_json::to_vec(message)
            .map_err(|error| TalkError::Meaningless { n_bytes: 0, reason: error.to_string() })?;
        let n_bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.unsent.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.unsent.extend_from_slice(&(n_bytes as u64).to_le_bytes());
        self.unsent.extend_from_slice(&text);
        parts.iter().for_each(|part| self.unsent.extend_from_slice(part));
        Ok(())
    }

    /// Sends what there is room for. Whether anything moved.
    pub(crate) fn push(&mut self) -> Result<bool, TalkError> {
        let [Some(link)] = &mut self.link else { return Err(LinkError::Closed.into()) };
        let mut moved = false;
        while self.n_sent < self.unsent.len() {
            let n = link.try_send(&self.unsent[self.n_sent..])?;
            if n == 0 {
                break;
            }
            self.n_sent += n;
            moved = true;
        }
        // What has left is given back also where there is always something left.
        if self.n_sent == self.unsent.len() || self.n_sent >= STEP.max(self.unsent.len() / 2) {
            self.unsent.drain(..self.n_sent);
            self.n_sent = 0;
        }
        Ok(moved)
    }

    /// Whether everything has left.
    fn is_sent(&mut self) -> Result<bool, TalkError> {
        let [Some(link)] = &mut self.link else { return Err(LinkError::Closed.into()) };
        Ok(link.try_flush()? && self.unsent.is_empty())
    }

    /// The next message, if all of it has arrived. Its bytes are in [`Talk::bytes`] until the next.
    pub(crate) fn hear<T: DeserializeOwned>(
        &mut self,
        moved: &mut bool,
    ) -> Result<Option<T>, TalkError> {
        let [Some(link)] = &mut self.link else { return Err(LinkError::Closed.into()) };
        if self.n_head < HEAD {
            let n = link.try_receive(&mut self.head[self.n_head..])?;
            *moved |= n > 0;
            self.n_head += n;
            if self.n_head < HEAD {
                return Ok(None);
            }
            self.text.clear();
            self.bytes.clear();
        }
        let (n_text, n_bytes) = lengths(&self.head)?;
        for (into, n) in [(&mut self.text, n_text), (&mut self.bytes, n_bytes)] {
            while into.len() < n {
                let start = into.len();
                into.resize(n.min(start + STEP), 0);
                let got = link.try_receive(&mut into[start..])?;
                into.truncate(start + got);
                *moved |= got > 0;
                if got == 0 {
                    return Ok(None);
                }
            }
        }
        self.n_head = 0;
        serde_json::from_slice(&self.text)
            .map(Some)
            .map_err(|error| TalkError::Meaningless { n_bytes: n_text, reason: error.to_string() })
    }

    /// The bytes beside the last message.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Waits for the next message.
    pub(crate) fn await_message<T: DeserializeOwned>(
        &mut self,
        until: &Until<'_>,
    ) -> Result<T, TalkError> {
        let start = Instant::now();
        loop {
            let mut moved = self.push()?;
            if let Some(message) = self.hear(&mut moved)? {
                return Ok(message);
            }
            self.pause(moved, until, start, None)?;
        }
    }

    /// Waits until everything has left.
    pub(crate) fn await_sent(&mut self, until: &Until<'_>) -> Result<(), TalkError> {
        let start = Instant::now();
        loop {
            let moved = self.push()?;
            if self.is_sent()? {
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
        let interest = match self.is_sent()? {
            true => Interest::Receive,
            false => Interest::ReceiveOrRoom,
        };
        let soon = Instant::now() + Duration::from_millis(20);
        // A link that fails says so when it is used next.
        let _ = self.waiting.wait(&mut self.link, |_| interest, bell, soon);
        Ok(())
    }
}

fn lengths(head: &[u8; HEAD]) -> Result<(usize, usize), TalkError> {
    let [a, b, c, d, rest @ ..] = head;
    let n_text = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    let n_bytes = u64::from_le_bytes(*rest);
    if n_text > MAX_TEXT || n_bytes > MAX_BYTES {
        return Err(TalkError::TooLong { n_bytes: n_bytes.max(n_text as u64) });
    }
    Ok((n_text, n_bytes as usize))
}
