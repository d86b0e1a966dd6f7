//! A worker's side of parameters that live on servers.
//!
//! The sums of its grains go out as parts of the step; the servers wait for the parts of all, apply the step once, and the new values come back. Until then nothing of
//! the worker's state has changed, so a step that is stopped can be done again: parts that servers have already are dropped there.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_device::{PlanId, StepExecutor, SumLayout};
use manyhands_net::collective::{CollectiveError, Group};
use manyhands_net::membership::message::Peer;
use manyhands_net::station::Station;
use manyhands_net::tables::client::{ClientSettings, StepPart, Table, Tables, Ticket, Values};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::network::{Network, OnStation};

use super::foresight::Foresight;
use super::rows_of_grains::RowsOfGrains;
use super::server::Hosted;
use super::{JobTable, ServerTraffic, history};
use crate::cluster::halt::Halt;
use crate::cluster::sums::{ExchangeError, exchange_typed, rest_of};
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
    pub(super) client: Option<Client>,
    /// The clock of this worker, where it has one.
    pub(super) clock: u64,
    /// The rate of the step at hand.
    pub(in crate::cluster) rate: f32,
    /// The values that were pulled for the step or turn at hand, until the parameters have them.
    pub(super) values: Option<Values>,
    /// What parameters without gradients were when the turn at hand began, in the order of the layout.
    pub(super) statistics: Vec<Vec<f32>>,
    pub(super) foresight: Foresight,
    /// The servers were one step further before the values were read: those of the next step will be right again.
    pub(in crate::cluster) is_behind: bool,
    hosted: Vec<Hosted>,
    /// What the driver was told of the bytes that this client moved.
    pub(super) told: ServerTraffic,
}

/// The tables of a job, as a client has them open.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) tables: Tables,
    /// None where only tables of rows live on servers.
    pub(super) dense: Option<Table>,
    pub(super) rows: Vec<Table>,
}

