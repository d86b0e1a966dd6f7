//! The simulated world: processes, connections, a network that delays, cuts and repeats, and a clock that jumps to the next event.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use manyhands_net::membership::coordinator::{self, Coordinator};
use manyhands_net::membership::driver::{self, Driver};
use manyhands_net::membership::identity::{ClusterId, Instance, JobId, MemberId, ViewId};
use manyhands_net::membership::log;
use manyhands_net::membership::message::{
    FromCoordinator, Go, GrainCounts, Join, Reach, Submit, ToCoordinator,
};
use manyhands_net::membership::worker::{self, Worker};

use crate::chance::Chance;
use crate::faults::Fault;
use crate::network::Link;
use crate::plane::{Brought, Plane, State};
use crate::setup::{KINDS, Planted, Setup};

/// Microseconds since the start.
pub(crate) type Time = u64;
pub(crate) const MS: Time = 1000;
pub(crate) const SECOND: Time = 1_000_000;

/// Something on its way to a process, by the data plane.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Brought(Brought),
    NeedInputs { view: ViewId, step: u64 },
    Inputs { view: ViewId, step: u64 },
    CopyState { view: ViewId },
    StateCopy { view: ViewId, state: State },
    StepDone { job: JobId, state: State },
    Fetch { view: ViewId },
    Fetched { view: ViewId, state: State },
}

pub(crate) enum Happening {
    Tick { node: usize, life: u64 },
    ToCoordinator { connection: u64, message: Box<ToCoordinator> },
    FromCoordinator { connection: u64, message: Box<FromCoordinator> },
    Connect { node: usize, life: u64, to: usize },
    ClosedAtClient { connection: u64 },
    ClosedAtServer { connection: u64 },
    Data { from: usize, to: usize, data: Data },
    LinkFailed { node: usize, life: u64, view: ViewId, peer: usize },
    GrainEnds { node: usize, life: u64, epoch: u64, grain: u32, seconds: f64 },
    Fault(Fault),
    Restart { node: usize },
    KillSecond,
}

struct Scheduled {
    at: Time,
    number: u64,
    happening: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

pub(crate) struct WorkerProcess {
    pub(crate) side: Worker,
    pub(crate) connection: Option<u64>,
    pub(crate) plane: Plane,
    pub(crate) job: Option<JobId>,
    pub(crate) slowness: f64,
    pub(crate) last_ready: Option<ToCoordinator>,
}

pub(crate) struct DriverProcess {
    pub(crate) side: Driver,
    pub(crate) connection: Option<u64>,
    pub(crate) go: Option<Go>,
    pub(crate) is_paused: bool,
    pub(crate) job: Option<JobId>,
    pub(crate) reached: u64,
    pub(crate) fetch_at: Time,
    pub(crate) is_over: bool,
}

pub(crate) struct CoordinatorProcess {
    pub(crate) side: Coordinator,
    /// Dies after so many more actions.
    pub(crate) dies_after: Option<usize>,
}

pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) now: Time,
    n_scheduled: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    pub(crate) n_workers: usize,
    pub(crate) workers: Vec<Option<WorkerProcess>>,
    pub(crate) driver: Option<DriverProcess>,
    /// The coordinator, and another one by mistake.
    pub(crate) coordinators: [Option<CoordinatorProcess>; 2],
    pub(crate) logs: [Vec<u8>; 2],
    pub(crate) lives: Vec<u64>,
    pub(crate) frozen_until: Vec<Time>,
    /// Until then a worker's process is alive but passes over orders.
    pub(crate) deaf_until: Vec<Time>,
    pub(crate) cut_until: Vec<Vec<Time>>,
    pub(crate) links: Vec<Link>,
    /// Connections of the data plane that failed: the two, the lower first, do not reach each other in that view any more.
    pub(crate) broken: BTreeSet<(ViewId, usize, usize)>,
    pub(crate) is_unordered: bool,
    pub(crate) planted: Option<Planted>,
    pub(crate) grain_time: Vec<Time>,
    pub(crate) copy_time: Time,
    pub(crate) grains: GrainCounts,
    pub(crate) n_steps: u64,
    pub(crate) saved: State,
    pub(crate) right: Vec<State>,
    pub(crate) views: BTreeMap<ViewId, Go>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) violation: Option<String>,
    pub(crate) finished: bool,
    pub(crate) n_events: u64,
    pub(crate) n_dropped: u64,
    /// How often each kind of decision was made, in the order of [`KINDS`].
    pub(crate) decisions: [u64; KINDS.len()],
    /// Which process a coordinator's log gave an id to.
    pub(crate) ids: BTreeMap<(usize, MemberId), (usize, u64)>,
    /// When a coordinator last heard each worker that was not deaf.
    pub(crate) heard_at: Vec<Time>,
    /// Which life of each worker told a coordinator, as the member that it is, that it has a state.
    pub(crate) told_state: Vec<Option<u64>>,
    /// When a worker that had a state last died: a coordinator may not know of it yet.
    pub(crate) holder_died_at: Option<Time>,
    pub(crate) faults_end: Time,
    /// When the first step after the faults was completed.
    pub(crate) recovered_at: Option<Time>,
    /// Whether a grain may still take a minute: nothing can be said of recovery then.
    pub(crate) was_slow: bool,
}

