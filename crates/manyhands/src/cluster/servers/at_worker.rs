//! A worker's side of parameters that live on servers.
//!
//! The sums of its grains go out as parts of the step; the servers wait for the parts of all, apply the step once, and the new values come back. Until then nothing of
//! the worker's state has changed, so a step that is stopped can be done again: parts that servers have already are dropped there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_device::{GROUP_ALIGNMENT, PlanId, StepExecutor, SumLayout};
use manyhands_net::collective::{CollectiveError, Group};
use manyhands_net::membership::message::Peer;
use manyhands_net::station::Station;
use manyhands_net::tables::client::{ClientSettings, StepPart, Table, Tables};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::network::{Network, OnStation};
use manyhands_program::DType;

use super::server::Hosted;
use super::{JobTable, history};
use crate::cluster::halt::Halt;
use crate::cluster::sums::{ExchangeError, exchange_typed};
use crate::error::Error;

/// How long one try to reach the table, or to send where much is underway, goes on without a look at whether to stop.
const TRY: Duration = Duration::from_secs(1);
/// How long a table may take to be there when a worker first needs it; a driver that is gone is noticed much earlier.
const OPENING: Duration = Duration::from_secs(600);

/// The table of the job at hand.
pub(in crate::cluster) struct TableAtHand {
    pub(in crate::cluster) job: JobTable,
    network: Arc<dyn Network>,
    name: String,
    pub(super) client: Option<(Tables, Table)>,
    /// The clock of this worker, where it has one.
    pub(super) clock: u64,
    /// The rate of the step at hand.
    pub(in crate::cluster) rate: f32,
    /// The values as the servers had them after the last step, once they have come.
    pub(super) values: Vec<f32>,
    has_values: bool,
    /// Memory for sums on their way, so that a step takes none.
    staging: Vec<f32>,
    /// The servers were one step further before the values were read: those of the next step will be right again.
    pub(in crate::cluster) is_behind: bool,
    hosted: Vec<Hosted>,
}

/// The step that parts are of.
#[derive(Clone, Copy)]
pub(in crate::cluster) struct PartsOf {
    pub(in crate::cluster) plan: PlanId,
    /// Which it is, from 1.
    pub(in crate::cluster) number: u64,
    pub(in crate::cluster) n_grains: usize,
}

impl TableAtHand {
    pub(in crate::cluster) fn new(
        job: JobTable,
        (station, public): (&Arc<Station>, Option<IpAddr>),
        name: &str,
    ) -> TableAtHand {
        let network: Arc<dyn Network> = Arc::new(OnStation::new(Arc::clone(station), public));
        let values = vec![0.0; job.layout.n_elements];
        TableAtHand {
            job,
            network,
            name: name.to_string(),
            client: None,
            clock: 0,
            rate: 0.0,
            values,
            has_values: false,
            staging: Vec::new(),
            is_behind: false,
            hosted: Vec::new(),
        }
    }

    /// There are too few servers: this worker is one too, or another one.
    pub(in crate::cluster) fn be_server(&mut self) {
        let (network, director) = (Arc::clone(&self.network), self.job.director.clone());
        let name = match self.hosted.len() {
            0 => format!("{}-server", self.name),
            n => format!("{}-server-{}", self.name, n + 1),
        };
        self.hosted.extend(Hosted::start(network, director, name));
    }

    /// This worker ends: the servers in it leave first, when others have what they hold. Whether there were any.
    pub(in crate::cluster) fn leave_as_server(&mut self) -> bool {
        self.client = None;
        self.hosted.iter().for_each(Hosted::leave);
        // Each of them is waited for.
        self.hosted.drain(..).filter(Hosted::await_end).count() > 0
    }

    /// Gives its place among the clients up; the next step takes another.
    pub(in crate::cluster) fn leave(&mut self) {
        self.client = None;
    }

    /// Why the state of this worker is not to be copied.
    pub(in crate::cluster) fn behind(&self) -> String {
        "its parameters are a step behind those of the servers".to_string()
    }