impl Client {
    /// Opens the tables of a job, with a clock.
    pub(super) fn open(tables: Tables, job: &JobTable, clock: u64) -> Result<Client, TableError> {
        let dense = job.is_dense().then(|| tables.open_at(JobTable::NAME, job.spec(), clock));
        let rows = job.rows.iter();
        let rows = rows.map(|rows| tables.open_at(&rows.table_name(), job.rows_spec(rows), clock));
        Ok(Client { dense: dense.transpose()?, rows: rows.collect::<Result<_, _>>()?, tables })
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Table> {
        self.dense.iter().chain(&self.rows)
    }

    /// Waits until the servers have everything that was pushed.
    pub(super) fn flush(&self) -> Result<(), TableError> {
        self.tables.flush()
    }
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
        TableAtHand {
            job,
            network,
            name: name.to_string(),
            client: None,
            clock: 0,
            rate: 0.0,
            values: None,
            statistics: Vec::new(),
            foresight: Foresight::default(),
            is_behind: false,
            hosted: Vec::new(),
            told: ServerTraffic::default(),
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

    /// This worker ends: the servers in it leave first, when others have what they hold. Whether others have; none where there were no servers.
    pub(in crate::cluster) fn leave_as_server(&mut self) -> Option<bool> {
        self.client = None;
        self.hosted.iter().for_each(Hosted::leave);
        // Each of them is waited for.
        self.hosted.drain(..).filter_map(Hosted::await_end).reduce(|one, other| one && other)
    }

    /// Gives its place among the clients up; the next step takes another.
    pub(in crate::cluster) fn leave(&mut self) {
        self.client = None;
        self.values = None;
        self.foresight.forget();
    }

    /// Lets go of values that were pulled.
    pub(in crate::cluster) fn forget_values(&mut self) {
        self.values = None;
    }

    /// The servers took it for lost: it comes back as another, and its turn is given again.
    pub(super) fn unknown(&mut self) -> Halt {
        self.leave();
        let reason = "the servers took this worker for lost, since it was silent for too long";
        Halt::Lost(Peer::Driver, reason.to_string())
    }

    /// Why the state of this worker is not to be copied.
    pub(in crate::cluster) fn behind(&self) -> String {
        "its parameters are a step behind those of the servers".to_string()
    }

    /// Whether this worker is known to the servers.
    pub(super) fn is_client(&self) -> bool {
        self.client.is_some()
    }

    /// The open tables.
    pub(super) fn client(&mut self, stop: &AtomicBool) -> Result<Client, Halt> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let start = Instant::now();
        loop {
            match self.connect() {
                Ok(client) => {
                    self.client = Some(client.clone());
                    self.told = ServerTraffic::default();
                    return Ok(client);
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

    fn connect(&self) -> Result<Client, TableError> {
        let settings = ClientSettings {
            // What takes longer is taken up again, unless it is to end.
            deadline: TRY,
            history: history(),
            ..ClientSettings::new(self.name.clone(), self.job.director.clone())
        };
        let tables = Tables::connect(Arc::clone(&self.network), settings)?;
        Client::open(tables, &self.job, self.clock)
    }

    /// Sends the sums that are held of a step to the servers that they belong to.
    pub(in crate::cluster) fn push(
        &mut self,
        executor: &mut StepExecutor,
        rows: Option<&RowsOfGrains>,
        of: PartsOf,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let client = self.client(stop)?;
        // What was refused of a step that was given up says nothing of this one.
        client.all().for_each(Table::forget_refused);
        self.values = None;
        let sums = executor.sum_layout(of.plan)?.clone();
        for (idx, grains) in executor.held().to_vec().into_iter().enumerate() {
            let (gathered, divisor) = self.gathered(&sums, executor.held_bytes(idx)?)?;
            let (rate, n_grains) = (self.rate, of.n_grains);
            let part = StepPart { step: of.number - 1, grains, n_grains, rate, divisor };
            let range = 0..self.job.layout.n_elements as u64;
            if let Some(table) = &client.dense {
                let put =
                    |run: Range<u64>, to: &mut [f32]| gathered.put(1.0, run.start as usize, to);
                if !sent(stop, || table.push_part_with(&part, range.clone(), put))? {
                    break;
                }
            }
            if let Some(rows) = rows
                && !self.push_row_parts((&*executor, rows), of, &part, &client.rows, stop)?
            {
                break;
            }
        }
        Ok(())
    }

    /// The sums of the parameters on servers, and what they are to be divided by.
    pub(super) fn gathered<'b>(
        &self,
        sums: &SumLayout,
        bytes: &'b [u8],
    ) -> Result<(Gathered<'b>, f32), Error> {
        let layout = &self.job.layout;
        let of = |name: &str| {
            let sum = sums.sums.iter().find(|sum| sum.name == name);
            let sum = sum.ok_or_else(|| Error::MissingParameter { name: name.to_string() })?;
            Ok::<&'b [u8], Error>(&bytes[sum.offset..sum.offset + 4 * sum.n_elements])
        };
        let updated = layout.parameters.iter().filter(|one| one.update.is_some());
        let runs: Result<_, Error> = updated.map(|one| Ok((one.first, of(&one.sum)?))).collect();
        let divisor = of(&layout.divisor)?.first_chunk().copied().unwrap_or_default();
        Ok((Gathered::of(runs?), f32::from_le_bytes(divisor)))
    }

    /// Waits for the values that the servers made of a step.
    pub(in crate::cluster) fn pull(
        &mut self,
        executor: &mut StepExecutor,
        rows: Option<&RowsOfGrains>,
        of: PartsOf,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        loop {
            let client = self.client(stop)?;
            match self.pull_from(&client, of.number, stop) {
                Ok(()) => return Ok(()),
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(TableError::ClientLost { .. }) => {
                    // It was silent for too long. What it pushed may be there or not, and counts once.
                    self.client = None;
                    stopped(stop)?;
                    self.push(executor, rows, of, stop)?;
                }
                Err(error) => return Err(halt(error)),
            }
        }
    }

    /// Waits until every server has a step behind it, for the values that came of it. What was wrong with a push is told here too.
    fn pull_from(
        &mut self,
        client: &Client,
        number: u64,
        stop: &AtomicBool,
    ) -> Result<(), TableError> {
        // A large model takes its time on a slow link, so nobody but the coordinator ends the wait.
        let gives_up = || is_set(stop);
        // Nobody counts a step that can still be lost. Rows themselves come when grains need them.
        let steps: Vec<_> = client.rows.iter().map(|table| table.await_steps(number)).collect();
        if let Some(table) = &client.dense {
            let pulled = table.pull_values_at(number, 0..self.job.layout.n_elements as u64);
            match pulled.and_then(|pull| pull.wait_watching(|_| gives_up())) {
                Ok(values) => (self.values, self.is_behind) = (Some(values), false),
                // Only one without grains can be overtaken; it has the values of the next step then.
                Err(TableError::StepPassed { .. }) => self.is_behind = true,
                Err(error) => return Err(error),
            }
        }
        for steps in steps {
            match steps.wait_unless(gives_up) {
                Ok(()) | Err(TableError::StepPassed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives the parameters their new values, of a step that counts.
    pub(in crate::cluster) fn write_values(
        &mut self,
        executor: &mut StepExecutor,
    ) -> Result<(), Error> {
        let Some(values) = self.values.take() else { return Ok(()) };
        for one in &self.job.layout.parameters {
            executor.fill_parameter(&one.name, |to| {
                values.copy(one.first as u64, bytemuck::cast_slice_mut(to));
            })?;
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

/// Sums that lie apart, as runs of the table: the first element of each, and its bytes. They rise.
pub(super) struct Gathered<'b> {
    runs: Vec<(usize, &'b [u8])>,
}

impl<'b> Gathered<'b> {
    pub(super) fn of(runs: Vec<(usize, &'b [u8])>) -> Gathered<'b> {
        Gathered { runs }
    }

    /// So many times the elements of the table from the first on; zeros where no sum lies.
    pub(super) fn put(&self, scale: f32, first: usize, to: &mut [f32]) {
        let mut done = 0;
        for (place, sums) in self.within(first..first + to.len()) {
            to[done..place.start].fill(0.0);
            done = place.end;
            to[place].iter_mut().zip(sums).for_each(|(to, sum)| *to = scale * sum);
        }
        to[done..].fill(0.0);
    }

    /// Adds so many times each sum to these elements of the table.
    pub(super) fn add(&self, scale: f32, first: usize, to: &mut [f32]) {
        for (place, sums) in self.within(first..first + to.len()) {
            to[place].iter_mut().zip(sums).for_each(|(to, sum)| *to += scale * sum);
        }
    }

    /// The sums of these elements, and where they lie among them.
    fn within(&self, elements: Range<usize>) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.runs.iter().filter_map(move |(start, bytes)| {
            let sums: &[f32] = bytemuck::cast_slice(bytes);
            let (from, until) =
                ((*start).max(elements.start), (start + sums.len()).min(elements.end));
            let place = |at: usize| at - elements.start;
            (from < until).then(|| (place(from)..place(until), &sums[from - start..until - start]))
        })
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

pub(super) fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::SeqCst)
}

/// Pushes something. What goes wrong with it is told where it is waited for. Whether the client is still known.
pub(super) fn sent(
    stop: &AtomicBool,
    push: impl Fn() -> Result<Ticket, TableError>,
) -> Result<bool, Halt> {
    loop {
        match push() {
            Ok(ticket) => {
                ticket.detach();
                return Ok(true);
            }
            // Much is underway already.
            Err(TableError::Deadline { .. }) => stopped(stop)?,
            Err(TableError::ClientLost { .. }) => return Ok(false),
            Err(error) => return Err(halt(error)),
        }
    }
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