impl World {
    pub(crate) fn driver_node(&self) -> usize {
        self.n_workers
    }

    pub(crate) fn server_node(&self, which: usize) -> usize {
        self.n_workers + 1 + which
    }

    pub(crate) fn new(
        setup: Setup,
        mut chance: Chance,
        planted: Option<Planted>,
        is_traced: bool,
    ) -> World {
        let n_workers = setup.n_workers;
        let n_nodes = n_workers + 3;
        let (cluster, nonce) = (ClusterId(chance.next()), chance.next());
        let mut world = World {
            now: 0,
            n_scheduled: 0,
            queue: BinaryHeap::new(),
            n_workers,
            workers: (0..n_workers).map(|_| None).collect(),
            driver: None,
            coordinators: [None, None],
            logs: [Vec::new(), Vec::new()],
            lives: vec![0; n_nodes],
            frozen_until: vec![0; n_nodes],
            deaf_until: vec![0; n_nodes],
            cut_until: vec![vec![0; n_nodes]; n_nodes],
            links: Vec::new(),
            broken: BTreeSet::new(),
            is_unordered: setup.is_unordered,
            planted,
            grain_time: setup.grain_time,
            copy_time: setup.copy_time,
            grains: setup.grains,
            n_steps: setup.n_steps,
            saved: State::first(),
            right: vec![State::first()],
            views: BTreeMap::new(),
            trace: is_traced.then(Vec::new),
            violation: None,
            finished: false,
            n_events: 0,
            n_dropped: 0,
            decisions: [0; KINDS.len()],
            ids: BTreeMap::new(),
            heard_at: vec![0; n_nodes],
            told_state: vec![None; n_nodes],
            holder_died_at: None,
            faults_end: 0,
            recovered_at: None,
            was_slow: false,
            chance,
        };
        let (side, actions) = Coordinator::new(Duration::ZERO, cluster, nonce);
        world.coordinators[0] = Some(CoordinatorProcess { side, dies_after: None });
        world.carry_out(0, actions);
        world.tick_later(world.server_node(0));
        for node in 0..=n_workers {
            let at = world.chance.between(0, setup.start);
            world.after(at, Happening::Restart { node });
        }
        world
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:10.3} {}", self.now as f64 / 1e6, what()));
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn after(&mut self, delay: Time, happening: Happening) {
        self.n_scheduled += 1;
        let (at, number) = (self.now + delay, self.n_scheduled);
        self.queue.push(Reverse(Scheduled { at, number, happening }));
    }

