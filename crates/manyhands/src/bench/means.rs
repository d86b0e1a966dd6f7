//! What runs of one setting came to on average: how many steps one run needs to a target is mostly chance, so that several seeds are compared.

use serde::Serialize;

use super::consistency::ConsistencyRun;

/// The means of the runs of one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConsistencyMeans {
    /// Which workers were slow.
    pub straggling: &'static str,
    /// How they waited for each other.
    pub setting: String,
    /// How many runs there were, each with a seed of its own.
    pub n_runs: usize,
    /// How many of them reached the target.
    pub n_reached: usize,
    /// From the first step to the last.
    pub seconds: f64,
    /// Until the target was reached, if every run reached it: without those that did not, the mean would be of lucky runs.
    pub seconds_to_target: Option<f64>,
    /// Steps until then.
    pub steps_to_target: Option<f64>,
    /// The share of the workers' time in which they did not compute.
    pub waiting: f64,
    /// What was measured last on the validation data.
    pub last: Option<f64>,
}

/// Means beside those of another setting of the same case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Of the whole runs.
    pub run: f64,
    /// Of the times to the target, where all runs of both reached it.
    pub to_target: Option<f64>,
    /// Of the steps to the target.
    pub steps_to_target: Option<f64>,
}

impl ConsistencyMeans {
    /// The means of runs of one case and setting; none of no runs.
    pub fn of(runs: &[ConsistencyRun]) -> Option<ConsistencyMeans> {
        let first = runs.first()?;
        let mean_if_all = |value: &dyn Fn(&ConsistencyRun) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(value).collect();
            values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let mean = |value: fn(&ConsistencyRun) -> f64| {
            runs.iter().map(value).sum::<f64>() / runs.len() as f64
        };
        Some(ConsistencyMeans {
            straggling: first.straggling,
            setting: first.setting.clone(),
            n_runs: runs.len(),
            n_reached: runs.iter().filter(|run| run.seconds_to_target.is_some()).count(),
            seconds: mean(|run| run.seconds),
            seconds_to_target: mean_if_all(&|run| run.seconds_to_target),
            steps_to_target: mean_if_all(&|run| run.steps_to_target),
            waiting: mean(|run| run.waiting),
            last: mean_if_all(&|run| run.last),
        })
    }

    /// These means in units of others.
    pub fn relative_to(&self, other: &ConsistencyMeans) -> Ratios {
        let ratio = |of: fn(&ConsistencyMeans) -> Option<f64>| Some(of(self)? / of(other)?);
        Ratios {
            run: self.seconds / other.seconds,
            to_target: ratio(|means| means.seconds_to_target),
            steps_to_target: ratio(|means| means.steps_to_target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, to_target: Option<(f64, u32)>, last: Option<f64>) -> ConsistencyRun {
        ConsistencyRun {
            straggling: "constant",
            setting: "bsp".to_string(),
            seed: 1,
            n_steps: 100,
            seconds,
            computing: 0.0,
            seconds_to_target: to_target.map(|(seconds, _)| seconds),
            steps_to_target: to_target.map(|(_, steps)| f64::from(steps)),
            waiting: seconds / 100.0,
            moving: 0.0,
            grains: Vec::new(),
            last,
            decisions: Vec::new(),
        }
    }

    fn means(runs: &[ConsistencyRun]) -> ConsistencyMeans {
        ConsistencyMeans::of(runs).expect("runs")
    }

    #[test]
    fn no_runs_have_no_means() {
        assert_eq!(ConsistencyMeans::of(&[]), None);
    }

    #[test]
    fn one_run_is_its_own_mean() {
        let found = means(&[run(8.0, Some((2.0, 40)), Some(0.5))]);
        assert_eq!((found.n_runs, found.n_reached), (1, 1));
        assert_eq!((found.seconds, found.waiting, found.last), (8.0, 0.08, Some(0.5)));
        assert_eq!((found.seconds_to_target, found.steps_to_target), (Some(2.0), Some(40.0)));
    }

    #[test]
    fn means_are_over_all_runs() {
        let some = [run(8.0, Some((2.0, 40)), Some(0.5)), run(4.0, Some((3.0, 45)), Some(0.75))];
        let found = means(&some);
        assert_eq!((found.n_runs, found.n_reached), (2, 2));
        assert_eq!((found.seconds, found.last), (6.0, Some(0.625)));
        assert_eq!((found.seconds_to_target, found.steps_to_target), (Some(2.5), Some(42.5)));
    }

    #[test]
    fn a_run_that_missed_the_target_leaves_no_mean_of_the_others() {
        let found = means(&[run(8.0, Some((2.0, 40)), Some(0.5)), run(4.0, None, None)]);
        assert_eq!((found.n_runs, found.n_reached, found.seconds), (2, 1, 6.0));
        assert_eq!((found.seconds_to_target, found.steps_to_target), (None, None));
        assert_eq!(found.last, None);
    }

    #[test]
    fn ratios_are_of_means_and_not_means_of_ratios() {
        let bsp = means(&[run(8.0, Some((2.0, 40)), None), run(4.0, Some((6.0, 60)), None)]);
        let other = means(&[run(2.0, Some((1.0, 20)), None), run(4.0, Some((1.0, 30)), None)]);
        let expected = Ratios { run: 0.5, to_target: Some(0.25), steps_to_target: Some(0.5) };
        assert_eq!(other.relative_to(&bsp), expected);
        assert_eq!(bsp.relative_to(&bsp).to_target, Some(1.0));
    }

    #[test]
    fn times_to_a_target_that_one_side_missed_are_not_compared() {
        let (reached, missed) = (run(8.0, Some((2.0, 40)), None), run(4.0, None, None));
        let (reached, missed) = (means(&[reached]), means(&[missed]));
        let expected = Ratios { run: 0.5, to_target: None, steps_to_target: None };
        assert_eq!(missed.relative_to(&reached), expected);
        assert_eq!(reached.relative_to(&missed), Ratios { run: 2.0, ..expected });
    }
}
