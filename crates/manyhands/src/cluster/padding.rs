//! Workers that sleep: with them a machine of few cores stands for several machines, some of them slow. For measurements alone.
//!
//! A grain takes a multiple of what it takes to compute when nobody disturbs it: as measured before, for all workers and settings alike, or the least that was seen of a worker. (A
//! multiple of what each took here and now would make those slow who compute at the same time on the same cores, and BSP, where all begin at once, slower than it is.)

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable in which a worker is told how to sleep: a case, its place among the workers, how many these are, the seconds of a slot, a seed, when
/// the first slot begins, and the seconds that a grain takes (0: not known), as in `rotating:2:4:0.25:1:1700000000.5:0.01`.
pub(super) const PADDING_VARIABLE: &str = "MANYHANDS_PADDING";

/// Grains take so many times what they compute.
const PADDED: f64 = 4.0;
/// Those of a straggler so many times that.
const SLOWED: f64 = 3.0;

/// Which workers are slow, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Straggling {
    /// None is.
    No,
    /// One is, always.
    Constant,
    /// One is, then another.
    Rotating,
    /// One is, or none, in bursts that come as if by chance.
    Bursty,
}

impl Straggling {
    /// Every case.
    pub const ALL: [Straggling; 4] =
        [Straggling::No, Straggling::Constant, Straggling::Rotating, Straggling::Bursty];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Straggling::No => "no",
            Straggling::Constant => "constant",
            Straggling::Rotating => "rotating",
            Straggling::Bursty => "bursty",
        }
    }
}

/// Which workers are slow in a measurement, and for how long. Runs with the same settings see the same workers slow at the same times after their beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// Which workers are slow, and when.
    pub case: Straggling,
    /// For so many seconds one is the straggler, before it is another.
    pub seconds: f64,
    /// Decides who is slow in which burst.
    pub seed: u64,
    /// What a grain takes workers that are not slow, in seconds: where that is not known, a multiple of the least that each of them saw.
    pub seconds_per_grain: Option<f64>,
}

impl Stragglers {
    /// What a worker is told that begins now, as one of so many.
    pub(super) fn told_to(&self, place: usize, n_workers: usize, start: SystemTime) -> String {
        let start = start.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let Stragglers { case, seconds, seed, seconds_per_grain } = self;
        let each = seconds_per_grain.unwrap_or_default();
        format!("{}:{place}:{n_workers}:{seconds}:{seed}:{start}:{each}", case.name())
    }

    /// Whether one of so many is slow in a slot.
    fn is_slow(&self, place: u64, n_workers: u64, slot: u64) -> bool {
        match self.case {
            Straggling::No => false,
            Straggling::Constant => place == 0,
            Straggling::Rotating => slot % n_workers.max(1) == place,
            Straggling::Bursty => mixed(self.seed, slot) % (n_workers + 1) == place,
        }
    }
}

