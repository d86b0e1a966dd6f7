//! What a simulated worker does, and what it saw.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use manyhands_net::collective::subtrees;
use manyhands_net::tables::client::{
    Client, Filters, GoingPush, Keys, Outcome, PushSettings, Request, TicketId,
};
use manyhands_net::tables::identity::{ClientId, Place, ShardId, TableId, Version};
use manyhands_net::tables::message::{Body, Operation, Packing, Until, Wanted};
use manyhands_net::tables::spec::{Consistency, Cut, TableSpec};
use manyhands_net::tables::traffic::SavedByFilter;

use crate::chance::mix2;
use crate::world::{MS, World};

/// What all workers of a run do.
pub(crate) struct Plan {
    pub(crate) spec: TableSpec,
    pub(crate) keys: Vec<u64>,
    pub(crate) n_rounds: u64,
    pub(crate) n_grains: usize,
    pub(crate) n_clients: usize,
    pub(crate) seed: u64,
}

impl Plan {
    /// What a grain of a step adds to a key, if anything.
    pub(crate) fn grain_value(&self, step: u64, grain: usize, key: u64) -> Option<f32> {
        let chance = mix2(mix2(self.seed, step), mix2(grain as u64, key));
        let is_dense = matches!(self.spec.cut(), Cut::Dense { .. });
        (is_dense || chance.is_multiple_of(2)).then_some((chance >> 40) as f32 * 1.3e-6 - 3.0)
    }

    /// The sum of grains along the tree; what is absent is not added.
    pub(crate) fn tree_sum(&self, step: u64, grains: Range<usize>, key: u64) -> Option<f32> {
        if grains.len() == 1 {
            return self.grain_value(step, grains.start, key);
        }
        let middle = grains.start + grains.len().next_power_of_two() / 2;
        let low = self.tree_sum(step, grains.start..middle, key);
        let high = self.tree_sum(step, middle..grains.end, key);
        match (low, high) {
            (Some(low), Some(high)) => Some(low + high),
            (low, high) => low.or(high),
        }
    }

    pub(crate) fn after_steps(&self, n_steps: u64, key: u64) -> f32 {
        (0..n_steps).fold(0.0, |value, step| match self.tree_sum(step, 0..self.n_grains, key) {
            Some(sum) => value + sum,
            None => value,
        })
    }

    fn grains_of(&self, client: usize) -> Range<usize> {
        let edge = |i: usize| self.n_grains * i / self.n_clients;
        edge(client)..edge(client + 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Opening,
    Entering,
    Reading,
    Computing,
    Ending,
    Done,
}

/// What was read of a shard.
pub(crate) struct Seen {
    pub(crate) place: Place,
    pub(crate) version: Version,
    pub(crate) values: Vec<(u64, f32)>,
}

/// A worker.
pub(crate) struct Script {
    plan: Arc<Plan>,
    idx: usize,
    phase: Phase,
    table: TableId,
    round: u64,
    read: Option<TicketId>,
    open: Vec<TicketId>,
    numbers: BTreeMap<Place, u64>,
    /// Clients whose grains of this step were done again here.
    redone: Vec<usize>,
    filters: Filters,
    /// What each push adds to keys.
    pub(crate) pushed: BTreeMap<(Place, u64), Vec<(u64, f32)>>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) id: Option<ClientId>,
}

impl Script {
    pub(crate) fn new(plan: Arc<Plan>, idx: usize) -> Script {
        let filters = Filters::new(&plan.spec).unwrap();
        Script {
            plan,
            idx,
            phase: Phase::Joining,
            table: TableId(0),
            round: 0,
            read: None,
            open: Vec::new(),
            numbers: BTreeMap::new(),
            redone: Vec::new(),
            filters,
            pushed: BTreeMap::new(),
            seen: Vec::new(),
            id: None,
        }
    }

    /// The table of the run, once it is open.
    pub(crate) fn table(&self) -> TableId {
        self.table
    }