    /// Does the next thing. False if nothing is left, or something is wrong.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(Reverse(next)) = self.queue.pop() else { return false };
        self.now = next.at;
        self.n_events += 1;
        self.happen(next.happening);
        self.violation.is_none()
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick { node, life } => self.tick(node, life),
            Happening::ToCoordinator { connection, message } => {
                self.deliver_to_coordinator(connection, message);
            }
            Happening::FromCoordinator { connection, message } => {
                self.deliver_from_coordinator(connection, message);
            }
            Happening::Connect { node, life, to } => self.connect(node, life, to),
            Happening::ClosedAtClient { connection } => self.closed_at_client(connection),
            Happening::ClosedAtServer { connection } => self.closed_at_server(connection),
            Happening::Data { from, to, data } => match self.blocked(from, to) {
                _ if self.is_broken(from, to, &data) => {}
                Some(until) => self.later(until, Happening::Data { from, to, data }),
                None => self.data_arrives(from, to, data),
            },
            Happening::LinkFailed { node, life, view, peer } => {
                self.link_failed(node, life, view, peer);
            }
            Happening::GrainEnds { node, life, epoch, grain, seconds } => {
                let until = self.frozen_until[node];
                let again = Happening::GrainEnds { node, life, epoch, grain, seconds };
                if until > self.now {
                    self.later(until, again);
                } else if self.lives[node] == life {
                    self.grain_ends(node, epoch, grain, seconds);
                }
            }
            Happening::Fault(fault) => self.strike(fault),
            Happening::Restart { node } => self.restart(node),
            Happening::KillSecond => self.kill(self.server_node(1)),
        }
    }

    fn is_broken(&self, from: usize, to: usize, data: &Data) -> bool {
        let view = match data {
            Data::Brought(brought) => brought.view,
            Data::NeedInputs { view, .. }
            | Data::Inputs { view, .. }
            | Data::CopyState { view }
            | Data::StateCopy { view, .. }
            | Data::Fetch { view }
            | Data::Fetched { view, .. } => *view,
            Data::StepDone { .. } => return false,
        };
        self.broken.contains(&(view, from.min(to), from.max(to)))
    }

    pub(crate) fn later(&mut self, until: Time, happening: Happening) {
        let wait = until - self.now + 100;
        self.after(wait, happening);
    }

    fn tick_later(&mut self, node: usize) {
        let life = self.lives[node];
        let jitter = self.chance.between(0, 10 * MS);
        self.after(50 * MS + jitter, Happening::Tick { node, life });
    }

    fn tick(&mut self, node: usize, life: u64) {
        if self.lives[node] != life {
            return;
        }
        if self.frozen_until[node] > self.now {
            return self.later(self.frozen_until[node], Happening::Tick { node, life });
        }
        if node < self.n_workers {
            self.tell_worker(node, worker::Event::Tick);
        } else if node == self.driver_node() {
            self.tell_driver(driver::Event::Tick);
            self.driver_works();
        } else {
            self.tell_server(node - self.n_workers - 1, coordinator::Event::Tick);
        }
        self.tick_later(node);
    }

    pub(crate) fn restart(&mut self, node: usize) {
        if self.finished {
            return;
        }
        if node > self.n_workers {
            return self.restart_coordinator();
        }
        let instance = Instance(self.chance.next());
        if node < self.n_workers && self.workers[node].is_none() {
            self.lives[node] += 1;
            let join = Join {
                name: format!("w{node}"),
                instance,
                host: "host".to_string(),
                addresses: Vec::new(),
                cores: 1,
                kernel_set: "k".to_string(),
                follows: None,
                previous: None,
                view: None,
            };
            self.note(|| format!("start w{node}"));
            self.workers[node] = Some(WorkerProcess {
                side: Worker::new(self.time(), join),
                connection: None,
                plane: Plane::default(),
                job: None,
                slowness: 1.0,
                last_ready: None,
            });
            self.tick_later(node);
        } else if node == self.n_workers && self.driver.is_none() {
            self.lives[node] += 1;
            let submit = Submit {
                name: "job".to_string(),
                instance,
                grains: self.grains,
                kernel_set: "k".to_string(),
                driver: Reach::default(),
                follows: None,
                previous: None,
            };
            let saved = self.saved.steps;
            self.note(|| format!("start driver from {saved}"));
            self.driver = Some(DriverProcess {
                side: Driver::new(self.time(), submit, saved),
                connection: None,
                go: None,
                is_paused: true,
                job: None,
                reached: saved,
                fetch_at: 0,
                is_over: false,
            });
            self.tick_later(node);
        }
    }

    fn restart_coordinator(&mut self) {
        if self.coordinators[0].is_some() {
            return;
        }
        self.start_coordinator(0, self.logs[0].clone());
    }

    pub(crate) fn start_coordinator(&mut self, which: usize, mut bytes: Vec<u8>) {
        if which == 1 {
            self.ids.retain(|(which, _), _| *which == 0);
        }
        let decoded = match log::decode(&bytes) {
            Ok(decoded) => decoded,
            Err(error) => return self.violate(error.to_string()),
        };
        bytes.truncate(decoded.n_bytes);
        self.logs[which] = bytes;
        let nonce = self.chance.next();
        match Coordinator::recover(self.time(), &decoded.entries, nonce) {
            Ok((side, actions)) => {
                let epoch = side.incarnation().epoch;
                self.note(|| format!("coordinator {which} recovers as {epoch}"));
                let node = self.server_node(which);
                self.lives[node] += 1;
                self.coordinators[which] = Some(CoordinatorProcess { side, dies_after: None });
                self.carry_out(which, actions);
                self.tick_later(node);
            }
            Err(error) => self.violate(error.to_string()),
        }
    }

    /// A process dies: its connections close, its memory is gone.
    pub(crate) fn kill(&mut self, node: usize) {
        self.note(|| format!("kill node {node}"));
        self.lives[node] += 1;
        self.frozen_until[node] = 0;
        if node < self.n_workers {
            self.break_links_of(node);
            let process = self.workers[node].take();
            if process.is_some_and(|process| process.plane.state.is_some()) {
                self.holder_died_at = Some(self.now);
            }
        } else if node == self.driver_node() {
            self.driver = None;
        } else {
            self.coordinators[node - self.n_workers - 1] = None;
        }
        for connection in 0..self.links.len() as u64 {
            let link = &self.links[connection as usize];
            if link.client == node && link.client_open {
                self.close_by_client(connection);
            } else if self.server_node(link.server) == node && link.server_open {
                self.close_by_server(connection);
            }
        }
    }

    /// An id is given to one process only.
    pub(crate) fn check_welcome(&mut self, which: usize, connection: u64, id: MemberId) {
        let link = &self.links[connection as usize];
        let process = (link.client, link.client_life);
        // What it said as another member is forgotten.
        if !self.ids.contains_key(&(which, id)) {
            self.told_state[process.0] = None;
        }
        let first = *self.ids.entry((which, id)).or_insert(process);
        if first != process {
            self.violate(format!("member {id} is {first:?} and {process:?}"));
        }
    }

    /// How long the job may take from now on, with all steps still to do and a straggler's grain in flight.
    pub(crate) fn time_limit(&self) -> Time {
        let slowest = self.grain_time.iter().max().copied().unwrap_or(0);
        let step = slowest * u64::from(self.grains.most()) * 5 / 4 + 600 * MS;
        60 * SECOND + self.n_steps * step
    }
}
