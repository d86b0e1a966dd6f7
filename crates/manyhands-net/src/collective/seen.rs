//! Two ranks that see each other's sums: nothing is sent but word of where these lie. Each reads the other's when it needs them.
//!
//! Sent through a ring, a sum is written once more and read once more; added up here, it is written and read once more than where it is needed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::call::{Call, Header, Kind};
use super::error::CollectiveError;
use super::group::{Group, Pass};
use super::port::Trouble;
use super::run::{FLAT_BYTES_OF_TWO, waits_for};
use crate::transport::LinkError;
use crate::transport::lending::{Lending, Lent};

/// Said of a sum that the other rank does not see.
const NOWHERE: u64 = u64::MAX;
/// What is told before the places of sums: how often sums were withdrawn, and whether this rank has seen the other's memory before.
const HEAD: usize = 2;

/// Sums of another rank, where this one can read them.
#[derive(Clone, Debug)]
pub struct SeenSums {
    lent: Option<Arc<Lent>>,
    n_withdrawn: u64,
    places: Vec<u64>,
}

impl SeenSums {
    /// The memory that they lie in; none where there are none.
    pub fn lent(&self) -> Option<&Arc<Lent>> {
        self.lent.as_ref()
    }

    /// Where each lies in it, in the order in which the other rank brings them.
    pub fn places(&self) -> &[u64] {
        &self.places
    }

    /// Whether what was read so far is what was shown. Otherwise the other rank went its own way meanwhile, and wrote there again.
    pub fn is_still_lent(&self) -> bool {
        self.lent.as_ref().is_none_or(|lent| lent.is_still_lent(self.n_withdrawn))
    }
}

impl Group {
    /// Has two ranks of one machine see the partial sums that they bring, of the leaves that `brings` says and so many bytes each, in memory that they lend. `None` where there are more ranks,
    /// the sums are few bytes, or one rank does not see the other's: then nothing has happened, on both sides, and sums can be exchanged in another way.
    ///
    /// Sums that were shown stay as they are until the next call of this has ended, or are withdrawn first ([`Lending::withdraw`]).
    pub fn see_sums(
        &mut self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        n_bytes: usize,
        sums: &[&[u8]],
    ) -> Result<Option<SeenSums>, CollectiveError> {
        let fits = brings.len() == self.size()
            && sums.len() == brings[self.rank].len()
            && sums.iter().all(|sum| sum.len() == n_bytes);
        if !fits {
            let sentence = "what a rank shows must be what was said, all of one length";
            return Err(CollectiveError::Misuse(sentence.to_string()));
        }
        let can_lend = self.ports.iter().flatten().all(|port| port.can_lend());
        // Few bytes are sent faster than others make sure of where they are.
        if self.size() != 2 || !can_lend || n_bytes <= FLAT_BYTES_OF_TWO {
            return Ok(None);
        }
        let call = self.call::<u8>(Kind::SeeSums, n_bytes)?.sharing(n_leaves, brings);
        let other = 1 - self.rank;
        let n_theirs = brings[other].len();
        let Some(port) = &mut self.ports[other] else { return Ok(None) };
        let has_seen = port.has_seen_lent || n_theirs == 0;
        let lending = port.lending().cloned();
        let mut told = vec![lending.as_ref().map_or(0, |own| own.n_withdrawn()), has_seen.into()];
        told.extend(sums.iter().map(|sum| place_of(lending.as_deref(), sum)));
        let mut heard = vec![NOWHERE; HEAD + n_theirs];
        self.swap(call, 0, bytemuck::cast_slice(&told), bytemuck::cast_slice_mut(&mut heard))?;
        if told.contains(&NOWHERE) || heard.contains(&NOWHERE) {
            return Ok(None);
        }
        let lent = self.lent(call, other)?;
        if !(has_seen && heard[1] == 1) {
            // This process may get no memory to see others' with, which is a fault of nobody else's.
            let sees = lent.is_some() || n_theirs == 0;
            let mut they_see = [0];
            self.swap(call, 1, &[u8::from(sees)], &mut they_see)?;
            if !sees || they_see != [1] {
                return Ok(None);
            }
        }
        let n_withdrawn = heard[0];
        let places = heard.split_off(HEAD);
        let is_there =
            |place: &u64| lent.as_ref().is_some_and(|lent| lent.at(*place, n_bytes).is_some());
        if !places.iter().all(is_there) {
            let trouble = Some((other, Trouble::Malformed));
            return Err(self.failure(call, Instant::now(), trouble));
        }
        Ok(Some(SeenSums { lent, n_withdrawn, places }))
    }

    /// The memory that another rank lends, if this one can see it.
    fn lent(&mut self, call: Call, other: usize) -> Result<Option<Arc<Lent>>, CollectiveError> {
        let Some(port) = &mut self.ports[other] else { return Ok(None) };
        let lent = match port.lent() {
            Ok(lent) => lent.cloned(),
            Err(LinkError::Io(_)) => None,
            Err(error) => {
                let trouble = Some((other, error.into()));
                return Err(self.failure(call, Instant::now(), trouble));
            }
        };
        port.has_seen_lent |= lent.is_some();
        Ok(lent)
    }

    /// Gives the other of two ranks some bytes for as many of its own.
    fn swap(
        &mut self,
        call: Call,
        round: usize,
        own: &[u8],
        theirs: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let other = 1 - self.rank;
        let (mut is_sent, mut is_there) = (false, false);
        let (own_header, their_header) =
            (Header::new(call, round, own.len()), Header::new(call, round, theirs.len()));
        self.drive(call, |ports, interests| {
            let Some(port) = ports[other].as_mut() else { return Err((other, Trouble::Malformed)) };
            let mut moved = false;
            let trouble = |trouble| (other, trouble);
            if !is_sent {
                is_sent = port.send(&own_header, own, &mut moved).map_err(trouble)?;
            }
            if !is_there {
                is_there = port.receive(&their_header, theirs, &mut moved).map_err(trouble)?;
            }
            interests[other] = waits_for([!is_sent, !is_there]);
            Ok(match is_sent && is_there {
                true => Pass::Done,
                false if moved => Pass::Moved,
                false => Pass::Stuck,
            })
        })
    }
}

/// Where a sum lies in the memory that its rank lends.
fn place_of(lending: Option<&Lending>, sum: &[u8]) -> u64 {
    lending.and_then(|own| own.place_of(sum.as_ptr(), sum.len())).unwrap_or(NOWHERE)
}
