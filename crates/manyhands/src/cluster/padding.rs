//! Workers that sleep: with them a machine of few cores stands for several machines, some of them slow. For measurements alone.
//!
//! A grain takes a multiple of what it takes to compute when nobody disturbs it: the least that was seen of a worker. (A multiple of what each took here and now would make those
//! slow who compute at the same time on the same cores, and BSP, where all begin at once, slower than it is.)

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable in which a worker is told how to sleep: a case, its place among the workers, and how many these are, as in `rotating:2:4`.
pub(super) const PADDING_VARIABLE: &str = "MANYHANDS_PADDING";

/// Grains take so many times what they compute.
const PADDED: f64 = 4.0;
/// Those of a straggler so many times that.
const SLOWED: f64 = 3.0;
/// For so many seconds one is the straggler, before it is another.
const SECONDS: f64 = 1.0;

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

    fn is_slow(self, place: u64, n_workers: u64, now: f64) -> bool {
        let slot = (now / SECONDS) as u64;
        match self {
            Straggling::No => false,
            Straggling::Constant => place == 0,
            Straggling::Rotating => slot % n_workers.max(1) == place,
            Straggling::Bursty => {
                let mixed = (slot ^ (slot >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 40) % (n_workers + 1) == place
            }
        }
    }
}

/// How a worker sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Padding {
    straggling: Straggling,
    place: u64,
    n_workers: u64,
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

    /// What is left of the time that grains are to take.
    fn rest_of(&mut self, computed: Duration, n_grains: usize, now: f64) -> Duration {
        let n = n_grains.max(1) as f64;
        let each = computed.as_secs_f64() / n;
        let fastest = self.fastest.map_or(each, |fastest| fastest.min(each));
        self.fastest = Some(fastest);
        Duration::from_secs_f64(n * fastest * self.factor(now)).saturating_sub(computed)
    }

    fn factor(&self, now: f64) -> f64 {
        let is_slow = self.straggling.is_slow(self.place, self.n_workers, now);
        if is_slow { PADDED * SLOWED } else { PADDED }
    }
}

impl FromStr for Padding {
    type Err = ();

    fn from_str(text: &str) -> Result<Padding, ()> {
        let mut words = text.split(':');
        let case = words.next().ok_or(())?;
        let found = Straggling::ALL.into_iter().find(|one| one.name() == case);
        let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or(());
        let (straggling, place, n_workers) = (found.ok_or(())?, number()?, number()?);
        Ok(Padding { straggling, place, n_workers, fastest: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_four_is_slow_at_a_time() {
        let factors = |case: &str, now: f64| {
            let one = |place| format!("{case}:{place}:4").parse::<Padding>().unwrap().factor(now);
            [one(0), one(1), one(2), one(3)]
        };
        assert_eq!(factors("no", 0.5), [4.0; 4]);
        assert_eq!(factors("constant", 9.5), [12.0, 4.0, 4.0, 4.0]);
        assert_eq!(factors("rotating", 2.5), [4.0, 4.0, 12.0, 4.0]);
        let n_slow = (0..1000).flat_map(|now| factors("bursty", f64::from(now)));
        let n_slow = n_slow.filter(|factor| *factor > 4.0).count();
        assert!((700..900).contains(&n_slow), "{n_slow}");
        assert!("sometimes:0:4".parse::<Padding>().is_err());
    }

    #[test]
    fn grains_take_a_multiple_of_what_they_take_undisturbed() {
        let mut padding: Padding = "constant:0:4".parse().unwrap();
        let mut rest = |millis, n_grains| {
            padding.rest_of(Duration::from_millis(millis), n_grains, 0.0).as_secs_f64() * 1e3
        };
        assert_eq!(rest(40, 4).round(), 440.0);
        assert_eq!(rest(60, 4).round(), 420.0, "a disturbed one is not longer");
        assert_eq!(rest(5, 1).round(), 55.0);
        assert_eq!(rest(40, 4).round(), 200.0, "an undisturbed grain takes 5 ms");
        assert_eq!(rest(900, 4), 0.0);
    }
}
