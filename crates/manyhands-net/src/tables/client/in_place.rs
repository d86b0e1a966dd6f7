//! Pushes from the memory of one who waits, and into memory that is sent: dense tables without copies.
//!
//! What is pushed is kept until it is acknowledged, since it may have to be sent again. [`Table::push`] keeps a copy; here the caller waits, and its own memory is
//! what is kept. Where it gives up before, what is still underway goes on with a copy.

use std::ops::Range;

use super::keys::Keys;
use super::running::Shared;
use super::table::{PushSettings, StepPart, Table, push_at};
use super::ticket::Ticket;
use super::{Request, keys};
use crate::tables::body::Lender;
use crate::tables::error::TableError;
use crate::tables::message::{Body, Operation, floats};

impl Table {
    /// Pushes values and waits until every holder has them: as [`Table::push_with`] and a wait, but elements go out from where they lie.
    pub fn push_and_wait<'k>(
        &self,
        keys: impl Into<Keys<'k>>,
        values: &[f32],
        settings: PushSettings,
    ) -> Result<(), TableError> {
        let keys = keys.into();
        match &keys {
            Keys::Range(range) if self.goes_as_it_is() => {
                self.lend(range, values, push_at(self.now(), settings), Ticket::wait)
            }
            _ => self.push_with(keys, values, settings)?.wait(),
        }
    }

    /// As [`Table::push_with`], of elements that `fill` writes where they are sent from: it is asked for one run of the table after the other.
    pub fn push_filled(
        &self,
        elements: Range<u64>,
        settings: PushSettings,
        mut fill: impl FnMut(Range<u64>, &mut [f32]),
    ) -> Result<Ticket, TableError> {
        self.split_keys(&Keys::Range(elements.clone()))?;
        if !self.goes_as_it_is() {
            let n = (elements.end - elements.start) as usize;
            let values = Body::filled_floats(n, |values| fill(elements.clone(), values));
            return self.push_with(elements, &floats(&values), settings);
        }
        let what = format!("a push to the table {}", self.name());
        self.shared().await_room(&what)?;
        let mut checked = Ok(());
        let operation = push_at(self.now(), settings);
        let operation = |first, n| operation(first, n).known_finite();
        let first = elements.start;
        let requests = self.runs(&elements, operation, |run| {
            let run = first + run.start as u64..first + run.end as u64;
            Body::filled_floats((run.end - run.start) as usize, |values| {
                fill(run.clone(), values);
                if checked.is_ok() {
                    checked = self.check_finite(&Keys::Range(run), values);
                }
            })
        })?;
        checked?;
        Ok(self.shared().submit_now(requests, what))
    }

    /// A step under BSP of one who brings one part of it: pushes the part, of whole shards, and waits for the values that the step leaves of the same elements. Both
    /// go from and to where they lie.
    pub fn step(
        &self,
        part: &StepPart,
        elements: Range<u64>,
        values: &[f32],
        out: &mut [f32],
    ) -> Result<(), TableError> {
        if !self.goes_as_it_is() {
            self.push_part(part, elements.clone(), values)?.detach();
            return self.pull_at(part.step + 1, elements, out)?.wait();
        }
        self.check_whole_shards(&elements)?;
        let operation = self.part_operation(part)?;
        self.lend(&elements, values, operation, |ticket| {
            // What goes wrong with the part is told by the read, which waits for it.
            ticket.detach();
            self.pull_at(part.step + 1, elements.clone(), out)?.wait()
        })
    }

    /// As [`Table::push_part`], of elements that `fill` writes where they are sent from: it is asked for one run of the table after the other. Nobody looks whether they
    /// are finite but the servers.
    pub fn push_part_with(
        &self,
        part: &StepPart,
        elements: Range<u64>,
        mut fill: impl FnMut(Range<u64>, &mut [f32]),
    ) -> Result<Ticket, TableError> {
        self.check_whole_shards(&elements)?;
        let operation = self.part_operation(part)?;
        let first = elements.start;
        let requests = self.runs(&elements, operation, |run| {
            let run = first + run.start as u64..first + run.end as u64;
            Body::filled_floats((run.end - run.start) as usize, |values| fill(run.clone(), values))
        })?;
        self.submit(requests, "a part of a step of")
    }

    /// Whether elements that are pushed are what is sent: no filter holds them back, or writes them in fewer bytes. Elements have no lists of keys.
    fn goes_as_it_is(&self) -> bool {
        let traffic = &self.spec().traffic;
        traffic.significance.is_none() && !traffic.packs()
    }

    /// Lends values to a push for as long as `then` takes.
    fn lend(
        &self,
        range: &Range<u64>,
        values: &[f32],
        operation: impl Fn(u64, u64) -> Operation,
        then: impl FnOnce(Ticket) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let keys = Keys::Range(range.clone());
        self.check_push(&keys, values)?;
        let lent = OnLoan { lender: Lender::new(bytemuck::cast_slice(values)), of: self.shared() };
        let body = |run: Range<usize>| lent.lender.body(4 * run.start..4 * run.end);
        let operation = |first, n| operation(first, n).known_finite();
        let requests = self.runs(range, operation, body)?;
        self.submit(requests, "a push to").and_then(then)
    }

    /// A request for each shard that has some of the elements; `body` is asked for the run of them, counted from the first.
    fn runs(
        &self,
        range: &Range<u64>,
        operation: impl Fn(u64, u64) -> Operation,
        mut body: impl FnMut(Range<usize>) -> Body,
    ) -> Result<Vec<Request>, TableError> {
        let keys = Keys::Range(range.clone());
        let keys::Split::Runs(runs) = self.split_keys(&keys)? else { return Ok(Vec::new()) };
        let request = |(shard, run): (_, Range<u64>)| {
            let within = (run.start - range.start) as usize..(run.end - range.start) as usize;
            Request::Do {
                place: self.place(shard),
                operation: operation(run.start, run.end - run.start),
                body: Some(body(within)),
            }
        };
        Ok(runs.into_iter().map(request).collect())
    }
}

/// Values that are lent, and the client that has them.
struct OnLoan<'v> {
    lender: Lender<'v>,
    of: &'v Shared,
}

impl Drop for OnLoan<'_> {
    fn drop(&mut self) {
        if !self.lender.has_all_back() {
            self.of.recall();
        }
    }
}