/// A number as if by chance.
fn mixed(seed: u64, slot: u64) -> u64 {
    let value =
        (seed ^ slot.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// How a worker sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Padding {
    stragglers: Stragglers,
    place: u64,
    n_workers: u64,
    /// When the first slot begins, in seconds since 1970.
    start: f64,
    /// Seconds that a grain took at least.
    fastest: Option<f64>,
}

impl Padding {
    /// As the environment says.
    pub(super) fn from_environment() -> Option<Padding> {
        std::env::var(PADDING_VARIABLE).ok()?.parse().ok()
    }

    /// Sleeps after grains that took so long to compute.
    pub(super) fn sleep(&mut self, computed: Duration, n_grains: usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        std::thread::sleep(self.rest_of(computed, n_grains, now));
    }

    /// What is left, at a time, of the time that grains are to take which were just computed.
    fn rest_of(&mut self, computed: Duration, n_grains: usize, now: f64) -> Duration {
        let n = n_grains.max(1) as f64;
        let each = computed.as_secs_f64() / n;
        let fastest = self.fastest.map_or(each, |fastest| fastest.min(each));
        self.fastest = Some(fastest);
        let begin = now - computed.as_secs_f64();
        let each = self.stragglers.seconds_per_grain.unwrap_or(fastest * PADDED);
        let rest = begin + self.seconds_for(n * each, begin - self.start) - now;
        Duration::from_secs_f64(rest.max(0.0))
    }

    /// How long it takes, from a time after the beginning on, to do what takes so many seconds where nobody is slow: whoever becomes slow meanwhile is slow from then on.
    fn seconds_for(&self, mut work: f64, begin: f64) -> f64 {
        let (length, begin) = (self.stragglers.seconds, begin.max(0.0));
        let (mut slot, mut at) = ((begin / length) as u64, begin);
        loop {
            let is_slow = self.stragglers.is_slow(self.place, self.n_workers, slot);
            let slowed = if is_slow { SLOWED } else { 1.0 };
            slot += 1;
            let left = (slot as f64 * length - at).max(0.0);
            if work * slowed <= left {
                return at + work * slowed - begin;
            }
            work -= left / slowed;
            at += left;
        }
    }
}

impl FromStr for Padding {
    type Err = ();

    fn from_str(text: &str) -> Result<Padding, ()> {
        let mut words = text.split(':');
        let case = words.next().ok_or(())?;
        let found = Straggling::ALL.into_iter().find(|one| one.name() == case);
        let case = found.ok_or(())?;
        let mut next = || words.next().ok_or(());
        let place = next()?.parse().map_err(drop)?;
        let n_workers = next()?.parse().map_err(drop)?;
        let seconds: f64 = next()?.parse().map_err(drop)?;
        let seed = next()?.parse().map_err(drop)?;
        let start = next()?.parse().map_err(drop)?;
        let each: f64 = next()?.parse().map_err(drop)?;
        let seconds_per_grain = (each > 0.0).then_some(each);
        let stragglers = Stragglers { case, seconds, seed, seconds_per_grain };
        let padding = Padding { stragglers, place, n_workers, start, fastest: None };
        if seconds > 0.0 && each >= 0.0 { Ok(padding) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of four, with slots of a second, at the beginning of time.
    fn padding(case: &str, place: u64) -> Padding {
        format!("{case}:{place}:4:1:7:0:0").parse().unwrap()
    }

    #[test]
    fn what_a_worker_is_told_is_what_it_knows() {
        let (case, seconds_per_grain) = (Straggling::Bursty, Some(0.01));
        let stragglers = Stragglers { case, seconds: 0.25, seed: 3, seconds_per_grain };
        let told = stragglers.told_to(2, 4, UNIX_EPOCH + Duration::from_millis(1500));
        let expected = Padding { stragglers, place: 2, n_workers: 4, start: 1.5, fastest: None };
        assert_eq!(told.parse(), Ok(expected));
        let wrong = ["sometimes:0:4:1:7:0:0", "no:0:4", "no:0:4:1:7:0", "no:0:4:0:7:0:0"];
        for wrong in wrong.into_iter().chain(["no:0:4:NaN:7:0:0", "no:0:4:1:7:0:NaN"]) {
            assert_eq!(wrong.parse::<Padding>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn one_of_four_is_slow_at_a_time() {
        let slow = |case: &str, slot| {
            [0, 1, 2, 3].map(|place| padding(case, place).stragglers.is_slow(place, 4, slot))
        };
        assert_eq!(slow("no", 0), [false; 4]);
        assert_eq!(slow("constant", 9), [true, false, false, false]);
        assert_eq!(slow("rotating", 2), [false, false, true, false]);
        let bursts: Vec<[bool; 4]> = (0..1000).map(|slot| slow("bursty", slot)).collect();
        assert!(bursts.iter().all(|one| one.iter().filter(|is_slow| **is_slow).count() <= 1));
        for place in 0..4 {
            let n_slow = bursts.iter().filter(|one| one[place]).count();
            assert!((160..240).contains(&n_slow), "worker {place} in {n_slow} of 1000");
        }
    }

    #[test]
    fn who_becomes_slow_meanwhile_is_slow_from_then_on() {
        let micros = |case: &str, place, work, begin| {
            (padding(case, place).seconds_for(work, begin) * 1e6).round()
        };
        assert_eq!(micros("no", 1, 2.5, 0.5), 2.5e6);
        assert_eq!(micros("constant", 1, 2.5, 0.5), 2.5e6, "another is slow");
        assert_eq!(micros("constant", 0, 2.5, 0.5), 7.5e6);
        // Slow from 1 to 2.
        assert_eq!(micros("rotating", 1, 0.5, 0.25), 0.5e6);
        assert_eq!(micros("rotating", 1, 0.5, 0.75), 1e6);
        assert_eq!(micros("rotating", 1, 1.0, 0.75), 1_666_667.0);
    }

    #[test]
    fn grains_take_a_multiple_of_what_they_take_undisturbed() {
        let mut padding = padding("constant", 0);
        let mut rest = |millis, n_grains| {
            padding.rest_of(Duration::from_millis(millis), n_grains, 9.0).as_secs_f64() * 1e3
        };
        assert_eq!(rest(40, 4).round(), 440.0);
        assert_eq!(rest(60, 4).round(), 420.0, "a disturbed one is not longer");
        assert_eq!(rest(5, 1).round(), 55.0);
        assert_eq!(rest(40, 4).round(), 200.0, "an undisturbed grain takes 5 ms");
        assert_eq!(rest(900, 4), 0.0);
        padding.stragglers.seconds_per_grain = Some(0.01);
        let rest = padding.rest_of(Duration::from_millis(40), 4, 9.0).as_secs_f64();
        assert_eq!((rest * 1e3).round(), 80.0, "as measured before");
    }
}
