//! A table as a worker has it: push, pull, clock.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::filters::{Filters, GoingPush};
use super::keys::{Keys, Split, split};
use super::running::Shared;
use super::ticket::Ticket;
use super::{Outcome, Request};
use crate::tables::body;
use crate::tables::error::TableError;
use crate::tables::identity::{Place, ShardId};
use crate::tables::message::{
    Body, MOST_BYTES, Opened, Operation, PIECE, Packing, TurnOf, Until, Wanted,
};
use crate::tables::server::kept::find_not_finite;
use crate::tables::spec::{Consistency, Cut, MOST_STALENESS, TableSpec};
use crate::tables::traffic::{SavedByFilter, TrafficError};

/// Bytes that filters may add to keys and values that they make no shorter.
const BESIDE_KEYS: usize = 32;

/// What goes with a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushSettings {
    /// The learning rate, for rules that have none of their own.
    pub rate: f32,
    /// The share of the batch that the push stands for.
    pub share: f32,
    /// Which grains it is of, where the same grains may be pushed again, by this worker or another: they count once.
    pub turn: Option<TurnOf>,
}

impl Default for PushSettings {
    fn default() -> PushSettings {
        PushSettings { rate: 1.0, share: 1.0, turn: None }
    }
}

/// A part of a step under BSP.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPart {
    /// The step: the first is 0.
    pub step: u64,
    /// The grains whose sum it is: a complete subtree of the grain tree.
    pub grains: Range<usize>,
    /// Grains of the step.
    pub n_grains: usize,
    /// The learning rate of the step: the same in all parts.
    pub rate: f32,
    /// This part's share of what the total is divided by; it is summed along the same tree.
    pub divisor: f32,
}

/// All of a table, as it is saved.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// Steps behind it; the most of its shards where it is not synchronous.
    pub n_steps: u64,
    /// Of each shard the pieces.
    pub shards: Vec<Vec<Vec<u8>>>,
}

/// An open table. Clones are the same one.
#[derive(Clone)]
pub struct Table {
    shared: Arc<Shared>,
    inner: Arc<Inner>,
}

/// What clones of a table share.
struct Inner {
    opened: Opened,
    cut: Cut,
    clock: AtomicU64,
    bound: AtomicU32,
    filters: Mutex<Filters>,
    /// One thing at a time where its parts must stay together.
    gate: Mutex<()>,
}

/// A push at a clock, of elements from the first on or of so many keys.
pub(super) fn push_at(clock: u64, settings: PushSettings) -> impl Fn(u64, u64) -> Operation {
    let (rate, share) = (settings.rate.into(), settings.share.into());
    move |first, n| {
        let packing = Packing::default();
        Operation::Push { first, n, clock, rate, share, turn: settings.turn, packing }
    }
}

impl Table {
    pub(super) fn new(
        shared: Arc<Shared>,
        opened: Opened,
        clock: u64,
    ) -> Result<Table, TableError> {
        let (cut, bound) = (opened.spec.cut(), opened.spec.consistency.bound().unwrap_or(0));
        let (clock, bound) = (AtomicU64::new(clock), AtomicU32::new(bound));
        let filters = Filters::new(&opened.spec).map_err(|error| TableError::Spec {
            table: opened.name.clone(),
            what: error.to_string(),
        })?;
        let (filters, gate) = (Mutex::new(filters), Mutex::default());
        let inner = Arc::new(Inner { opened, cut, clock, bound, filters, gate });
        let table = Table { shared, inner };
        // Whoever cannot hold a shard says so now, not at the first push.
        match table.has_clock() {
            true => table.on_all_shards(Operation::Enter { clock: table.now() }).wait()?,
            false => table.touch()?,
        }
        Ok(table)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.opened.name
    }

    /// What it is.
    pub fn spec(&self) -> &TableSpec {
        &self.inner.opened.spec
    }

    /// Its shards: the elements of each where it is dense.
    pub fn shards(&self) -> Vec<Range<u64>> {
        let cut = &self.inner.cut;
        (0..cut.n_shards()).map(|shard| cut.elements(ShardId(shard))).collect()
    }