    /// The open table.
    pub(super) fn table(&mut self, stop: &AtomicBool) -> Result<Table, Halt> {
        if let Some((_, table)) = &self.client {
            return Ok(table.clone());
        }
        let start = Instant::now();
        loop {
            match self.connect() {
                Ok(client) => {
                    let table = client.1.clone();
                    self.client = Some(client);
                    return Ok(table);
                }
                Err(TableError::Deadline { .. } | TableError::NoLink { .. })
                    if start.elapsed() < OPENING =>
                {
                    stopped(stop)?;
                }
                Err(error) => return Err(halt(error)),
            }
        }
    }

    fn connect(&self) -> Result<(Tables, Table), TableError> {
        let settings = ClientSettings {
            // What takes longer is taken up again, unless it is to end.
            deadline: TRY,
            history: history(),
            ..ClientSettings::new(self.name.clone(), self.job.director.clone())
        };
        let tables = Tables::connect(Arc::clone(&self.network), settings)?;
        let table = tables.open_at(JobTable::NAME, self.job.spec(), self.clock)?;
        Ok((tables, table))
    }

    /// Sends the sums that are held of a step to the servers that they belong to.
    pub(in crate::cluster) fn push(
        &mut self,
        executor: &mut StepExecutor,
        of: PartsOf,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let table = self.table(stop)?;
        // What was refused of a step that was given up says nothing of this one.
        table.forget_refused();
        self.has_values = false;
        let sums = executor.sum_layout(of.plan)?.clone();
        let mut staging = std::mem::take(&mut self.staging);
        staging.resize(self.job.layout.n_elements, 0.0);
        for (idx, grains) in executor.held().to_vec().into_iter().enumerate() {
            let divisor = self.gather(&sums, executor.held_bytes(idx)?, &mut staging)?;
            let (rate, n_grains) = (self.rate, of.n_grains);
            let part = StepPart { step: of.number - 1, grains, n_grains, rate, divisor };
            let range = 0..self.job.layout.n_elements as u64;
            loop {
                match table.push_part(&part, range.clone(), &staging) {
                    // What goes wrong with it is told where the values are waited for.
                    Ok(ticket) => break ticket.detach(),
                    // Much is underway already.
                    Err(TableError::Deadline { .. }) => stopped(stop)?,
                    Err(TableError::ClientLost { .. }) => break,
                    Err(error) => return Err(halt(error)),
                }
            }
        }
        self.staging = staging;
        Ok(())
    }

    /// Puts the sums of the parameters on servers where these lie in the table. Gives what they are to be divided by.
    pub(super) fn gather(
        &self,
        sums: &SumLayout,
        bytes: &[u8],
        staging: &mut [f32],
    ) -> Result<f32, Error> {
        let layout = &self.job.layout;
        let of = |name: &str| {
            let sum = sums.sums.iter().find(|sum| sum.name == name);
            let sum = sum.ok_or_else(|| Error::MissingParameter { name: name.to_string() })?;
            Ok::<&[u8], Error>(&bytes[sum.offset..sum.offset + 4 * sum.n_elements])
        };
        for one in layout.parameters.iter().filter(|one| one.update.is_some()) {
            let to = &mut staging[one.first..one.first + one.n_elements];
            bytemuck::cast_slice_mut(to).copy_from_slice(of(&one.sum)?);
        }
        let divisor = of(&layout.divisor)?.first_chunk().copied().unwrap_or_default();
        Ok(f32::from_le_bytes(divisor))
    }

    /// Waits for the values that the servers made of a step.
    pub(in crate::cluster) fn pull(
        &mut self,
        executor: &mut StepExecutor,
        of: PartsOf,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        loop {
            let table = self.table(stop)?;
            let n = self.job.layout.n_elements as u64;
            let values = &mut self.values;
            // What was wrong with a push is told here too. A large model takes its time on a slow link, so nobody but the coordinator ends the wait.
            let pulled = table.pull_at(of.number, 0..n, values);
            match pulled.and_then(|pull| pull.wait_unless(|| is_set(stop))) {
                Ok(()) => {
                    (self.has_values, self.is_behind) = (true, false);
                    return Ok(());
                }
                // Only one without grains can be overtaken; it has the values of the next step then.
                Err(TableError::StepPassed { .. }) => {
                    self.is_behind = true;
                    return Ok(());
                }
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(TableError::ClientLost { .. }) => {
                    // It was silent for too long. What it pushed may be there or not, and counts once.
                    self.client = None;
                    stopped(stop)?;
                    self.push(executor, of, stop)?;
                }
                Err(error) => return Err(halt(error)),
            }
        }
    }

