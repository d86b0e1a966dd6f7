//! Results that are waited for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::running::Shared;
use super::{Outcome, TicketId};
use crate::tables::error::TableError;
use crate::tables::message::floats;

/// Something that is underway. Where nobody waits for it, what goes wrong is told by [`Table::flush`](super::Table::flush).
#[must_use = "what goes wrong is heard by waiting"]
pub struct Ticket {
    shared: Arc<Shared>,
    id: TicketId,
    what: String,
    is_taken: bool,
}

impl Ticket {
    pub(super) fn new(shared: Arc<Shared>, id: TicketId, what: String) -> Ticket {
        Ticket { shared, id, what, is_taken: false }
    }

    /// Waits until it is done: every holder has what was pushed.
    pub fn wait(self) -> Result<(), TableError> {
        self.outcome().map(|_| ())
    }

    /// As [`Ticket::wait`], with another deadline than that of the settings.
    pub fn wait_for(mut self, at_most: Duration) -> Result<(), TableError> {
        self.is_taken = true;
        self.shared.wait(self.id, &self.what, at_most).map(|_| ())
    }

    /// Does not wait.
    pub fn detach(self) {}

    pub(super) fn outcome(mut self) -> Result<Outcome, TableError> {
        self.is_taken = true;
        self.shared.wait(self.id, &self.what, self.shared.deadline())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_taken {
            self.shared.detach(self.id);
        }
    }
}

/// Where what was read belongs.
pub(super) enum Scatter {
    /// Runs of the output.
    Runs(Vec<Range<usize>>),
    /// Rows of the output.
    Rows {
        /// Elements of a row.
        width: usize,
        /// Places of rows, grouped by shard.
        order: Vec<u32>,
        /// Where the groups are.
        shards: Vec<Range<usize>>,
    },
}

/// A read that is underway. The values are where they belong after [`PullTicket::wait`].
#[must_use = "the values are there after waiting"]
pub struct PullTicket<'o> {
    ticket: Ticket,
    out: &'o mut [f32],
    scatter: Scatter,
}

impl<'o> PullTicket<'o> {
    pub(super) fn new(ticket: Ticket, out: &'o mut [f32], scatter: Scatter) -> PullTicket<'o> {
        PullTicket { ticket, out, scatter }
    }

    /// Waits until all values are there, for no longer than the deadline of the settings.
    pub fn wait(self) -> Result<(), TableError> {
        let at_most = self.ticket.shared.deadline();
        self.wait_within(at_most, &|| false)
    }

    /// As [`PullTicket::wait`], however long it takes, until `gives_up`, which is asked every few milliseconds: for one who is told by others when to wait no more.
    pub fn wait_unless(self, gives_up: impl Fn() -> bool) -> Result<(), TableError> {
        self.wait_within(Duration::MAX, &gives_up)
    }

    fn wait_within(self, at_most: Duration, gives_up: &dyn Fn() -> bool) -> Result<(), TableError> {
        let PullTicket { mut ticket, out, scatter } = self;
        ticket.is_taken = true;
        let shared = Arc::clone(&ticket.shared);
        shared.wait_parts(ticket.id, &ticket.what, at_most, gives_up, |part, result| {
            let body = result.bodies.first().map_or(&[][..], |body| &body[..]);
            scatter.put(part, body, out)
        })
    }
}

impl Scatter {
    /// Puts what was read of one shard where it belongs.
    fn put(&self, part: usize, body: &[u8], out: &mut [f32]) -> Result<(), TableError> {
        let wrong = || TableError::Nonsense {
            who: "a server".into(),
            what: "values of another number than were asked for".into(),
        };
        match self {
            Scatter::Runs(runs) => {
                let to = runs.get(part).and_then(|run| out.get_mut(run.clone()));
                let to: &mut [u8] = bytemuck::cast_slice_mut(to.ok_or_else(wrong)?);
                if to.len() != body.len() {
                    return Err(wrong());
                }
                to.copy_from_slice(body);
            }
            Scatter::Rows { width, order, shards } => {
                let values = floats(body);
                let places = shards.get(part).map(|places| &order[places.clone()]);
                let places = places.ok_or_else(wrong)?;
                if values.len() != places.len() * width {
                    return Err(wrong());
                }
                for (place, row) in places.iter().zip(values.chunks_exact(*width)) {
                    out[*place as usize * width..][..*width].copy_from_slice(row);
                }
            }
        }
        Ok(())
    }
}
