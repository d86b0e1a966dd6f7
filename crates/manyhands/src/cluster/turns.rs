//! The driver's turns: what the dispatcher decides, on its way to workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::dispatch::{Decision, Dispatcher, Drift, Turn, WorkerNumber};
use super::table::Table;
use super::words::{FromDriver, Loss};

/// Turns of workers that need not wait for each other. Workers are known by the numbers of their connections.
pub(super) struct Turns {
    dispatcher: Dispatcher,
    began: Instant,
    /// Turns that were not told yet.
    given: BTreeMap<u64, Turn>,
    /// Workers that have computed a turn and were not told yet whether there is another.
    asking: BTreeSet<u64>,
    /// The step up to which a worker was moved on.
    told: BTreeMap<u64, u64>,
    /// In which of its rounds a worker is: turns of an earlier one may still be on their way.
    rounds: BTreeMap<u64, u64>,
    /// Workers that are to bring what they hold back and have not done so, and whether they were told.
    holding: BTreeMap<u64, bool>,
}

impl Turns {
    pub(super) fn new(drift: Drift) -> Turns {
        let (given, told, rounds) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (dispatcher, began) = (Dispatcher::new(drift), Instant::now());
        let (asking, holding) = (BTreeSet::new(), BTreeMap::new());
        Turns { dispatcher, began, given, asking, told, rounds, holding }
    }

    /// How many steps should be handed over and not done.
    pub(super) fn depth(&self) -> usize {
        self.dispatcher.depth() as usize
    }

    pub(super) fn submit(&mut self, step: u64, n_grains: usize) {
        self.dispatcher.submit(self.now(), step, n_grains);
        self.give();
    }

    /// A worker wants turns, in another round. What it was given and has not done is given to others.
    pub(super) fn join(&mut self, number: u64, round: u64) {
        let holds = self.holding.contains_key(&number);
        self.lose(number);
        self.rounds.insert(number, round);
        if holds {
            self.holding.insert(number, false);
        }
        self.dispatcher.join(self.now(), WorkerNumber(number));
        self.give();
    }

    /// A worker is gone.
    pub(super) fn lose(&mut self, number: u64) {
        self.given.remove(&number);
        self.told.remove(&number);
        self.rounds.remove(&number);
        self.holding.remove(&number);
        self.asking.remove(&number);
        self.dispatcher.lose(WorkerNumber(number));
        self.give();
    }

    /// All workers are to bring what they hold back.
    pub(super) fn release(&mut self) {
        self.holding = self.rounds.keys().map(|number| (*number, false)).collect();
    }

    /// A worker has brought it.
    pub(super) fn released(&mut self, number: u64, round: u64) {
        if self.rounds.get(&number) == Some(&round) {
            self.holding.remove(&number);
        }
    }

