//! The driver's side of parameters that live on servers: it directs the servers, fills them with the state that the run begins with, and takes the state from them
//! where a checkpoint needs it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_net::membership::driver::Event;
use manyhands_net::station::Station;
use manyhands_net::tables::client::{ClientSettings, Tables};
use manyhands_net::tables::directing::{DirectorProcess, DirectorSettings};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::message::Reach;
use manyhands_net::tables::network::{Network, OnStation};
use manyhands_net::tables::spec::Consistency as TableConsistency;
use manyhands_program::without_updates;

use super::at_worker::Client;
use super::layout::{OnServer, Placed, place, place_all};
use super::row_layout::{give_rows_to, place_all_rows, place_rows};
use super::state::{from_rows, from_table, parameters_of, to_rows, to_table};
use super::{JobTable, SERVERS, history};
use crate::checkpoint::NamedTensor;
use crate::cluster::programs::ServersPlan;
use crate::cluster::table::Shared;
use crate::cluster::talk::{Talk, Until};
use crate::cluster::words::{FromDriver, Programs};
use crate::error::Error;
use crate::job::Consistency;

/// How long servers are waited for before workers hold parameters in their place.
const MISSING: Duration = Duration::from_secs(3);
/// How long a worker that was asked to be a server may take to be one.
const ASKED: Duration = Duration::from_secs(10);
/// How often there is a look at which servers are there.
const LOOK_UP: Duration = Duration::from_millis(50);
/// No server that is silent for less than this is lost, however steady it was; beyond that it is measured. One that was killed is noticed at once.
const SILENCE: Duration = Duration::from_secs(3);
/// A server that is silent for so long may be what a step waits for.
const QUIET: Duration = Duration::from_secs(1);
/// How long a server that calls may take to listen.
const TELLING: Duration = Duration::from_millis(100);
/// How long a state may take to be read or written.
const STATE: Duration = Duration::from_secs(600);

