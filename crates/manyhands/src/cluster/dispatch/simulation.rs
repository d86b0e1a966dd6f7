//! Workers that are slow in several ways, and how long they take.

use super::adaptive::MOST_BOUND;
use super::*;

const N_WORKERS: u64 = 4;
const N_GRAINS: usize = 8;
const N_STEPS: u64 = 600;
/// Steps that are submitted and not done.
const DEPTH: u64 = 40;

/// What a turn takes beside its grains, to read and to push.
const MOVING: f64 = 0.25;

/// How a worker is slowed at a time; 1 where it is not.
type Slowed = fn(u64, f64) -> f64;

fn never(_: u64, _: f64) -> f64 {
    1.0
}

fn constant(worker: u64, _: f64) -> f64 {
    if worker == 0 { 3.0 } else { 1.0 }
}

/// One after the other, for as long as a few steps.
fn rotating(worker: u64, now: f64) -> f64 {
    if (now / 6.0) as u64 % N_WORKERS == worker { 3.0 } else { 1.0 }
}

/// One of them or none, in bursts that come as if by chance.
fn bursty(worker: u64, now: f64) -> f64 {
    let drawn = mixed((now / 12.0) as u64) % (N_WORKERS + 1);
    if drawn == worker { 3.0 } else { 1.0 }
}

fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
}

struct Outcome {
    seconds: f64,
    /// The share of the workers' time in which they waited.
    waiting: f64,
    sentences: Vec<String>,
    /// The most that a turn was ahead of the oldest step.
    furthest: u64,
}

/// What a worker is through with.
enum Through {
    /// Its turn is computed, in so many seconds.
    Computed(f64),
    /// The servers have it.
    Brought,
}

/// Runs all steps; a grain takes a worker that is not slowed half a second.
fn simulate(drift: Drift, slowed: Slowed) -> Outcome {
    let mut dispatcher = Dispatcher::new(drift);
    (0..N_WORKERS).for_each(|number| dispatcher.join(0.0, WorkerNumber(number)));
    let (mut submitted, mut oldest, mut now) = (0, 0, 0.0);
    let mut complete = std::collections::BTreeSet::new();
    let mut events: Vec<(f64, WorkerNumber, Through)> = Vec::new();
    // What workers were told to do and have not begun, and who is bringing something before that.
    let (mut told, mut bringing) = (BTreeMap::new(), std::collections::BTreeSet::new());
    let (mut worked, mut sentences, mut furthest) = (0.0, Vec::new(), 0);
    let mut n_grains_done = 0;
    while oldest < N_STEPS {
        while submitted < N_STEPS && submitted < oldest + DEPTH {
            dispatcher.submit(now, submitted, N_GRAINS);
            submitted += 1;
        }
        for (number, turn) in dispatcher.give(now) {
            furthest = furthest.max(turn.step - oldest);
            if let Some(bound) = turn.bound {
                assert!(turn.step <= oldest + bound, "{turn:?} at {oldest}");
            }
            n_grains_done += turn.grains.len();
            told.insert(number, turn.grains.len());
        }
        told.retain(|number, n_grains| {
            let begins = !bringing.contains(number);
            if begins {
                let seconds = 0.5 * *n_grains as f64 * slowed(number.0, now);
                events.push((now + seconds, *number, Through::Computed(seconds)));
            }
            !begins
        });
        events.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (at, number, through) = events.pop().expect("somebody works while steps are left");
        now = at;
        match through {
            Through::Computed(seconds) => {
                worked += seconds + MOVING;
                bringing.insert(number);
                events.push((now + MOVING, number, Through::Brought));
                dispatcher.computed(now, number, seconds);
            }
            Through::Brought => {
                bringing.remove(&number);
                let done = dispatcher.done(number, 1.0);
                sentences.extend(done.decisions.into_iter().map(|one| one.sentence));
                complete.extend(done.step.map(|(step, _)| step));
            }
        }
        while complete.remove(&oldest) {
            oldest += 1;
        }
    }
    assert_eq!(n_grains_done, N_STEPS as usize * N_GRAINS, "each grain once");
    let waiting = 1.0 - worked / (now * N_WORKERS as f64);
    Outcome { seconds: now, waiting, sentences, furthest }
}

/// A worker does its turn, in a second.
fn do_turn(dispatcher: &mut Dispatcher, now: f64, number: WorkerNumber, loss: f64) -> Done {
    dispatcher.computed(now, number, 1.0);
    dispatcher.done(number, loss)
}