    pub(crate) fn saved(&self) -> SavedByFilter {
        self.filters.saved()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(crate) fn describe(&self, client: &Client) -> String {
        let waits = self.read.iter().chain(&self.open).next();
        let waits = waits.map(|ticket| client.waits_for(*ticket)).unwrap_or_default();
        format!("w{} {:?} round {}: {waits}", self.idx, self.phase, self.round)
    }

    /// Does what can be done now.
    pub(crate) fn go_on(world: &mut World, idx: usize) {
        let dead: Vec<usize> =
            (0..world.clients.len()).filter(|other| world.clients[*other].is_none()).collect();
        let compute = world.chance.between(10, 4 * MS);
        let choices = world.chance.next();
        let Some(node) = &mut world.clients[idx] else { return };
        let (script, client) = (&mut node.script, &mut node.client);
        let before = script.phase;
        let failure = script.step(client, choices, &dead);
        let has_changed = script.phase != before && !script.is_done();
        let is_computing = script.phase == Phase::Computing;
        let is_waiting = matches!(script.phase, Phase::Reading | Phase::Ending);
        let is_bsp = script.plan.spec.consistency == Consistency::Bsp;
        let actions = node.client.take_actions();
        world.perform_client(idx, actions);
        if let Err(failure) = failure {
            world.failure.get_or_insert(format!("w{idx}: {failure}"));
        }
        if is_computing {
            if let Some(node) = &mut world.clients[idx] {
                node.script.phase = Phase::Reading;
            }
            world.wake_client(idx, compute);
        } else if has_changed {
            world.wake_client(idx, 1);
        } else if is_waiting && is_bsp && !dead.is_empty() && choices.is_multiple_of(4) {
            // Somebody may be lost later: look again.
            world.wake_client(idx, 5 * MS);
        }
    }

    fn step(&mut self, client: &mut Client, choices: u64, dead: &[usize]) -> Result<(), String> {
        if let Some(error) = client.over() {
            return Err(error.to_string());
        }
        self.take_open(client)?;
        match self.phase {
            Phase::Joining => {
                if let Some(id) = client.id() {
                    self.id = Some(id);
                    client.ask_for("t", &self.plan.spec);
                    self.phase = Phase::Opening;
                }
            }
            Phase::Opening => match client.table("t") {
                Some(Ok(opened)) => {
                    self.table = opened.id;
                    self.phase = Phase::Entering;
                    if self.plan.spec.consistency.bound().is_some() {
                        self.everywhere(client, &Operation::Enter { clock: 0 });
                    }
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => {}
            },
            Phase::Entering if self.open.is_empty() => self.phase = Phase::Computing,
            Phase::Reading if self.plan.spec.consistency == Consistency::Bsp => {
                self.synchronous(client, choices, dead)?;
            }
            Phase::Reading => self.clocked(client, choices)?,
            Phase::Ending if self.open.is_empty() => self.phase = Phase::Done,
            _ => {}
        }
        Ok(())
    }

    /// Operations that are done are forgotten, unless something went wrong.
    fn take_open(&mut self, client: &mut Client) -> Result<(), String> {
        let mut left = Vec::new();
        for ticket in std::mem::take(&mut self.open) {
            match client.take(ticket) {
                None => left.push(ticket),
                Some(Outcome { error: Some(error), .. }) => return Err(error.to_string()),
                Some(_) => {}
            }
        }
        self.open = left;
        Ok(())
    }

    fn clocked(&mut self, client: &mut Client, choices: u64) -> Result<(), String> {
        let Some(read) = self.read else {
            let until = match self.plan.spec.consistency.bound() {
                Some(bound) => Until::Clock { clock: self.round, bound },
                None => Until::Now,
            };
            self.read = Some(client.submit(self.read_all(until)));
            return Ok(());
        };
        let Some(outcome) = client.take(read) else { return Ok(()) };
        self.took(outcome)?;
        for push in 0..1 + choices % 3 {
            let chosen = |key: &u64| mix2(choices ^ push, *key).is_multiple_of(3);
            let keys: Vec<u64> = self.plan.keys.iter().copied().filter(chosen).collect();
            match self.filters.holds() {
                true => self.hold(client, &keys)?,
                false => {
                    let ones: Vec<(u64, f32)> = keys.iter().map(|key| (*key, 1.0)).collect();
                    self.push(client, &ones);
                }
            }
        }
        let is_last = self.round + 1 == self.plan.n_rounds;
        let (due, _) =
            if is_last { self.filters.all_held() } else { self.filters.due(self.round + 1) };
        self.push_held(client, due);
        if self.plan.spec.consistency.bound().is_some() {
            self.everywhere(client, &Operation::Finish { clock: self.round });
        }
        self.next_round();
        Ok(())
    }

    /// Adds one to keys, as far as that matters.
    fn hold(&mut self, client: &mut Client, keys: &[u64]) -> Result<(), String> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
        let (keys, values): (Keys<'_>, Vec<f32>) = match self.plan.spec.cut() {
            Cut::Rows { .. } => (keys.into(), vec![1.0; keys.len()]),
            Cut::Dense { .. } => {
                let is_chosen = |key: u64| if keys.contains(&key) { 1.0 } else { 0.0 };
                ((*first..last + 1).into(), (*first..=*last).map(is_chosen).collect())
            }
        };
        let going = self.filters.hold(self.round, &keys, &values, PushSettings::default());
        self.push_held(client, going.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn push_held(&mut self, client: &mut Client, going: Vec<GoingPush>) {
        for push in going {
            let values: Vec<(u64, f32)> = match push.keys() {
                Keys::List(keys) => keys.iter().copied().zip(push.values.clone()).collect(),
                Keys::Range(range) => range.zip(push.values.clone()).collect(),
            };
            self.push(client, &values);
        }
    }

    fn push(&mut self, client: &mut Client, values: &[(u64, f32)]) {
        let clock = self.round;
        self.send(client, values, false, &|first, n| Operation::Push {
            first,
            n,
            clock,
            rate: 1.0.into(),
            share: 1.0.into(),
            packing: Packing::default(),
        });
    }

    fn next_round(&mut self) {
        self.round += 1;
        self.phase =
            if self.round == self.plan.n_rounds { Phase::Ending } else { Phase::Computing };
    }

    fn synchronous(
        &mut self,
        client: &mut Client,
        choices: u64,
        dead: &[usize],
    ) -> Result<(), String> {
        if self.read.is_none() {
            self.bring(client, self.plan.grains_of(self.idx), choices);
            self.redone.clear();
            self.read = Some(client.submit(self.read_all(Until::Steps { n: self.round + 1 })));
        }
        for lost in dead {
            if !self.redone.contains(lost) {
                self.redone.push(*lost);
                self.bring(client, self.plan.grains_of(*lost), choices);
            }
        }
        let Some(outcome) = self.read.and_then(|read| client.take(read)) else { return Ok(()) };
        self.took(outcome)?;
        let n_steps = self.round + 1;
        let from = self.seen.len().saturating_sub(self.plan.spec.cut().n_shards() as usize);
        for seen in &self.seen[from..] {
            for (key, value) in &seen.values {
                let wanted = self.plan.after_steps(n_steps, *key);
                if value.to_bits() != wanted.to_bits() {
                    return Err(format!(
                        "key {key} is {value} after {n_steps} steps, not {wanted}"
                    ));
                }
            }
        }
        self.next_round();
        Ok(())
    }

    /// Pushes the sums of some grains, cut into subtrees as chance has it.
    fn bring(&mut self, client: &mut Client, grains: Range<usize>, choices: u64) {
        let n_grains = self.plan.n_grains;
        let parts = match choices % 3 {
            0 => grains.map(|grain| grain..grain + 1).collect(),
            _ => subtrees(n_grains, &grains),
        };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let sum = |key: &u64| {
                self.plan.tree_sum(self.round, part.clone(), *key).map(|sum| (*key, sum))
            };
            let values: Vec<(u64, f32)> = self.plan.keys.iter().filter_map(sum).collect();
            let step = self.round;
            self.send(client, &values, true, &|_, n| Operation::Part {
                step,
                grains: [part.start, part.end],
                n_grains,
                rate: 1.0.into(),
                divisor: 1.0.into(),
                n,
                packing: Packing::default(),
            });
        }
    }

    fn took(&mut self, outcome: Outcome) -> Result<(), String> {
        self.read = None;
        if let Some(error) = outcome.error {
            return Err(error.to_string());
        }
        let cut = self.plan.spec.cut();
        for (shard, read) in outcome.reads.into_iter().enumerate() {
            let shard = ShardId(shard as u32);
            let bytes = read.bodies.first().map(|body| body.to_vec()).unwrap_or_default();
            let values = bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
            let keys = self.plan.keys.iter().copied().filter(|key| cut.shard_of(*key) == shard);
            let place = Place { table: self.table, shard };
            let values = keys.zip(values).collect();
            self.seen.push(Seen { place, version: read.version, values });
        }
        Ok(())
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.plan.spec.cut().n_shards()).map(ShardId)
    }

    fn place(&self, shard: ShardId) -> Place {
        Place { table: self.table, shard }
    }

    fn everywhere(&mut self, client: &mut Client, operation: &Operation) {
        let requests = self.shards().map(|shard| {
            let (place, operation) = (self.place(shard), operation.clone());
            Request::Do { place, operation, body: None }
        });
        let requests: Vec<Request> = requests.collect();
        for shard in self.shards() {
            *self.numbers.entry(self.place(shard)).or_insert(0) += 1;
        }
        self.open.push(client.submit(requests));
    }

    fn read_all(&self, until: Until) -> Vec<Request> {
        let cut = self.plan.spec.cut();
        let read = |shard: ShardId| {
            let elements = cut.elements(shard);
            let keys = self.plan.keys.iter().filter(|key| cut.shard_of(**key) == shard);
            let (first, n, keys) = match cut {
                Cut::Dense { .. } => (elements.start, elements.end - elements.start, None),
                Cut::Rows { .. } => {
                    let bytes: Vec<u8> = keys.flat_map(|key| key.to_le_bytes()).collect();
                    (0, bytes.len() as u64 / 8, Some(Body::new(bytes)))
                }
            };
            let (place, wanted) = (self.place(shard), Wanted::Values { first, n });
            Request::Read { place, until, wanted, keys }
        };
        self.shards().map(read).collect()
    }

    /// Sends values to their shards; `everywhere` also to those where none belong.
    fn send(
        &mut self,
        client: &mut Client,
        values: &[(u64, f32)],
        everywhere: bool,
        operation: &dyn Fn(u64, u64) -> Operation,
    ) {
        let cut = self.plan.spec.cut();
        let mut requests = Vec::new();
        for shard in self.shards() {
            let own = values.iter().filter(|(key, _)| cut.shard_of(*key) == shard);
            let own: Vec<(u64, f32)> = own.copied().collect();
            if own.is_empty() && !everywhere {
                continue;
            }
            let place = self.place(shard);
            let mut bytes = Vec::new();
            let is_dense = matches!(cut, Cut::Dense { .. });
            if !is_dense {
                own.iter().for_each(|(key, _)| bytes.extend(key.to_le_bytes()));
            }
            match is_dense && !everywhere {
                // Dense pushes are of one run: those in between get nothing.
                true => {
                    let run = own[0].0..=own[own.len() - 1].0;
                    let value = |key: u64| own.iter().find(|(own, _)| *own == key);
                    let run = run.map(|key| value(key).map_or(0.0f32, |(_, value)| *value));
                    run.for_each(|value| bytes.extend(value.to_le_bytes()));
                }
                false => own.iter().for_each(|(_, value)| bytes.extend(value.to_le_bytes())),
            }
            let n = if is_dense { bytes.len() as u64 / 4 } else { own.len() as u64 };
            let first = if is_dense { own[0].0 } else { 0 };
            let number = self.numbers.entry(place).or_insert(0);
            *number += 1;
            let added = own.iter().copied().filter(|(_, value)| *value != 0.0).collect();
            self.pushed.insert((place, *number), added);
            let body = (!bytes.is_empty()).then(|| Body::new(bytes));
            requests.push(Request::Do { place, operation: operation(first, n), body });
        }
        if self.filters.packs() {
            self.filters.pack(&mut requests).unwrap();
        }
        self.open.push(client.submit(requests));
    }
}