/// The table of a job, its director and the driver's own client.
pub(in crate::cluster) struct TablesOfDriver {
    pub(super) job: JobTable,
    network: Arc<dyn Network>,
    pub(in crate::cluster) director: Arc<DirectorProcess>,
    client: Arc<OnceLock<Client>>,
    /// The names of the tensors of a state, in their order.
    order: Vec<String>,
    filling: Option<JoinHandle<()>>,
    /// Tells servers where the director is, until it is to stop.
    telling: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl TablesOfDriver {
    /// Decides which parameters live on servers, and changes the programs so that workers leave these alone. None where there are no such parameters. Gives a sentence too.
    pub(in crate::cluster) fn start(
        programs: &mut Programs,
        plan: &ServersPlan,
        station: &Arc<Station>,
        public: Option<IpAddr>,
        say: impl FnMut(&str) + Send + 'static,
    ) -> Result<(Option<TablesOfDriver>, String), Error> {
        let Some(first) = programs.plans.first() else { return Err(Error::NoStep) };
        let rows = match plan.consistency {
            Consistency::Bsp => place_rows(&first.program, &plan.parameters)?,
            _ => place_all_rows(&first.program)?,
        };
        let divisor = give_rows_to(programs, &rows)?;
        let Some(first) = programs.plans.first() else { return Err(Error::NoStep) };
        let Placed { layout, sentence } = match plan.consistency {
            Consistency::Bsp => place(&first.program, &plan.parameters, &rows, divisor)?,
            _ => {
                let layout = place_all(&first.program, divisor)?;
                let n = layout.parameters.len() + rows.rows.len();
                let waits = match plan.consistency {
                    Consistency::Ssp => {
                        format!(
                            "workers wait for those who are more than {} steps behind",
                            plan.staleness
                        )
                    }
                    Consistency::Adaptive => {
                        "how far workers may run ahead of each other follows what is measured"
                            .to_string()
                    }
                    _ => "workers do not wait for each other".to_string(),
                };
                let mut sentence = format!("all {n} parameters live on servers: {waits}");
                rows.sentences.iter().for_each(|one| sentence.push_str(&format!("; {one}")));
                Placed { layout: Some(layout), sentence }
            }
        };
        let Some(layout) = layout else { return Ok((None, sentence)) };
        let mut names = layout.names();
        // What each worker changes of running statistics it finds out itself.
        let is_added = |one: &&OnServer| one.update.is_none();
        if plan.traffic.changes_values().is_some()
            && let Some(one) = layout.parameters.iter().find(is_added)
        {
            return Err(Error::StatisticsNotExact { name: one.name.clone() });
        }
        layout.parameters.iter().filter(is_added).for_each(|one| {
            names.remove(&one.name);
        });
        for plan in &mut programs.plans {
            plan.program = without_updates(&plan.program, &names)?;
            plan.last = plan.last.as_ref().map(|last| without_updates(last, &names)).transpose()?;
        }
        let network: Arc<dyn Network> = Arc::new(OnStation::new(Arc::clone(station), public));
        let settings = DirectorSettings { silence: SILENCE, n_servers: plan.n_servers };
        let director = DirectorProcess::start(network.clone(), &settings, say)?;
        let job = JobTable {
            layout,
            rows: rows.rows,
            n_servers: plan.n_servers,
            replication: plan.replication,
            director: director.reach().clone(),
            consistency: match plan.consistency {
                Consistency::Bsp => TableConsistency::Bsp,
                Consistency::Ssp => TableConsistency::Ssp { staleness: plan.staleness as u32 },
                Consistency::Adaptive => TableConsistency::Adaptive { staleness: 0 },
                Consistency::Async => TableConsistency::Async,
            },
            traffic: plan.traffic,
            foresight: plan.foresight,
        };
        programs.table = Some(job.clone());
        let (director, client) = (Arc::new(director), Arc::default());
        let (stop, told) = (Arc::<AtomicBool>::default(), job.director.clone());
        let (stops, station) = (Arc::clone(&stop), Arc::clone(station));
        let telling = std::thread::Builder::new().name("driver-servers".into());
        let telling = Some(telling.spawn(move || tell_servers(&station, &told, &stops))?);
        let (filling, order) = (None, Vec::new());
        let own = TablesOfDriver { job, network, director, client, order, filling, telling, stop };
        Ok((Some(own), sentence))
    }

    /// Whether workers hold a parameter, or what stands beside it: not where they have rows of it alone.
    pub(in crate::cluster) fn is_with_workers(&self, name: &str) -> bool {
        let mut rows = self.job.rows.iter();
        !rows.any(|rows| rows.name == name || rows.slots.iter().any(|slot| slot == name))
    }

    /// Whether workers hold updates back that are too small to matter.
    pub(in crate::cluster) fn workers_hold_back(&self) -> bool {
        self.job.traffic.significance.is_some()
    }

    /// Fills the servers with a state, when they are there. Until then nobody is given inputs.
    pub(in crate::cluster) fn fill(
        &mut self,
        shared: &Arc<Shared>,
        steps: u64,
        state: Vec<NamedTensor>,
    ) -> Result<(), Error> {
        let (shared, director) = (Arc::clone(shared), Arc::clone(&self.director));
        let (job, network) = (self.job.clone(), Arc::clone(&self.network));
        self.order = state.iter().map(|tensor| tensor.name.clone()).collect();
        let (client, stop) = (Arc::clone(&self.client), Arc::clone(&self.stop));
        let filling = std::thread::Builder::new().name("driver-tables".into());
        self.filling = Some(filling.spawn(move || {
            let mut missing = Missing::new(job.n_servers);
            if !missing.await_servers(&shared, &director, &stop) {
                return;
            }
            match filled(&job, network, &shared, steps, &state) {
                Ok(filled) => {
                    let _ = client.set(filled);
                    let mut table = shared.table();
                    table.is_filling = false;
                    if let Some(teller) = shared.teller.get() {
                        teller.note(Event::InputsSent { steps: table.inputs_there() });
                    }
                }
                Err(error) => shared.table().failed = Some(error),
            }
            // It is as large as the model, and the run may be long.
            drop(state);
            shared.ring();
            missing.replace_servers(&shared, &director, &stop);
        })?);
        Ok(())
    }

    /// Puts what the servers have after so many steps in the place of what workers know of it.
    pub(in crate::cluster) fn overlay(
        &self,
        steps: u64,
        tensors: &mut Vec<NamedTensor>,
    ) -> Result<(), Error> {
        let Some(client) = self.client.get() else { return Ok(()) };
        let at = (!self.job.is_stale()).then_some(steps);
        if let Some(table) = &client.dense {
            let state = table.save(at).map_err(lost)?;
            from_table(&self.job.layout, table, &state, tensors)?;
        }
        for (rows, table) in self.job.rows.iter().zip(&client.rows) {
            from_rows(rows, &table.save(at).map_err(lost)?, tensors)?;
        }
        let place = |tensor: &NamedTensor| self.order.iter().position(|name| *name == tensor.name);
        tensors.sort_by_key(|tensor| place(tensor).unwrap_or(usize::MAX));
        Ok(())
    }

    /// What parameters are now, without what an optimizer keeps beside them; no worker waits for it. Types are those of tensors of the same names. None where the tables
    /// are not filled yet.
    pub(in crate::cluster) fn glimpse(
        &self,
        known: &[NamedTensor],
    ) -> Result<Option<Vec<NamedTensor>>, Error> {
        let Some(client) = self.client.get() else { return Ok(None) };
        let mut seen = Vec::new();
        if let Some(table) = &client.dense {
            let mut values = vec![0.0; self.job.layout.n_elements];
            let pulled = table.pull_now(0..values.len() as u64, &mut values);
            pulled.and_then(|ticket| ticket.wait()).map_err(lost)?;
            seen = parameters_of(&self.job.layout, &values, known)?;
        }
        for (rows, table) in self.job.rows.iter().zip(&client.rows) {
            let is_of =
                |one: &&NamedTensor| one.name == rows.name || rows.slots.contains(&one.name);
            let mut tensors: Vec<NamedTensor> = known.iter().filter(is_of).cloned().collect();
            from_rows(rows, &table.save(None).map_err(lost)?, &mut tensors)?;
            seen.extend(tensors.into_iter().filter(|one| one.name == rows.name));
        }
        Ok(Some(seen))
    }

    /// The servers of which nothing was heard for a while, and for how long.
    pub(in crate::cluster) fn silent(&self) -> Vec<(String, Duration)> {
        let servers = self.director.status().servers.into_iter();
        let silent = servers.filter(|server| server.silent_for >= QUIET);
        silent.map(|server| (server.name, server.silent_for)).collect()
    }

    /// Who holds parameters, in words.
    pub(in crate::cluster) fn described(&self) -> Vec<String> {
        let servers = self.director.status().servers;
        let one = |server: &manyhands_net::tables::director::ServerStatus| {
            let (name, n) = (&server.name, server.n_bytes as f64 / 1e6);
            format!("{name}: {n:.1} MB in {} shards, first of {}", server.n_held, server.n_first)
        };
        servers.iter().map(one).collect()
    }
}

impl Drop for TablesOfDriver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in [self.filling.take(), self.telling.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// Tells servers that call where the director is.
fn tell_servers(station: &Station, director: &Reach, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let Some((_, Ok(link))) = station.next_call(SERVERS, TELLING) else { continue };
        let mut talk = Talk::of_driver(link);
        let until = Until { deadline: Some(Instant::now() + TELLING), stop };
        // One that does not listen calls again.
        let _ = talk
            .say(&FromDriver::Director(director.clone()), &[])
            .and_then(|()| talk.await_sent(&until));
    }
}

/// Tells servers that call that this job has no use for them.
pub(in crate::cluster) fn refuse_servers(station: &Station, stop: &AtomicBool) {
    while let Some((_, Ok(link))) = station.next_call(SERVERS, Duration::ZERO) {
        let mut talk = Talk::of_driver(link);
        let until = Until { deadline: Some(Instant::now() + TELLING), stop };
        let _ = talk.say(&FromDriver::NoServers, &[]).and_then(|()| talk.await_sent(&until));
    }
}

/// Sees to it that there are enough servers: where they do not come, workers are asked, and again after a while, since who was asked may be gone.
struct Missing {
    n_servers: usize,
    /// Whether people were told that more servers are no second copy.
    has_told_of_copies: bool,
    since: Option<Instant>,
    asked: Option<Instant>,
}

impl Missing {
    fn new(n_servers: usize) -> Missing {
        Missing { n_servers, has_told_of_copies: false, since: None, asked: None }
    }