const CASES: [(&str, Slowed); 4] =
    [("no", never), ("constant", constant), ("rotating", rotating), ("bursty", bursty)];

#[test]
fn adaptive_is_close_to_the_best_fixed_setting_in_every_case() {
    for (name, slowed) in CASES {
        let bounds = [0, 1, 2, 4, 8, 16].map(Drift::Bounded);
        let fixed = bounds.into_iter().chain([Drift::Unbounded]);
        let best = fixed.map(|drift| simulate(drift, slowed).seconds).fold(f64::INFINITY, f64::min);
        let adaptive = simulate(Drift::Adaptive, slowed).seconds;
        assert!(adaptive <= 1.1 * best, "{name}: {adaptive:.0} s, the best took {best:.0} s");
    }
}

#[test]
fn adaptive_takes_at_most_0_6_of_bsp_with_a_straggler() {
    for (name, slowed) in &CASES[1..] {
        let bsp = simulate(Drift::Bounded(0), *slowed).seconds;
        let adaptive = simulate(Drift::Adaptive, *slowed);
        let ratio = adaptive.seconds / bsp;
        assert!(ratio <= 0.6, "{name}: {ratio:.2}, waiting {:.2}", adaptive.waiting);
    }
}

#[test]
fn a_fixed_bound_ends_at_the_rate_of_a_constant_straggler() {
    let [bsp, ssp] = [0, 8].map(|bound| simulate(Drift::Bounded(bound), constant).seconds);
    assert!(ssp > 0.95 * bsp, "{ssp} {bsp}");
    let rotating = [0, 16].map(|bound| simulate(Drift::Bounded(bound), rotating).seconds);
    assert!(rotating[1] < 0.6 * rotating[0], "{rotating:?}");
}

#[test]
fn bounds_are_kept_and_the_slowest_contributes() {
    for bound in [0, 1, 5] {
        assert!(simulate(Drift::Bounded(bound), bursty).furthest <= bound);
    }
    fn hopeless(worker: u64, _: f64) -> f64 {
        if worker == 0 { 200.0 } else { 1.0 }
    }
    let outcome = simulate(Drift::Adaptive, hopeless);
    assert!(outcome.furthest <= MOST_BOUND);
    let sentence = outcome.sentences.first().expect("somebody waited");
    assert!(sentence.contains("of its time: it may be 8 steps ahead"), "{sentence}");
}

#[test]
fn without_stragglers_workers_are_drawn_together() {
    let outcome = simulate(Drift::Adaptive, never);
    assert!(outcome.waiting < 0.02, "{}", outcome.waiting);
    let last = outcome.sentences.last().map(String::as_str).unwrap_or_default();
    assert!(last.contains("hardly waits"), "{:?}", outcome.sentences);
}

#[test]
fn a_loss_that_rises_draws_all_together() {
    let mut dispatcher = Dispatcher::new(Drift::Adaptive);
    dispatcher.join(0.0, WorkerNumber(1));
    let mut sentences = Vec::new();
    for step in 0..200 {
        dispatcher.submit(step as f64, step, 1);
        assert_eq!(dispatcher.give(step as f64).len(), 1);
        let loss = if step < 100 { 1.0 } else { 9.0 };
        let done = do_turn(&mut dispatcher, step as f64 + 1.0, WorkerNumber(1), loss);
        sentences.extend(done.decisions.into_iter().map(|one| one.sentence));
    }
    assert!(sentences.iter().any(|one| one.starts_with("the loss rose from 1.000 to ")));
}

#[test]
fn what_a_lost_worker_had_is_done_by_others() {
    for drift in [Drift::Bounded(1), Drift::Unbounded, Drift::Adaptive] {
        let mut dispatcher = Dispatcher::new(drift);
        let [one, other] = [1, 2].map(WorkerNumber);
        dispatcher.join(0.0, one);
        dispatcher.join(0.0, other);
        dispatcher.submit(0.0, 7, 4);
        assert_eq!(dispatcher.give(0.0).len(), 2);
        dispatcher.lose(one);
        let mut step = None;
        for turn in 1..=4 {
            step = do_turn(&mut dispatcher, f64::from(turn), other, 2.0).step.or(step);
            dispatcher.give(f64::from(turn));
        }
        assert_eq!(step, Some((7, 2.0)), "{drift:?}");
    }
}

