//! Workers that sleep: with them a machine of few cores stands for several machines, some of them slow. For measurements alone.

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
}

impl Padding {
    /// As the environment says.
    pub(super) fn from_environment() -> Option<Padding> {
        std::env::var(PADDING_VARIABLE).ok()?.parse().ok()
    }

    /// Sleeps after something that took so long to compute.
    pub(super) fn sleep(self, computed: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        std::thread::sleep(computed.mul_f64(self.factor(now) - 1.0));
    }

    fn factor(self, now: f64) -> f64 {
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
        Ok(Padding { straggling: found.ok_or(())?, place: number()?, n_workers: number()? })
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
}