    /// Waits until enough servers are there. Whether the run goes on.
    fn await_servers(
        &mut self,
        shared: &Shared,
        director: &DirectorProcess,
        stop: &AtomicBool,
    ) -> bool {
        loop {
            if [stop, &shared.stop].iter().any(|flag| flag.load(Ordering::SeqCst)) {
                return false;
            }
            if self.look(shared, director) {
                return true;
            }
            std::thread::sleep(LOOK_UP);
        }
    }

    /// Has others take the place of servers that are lost or leave, until the run ends.
    fn replace_servers(&mut self, shared: &Shared, director: &DirectorProcess, stop: &AtomicBool) {
        while self.await_servers(shared, director, stop) {
            std::thread::sleep(LOOK_UP);
        }
    }

    /// Whether enough servers are there.
    fn look(&mut self, shared: &Shared, director: &DirectorProcess) -> bool {
        let n_servers = self.n_servers;
        let servers = director.status().servers;
        let n_here = servers.iter().filter(|server| !server.is_leaving).count();
        if n_here >= n_servers {
            if self.since.is_some() {
                // Those that were missing have come.
                shared.table().n_servers_wanted = 0;
            }
            (self.since, self.asked) = (None, None);
            // Who asked for one server and starts several may count on a copy that there is not.
            if n_servers == 1
                && n_here > 1
                && !std::mem::replace(&mut self.has_told_of_copies, true)
            {
                shared.table().news.push_back(format!(
                    "{n_here} servers share the parameters, each held once, since the job asks for one server: with `distribute.servers = 2` each would be held twice, and a lost server cost nothing"
                ));
            }
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASKED);
        // One that says that it leaves is not waited for.
        let is_leaving = servers.iter().any(|server| server.is_leaving);
        if (is_leaving || since.elapsed() >= MISSING) && is_due {
            self.asked = Some(Instant::now());
            let mut table = shared.table();
            table.n_servers_wanted = n_servers - n_here;
            table.news.push_back(format!(
                "{n_here} of {n_servers} servers are here: workers are asked to hold parameters in place of the others"
            ));
            drop(table);
            shared.ring();
        }
        false
    }
}

/// The tables, filled.
fn filled(
    job: &JobTable,
    network: Arc<dyn Network>,
    shared: &Shared,
    steps: u64,
    state: &[NamedTensor],
) -> Result<Client, Error> {
    let settings = ClientSettings {
        deadline: STATE,
        history: history(),
        stop: Arc::clone(&shared.stop),
        ..ClientSettings::new("driver", job.director.clone())
    };
    let tables = Tables::connect(network, settings).map_err(lost)?;
    // It reads and writes no clocks, so nobody is to wait for it.
    let client = Client::open(tables, job, u64::MAX / 2).map_err(lost)?;
    if let Some(table) = &client.dense {
        table.load(&to_table(&job.layout, table, state, steps)?).map_err(lost)?;
    }
    for (rows, table) in job.rows.iter().zip(&client.rows) {
        table.load(&to_rows(rows, table, state, steps)?).map_err(lost)?;
    }
    Ok(client)
}

/// Parameters that are lost are a reason to begin again, other errors are not.
fn lost(error: TableError) -> Error {
    match error {
        TableError::LostShard { .. } => Error::ParametersLost { reason: error.to_string() },
        error => error.into(),
    }
}
