//! Frames to and from several ranks at the same time: what all operations but the direct exchange are made of.

use super::call::{Call, Header};
use super::error::CollectiveError;
use super::group::{Group, Pass};
use super::run::waits_for;

/// Something for another rank.
pub(super) struct Outgoing<'a> {
    pub(super) to: usize,
    pub(super) bytes: &'a [u8],
}

/// Something from another rank.
pub(super) struct Incoming<'a> {
    pub(super) from: usize,
    pub(super) bytes: &'a mut [u8],
}

impl Group {
    /// Sends and receives all of this, at most one of each to and from a rank. `round` tells rounds of one operation apart.
    pub(super) fn transfer(
        &mut self,
        call: Call,
        round: usize,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        let header = |n_bytes: usize| Header::new(call, round, n_bytes);
        let mut sent = vec![false; outgoing.len()];
        let mut got = vec![false; incoming.len()];
        self.drive(call, |ports, interests| {
            let mut moved = false;
            for (one, sent) in outgoing.iter().zip(&mut sent).filter(|(_, sent)| !**sent) {
                let Some(port) = ports[one.to].as_mut() else { continue };
                let header = header(one.bytes.len());
                *sent = port.send(&header, one.bytes, &mut moved).map_err(|t| (one.to, t))?;
            }
            for (one, got) in incoming.iter_mut().zip(&mut got).filter(|(_, got)| !**got) {
                let Some(port) = ports[one.from].as_mut() else { continue };
                let header = header(one.bytes.len());
                *got = port.receive(&header, one.bytes, &mut moved).map_err(|t| (one.from, t))?;
            }
            for (rank, interest) in interests.iter_mut().enumerate() {
                let mut sends = outgoing.iter().zip(&sent);
                let mut receives = incoming.iter().zip(&got);
                let sends = sends.any(|(one, sent)| one.to == rank && !sent);
                let receives = receives.any(|(one, got)| one.from == rank && !got);
                *interest = waits_for([sends, receives]);
            }
            Ok(match sent.iter().chain(&got).all(|done| *done) {
                true => Pass::Done,
                false if moved => Pass::Moved,
                false => Pass::Stuck,
            })
        })
    }
}