#[test]
fn a_small_rest_goes_along_with_the_turn_before_it() {
    let turns = |n_workers: u64, n_grains| {
        let mut dispatcher = Dispatcher::new(Drift::Unbounded);
        (0..n_workers).for_each(|number| dispatcher.join(0.0, WorkerNumber(number)));
        dispatcher.submit(0.0, 1, n_grains);
        let given = dispatcher.give(0.0).into_iter();
        given.map(|(_, turn)| turn.grains.len()).collect::<Vec<_>>()
    };
    assert_eq!(turns(4, 8), [2, 2, 2, 2]);
    assert_eq!(turns(2, 3), [3]);
    assert_eq!(turns(4, 5), [2, 3]);
    assert_eq!(turns(4, 6), [2, 2, 2]);
    assert_eq!(turns(3, 7), [3, 4]);
}

#[test]
fn where_there_is_nothing_to_do_nobody_waits_for_another() {
    let mut dispatcher = Dispatcher::new(Drift::Adaptive);
    let one = WorkerNumber(1);
    dispatcher.join(0.0, one);
    for (step, at) in [(1, 10.0), (2, 100.0)] {
        dispatcher.submit(at, step, 1);
        assert_eq!(dispatcher.give(at + 2.0).len(), 1);
        do_turn(&mut dispatcher, at + 3.0, one, 1.0);
    }
    // Two seconds before each, and nothing of what lies between the steps.
    assert_eq!(dispatcher.workers[&one].waited, 4.0);
}

#[test]
fn who_has_no_turn_stands_where_the_next_would_be() {
    let mut dispatcher = Dispatcher::new(Drift::Unbounded);
    let [one, other] = [1, 2].map(WorkerNumber);
    dispatcher.join(0.0, one);
    dispatcher.submit(0.0, 3, 1);
    dispatcher.submit(0.0, 4, 1);
    dispatcher.give(0.0);
    dispatcher.join(0.0, other);
    assert_eq!(dispatcher.clock_of_idle(other), Some(4));
}

mod comings_and_goings {
    use proptest::prelude::*;

    use super::*;

    /// Takes note of turns, each of which must lie within one that was given before, or apart from it.
    fn note(given: &mut BTreeMap<u64, Vec<Range<usize>>>, turn: &Turn) {
        let before = given.entry(turn.step).or_default();
        for one in before.iter() {
            let is_within = one.start <= turn.grains.start && turn.grains.end <= one.end;
            let is_apart = one.end <= turn.grains.start || turn.grains.end <= one.start;
            assert!(is_within || is_apart, "{:?} after {one:?}", turn.grains);
        }
        before.push(turn.grains.clone());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn turns_lie_one_in_the_other_or_apart_and_every_grain_is_done(
            drift in prop::sample::select(vec![Drift::Bounded(1), Drift::Unbounded, Drift::Adaptive]),
            happenings in prop::collection::vec((0u8..4, 0u64..4), 0..80),
        ) {
            let mut dispatcher = Dispatcher::new(drift);
            let mut given = BTreeMap::new();
            (1..=4).for_each(|step| dispatcher.submit(0.0, step, N_GRAINS));
            for (what, number) in happenings {
                let worker = WorkerNumber(number);
                match what {
                    0 => {
                        // As a worker that asks anew.
                        dispatcher.lose(worker);
                        dispatcher.join(0.0, worker);
                    }
                    1 => dispatcher.lose(worker),
                    2 => dispatcher.computed(0.0, worker, 0.5),
                    _ => drop(dispatcher.done(worker, 1.0)),
                }
                dispatcher.give(0.0).iter().for_each(|(_, turn)| note(&mut given, turn));
            }
            (0..4).for_each(|number| dispatcher.lose(WorkerNumber(number)));
            let last = WorkerNumber(9);
            dispatcher.join(0.0, last);
            for _ in 0..4 * N_GRAINS {
                dispatcher.give(0.0).iter().for_each(|(_, turn)| note(&mut given, turn));
                do_turn(&mut dispatcher, 0.0, last, 1.0);
            }
            prop_assert_eq!(dispatcher.oldest(), None);
        }

        #[test]
        fn nobody_waits_for_one_who_waits_for_it_however_views_change(
            drift in prop::sample::select(vec![Drift::Bounded(0), Drift::Bounded(3), Drift::Unbounded, Drift::Adaptive]),
            choices in prop::collection::vec(any::<u16>(), 600),
        ) {
            let mut world = World::new(drift);
            for choice in choices.into_iter().cycle().take(20_000) {
                if world.dispatcher.oldest().is_none() {
                    return Ok(());
                }
                world.go_on(choice);
            }
            prop_assert!(false, "it goes on for ever");
        }
    }