    /// The clock that this worker is at.
    pub fn now(&self) -> u64 {
        self.inner.clock.load(Ordering::Relaxed)
    }

    /// Pushes values: those of a range of elements, or of keys that rise, row after row.
    pub fn push<'k>(
        &self,
        keys: impl Into<Keys<'k>>,
        values: &[f32],
    ) -> Result<Ticket, TableError> {
        self.push_with(keys, values, PushSettings::default())
    }

    /// As [`Table::push`], with a learning rate and a share of the batch.
    pub fn push_with<'k>(
        &self,
        keys: impl Into<Keys<'k>>,
        values: &[f32],
        settings: PushSettings,
    ) -> Result<Ticket, TableError> {
        let (keys, clock) = (keys.into(), self.now());
        let what = format!("a push to the table {}", self.name());
        // Before filters keep a part of it: one that is tried again is offered to them once.
        self.shared.await_room(&what)?;
        let mut filters = self.filters();
        let mut requests = if filters.holds() {
            self.check_push(&keys, values)?;
            let going = filters.hold(clock, &keys, values, settings);
            self.going_requests(&going.map_err(|error| self.own_fault(&error))?, settings)?
        } else {
            self.requests(&keys, values, push_at(clock, settings))?
        };
        self.pack(&mut filters, &mut requests)?;
        drop(filters);
        Ok(self.shared.submit_now(requests, what))
    }

    fn filters(&self) -> MutexGuard<'_, Filters> {
        self.inner.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was held back and goes now.
    fn going_requests(
        &self,
        going: &[GoingPush],
        settings: PushSettings,
    ) -> Result<Vec<Request>, TableError> {
        let mut requests = Vec::new();
        for push in going {
            // It is of several turns, so that none of them can be told to be there.
            let operation = push_at(self.now(), PushSettings { turn: None, ..settings });
            requests.extend(self.requests(&push.keys(), &push.values, operation)?);
        }
        Ok(requests)
    }

    /// Writes pushes in fewer bytes.
    fn pack(&self, filters: &mut Filters, requests: &mut [Request]) -> Result<(), TableError> {
        match filters.packs() {
            true => filters.pack(requests).map_err(|error| self.own_fault(&error)),
            false => Ok(()),
        }
    }

    fn own_fault(&self, error: &TrafficError) -> TableError {
        TableError::Nonsense { who: self.shared.name().to_string(), what: error.to_string() }
    }

    /// Pushes what is held back because it is too small to matter, all of it.
    pub fn release(&self) -> Result<Ticket, TableError> {
        self.push_held(Filters::all_held)
    }

    fn push_held(
        &self,
        take: impl FnOnce(&mut Filters) -> (Vec<GoingPush>, PushSettings),
    ) -> Result<Ticket, TableError> {
        let what = format!("a push to the table {}", self.name());
        self.shared.await_room(&what)?;
        let mut filters = self.filters();
        let (going, settings) = take(&mut filters);
        let mut requests = self.going_requests(&going, settings)?;
        self.pack(&mut filters, &mut requests)?;
        drop(filters);
        Ok(self.shared.submit_now(requests, what))
    }

    /// Bytes that the filters of the table saved of what this worker pushed and pulled.
    pub fn saved(&self) -> SavedByFilter {
        let mut saved = self.filters().saved();
        saved += self.shared.saved(self.inner.opened.id);
        saved
    }

    /// Pushes a part of a step, of whole shards. Every part must bring every shard of what it is about, also with no rows.
    pub fn push_part<'k>(
        &self,
        part: &StepPart,
        keys: impl Into<Keys<'k>>,
        values: &[f32],
    ) -> Result<Ticket, TableError> {
        let keys = keys.into();
        if let Keys::Range(range) = &keys {
            self.check_whole_shards(range)?;
        }
        self.send_to_all(keys, values, self.part_operation(part)?)
    }

    pub(super) fn part_operation(
        &self,
        part: &StepPart,
    ) -> Result<impl Fn(u64, u64) -> Operation + use<>, TableError> {
        let StepPart { step, ref grains, n_grains, rate, divisor } = *part;
        let whole = crate::collective::subtrees(n_grains, grains);
        if grains.is_empty() || grains.end > n_grains || whole.len() != 1 {
            let (start, end) = (grains.start, grains.end);
            return Err(TableError::NoSubtree { start, end, n_grains });
        }
        let (grains, rate, divisor) = ([grains.start, grains.end], rate.into(), divisor.into());
        let packing = Packing::default();
        Ok(move |_, n| Operation::Part { step, grains, n_grains, rate, divisor, n, packing })
    }

    pub(super) fn check_whole_shards(&self, range: &Range<u64>) -> Result<(), TableError> {
        let edges = |shard: Range<u64>| {
            let apart = shard.end <= range.start || range.end <= shard.start;
            apart || (range.start <= shard.start && shard.end <= range.end)
        };
        match self.shards().into_iter().all(edges) {
            true => Ok(()),
            false => {
                let (table, start, end) = (self.name().to_string(), range.start, range.end);
                Err(TableError::PartOfShard { table, start, end })
            }
        }
    }

    /// Sets values, whatever the rule. What it keeps beside them stays.
    pub fn assign<'k>(
        &self,
        keys: impl Into<Keys<'k>>,
        values: &[f32],
    ) -> Result<Ticket, TableError> {
        self.send(keys.into(), values, |first, n| Operation::Assign { first, n })
    }

    /// Ends this worker's clock: what it pushed so far is of it. The next one begins.
    pub fn clock(&self) -> Result<(), TableError> {
        let _gate = self.inner.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = self.inner.clock.load(Ordering::Relaxed);
        // What was held back for as long as it may be is still of this clock.
        if self.filters().holds() {
            self.push_held(|filters| filters.due(clock + 1))?.detach();
        }
        if self.has_clock() {
            self.on_all_shards(Operation::Finish { clock }).detach();
        }
        self.inner.clock.store(clock + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Changes how many clocks this worker's reads may miss, from the next read on: for `adaptive` tables.
    pub fn set_bound(&self, staleness: u32) -> Result<(), TableError> {
        if staleness > MOST_STALENESS {
            let table = self.name().to_string();
            return Err(TableError::AbsurdStaleness { table, staleness });
        }
        self.inner.bound.store(staleness, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets what went wrong with pushes that nobody waited for: of work that was given up.
    pub fn forget_refused(&self) {
        self.shared.forget_refused();
    }

    /// Waits until everything that this process pushed, to any table, is acknowledged. Tells what went wrong with pushes that nobody waited for.
    pub fn flush(&self) -> Result<(), TableError> {
        self.shared.flush()
    }

    /// All of the table, to be saved: after so many steps under BSP, or as it is. Asked for before that step is done it is of exactly that step.
    pub fn save(&self, n_steps: Option<u64>) -> Result<TableState, TableError> {
        let until = n_steps.map_or(Until::Now, |n| Until::Steps { n });
        let n_shards = self.inner.cut.n_shards();
        let read = |shard| Request::Read {
            place: self.place(ShardId(shard)),
            until,
            wanted: Wanted::State,
            keys: None,
        };
        let what = || format!("saving the table {}", self.name());
        let ticket = self.shared.submit((0..n_shards).map(read).collect(), what())?;
        let Outcome { reads, .. } = ticket.outcome()?;
        let n_steps = reads.iter().map(|read| read.steps).max().unwrap_or(0);
        let bytes = |body: Body| body.to_vec();
        let pieces = reads.into_iter().map(|read| read.bodies.into_iter().map(bytes).collect());
        Ok(TableState { n_steps, shards: pieces.collect() })
    }

    /// Replaces all of the table with what was saved. Nobody else may use it meanwhile.
    pub fn load(&self, state: &TableState) -> Result<(), TableError> {
        let n_shards = self.inner.cut.n_shards() as usize;
        if state.shards.len() != n_shards || state.shards.iter().any(|pieces| pieces.is_empty()) {
            let what = format!("it has {} shards, not {n_shards}", state.shards.len());
            return Err(TableError::Snapshot { table: self.name().to_string(), what });
        }
        let mut pieces = state.shards.iter().flatten();
        if let Some(piece) = pieces.find(|piece| piece.len() > MOST_BYTES) {
            let (who, n_bytes) = (self.shared.name().to_string(), piece.len() as u64);
            let what = format!("a piece of a saved state of the table {}", self.name());
            return Err(TableError::TooLarge { who, what, n_bytes });
        }
        let mut requests = Vec::new();
        for (shard, pieces) in state.shards.iter().enumerate() {
            for (idx, piece) in pieces.iter().enumerate() {
                let (is_first, is_last) = (idx == 0, idx + 1 == pieces.len());
                requests.push(Request::Do {
                    place: self.place(ShardId(shard as u32)),
                    operation: Operation::Load { is_first, is_last },
                    body: Some(Body::new(piece.clone())),
                });
            }
        }
        let most = (super::running::WINDOW / PIECE).max(1);
        while !requests.is_empty() {
            let some: Vec<Request> = requests.drain(..most.min(requests.len())).collect();
            self.shared.submit(some, format!("loading the table {}", self.name()))?.wait()?;
        }
        Ok(())
    }

    pub(super) fn has_clock(&self) -> bool {
        let consistency = self.inner.opened.spec.consistency;
        matches!(consistency, Consistency::Ssp { .. } | Consistency::Adaptive { .. })
    }

    /// How many clocks reads may miss.
    pub(super) fn bound(&self) -> u32 {
        self.inner.bound.load(Ordering::Relaxed)
    }

    pub(super) fn place(&self, shard: ShardId) -> Place {
        Place { table: self.inner.opened.id, shard }
    }

    /// Reads nothing of every shard.
    fn touch(&self) -> Result<(), TableError> {
        let read = |shard| Request::Read {
            place: self.place(ShardId(shard)),
            until: Until::Now,
            wanted: Wanted::Values { first: self.inner.cut.elements(ShardId(shard)).start, n: 0 },
            keys: None,
        };
        let requests = (0..self.inner.cut.n_shards()).map(read).collect();
        self.shared.submit(requests, format!("opening the table {}", self.name()))?.wait()
    }

    /// It has no bytes beside it, so it waits for no room: what is read next may wait for it.
    fn on_all_shards(&self, operation: Operation) -> Ticket {
        let request = |shard| Request::Do {
            place: self.place(ShardId(shard)),
            operation: operation.clone(),
            body: None,
        };
        let requests = (0..self.inner.cut.n_shards()).map(request).collect();
        self.shared.submit_now(requests, format!("a clock of the table {}", self.name()))
    }

    fn send(
        &self,
        keys: Keys<'_>,
        values: &[f32],
        operation: impl Fn(u64, u64) -> Operation,
    ) -> Result<Ticket, TableError> {
        let requests = self.requests(&keys, values, operation)?;
        self.shared.submit(requests, format!("a push to the table {}", self.name()))
    }

    /// As [`Table::send`], with something for every shard, also where no row falls on it.
    fn send_to_all(
        &self,
        keys: Keys<'_>,
        values: &[f32],
        operation: impl Fn(u64, u64) -> Operation,
    ) -> Result<Ticket, TableError> {
        let mut requests = self.requests(&keys, values, &operation)?;
        if let Keys::List(_) = keys {
            let place_of = |request: &Request| match request {
                Request::Do { place, .. } | Request::Read { place, .. } => *place,
            };
            for shard in 0..self.inner.cut.n_shards() {
                let place = self.place(ShardId(shard));
                if !requests.iter().any(|request| place_of(request) == place) {
                    let operation = operation(0, 0);
                    requests.push(Request::Do { place, operation, body: None });
                }
            }
        }
        self.pack(&mut self.filters(), &mut requests)?;
        self.shared.submit(requests, format!("a part of a step of the table {}", self.name()))
    }

    fn requests(
        &self,
        keys: &Keys<'_>,
        values: &[f32],
        operation: impl Fn(u64, u64) -> Operation,
    ) -> Result<Vec<Request>, TableError> {
        let split = self.check_push(keys, values)?;
        let request = |shard, first, n, body: Body| Request::Do {
            place: self.place(shard),
            operation: operation(first, n).known_finite(),
            body: Some(body),
        };
        let width = self.spec().width();
        Ok(match (&split, keys) {
            (Split::Runs(runs), Keys::Range(range)) => runs
                .iter()
                .map(|(shard, run)| {
                    let from = (run.start - range.start) as usize;
                    let n = (run.end - run.start) as usize;
                    let body = Body::copy_of(bytemuck::cast_slice(&values[from..from + n]));
                    request(*shard, run.start, n as u64, body)
                })
                .collect(),
            (Split::Places { shards, order }, Keys::List(keys)) => shards
                .iter()
                .map(|(shard, places)| {
                    let places = &order[places.clone()];
                    let mut body = body::empty(places.len() * (8 + 4 * width));
                    for place in places {
                        body.extend_from_slice(&keys[*place as usize].to_le_bytes());
                    }
                    for place in places {
                        let row = &values[*place as usize * width..][..width];
                        body.extend_from_slice(bytemuck::cast_slice(row));
                    }
                    request(*shard, 0, places.len() as u64, Body::new(body))
                })
                .collect(),
            _ => Vec::new(),
        })
    }

    /// Whether keys and values can be pushed, and how the keys fall on shards. All of a push is refused where any of it is: nothing of it was sent yet.
    pub(super) fn check_push(&self, keys: &Keys<'_>, values: &[f32]) -> Result<Split, TableError> {
        let split = self.split(keys, values.len())?;
        self.check_sizes(&split, 8 + 4 * self.spec().width(), "a push to")?;
        self.check_finite(keys, values)?;
        Ok(split)
    }

    /// Whether values of these keys are numbers, where the table takes no others.
    pub(super) fn check_finite(&self, keys: &Keys<'_>, values: &[f32]) -> Result<(), TableError> {
        let found = if self.spec().rejects_nan { find_not_finite(values) } else { None };
        let Some((at, value)) = found else { return Ok(()) };
        let key = match keys {
            Keys::Range(range) => range.start + at as u64,
            Keys::List(keys) => keys[at / self.spec().width()],
        };
        let (worker, value) = (self.shared.name().to_string(), value.to_string());
        Err(TableError::NotFinite { worker, table: self.name().into(), key, value })
    }

    /// Whether what goes to each shard may go at once, with so many bytes for a key. Dense shards are cut so that they may.
    pub(super) fn check_sizes(
        &self,
        split: &Split,
        per_key: usize,
        what: &str,
    ) -> Result<(), TableError> {
        let Split::Places { shards, .. } = split else { return Ok(()) };
        let largest = shards.iter().map(|(_, places)| places.len()).max().unwrap_or(0);
        let n_bytes = largest.saturating_mul(per_key).saturating_add(BESIDE_KEYS);
        if n_bytes <= MOST_BYTES {
            return Ok(());
        }
        let (who, n_bytes) = (self.shared.name().to_string(), n_bytes as u64);
        let what = format!("{what} the table {}", self.name());
        Err(TableError::TooLarge { who, what, n_bytes })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends requests, in fewer bytes where the table says so.
    pub(super) fn submit(
        &self,
        mut requests: Vec<Request>,
        what: &str,
    ) -> Result<Ticket, TableError> {
        self.pack(&mut self.filters(), &mut requests)?;
        self.shared.submit(requests, format!("{what} the table {}", self.name()))
    }

    pub(super) fn split_keys(&self, keys: &Keys<'_>) -> Result<Split, TableError> {
        split(&self.inner.cut, keys, self.name())
    }

    pub(super) fn split(&self, keys: &Keys<'_>, n_values: usize) -> Result<Split, TableError> {
        let split = self.split_keys(keys)?;
        let (n_keys, width) = match keys {
            Keys::Range(range) => ((range.end - range.start) as usize, 1),
            Keys::List(keys) => (keys.len(), self.spec().width()),
        };
        match n_values == n_keys * width {
            true => Ok(split),
            false => {
                let table = self.name().to_string();
                Err(TableError::WrongWidth { table, n_keys, n_values, width })
            }
        }
    }
}
