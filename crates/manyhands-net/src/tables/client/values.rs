//! Values of a dense table that stay where they came to: in memory of the client, or in that of the server where it can be read.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use super::ReadResult;
use super::ticket::{Ticket, wrong};
use crate::tables::error::TableError;
use crate::tables::message::{Body, floats};

/// Values of some elements, as they were at one moment for each shard.
///
/// As long as this lives a server of this machine may not use their memory for anything else, so it should not be kept for long.
pub struct Values {
    runs: Vec<(Range<u64>, Body)>,
}

impl Values {
    /// The values of these elements, and where each run of them lies among them.
    pub fn within(
        &self,
        elements: Range<u64>,
    ) -> impl Iterator<Item = (Range<usize>, Cow<'_, [f32]>)> {
        self.runs.iter().filter_map(move |(run, body)| {
            let (from, until) = (run.start.max(elements.start), run.end.min(elements.end));
            let bytes = |at: u64| 4 * (at - run.start) as usize;
            let place = |at: u64| (at - elements.start) as usize;
            (from < until)
                .then(|| (place(from)..place(until), floats(&body[bytes(from)..bytes(until)])))
        })
    }

    /// Copies the values from an element on, as many as there are.
    pub fn copy(&self, first: u64, to: &mut [f32]) {
        for (place, values) in self.within(first..first + to.len() as u64) {
            to[place].copy_from_slice(&values);
        }
    }
}

/// A read that is underway, of values that stay where they come to. Where nobody waits, it is taken back.
#[must_use = "the values are there after waiting"]
pub struct ValuesTicket {
    ticket: Ticket,
    runs: Vec<Range<u64>>,
}

impl ValuesTicket {
    pub(super) fn new(mut ticket: Ticket, runs: Vec<Range<u64>>) -> ValuesTicket {
        ticket.is_read = true;
        ValuesTicket { ticket, runs }
    }

    /// Waits until all values are there, for no longer than the deadline of the settings.
    pub fn wait(self) -> Result<Values, TableError> {
        let at_most = self.ticket.deadline();
        self.wait_within(at_most, &mut |_| false)
    }

    /// As [`PullTicket::wait_watching`](super::PullTicket::wait_watching).
    pub fn wait_watching(
        self,
        mut gives_up: impl FnMut(bool) -> bool,
    ) -> Result<Values, TableError> {
        self.wait_within(Duration::MAX, &mut gives_up)
    }

    fn wait_within(
        self,
        at_most: Duration,
        gives_up: &mut dyn FnMut(bool) -> bool,
    ) -> Result<Values, TableError> {
        let ValuesTicket { ticket, runs } = self;
        let mut bodies = vec![Body::default(); runs.len()];
        let put = |part: usize, result: ReadResult| {
            let body = result.bodies.into_iter().next().unwrap_or_default();
            let n_bytes = runs.get(part).map(|run| 4 * (run.end - run.start));
            match bodies.get_mut(part).filter(|_| n_bytes == Some(body.len() as u64)) {
                Some(place) => *place = body,
                None => return Err(wrong()),
            }
            Ok(())
        };
        ticket.wait_parts(at_most, gives_up, put)?;
        Ok(Values { runs: runs.into_iter().zip(bodies).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_across_shards_and_others_left_as_they_are() {
        let body = |values: &[f32]| Body::copy_of(bytemuck::cast_slice(values));
        let runs = vec![(10..13, body(&[1.0, 2.0, 3.0])), (13..15, body(&[4.0, 5.0]))];
        let values = Values { runs };
        let copied = |first| {
            let mut to = [0.0; 4];
            values.copy(first, &mut to);
            to
        };
        assert_eq!(copied(11), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(copied(8), [0.0, 0.0, 1.0, 2.0]);
        assert_eq!(copied(14), [5.0, 0.0, 0.0, 0.0]);
        assert_eq!(copied(20), [0.0; 4]);
    }
}
