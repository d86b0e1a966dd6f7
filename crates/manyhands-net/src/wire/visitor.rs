//! A connection that has not proven the secret yet.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::refusals::Counts;
use super::socket::Socket;
use crate::secure::{Handshake, Stage};

/// How long one that was refused may take to read why.
const LEAVING: Duration = Duration::from_millis(200);
/// Reads of one visitor in a row: the others want their turn.
const READS_PER_TURN: usize = 8;

pub(super) struct Visitor {
    pub(super) socket: Socket,
    pub(super) handshake: Handshake,
    pub(super) end: Instant,
    /// It was refused, and counted; what is left is to tell it.
    leaving: bool,
}

/// What comes of a visitor's turn.
pub(super) enum Turn {
    /// Nothing more to do for now.
    Waits,
    /// It knows the secret.
    Proven,
    /// It is refused, and the connection to be dropped.
    Gone,
}

impl Visitor {
    pub(super) fn new(socket: Socket, handshake: Handshake, end: Instant) -> Visitor {
        Visitor { socket, handshake, end, leaving: false }
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.handshake.outgoing().is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        }
    }

    /// Who goes first when there is no room: those who are refused, then those who have shown nothing. One that made its first message with the
    /// secret is worth most.
    pub(super) fn worth(&self) -> (bool, Stage) {
        (!self.leaving, self.handshake.stage())
    }

    /// Whether it still has a chance.
    pub(super) fn is_open(&self) -> bool {
        !self.leaving
    }

    /// Does what can be done without waiting.
    pub(super) fn turn(&mut self, now: Instant, counts: &Counts) -> Turn {
        for _ in 0..READS_PER_TURN {
            if !self.send() {
                return self.gone(counts);
            }
            if self.leaving {
                return self.leave();
            }
            let sent = self.handshake.outgoing().is_empty();
            if self.handshake.stage() == Stage::Proven {
                return if sent { Turn::Proven } else { Turn::Waits };
            }
            let mut bytes = [0; 2048];
            let wants = self.handshake.wants().min(bytes.len());
            let count = match self.socket.try_read(&mut bytes[..wants]) {
                Ok(None) => return Turn::Waits,
                Ok(Some(0)) | Err(_) => return self.gone(counts),
                Ok(Some(count)) => count,
            };
            if let Err(error) = self.handshake.receive(&bytes[..count]) {
                counts.add(|refusals| refusals.of(&error));
                self.leaving = true;
                self.end = self.end.min(now + LEAVING);
                if self.handshake.outgoing().is_empty() {
                    return Turn::Gone;
                }
            }
        }
        Turn::Waits
    }

    /// Sends what there is room for. Whether the connection still stands.
    fn send(&mut self) -> bool {
        while !self.handshake.outgoing().is_empty() {
            match self.socket.try_write(self.handshake.outgoing()) {
                Ok(Some(count)) => self.handshake.sent(count),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits until the other side has read why it was refused and closes. Closing before, with bytes of it unread, would make the system
    /// throw the refusal away.
    fn leave(&mut self) -> Turn {
        if self.handshake.outgoing().is_empty() {
            self.socket.stop_sending();
        }
        let mut ignored = [0; 2048];
        match self.socket.try_read(&mut ignored) {
            Ok(Some(0)) | Err(_) => Turn::Gone,
            _ => Turn::Waits,
        }
    }

    fn gone(&self, counts: &Counts) -> Turn {
        if !self.leaving {
            counts.add(|refusals| &mut refusals.cut_off);
        }
        Turn::Gone
    }
}
