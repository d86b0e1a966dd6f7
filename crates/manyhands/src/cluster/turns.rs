//! The driver's turns: what the dispatcher decides, on its way to workers.

use std::collections::BTreeMap;
use std::time::Instant;

use super::dispatch::{Dispatcher, Drift, Took, Turn, WorkerNumber};
use super::table::Table;
use super::words::{FromDriver, Loss};

/// Turns of workers that need not wait for each other. Workers are known by the numbers of their connections.
pub(super) struct Turns {
    dispatcher: Dispatcher,
    began: Instant,
    /// Turns that were not told yet.
    given: BTreeMap<u64, Turn>,
    /// The step up to which a worker was moved on.
    told: BTreeMap<u64, u64>,
    /// In which of its rounds a worker is: turns of an earlier one may still be on their way.
    rounds: BTreeMap<u64, u64>,
}

impl Turns {
    pub(super) fn new(drift: Drift) -> Turns {
        let (given, told, rounds) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Turns { dispatcher: Dispatcher::new(drift), began: Instant::now(), given, told, rounds }
    }

    /// How many steps should be handed over and not done.
    pub(super) fn depth(&self) -> usize {
        self.dispatcher.depth() as usize
    }

    pub(super) fn submit(&mut self, step: u64, n_grains: usize) {
        self.dispatcher.submit(step, n_grains);
        self.give();
    }

    /// A worker wants turns, in another round. What it was given and has not done is given to others.
    pub(super) fn join(&mut self, number: u64, round: u64) {
        self.lose(number);
        self.rounds.insert(number, round);
        self.dispatcher.join(self.now(), WorkerNumber(number));
        self.give();
    }

    /// A worker is gone.
    pub(super) fn lose(&mut self, number: u64) {
        self.given.remove(&number);
        self.told.remove(&number);
        self.rounds.remove(&number);
        self.dispatcher.lose(WorkerNumber(number));
        self.give();
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn give(&mut self) {
        for (WorkerNumber(number), turn) in self.dispatcher.give(self.now()) {
            self.given.insert(number, turn);
        }
    }

    /// Of each worker's connection the step that it is at, and its bound.
    pub(super) fn standings(&self) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        let standing = |number: &u64| {
            let bound = self.dispatcher.bound_of(WorkerNumber(*number));
            (*number, self.told.get(number).copied().unwrap_or_default(), bound)
        };
        self.rounds.keys().map(standing)
    }

    /// What is to be said to a worker now.
    pub(super) fn message_for(&mut self, number: u64) -> Option<FromDriver> {
        if let Some(Turn { step, grains, bound }) = self.given.remove(&number) {
            self.told.insert(number, step);
            let n_grains = self.dispatcher.n_grains(step).unwrap_or(grains.end);
            let round = self.rounds.get(&number).copied().unwrap_or_default();
            return Some(FromDriver::Turn { round, step, grains, n_grains, bound });
        }
        let worker = WorkerNumber(number);
        if self.dispatcher.is_busy(worker) || !self.rounds.contains_key(&number) {
            return None;
        }
        // One without a turn must not hold others up.
        let step = self.dispatcher.clock_of_idle(worker)?;
        let told = self.told.entry(number).or_default();
        if *told >= step {
            return None;
        }
        *told = step;
        Some(FromDriver::Advance { step })
    }
}

impl Table {
    /// What workers have that do not take part any more is given to others: their connections may stay open for long.
    pub(super) fn take_turns_back(&mut self) {
        let Some(turns) = &self.turns else { return };
        let gone = |number: &u64| !self.is_of_view(*number);
        let gone: Vec<u64> = turns.rounds.keys().copied().filter(gone).collect();
        if let Some(turns) = &mut self.turns {
            gone.into_iter().for_each(|number| turns.lose(number));
        }
    }

    /// Takes note that a worker has done its turn, unless it was taken back meanwhile.
    pub(super) fn turn_done(&mut self, number: u64, round: u64, loss: Loss, seconds: f64) {
        let Some(turns) = &mut self.turns else { return };
        if turns.rounds.get(&number) != Some(&round) {
            return;
        }
        let took = Took { seconds, loss: loss.value().map_or(f64::NAN, f64::from) };
        let done = turns.dispatcher.done(turns.now(), WorkerNumber(number), took);
        turns.give();
        let oldest = turns.dispatcher.oldest();
        self.news.extend(done.sentences);
        if let Some((step, loss)) = done.step {
            self.losses.insert(step, loss as f32);
        }
        self.done = self.done.max(oldest.map_or(self.submitted, |oldest| oldest - 1));
    }
}
