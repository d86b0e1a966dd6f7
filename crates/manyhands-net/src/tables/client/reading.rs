//! Reads of a table: into memory of the caller, or where the values come to.

use std::ops::Range;

use super::Request;
use super::keys::{Keys, Split};
use super::table::Table;
use super::ticket::{PullTicket, Scatter, wrong};
use super::values::ValuesTicket;
use crate::tables::error::TableError;
use crate::tables::identity::ShardId;
use crate::tables::message::{Body, Until, Wanted};

impl Table {
    /// Reads values as the table's consistency promises. They are in `out` after [`PullTicket::wait`].
    pub fn pull<'k, 'o>(
        &self,
        keys: impl Into<Keys<'k>>,
        out: &'o mut [f32],
    ) -> Result<PullTicket<'o>, TableError> {
        self.read(keys.into(), out, self.as_promised())
    }

    /// What a read waits for, by the table's consistency.
    fn as_promised(&self) -> Until {
        match self.has_clock() {
            true => Until::Clock { clock: self.now(), bound: self.bound() },
            false => Until::Now,
        }
    }

    /// Reads values as they are now: for those who look on, and take part in no clock.
    pub fn pull_now<'k, 'o>(
        &self,
        keys: impl Into<Keys<'k>>,
        out: &'o mut [f32],
    ) -> Result<PullTicket<'o>, TableError> {
        self.read(keys.into(), out, Until::Now)
    }

    /// Reads values as they are after so many steps, under BSP.
    pub fn pull_at<'k, 'o>(
        &self,
        n_steps: u64,
        keys: impl Into<Keys<'k>>,
        out: &'o mut [f32],
    ) -> Result<PullTicket<'o>, TableError> {
        self.read(keys.into(), out, Until::Steps { n: n_steps })
    }

    /// As [`Table::pull`], of elements whose values stay where they come to: nothing is copied where they can be read on the server.
    pub fn pull_values(&self, elements: Range<u64>) -> Result<ValuesTicket, TableError> {
        self.read_values(elements, self.as_promised())
    }

    /// The same as they are after so many steps, under BSP.
    pub fn pull_values_at(
        &self,
        n_steps: u64,
        elements: Range<u64>,
    ) -> Result<ValuesTicket, TableError> {
        self.read_values(elements, Until::Steps { n: n_steps })
    }

    /// Waits, with the ticket, until every shard has so many steps behind it, under BSP.
    pub fn await_steps(&self, n_steps: u64) -> PullTicket<'static> {
        let shards = self.shards();
        let read = |(shard, elements): (usize, &Range<u64>)| {
            let nothing = elements.start..elements.start;
            self.read_of(&(ShardId(shard as u32), nothing), Until::Steps { n: n_steps })
        };
        let what = format!("{n_steps} steps of the table {}", self.name());
        let reads = shards.iter().enumerate().map(read).collect();
        let ticket = self.shared().submit_now(reads, what);
        let nothing = shards.iter().map(|_| 0..0).collect();
        PullTicket::new(ticket, &mut [], Scatter::Runs(nothing))
    }

    fn read_values(&self, elements: Range<u64>, until: Until) -> Result<ValuesTicket, TableError> {
        let keys = Keys::Range(elements);
        let Split::Runs(runs) = self.split_keys(&keys)? else { return Err(wrong()) };
        let requests = runs.iter().map(|run| self.read_of(run, until)).collect();
        let ticket = self.shared().submit_now(requests, self.pulling());
        Ok(ValuesTicket::new(ticket, runs.into_iter().map(|(_, run)| run).collect()))
    }

    /// A read of a run of a shard's elements.
    fn read_of(&self, (shard, run): &(ShardId, Range<u64>), until: Until) -> Request {
        let wanted = Wanted::Values { first: run.start, n: run.end - run.start };
        Request::Read { place: self.place(*shard), until, wanted, keys: None }
    }

    fn pulling(&self) -> String {
        format!("a pull from the table {}", self.name())
    }

    fn read<'o>(
        &self,
        keys: Keys<'_>,
        out: &'o mut [f32],
        until: Until,
    ) -> Result<PullTicket<'o>, TableError> {
        let split = self.split(&keys, out.len())?;
        self.check_sizes(&split, 8, "a pull from")?;
        let (requests, scatter): (Vec<Request>, Scatter) = match (split, keys) {
            (Split::Places { shards, order }, Keys::List(keys)) => {
                let requests = shards.iter().map(|(shard, places)| {
                    let places = &order[places.clone()];
                    let asked: Vec<u8> = places
                        .iter()
                        .flat_map(|place| keys[*place as usize].to_le_bytes())
                        .collect();
                    Request::Read {
                        place: self.place(*shard),
                        until,
                        wanted: Wanted::Values { first: 0, n: places.len() as u64 },
                        keys: Some(Body::new(asked)),
                    }
                });
                let requests = requests.collect();
                let shards = shards.into_iter().map(|(_, places)| places).collect();
                let width = self.spec().width();
                (requests, Scatter::Rows { width, order, shards })
            }
            (Split::Runs(runs), Keys::Range(range)) => {
                let within = |(_, run): (ShardId, Range<u64>)| {
                    (run.start - range.start) as usize..(run.end - range.start) as usize
                };
                let requests = runs.iter().map(|run| self.read_of(run, until)).collect();
                (requests, Scatter::Runs(runs.into_iter().map(within).collect()))
            }
            _ => (Vec::new(), Scatter::Runs(Vec::new())),
        };
        let ticket = self.shared().submit_now(requests, self.pulling());
        Ok(PullTicket::new(ticket, out, scatter))
    }
}
