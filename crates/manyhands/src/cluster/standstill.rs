//! When nothing moves: people are told after a while, and again at ever longer intervals, so that a run that waits says for whom.

use std::time::{Duration, Instant};

/// How long a step may take, at least, before people are told.
const LEAST: Duration = Duration::from_secs(10);
/// And how many times what steps took so far.
const TIMES: f64 = 20.0;
/// How long the first one may take, which has programs to be compiled and data to be found.
const FIRST: Duration = Duration::from_secs(30);

/// A step that is waited for.
#[derive(Default)]
pub(super) struct Standstill {
    waited: Option<Waited>,
}

struct Waited {
    step: u64,
    since: Instant,
    /// When people are told next, counted from the beginning.
    next: Duration,
}

impl Standstill {
    /// A step is not done yet. How long it has been waited for, where that is to be told now.
    pub(super) fn look(
        &mut self,
        now: Instant,
        step: u64,
        step_seconds: Option<f64>,
    ) -> Option<Duration> {
        let patience =
            step_seconds.map_or(FIRST, |seconds| Duration::from_secs_f64(TIMES * seconds));
        let new = || Waited { step, since: now, next: patience.max(LEAST) };
        let waited = self.waited.get_or_insert_with(new);
        if waited.step != step {
            *waited = new();
        }
        let passed = now.duration_since(waited.since);
        (passed >= waited.next).then(|| {
            waited.next = 2 * passed;
            passed
        })
    }
}

/// Whom a step waits for, as far as the driver knows: servers that are silent, by name, or the workers.
pub(super) fn sentence(
    passed: Duration,
    silent: &[(String, Duration)],
    workers: &[String],
) -> String {
    let waited = format!("no step was done for {} s", passed.as_secs());
    if !silent.is_empty() {
        let one = |(name, silent): &(String, Duration)| {
            format!("nothing was heard of the server {name} for {:.0} s", silent.as_secs_f64())
        };
        let all: Vec<String> = silent.iter().map(one).collect();
        return format!("{waited}: {}", all.join(", "));
    }
    match workers {
        [] => format!("{waited}: no worker takes part"),
        some => format!(
            "{waited}: the job waits for its workers ({}); `manyhands status` says how they stand",
            some.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_long_is_told_at_ever_longer_intervals() {
        let (mut standstill, start) = (Standstill::default(), Instant::now());
        let mut told = |second: u64, step: u64, step_seconds: Option<f64>| {
            let now = start + Duration::from_secs(second);
            standstill.look(now, step, step_seconds).map(|passed| passed.as_secs())
        };
        assert_eq!(told(0, 1, None), None);
        assert_eq!(told(29, 1, None), None, "the first step may take longer");
        assert_eq!(told(30, 1, None), Some(30));
        assert_eq!(told(31, 1, None), None);
        assert_eq!(told(60, 1, None), Some(60));
        assert_eq!(told(61, 2, Some(0.01)), None, "another step");
        assert_eq!(told(70, 2, Some(0.01)), None);
        assert_eq!(told(71, 2, Some(0.01)), Some(10));
        assert_eq!(told(72, 3, Some(2.0)), None);
        assert_eq!(told(111, 3, Some(2.0)), None, "steps take two seconds here");
        assert_eq!(told(112, 3, Some(2.0)), Some(40));
    }

    #[test]
    fn who_is_silent_is_named() {
        let (ten, name) = (Duration::from_secs(10), |name: &str| name.to_string());
        let said = sentence(ten, &[(name("s1"), Duration::from_secs(9))], &[name("w1")]);
        assert_eq!(said, "no step was done for 10 s: nothing was heard of the server s1 for 9 s");
        let said = sentence(ten, &[], &[name("w1"), name("w2")]);
        assert!(said.contains("waits for its workers (w1, w2)"), "{said}");
        assert!(sentence(ten, &[], &[]).ends_with("no worker takes part"));
    }
}