    /// Gives the parameters their new values, of a step that counts.
    pub(in crate::cluster) fn write_values(
        &mut self,
        executor: &mut StepExecutor,
    ) -> Result<(), Error> {
        if !std::mem::take(&mut self.has_values) {
            return Ok(());
        }
        for one in &self.job.layout.parameters {
            let values = &self.values[one.first..one.first + one.n_elements];
            executor.write_parameter(&one.name, bytemuck::cast_slice(values))?;
        }
        Ok(())
    }

    /// Exchanges the sums that belong to no server for their totals.
    pub(in crate::cluster) fn exchange_rest(
        &mut self,
        executor: &mut StepExecutor,
        plan: PlanId,
        group: &mut Group,
        (n_grains, brings): (usize, &[Vec<Range<usize>>]),
    ) -> Result<(), ExchangeError> {
        let rest = rest_of(executor.sum_layout(plan)?, &self.job.layout.sums());
        let exchanged = executor.exchange(plan, |held, totals| {
            rest.iter().try_for_each(|(dtype, places)| {
                let sums: Vec<Aligned> =
                    held.iter().map(|(_, sums)| Aligned::gathered(sums, places)).collect();
                let sums: Vec<&[u8]> = sums.iter().map(Aligned::bytes).collect();
                let mut total = Aligned::gathered(totals, places);
                let bytes = bytemuck::cast_slice_mut(&mut total.words);
                exchange_typed(*dtype, group, (n_grains, brings), &sums, bytes)?;
                let mut from = total.bytes();
                for place in places {
                    let (own, after) = from.split_at(place.len());
                    totals[place.clone()].copy_from_slice(own);
                    from = after;
                }
                Ok::<(), CollectiveError>(())
            })
        });
        Ok(exchanged??)
    }
}

/// Bytes that lie as numbers of every type want it.
struct Aligned {
    words: Vec<u64>,
}

impl Aligned {
    /// The bytes of these places, one after the other; each place is a multiple of eight bytes.
    fn gathered(bytes: &[u8], places: &[Range<usize>]) -> Aligned {
        let n: usize = places.iter().map(Range::len).sum();
        let mut words = vec![0; n / 8];
        let mut to: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for place in places {
            let (own, after) = to.split_at_mut(place.len());
            own.copy_from_slice(&bytes[place.clone()]);
            to = after;
        }
        Aligned { words }
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }
}

/// The sums that belong to no server, by their element type, as places in the bytes of a set.
fn rest_of(layout: &SumLayout, on_servers: &BTreeSet<&str>) -> Vec<(DType, Vec<Range<usize>>)> {
    let mut rest: Vec<(DType, Vec<Range<usize>>)> = Vec::new();
    for sum in layout.sums.iter().filter(|sum| !on_servers.contains(sum.name.as_str())) {
        // The zeros behind it go along, so that the next one begins where its type wants it.
        let n_bytes = (sum.n_elements * sum.dtype.size()).next_multiple_of(GROUP_ALIGNMENT);
        let place = sum.offset..sum.offset + n_bytes;
        match rest.iter_mut().find(|(dtype, _)| *dtype == sum.dtype) {
            Some((_, places)) => places.push(place),
            None => rest.push((sum.dtype, vec![place])),
        }
    }
    rest
}

pub(super) fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::SeqCst)
}

/// Goes on, unless it is to stop.
pub(super) fn stopped(stop: &AtomicBool) -> Result<(), Halt> {
    if is_set(stop) { Err(Halt::Stopped) } else { Ok(()) }
}

/// Why a worker does not go on, of an error of tables.
pub(super) fn halt(error: TableError) -> Halt {
    match error {
        TableError::DirectorLost { reason } => Halt::Lost(Peer::Driver, reason),
        // It was silent for too long, and comes back as another client.
        error @ TableError::ClientLost { .. } => Halt::Lost(Peer::Driver, error.to_string()),
        TableError::Stopped { .. } => Halt::Stopped,
        TableError::LostShard { .. } => Halt::Parameters(error.to_string()),
        error => Halt::Broken(error.into()),
    }
}
