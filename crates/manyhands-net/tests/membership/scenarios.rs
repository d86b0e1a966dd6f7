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

/// One worker works, and another comes while it is frozen: a view without the first would begin from what the driver has.
fn one_holder(fault: Fault) -> Scenario {
    let faults =
        [(100 * MS, Fault::Crash { node: 1, down: Some(3 * SECOND) }), (2 * SECOND, fault)];
    Scenario::new(2, &faults)
}

#[test]
fn the_only_one_with_the_state_is_waited_for() {
    for length in [2, 4, 8] {
        let mut scenario = one_holder(Fault::Freeze { node: 0, length: length * SECOND });
        scenario.until(3 * SECOND + 500 * MS);
        let status = scenario.0.coordinators[0].as_ref().unwrap().side.status();
        if length > 2 {
            assert!(status.summary.contains("waits for worker w0"), "{}", status.summary);
        }
        scenario.finish();
        assert_eq!(scenario.count("and is waited for up to"), 1, "{}", scenario.trace());
        assert!(!scenario.trace().contains("w0: dropped"), "{}", scenario.trace());
        let steps: Vec<u64> = scenario.0.views.values().map(|go| go.steps).collect();
        assert!(steps.is_sorted(), "{steps:?} {}", scenario.trace());
    }
}

#[test]
fn the_only_one_with_the_state_is_waited_for_where_it_passes_over_orders_or_is_cut_off() {
    let coordinator = 2 + 1;
    let length = 5 * SECOND;
    let side = 1 << coordinator;
    for fault in [
        Fault::Deaf { node: 0, length },
        Fault::Cut { from: 0, to: coordinator, length },
        Fault::Cut { from: coordinator, to: 0, length },
        Fault::Partition { side, length },
    ] {
        let mut scenario = one_holder(fault);
        scenario.finish();
        assert!(!scenario.trace().contains("w0: dropped"), "{fault:?} {}", scenario.trace());
        let steps: Vec<u64> = scenario.0.views.values().map(|go| go.steps).collect();
        assert!(steps.is_sorted() && steps.len() > 1, "{fault:?} {steps:?} {}", scenario.trace());
    }
}

#[test]
fn the_only_one_with_the_state_is_not_waited_for_once_its_process_has_ended() {
    let mut scenario = one_holder(Fault::Crash { node: 0, down: None });
    scenario.until(5 * SECOND);
    assert_eq!(scenario.count("and is waited for up to"), 0, "{}", scenario.trace());
    assert!(scenario.steps() > 0, "{}", scenario.trace());
    scenario.finish();
}

#[test]
fn who_holds_the_state_alone_is_given_up_in_the_end() {
    let mut scenario = one_holder(Fault::Freeze { node: 0, length: 60 * SECOND });
    scenario.until(20 * SECOND);
    assert_eq!(scenario.count("and is waited for up to"), 1, "{}", scenario.trace());
    assert!(scenario.trace().contains("has been silent for 9."), "{}", scenario.trace());
    assert!(scenario.steps() > 0, "{}", scenario.trace());
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
fn a_worker_that_dies_while_the_coordinator_is_away_costs_no_waiting() {
    let crash = Fault::CoordinatorCrash { after: 0, down: 2 * SECOND };
    let dies = Fault::Crash { node: 1, down: None };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, crash), (3 * SECOND, dies)]);
    scenario.until(4 * SECOND);
    assert_eq!(scenario.count("it returns from its log"), 0, "{}", scenario.trace());
    let before = scenario.steps();
    scenario.until(6 * SECOND);
    assert!(scenario.steps() > before + 5, "{}", scenario.trace());
    scenario.finish();
    assert_eq!(scenario.0.n_dropped, 1, "{}", scenario.trace());
}

#[test]
fn a_worker_that_freezes_while_the_coordinator_is_away_is_not_waited_for_long() {
    let crash = Fault::CoordinatorCrash { after: 0, down: 2 * SECOND };
    let freeze = Fault::Freeze { node: 1, length: 20 * SECOND };
    let mut scenario = Scenario::new(4, &[(2 * SECOND, crash), (3 * SECOND, freeze)]);
    let before = scenario.until(4 * SECOND).steps();
    scenario.until(7 * SECOND + 500 * MS);
    assert!(scenario.steps() > before + 5, "{}", scenario.trace());
    scenario.finish();
}

#[test]
fn restarts_one_after_the_other_do_not_add_up() {
    let mut faults = vec![(2 * SECOND + 300 * MS, Fault::Crash { node: 1, down: None })];
    for n in 0..6 {
        let crash = Fault::CoordinatorCrash { after: 0, down: 300 * MS };
        faults.push((2 * SECOND + n * 1500 * MS, crash));
    }
    let mut scenario = Scenario::new(4, &faults);
    let before = scenario.until(3 * SECOND).steps();
    scenario.until(6 * SECOND);
    assert!(scenario.steps() > before + 10, "{}", scenario.trace());
    scenario.finish();
}

#[test]
fn a_worker_that_is_drained_while_the_coordinator_is_away_stays_until_it_is_back() {
    let crash = Fault::CoordinatorCrash { after: 0, down: 3 * SECOND };
    let drain = Fault::Drain { node: 1 };
    let mut scenario = Scenario::new(2, &[(2 * SECOND, crash), (3 * SECOND, drain)]);
    let before = scenario.until(3 * SECOND).steps();
    let while_away = scenario.until(5 * SECOND).steps();
    assert!(while_away > before + 10, "the others go on with it: {}", scenario.trace());
    assert_eq!(scenario.count("is drained"), 0);
    scenario.until(7 * SECOND);
    assert!(scenario.count("is drained") > 0, "{}", scenario.trace());
    scenario.finish();
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
    assert!(scenario.count("the state from the driver") > 1, "{}", scenario.trace());
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
