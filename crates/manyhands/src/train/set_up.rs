//! How many workers and threads: what the user says, else what is measured faster on the first real steps. The bits are
//! the same either way, so the steps that were measured count.

use super::event::SetUp;
use crate::job::DistributeSpec;

/// Steps with each candidate before the first is measured, since the first finds cold caches.
const UNMEASURED_STEPS: usize = 1;
/// Fewest steps that are measured with each candidate.
const LEAST_STEPS: usize = 3;
/// Seconds that are measured with each candidate, if the fewest steps take less.
const LEAST_SECONDS: f64 = 0.05;
/// Most steps that are measured with each candidate.
const MOST_STEPS: usize = 50;

/// What is tried, in this order. One candidate is no choice.
pub(crate) fn candidates(spec: &DistributeSpec, n_cores: usize, n_grains: usize) -> Vec<SetUp> {
    let set_up =
        |workers: usize, threads: usize, reason: String| SetUp { workers, threads, reason };
    match (spec.workers, spec.threads) {
        (Some(workers), Some(threads)) => vec![set_up(workers, threads, "as asked".to_string())],
        (Some(workers), None) => {
            let threads = (n_cores / workers.max(1)).max(1);
            let reason = format!("{workers} worker(s) as asked, the {n_cores} core(s) shared out");
            vec![set_up(workers, threads, reason)]
        }
        (None, Some(threads)) => {
            vec![set_up(1, threads, format!("{threads} thread(s) as asked, one worker"))]
        }
        (None, None) if n_cores == 1 => vec![set_up(1, 1, "there is one core".to_string())],
        (None, None) if n_grains == 1 => {
            let reason = "a step is one grain, which one worker does with all cores".to_string();
            vec![set_up(1, n_cores, reason)]
        }
        (None, None) => {
            let workers = n_cores.min(n_grains);
            vec![
                set_up(workers, (n_cores / workers).max(1), String::new()),
                set_up(1, n_cores, String::new()),
                // Steps of microseconds are over before another core could help.
                set_up(1, 1, String::new()),
            ]
        }
    }
}

/// Tries candidates on real steps, one after the other.
pub(crate) struct Trial {
    candidates: Vec<SetUp>,
    /// Seconds of the measured steps of each candidate tried so far.
    times: Vec<Vec<f64>>,
    n_unmeasured: usize,
}

/// What to do after a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Go on with the one at hand.
    Stay,
    /// Try another.
    Try(SetUp),
    /// This one it is.
    Choose(SetUp),
}

impl Trial {
    /// A trial of candidates, of which there is at least one.
    pub(crate) fn new(candidates: Vec<SetUp>) -> Trial {
        Trial { candidates, times: vec![Vec::new()], n_unmeasured: 0 }
    }

    /// The one to begin with.
    pub(crate) fn first(&self) -> &SetUp {
        &self.candidates[0]
    }

    /// Whether there is nothing to try.
    pub(crate) fn is_decided(&self) -> bool {
        self.candidates.len() == 1
    }

    /// Takes in the seconds of a full step.
    pub(crate) fn step(&mut self, seconds: f64) -> Verdict {
        if self.n_unmeasured < UNMEASURED_STEPS {
            self.n_unmeasured += 1;
            return Verdict::Stay;
        }
        let tried = self.times.len();
        let Some(times) = self.times.last_mut() else { return Verdict::Stay };
        times.push(seconds);
        let enough = times.len() >= LEAST_STEPS && times.iter().sum::<f64>() >= LEAST_SECONDS;
        if !enough && times.len() < MOST_STEPS {
            return Verdict::Stay;
        }
        if tried < self.candidates.len() {
            self.times.push(Vec::new());
            self.n_unmeasured = 0;
            return Verdict::Try(self.candidates[tried].clone());
        }
        Verdict::Choose(self.chosen())
    }

    /// The one with the smallest median.
    fn chosen(&self) -> SetUp {
        let medians: Vec<f64> = self.times.iter().map(|times| median(times)).collect();
        let best = (0..medians.len()).min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
        let best = best.unwrap_or(0);
        let told = |idx: usize| {
            let SetUp { workers, threads, .. } = &self.candidates[idx];
            format!("{workers} x {threads}: {:.3} ms", medians[idx] * 1e3)
        };
        let others: Vec<String> = (0..medians.len()).filter(|&idx| idx != best).map(told).collect();
        let reason = format!(
            "measured on the first steps: {} a step, against {} (workers x threads)",
            told(best),
            others.join(", ")
        );
        SetUp { reason, ..self.candidates[best].clone() }
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(workers: Option<usize>, threads: Option<usize>) -> DistributeSpec {
        DistributeSpec { workers, threads, ..DistributeSpec::default() }
    }

    fn sizes(set_ups: &[SetUp]) -> Vec<(usize, usize)> {
        set_ups.iter().map(|one| (one.workers, one.threads)).collect()
    }

    #[test]
    fn what_the_user_says_is_done() {
        assert_eq!(sizes(&candidates(&spec(Some(3), Some(2)), 8, 8)), [(3, 2)]);
        assert_eq!(sizes(&candidates(&spec(Some(3), None), 8, 8)), [(3, 2)]);
        assert_eq!(sizes(&candidates(&spec(Some(9), None), 8, 8)), [(9, 1)]);
        assert_eq!(sizes(&candidates(&spec(None, Some(5)), 8, 8)), [(1, 5)]);
    }

    #[test]
    fn otherwise_a_worker_per_core_one_with_all_and_one_alone_are_tried() {
        assert_eq!(sizes(&candidates(&spec(None, None), 8, 8)), [(8, 1), (1, 8), (1, 1)]);
        assert_eq!(sizes(&candidates(&spec(None, None), 8, 2)), [(2, 4), (1, 8), (1, 1)]);
        assert_eq!(sizes(&candidates(&spec(None, None), 8, 1)), [(1, 8)]);
        assert_eq!(sizes(&candidates(&spec(None, None), 1, 8)), [(1, 1)]);
    }

    #[test]
    fn the_faster_is_chosen_and_the_reason_given() {
        let mut trial = Trial::new(candidates(&spec(None, None), 2, 8));
        let mut now = trial.first().clone();
        for _ in 0..1000 {
            let seconds = match (now.workers, now.threads) {
                (2, _) => 0.020,
                (_, 2) => 0.030,
                _ => 0.040,
            };
            match trial.step(seconds) {
                Verdict::Stay => {}
                Verdict::Try(next) => now = next,
                Verdict::Choose(chosen) => {
                    assert_eq!((chosen.workers, chosen.threads), (2, 1));
                    assert!(chosen.reason.contains("2 x 1: 20.000 ms a step"), "{}", chosen.reason);
                    assert!(chosen.reason.contains("1 x 2: 30.000 ms"), "{}", chosen.reason);
                    return;
                }
            }
        }
        panic!("nothing was chosen");
    }
}
