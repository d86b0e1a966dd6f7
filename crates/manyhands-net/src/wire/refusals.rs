//! Who was not let in, counted by reason.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::secure::HandshakeError;

/// How many connections were let in, and how many were not, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refusals {
    /// Let in: the one number here that is no refusal.
    pub admitted: u64,
    /// Did not speak the protocol.
    pub garbage: u64,
    /// Spoke another version of it.
    pub other_version: u64,
    /// Wanted what is not served here.
    pub other_purpose: u64,
    /// Did not know the secret, or repeated what one said who did.
    pub wrong_secret: u64,
    /// Closed, or failed, before it was proven.
    pub cut_off: u64,
    /// Was not done before the deadline.
    pub too_slow: u64,
    /// Made room for newer ones.
    pub crowded_out: u64,
    /// Times when the system could not give a connection, as when too many files are open.
    pub accept_failures: u64,
}

impl Refusals {
    /// All that were not let in.
    pub fn total(&self) -> u64 {
        self.garbage
            + self.other_version
            + self.other_purpose
            + self.wrong_secret
            + self.cut_off
            + self.too_slow
            + self.crowded_out
    }

    /// The count that a failed handshake belongs to.
    pub(super) fn of(&mut self, error: &HandshakeError) -> &mut u64 {
        match error {
            HandshakeError::NotManyhands | HandshakeError::Malformed { .. } => &mut self.garbage,
            HandshakeError::OtherVersion { .. } => &mut self.other_version,
            HandshakeError::OtherPurpose { .. } => &mut self.other_purpose,
            HandshakeError::WrongSecret => &mut self.wrong_secret,
            HandshakeError::WrongLength { .. }
            | HandshakeError::LongHello { .. }
            | HandshakeError::Unavailable { .. } => &mut self.cut_off,
        }
    }
}

/// The counts as the door and those who ask share them.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Refusals>);

impl Counts {
    pub(super) fn add(&self, count: impl FnOnce(&mut Refusals) -> &mut u64) {
        // Counting cannot leave them half changed, so a poisoned lock means nothing here.
        *count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)) += 1;
    }

    pub(super) fn now(&self) -> Refusals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