    /// Workers with the clocks that servers know of, whose turns wait to be read for.
    struct World {
        dispatcher: Dispatcher,
        workers: [Client; 3],
        now: f64,
        /// How often views may still change.
        n_changes: usize,
        /// Who does nothing as long as others can: a bit for each.
        stalled: u16,
    }

    #[derive(Default)]
    struct Client {
        clock: u64,
        /// What it was told, and whether it has read for that.
        told: Option<(Turn, bool)>,
        is_bringing: bool,
    }

    impl World {
        fn new(drift: Drift) -> World {
            let mut dispatcher = Dispatcher::new(drift);
            (0..3).for_each(|number| dispatcher.join(0.0, WorkerNumber(number)));
            (1..=60).for_each(|step| dispatcher.submit(0.0, step, N_GRAINS));
            let workers = Default::default();
            World { dispatcher, workers, now: 0.0, n_changes: 4, stalled: 0 }
        }

        /// Something happens that can, as if by chance.
        fn go_on(&mut self, choice: u16) {
            self.now += 1.0;
            for (WorkerNumber(number), turn) in self.dispatcher.give(self.now) {
                let worker = &mut self.workers[number as usize];
                worker.clock = worker.clock.max(turn.step - 1);
                worker.told = Some((turn, false));
            }
            for number in 0..3 {
                let worker = WorkerNumber(number);
                if !self.dispatcher.is_busy(worker)
                    && let Some(step) = self.dispatcher.clock_of_idle(worker)
                {
                    let clock = &mut self.workers[number as usize].clock;
                    *clock = (*clock).max(step - 1);
                }
            }
            if self.n_changes > 0 && choice.is_multiple_of(97) {
                self.n_changes -= 1;
                return self.change_view();
            }
            let is_able = |place: &usize| {
                let worker = &self.workers[*place];
                let has_read = worker.told.as_ref().is_some_and(|(_, has_read)| *has_read);
                worker.is_bringing || has_read || self.can_read(*place)
            };
            let able: Vec<usize> = (0..3).filter(is_able).collect();
            assert!(!able.is_empty(), "all wait for each other");
            if choice.is_multiple_of(13) {
                self.stalled = choice >> 8;
            }
            let going = able.iter().filter(|place| self.stalled >> **place & 1 == 0);
            let going: Vec<&usize> = going.collect();
            let place = match going.len() {
                0 => able[choice as usize % able.len()],
                n => *going[choice as usize % n],
            };
            let can_read = self.can_read(place);
            let (worker, number) = (&mut self.workers[place], WorkerNumber(place as u64));
            match &mut worker.told {
                Some((_, has_read)) if can_read => *has_read = true,
                _ if worker.is_bringing => {
                    worker.is_bringing = false;
                    self.dispatcher.done(number, 1.0);
                }
                _ => {
                    (worker.told, worker.is_bringing) = (None, true);
                    self.dispatcher.computed(self.now, number, 1.0);
                }
            }
        }

        /// Whether a worker has something to read for, and all others are far enough for that.
        fn can_read(&self, place: usize) -> bool {
            let worker = &self.workers[place];
            let Some((turn, false)) = &worker.told else { return false };
            let bound = match (self.dispatcher.drift, turn.bound) {
                (Drift::Adaptive, Some(bound)) => bound_at(bound, turn.step - 1, worker.clock),
                (_, bound) => bound.unwrap_or(u64::MAX),
            };
            let others = self.workers.iter().enumerate().filter(|(other, _)| *other != place);
            others
                .map(|(_, other)| other.clock)
                .all(|one| one.saturating_add(bound) >= worker.clock)
        }

        /// All ask anew. Their clocks stay.
        fn change_view(&mut self) {
            for (number, worker) in self.workers.iter_mut().enumerate() {
                (worker.told, worker.is_bringing) = (None, false);
                self.dispatcher.lose(WorkerNumber(number as u64));
            }
            for number in 0..3 {
                self.dispatcher.join(self.now, WorkerNumber(number));
            }
        }
    }
}
