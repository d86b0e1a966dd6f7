//! Single faults in a calm cluster, with what must come of each. Times are simulated ones.

use crate::chance::Chance;
use crate::faults::Fault;
use crate::setup::{KINDS, Setup};
use crate::world::{Happening, MS, SECOND, Time, World};

struct Scenario(World);

impl Scenario {
    fn new(n_workers: usize, faults: &[(Time, Fault)]) -> Scenario {
        let mut world = World::new(Setup::plain(n_workers), Chance::new(7), None, true);
        for (at, fault) in faults {
            world.after(*at, Happening::Fault(*fault));
        }
        Scenario(world)
    }

    fn until(&mut self, time: Time) -> &mut Scenario {
        while self.0.now < time && !self.0.finished && self.0.advance() {}
        self
    }

    /// Runs to the end, which must come.
    fn finish(&mut self) -> &mut Scenario {
        let limit = self.0.time_limit() + 100 * SECOND;
        self.until(limit);
        let trace = self.0.trace.as_ref().unwrap().join("\n");
        assert_eq!(self.0.violation, None, "{trace}");
        assert!(self.0.finished, "{trace}");
        self
    }

    fn count(&self, kind: &str) -> u64 {
        self.0.decisions[KINDS.iter().position(|other| *other == kind).unwrap()]
    }

    /// Steps that the furthest worker has behind it.
    fn steps(&self) -> u64 {
        let workers = self.0.workers.iter().flatten();
        workers.filter_map(|process| process.side.steps()).max().unwrap_or(0)
    }

    fn trace(&self) -> String {
        self.0.trace.as_ref().unwrap().join("\n")
    }
}

#[test]
fn an_undisturbed_job_needs_one_view_and_loses_nobody() {
    let mut scenario = Scenario::new(4, &[]);
    scenario.finish();
    assert_eq!(scenario.0.views.len(), 1, "{}", scenario.trace());
    assert_eq!(scenario.0.n_dropped, 0);
    // 200 steps of two grains each, and what messages take.
    assert!(scenario.0.now < 20 * SECOND, "{}", scenario.0.now);
}

#[test]
fn a_crashed_worker_is_replaced_at_once() {
    let mut scenario = Scenario::new(4, &[(2 * SECOND, Fault::Crash { node: 1, down: None })]);
    let before = scenario.until(2 * SECOND).steps();
    scenario.until(2 * SECOND + 700 * MS);
    assert_eq!(scenario.0.views.len(), 2, "{}", scenario.trace());
    assert!(scenario.steps() > before + 1, "{}", scenario.trace());
    scenario.finish();
    assert_eq!(scenario.0.n_dropped, 1);
}

#[test]
fn a_frozen_worker_is_noticed_within_a_second_and_joins_anew_when_it_thaws() {
    let freeze = Fault::Freeze { node: 1, length: 3 * SECOND };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, freeze)]);
    scenario.until(3 * SECOND);
    assert!(scenario.count("has been silent for") > 0, "{}", scenario.trace());
    assert_eq!(scenario.0.n_dropped, 1);
    scenario.finish();
    let last = scenario.0.views.values().next_back().unwrap();
    assert_eq!(last.members.len(), 4, "{}", scenario.trace());
}

#[test]
fn a_stragglers_grains_are_done_by_others_and_it_stays() {
    let slow = Fault::Slow { node: 2, factor: 100.0 };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, slow), (9 * SECOND, Fault::End)]);
    scenario.until(5 * SECOND);
    assert!(scenario.count("is far slower than usual") > 0, "{}", scenario.trace());
    scenario.finish();
    assert_eq!(scenario.0.n_dropped, 0, "{}", scenario.trace());
}

#[test]
fn a_one_way_cut_costs_one_member_and_the_rest_goes_on() {
    let cut = Fault::Cut { from: 0, to: 1, length: 20 * SECOND };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, cut)]);
    let before = scenario.until(2 * SECOND).steps();
    scenario.until(6 * SECOND);
    assert_eq!(scenario.0.n_dropped, 1, "{}", scenario.trace());
    assert!(scenario.steps() > before + 10, "{}", scenario.trace());
    scenario.finish();
}

#[test]
fn two_that_cannot_reach_each_other_do_not_both_go() {
    let cuts = [(0, 1), (1, 0)].map(|(from, to)| Fault::Cut { from, to, length: 20 * SECOND });
    let mut scenario = Scenario::new(2, &cuts.map(|cut| (2 * SECOND, cut)));
    let before = scenario.until(2 * SECOND).steps();
    scenario.until(8 * SECOND);
    assert!(scenario.steps() > before + 10, "{}", scenario.trace());
    scenario.finish();
}

#[test]
fn a_restarted_coordinator_interrupts_nothing() {
    let crash = Fault::CoordinatorCrash { after: 0, down: 3 * SECOND };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, crash)]);
    let before = scenario.until(2 * SECOND).steps();
    let while_away = scenario.until(5 * SECOND).steps();
    assert!(while_away > before + 10, "steps go on without it");
    scenario.finish();
    assert_eq!(scenario.count("it returns from its log"), 1);
    assert_eq!(scenario.0.views.len(), 1, "{}", scenario.trace());
    assert_eq!(scenario.0.n_dropped, 0);
}

#[test]
fn a_partition_of_ten_seconds_heals() {
    // Everyone on one side, the coordinator on the other.
    let side = Fault::Partition { side: 1 << 5, length: 10 * SECOND };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, side)]);
    scenario.finish();
    let mut steps: Vec<u64> = scenario.0.views.values().map(|go| go.steps).collect();
    let in_order = steps.clone();
    steps.sort_unstable();
    assert_eq!(in_order, steps, "nothing is done again: {}", scenario.trace());
}

#[test]
fn a_drained_worker_ends_without_a_failure() {
    let mut scenario = Scenario::new(3, &[(2 * SECOND, Fault::Drain { node: 1 })]);
    scenario.until(4 * SECOND);
    assert!(scenario.count("is drained") > 0, "{}", scenario.trace());
    scenario.finish();
    let status = scenario.0.coordinators[0].as_ref().unwrap().side.status();
    assert_eq!(status.last_failure, None, "{}", scenario.trace());
}

#[test]
fn when_all_drain_the_driver_keeps_their_state() {
    let drains = [0, 1].map(|node| (2 * SECOND, Fault::Drain { node }));
    let mut scenario = Scenario::new(2, &drains);
    scenario.finish();
    let steps: Vec<u64> = scenario.0.views.values().map(|go| go.steps).collect();
    assert!(steps.is_sorted(), "{steps:?} {}", scenario.trace());
    assert!(scenario.count("copy the state from the driver") > 1, "{}", scenario.trace());
}

#[test]
fn a_second_coordinator_by_mistake_does_no_harm() {
    let second = Fault::Second { length: 3 * SECOND };
    // Where a worker connects is by chance: sooner or later one comes from the second to the first.
    let resets =
        (0..16).map(|n| (2 * SECOND + n * 200 * MS, Fault::Reset { node: n as usize % 4 }));
    let faults: Vec<_> = std::iter::once((2 * SECOND, second)).chain(resets).collect();
    let mut scenario = Scenario::new(4, &faults);
    scenario.finish();
    assert!(scenario.count("which is newer than this one") > 0, "{}", scenario.trace());
}
