//! Results that are waited for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::running::Shared;
use super::{Outcome, ReadResult, TicketId};
use crate::tables::error::TableError;
use crate::tables::landing::Strips;
use crate::tables::message::floats;

/// Something that is underway. Where nobody waits for it, what goes wrong is told by [`Table::flush`](super::Table::flush).
#[must_use = "what goes wrong is heard by waiting"]
pub struct Ticket {
    shared: Arc<Shared>,
    id: TicketId,
    what: String,
    is_taken: bool,
    /// Where nobody waits for it, there is nobody to read for.
    pub(super) is_read: bool,
}

impl Ticket {
    pub(super) fn new(shared: Arc<Shared>, id: TicketId, what: String) -> Ticket {
        Ticket { shared, id, what, is_taken: false, is_read: false }
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

    /// How long is waited for it unless somebody says otherwise.
    pub(super) fn deadline(&self) -> Duration {
        self.shared.deadline()
    }

    /// Hands on what is read as it comes, until `gives_up`.
    pub(super) fn wait_parts(
        mut self,
        at_most: Duration,
        gives_up: &mut dyn FnMut(bool) -> bool,
        take: impl FnMut(usize, ReadResult) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        self.is_taken = true;
        self.shared.wait_parts(self.id, &self.what, at_most, gives_up, take)
    }

    pub(super) fn outcome(mut self) -> Result<Outcome, TableError> {
        self.is_taken = true;
        self.shared.wait(self.id, &self.what, self.deadline())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match (self.is_taken, self.is_read) {
            (true, _) => {}
            (false, true) => self.shared.forget(self.id),
            (false, false) => self.shared.detach(self.id),
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

/// A read that is underway. The values are where they belong after [`PullTicket::wait`]; where nobody waits, it is taken back.
#[must_use = "the values are there after waiting"]
pub struct PullTicket<'o> {
    ticket: Ticket,
    out: &'o mut [f32],
    scatter: Scatter,
}

impl<'o> PullTicket<'o> {
    pub(super) fn new(mut ticket: Ticket, out: &'o mut [f32], scatter: Scatter) -> PullTicket<'o> {
        ticket.is_read = true;
        PullTicket { ticket, out, scatter }
    }

    /// Waits until all values are there, for no longer than the deadline of the settings.
    pub fn wait(self) -> Result<(), TableError> {
        let at_most = self.ticket.deadline();
        self.wait_within(at_most, &mut |_| false)
    }

    /// As [`PullTicket::wait`], however long it takes, until `gives_up`, which is asked every few milliseconds: for one who is told by others when to wait no more.
    pub fn wait_unless(self, gives_up: impl Fn() -> bool) -> Result<(), TableError> {
        self.wait_within(Duration::MAX, &mut |_| gives_up())
    }

    /// As [`PullTicket::wait_unless`], where `gives_up` hears whether nothing that this client pushed is underway any more: what was pushed before may be told of as soon as it is
    /// there, however long the values are waited for. Every holder has it then, unless its ticket, where somebody has that still, says that it was refused. It must not ask anything of the table.
    pub fn wait_watching(self, mut gives_up: impl FnMut(bool) -> bool) -> Result<(), TableError> {
        self.wait_within(Duration::MAX, &mut gives_up)
    }

    fn wait_within(
        self,
        at_most: Duration,
        gives_up: &mut dyn FnMut(bool) -> bool,
    ) -> Result<(), TableError> {
        let PullTicket { ticket, out, scatter } = self;
        let (shared, id) = (Arc::clone(&ticket.shared), ticket.id);
        match scatter {
            Scatter::Runs(runs) => {
                let strips = Strips::new(out, &runs);
                let put = |part: usize, result: ReadResult| {
                    let body = result.bodies.into_iter().next().unwrap_or_default();
                    match body.is_landed() || strips.fill(part, &body) {
                        true => Ok(()),
                        false => Err(wrong()),
                    }
                };
                shared.landing(id, &strips, || ticket.wait_parts(at_most, gives_up, put))
            }
            Scatter::Rows { width, order, shards } => {
                let put = |part: usize, result: ReadResult| {
                    let body = result.bodies.first().map_or(&[][..], |body| &body[..]);
                    let places = shards.get(part).map(|places| &order[places.clone()]);
                    put_rows(body, width, places.ok_or_else(wrong)?, out)
                };
                ticket.wait_parts(at_most, gives_up, put)
            }
        }
    }
}

pub(super) fn wrong() -> TableError {
    TableError::Nonsense {
        who: "a server".into(),
        what: "values of another number than were asked for".into(),
    }
}

/// Puts the rows of one shard where they belong.
fn put_rows(body: &[u8], width: usize, places: &[u32], out: &mut [f32]) -> Result<(), TableError> {
    let values = floats(body);
    if values.len() != places.len() * width {
        return Err(wrong());
    }
    for (place, row) in places.iter().zip(values.chunks_exact(width)) {
        out[*place as usize * width..][..width].copy_from_slice(row);
    }
    Ok(())
}