    /// How many workers have not brought what they were to bring.
    pub(super) fn n_holding(&self) -> usize {
        self.holding.len()
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

    /// What is to be said to a worker now. `has_inputs` says whether those of its turn are sent with it, unasked.
    pub(super) fn message_for(&mut self, number: u64, has_inputs: bool) -> Option<FromDriver> {
        let asks = self.asking.remove(&number);
        if let Some(Turn { step, grains, bound }) = self.given.remove(&number) {
            self.told.insert(number, step);
            let n_grains = self.dispatcher.n_grains(step).unwrap_or(grains.end);
            let round = self.rounds.get(&number).copied().unwrap_or_default();
            return Some(FromDriver::Turn { round, step, grains, n_grains, bound, has_inputs });
        }
        let round = self.rounds.get(&number).copied().unwrap_or_default();
        if asks {
            return Some(FromDriver::NoTurn { round });
        }
        if let Some(is_told @ false) = self.holding.get_mut(&number) {
            *is_told = true;
            return Some(FromDriver::Release { round });
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
    /// What workers have that do not take part any more is given to others: their connections may stay open for long. Gives the names of those who are not of the view: servers
    /// must not wait for their clocks either.
    pub(super) fn take_turns_back(&mut self) -> Vec<String> {
        let Some(turns) = &self.turns else { return Vec::new() };
        let gone = |number: &u64| !self.is_of_view(*number);
        let gone: Vec<u64> = turns.rounds.keys().copied().filter(gone).collect();
        if let Some(turns) = &mut self.turns {
            gone.into_iter().for_each(|number| turns.lose(number));
        }
        let names: BTreeSet<&String> = self.talks.values().map(|one| &one.name).collect();
        names.into_iter().filter(|name| !self.members.contains(name)).cloned().collect()
    }

    /// The name of a worker that is not of the view and has no turns, if it is none.
    pub(super) fn left_out(&self, number: u64) -> Option<String> {
        let name = &self.talks.get(&number)?.name;
        let takes_turns = self.turns.as_ref()?.rounds.contains_key(&number);
        (!takes_turns && !self.members.contains(name)).then(|| name.clone())
    }

    /// Takes note that a worker has computed its turn, unless it was taken back meanwhile.
    pub(super) fn turn_computed(&mut self, number: u64, round: u64, seconds: f64) {
        let Some(turns) = &mut self.turns else { return };
        if turns.rounds.get(&number) == Some(&round) {
            turns.asking.insert(number);
            turns.dispatcher.computed(turns.now(), WorkerNumber(number), seconds);
            turns.give();
        }
    }

    /// Takes note that the servers have what a worker computed, unless it was taken back meanwhile.
    pub(super) fn turn_done(&mut self, number: u64, round: u64, loss: Loss) {
        let Some(turns) = &mut self.turns else { return };
        if turns.rounds.get(&number) != Some(&round) {
            return;
        }
        let loss = loss.value().map_or(f64::NAN, f64::from);
        let done = turns.dispatcher.done(WorkerNumber(number), loss);
        turns.give();
        let oldest = turns.dispatcher.oldest();
        for Decision { worker, sentence } in done.decisions {
            let name = worker.and_then(|number| self.talks.get(&number.0)).map(|one| &one.name);
            self.news.push_back(match name {
                Some(name) => format!("{name} {sentence}"),
                None => sentence,
            });
        }
        if let Some((step, loss)) = done.step {
            self.losses.insert(step, loss as f32);
        }
        self.done = self.done.max(oldest.map_or(self.submitted, |oldest| oldest - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::table::Connected;

    fn turns(drift: Drift) -> Turns {
        let mut turns = Turns::new(drift);
        (1..=2).for_each(|number| turns.join(number, 1));
        turns.submit(1, 8);
        turns
    }

    /// What a worker is given, with the round.
    fn given(turns: &mut Turns, number: u64) -> Option<(u64, u64, std::ops::Range<usize>)> {
        match turns.message_for(number, false)? {
            FromDriver::Turn { round, step, grains, .. } => Some((round, step, grains)),
            _ => None,
        }
    }

    #[test]
    fn each_worker_is_told_its_turn_once() {
        let mut turns = turns(Drift::Bounded(1));
        assert_eq!(given(&mut turns, 1), Some((1, 1, 0..4)));
        assert_eq!(given(&mut turns, 2), Some((1, 1, 4..8)));
        assert_eq!(given(&mut turns, 1), None);
        assert_eq!(given(&mut turns, 3), None, "nobody of that number is there");
    }

    #[test]
    fn what_was_not_done_is_given_again_with_the_same_grains() {
        for drift in [Drift::Bounded(1), Drift::Unbounded] {
            let mut turns = turns(drift);
            let first = given(&mut turns, 1).unwrap();
            let second = given(&mut turns, 2).unwrap();
            // Both are lost, and three others come: what servers may have of these turns must not be cut anew.
            (1..=2).for_each(|number| turns.lose(number));
            (3..=5).for_each(|number| turns.join(number, 1));
            let mut again: Vec<_> =
                (3..=5).filter_map(|number| given(&mut turns, number)).collect();
            again.sort_by_key(|(.., grains)| grains.start);
            for (.., grains) in &again {
                let within = |turn: &(u64, u64, std::ops::Range<usize>)| {
                    turn.2.start <= grains.start && grains.end <= turn.2.end
                };
                assert!(within(&first) || within(&second), "{drift:?}: {grains:?}");
            }
        }
    }

    #[test]
    fn a_worker_that_asks_anew_is_in_another_round() {
        let mut table =
            Table { turns: Some(turns(Drift::Bounded(1))), submitted: 1, ..Table::default() };
        let of = |table: &mut Table| given(table.turns.as_mut().unwrap(), 1);
        assert_eq!(of(&mut table), Some((1, 1, 0..4)));
        table.turns.as_mut().unwrap().join(1, 2);
        assert_eq!(of(&mut table), Some((2, 1, 0..4)));
        let is_busy =
            |table: &Table| table.turns.as_ref().unwrap().dispatcher.is_busy(WorkerNumber(1));
        let loss = Loss::new(1, Some(0.5));
        table.turn_computed(1, 1, 0.1);
        table.turn_done(1, 1, loss);
        assert!(is_busy(&table), "of a round before");
        table.turn_computed(1, 2, 0.1);
        table.turn_done(1, 2, loss);
        assert!(!is_busy(&table));
        assert_eq!(table.done, 0);
        given(table.turns.as_mut().unwrap(), 2).unwrap();
        table.turn_computed(2, 1, 0.1);
        table.turn_done(2, 1, Loss::new(1, Some(1.5)));
        assert_eq!((table.done, table.losses[&1]), (1, 1.0));
    }

    #[test]
    fn who_brings_what_it_computed_is_told_what_is_next_within_its_bound() {
        for (bound, next) in [(0, None), (1, Some((1, 2, 0..4)))] {
            let mut turns = turns(Drift::Bounded(bound));
            turns.submit(2, 8);
            given(&mut turns, 1).unwrap();
            let mut table = Table { turns: Some(turns), submitted: 2, ..Table::default() };
            table.turn_computed(1, 1, 0.1);
            let own = table.turns.as_mut().unwrap();
            let told = own.message_for(1, false);
            match (&told, &next) {
                (Some(FromDriver::Turn { step, grains, .. }), Some((_, next, of))) => {
                    assert_eq!((step, grains), (next, of), "a bound of {bound}");
                }
                (Some(FromDriver::NoTurn { round: 1 }), None) => {}
                _ => panic!("a bound of {bound}: {told:?}"),
            }
            assert!(own.message_for(1, false).is_none(), "it was told once");
            assert_eq!(table.done, 0);
            // It is lost before the servers have it: all of it is given to another.
            let turns = table.turns.as_mut().unwrap();
            turns.lose(1);
            turns.lose(2);
            turns.join(3, 1);
            assert_eq!(given(turns, 3), Some((1, 1, 0..4)));
        }
    }

    #[test]
    fn what_is_held_back_is_waited_for_unless_its_worker_is_gone() {
        let mut turns = turns(Drift::Bounded(1));
        (1..=2).for_each(|number| {
            let _ = given(&mut turns, number);
        });
        turns.release();
        let is_release = |told| matches!(told, Some(FromDriver::Release { round: 1 }));
        assert!(is_release(turns.message_for(1, false)) && is_release(turns.message_for(2, false)));
        assert!(turns.message_for(1, false).is_none(), "it was told once");
        turns.released(1, 0);
        assert_eq!(turns.n_holding(), 2, "of a round before");
        turns.released(1, 1);
        assert_eq!(turns.n_holding(), 1);
        turns.join(2, 2);
        assert_eq!(given(&mut turns, 2), Some((2, 1, 4..8)));
        let told = turns.message_for(2, false);
        assert!(matches!(told, Some(FromDriver::Release { round: 2 })), "{told:?}");
        assert_eq!(turns.n_holding(), 1, "it holds it still in another round");
        turns.lose(2);
        assert_eq!(turns.n_holding(), 0);
    }

    #[test]
    fn who_is_there_and_not_of_the_view_is_left_out() {
        let talk = |name: &str| Connected { name: name.to_string(), ..Connected::default() };
        let talks = [(1, talk("one")), (2, talk("other"))].into();
        let members = vec!["one".to_string(), "other".to_string()];
        let turns = Some(turns(Drift::Bounded(1)));
        let mut table = Table { turns, submitted: 1, talks, members, ..Table::default() };
        assert_eq!(table.take_turns_back(), [""; 0]);
        given(table.turns.as_mut().unwrap(), 1).unwrap();
        table.members.remove(0);
        assert_eq!(table.take_turns_back(), ["one"], "others are not to wait for its clock");
        let left_out = [1, 2].map(|number| table.left_out(number));
        assert_eq!(left_out, [Some("one".to_string()), None], "it may still say that it is done");
        table.turns.as_mut().unwrap().join(1, 2);
        assert_eq!(table.left_out(1), None, "it takes part again, as the next view will say");
    }

    #[test]
    fn one_without_a_turn_is_moved_on_once() {
        let mut turns = Turns::new(Drift::Bounded(4));
        (1..=2).for_each(|number| turns.join(number, 1));
        // One grain for two workers: the first has none.
        (1..=3).for_each(|step| turns.submit(step, 1));
        let told = turns.message_for(1, false);
        assert!(matches!(told, Some(FromDriver::Advance { step: 3 })), "{told:?}");
        assert!(turns.message_for(1, false).is_none());
        assert_eq!(given(&mut turns, 2), Some((1, 1, 0..1)));
    }
}
