//! Judging: whether a model is the best so far, and whether to stop early. Pure functions of what was measured.

use crate::checkpoint::{Best, Measured, State};
use crate::job::EarlyStopping;

/// The value to judge by, made so that smaller is better.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    /// The measure, such as `validation/loss`.
    pub(crate) measure: String,
    higher_is_better: bool,
    stopping: Option<EarlyStopping>,
}

impl Judge {
    /// Judges by one measure of the validation data.
    pub(crate) fn new(
        monitor: &str,
        higher_is_better: bool,
        stopping: Option<EarlyStopping>,
    ) -> Judge {
        Judge { measure: format!("validation/{monitor}"), higher_is_better, stopping }
    }

    fn directed(&self, value: f64) -> f64 {
        if self.higher_is_better { -value } else { value }
    }

    /// The judged value after each epoch so far, smaller being better.
    pub(crate) fn monitored(&self, history: &[Measured]) -> Vec<f64> {
        let values = history.iter().filter_map(|measured| measured.values.get(&self.measure));
        values.map(|&value| self.directed(value)).collect()
    }

    /// The best so far, this being the newest: a NaN never is.
    pub(crate) fn best(&self, state: &State) -> Option<Best> {
        let newest = state.history.last()?;
        let value = *newest.values.get(&self.measure)?;
        let better = match &state.best {
            Some(best) => self.directed(value) < self.directed(best.value),
            None => !value.is_nan(),
        };
        let measure = self.measure.clone();
        if better { Some(Best { step: newest.step, measure, value }) } else { state.best.clone() }
    }

    /// Why training should stop now, if it should: so many epochs in which nothing got better by enough.
    pub(crate) fn stop(&self, history: &[Measured]) -> Option<String> {
        let EarlyStopping { patience, least } = self.stopping?;
        let (mut best, mut n_waited) = (f64::INFINITY, 0);
        for value in self.monitored(history) {
            if value < best - least {
                (best, n_waited) = (value, 0);
            } else {
                n_waited += 1;
            }
        }
        (n_waited >= patience.max(1)).then(|| {
            let best = if self.higher_is_better { -best } else { best };
            format!(
                "{} has not got better than {best:.6} for {n_waited} epochs (`train.early_stopping`)",
                self.measure
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn history(values: &[f64]) -> Vec<Measured> {
        let measured = |(epoch, &value): (usize, &f64)| Measured {
            epoch: epoch as u64,
            step: 10 * epoch as u64,
            values: BTreeMap::from([("validation/loss".to_string(), value)]),
        };
        values.iter().enumerate().map(measured).collect()
    }

    fn judge(patience: usize, least: f64) -> Judge {
        Judge::new("loss", false, Some(EarlyStopping { patience, least }))
    }

    #[test]
    fn it_stops_after_so_many_epochs_without_improvement() {
        assert_eq!(judge(2, 0.0).stop(&history(&[3.0, 2.0, 2.0])), None);
        let reason = judge(2, 0.0).stop(&history(&[3.0, 2.0, 2.0, 2.5])).expect("it stops");
        assert!(reason.contains("better than 2.000000 for 2 epochs"), "{reason}");
        assert_eq!(judge(2, 0.0).stop(&history(&[3.0, 2.0, 2.5, 1.0])), None);
    }

    #[test]
    fn an_improvement_must_be_large_enough() {
        assert!(judge(2, 0.5).stop(&history(&[3.0, 2.9, 2.8])).is_some());
        assert!(judge(2, 0.05).stop(&history(&[3.0, 2.9, 2.8])).is_none());
    }

    #[test]
    fn the_best_is_the_first_of_equals_and_never_a_nan() {
        let judge = judge(1, 0.0);
        let mut state = State::default();
        for (idx, (value, best)) in
            [(f64::NAN, None), (3.0, Some(10)), (3.0, Some(10)), (2.0, Some(30))]
                .into_iter()
                .enumerate()
        {
            let mut measured = history(&[value]).remove(0);
            measured.step = 10 * idx as u64;
            state.history.push(measured);
            state.best = judge.best(&state);
            assert_eq!(state.best.as_ref().map(|best| best.step), best);
        }
    }

    #[test]
    fn more_is_better_for_some() {
        let judge = Judge::new("loss", true, Some(EarlyStopping { patience: 1, least: 0.0 }));
        assert!(judge.stop(&history(&[1.0, 2.0, 3.0])).is_none());
        assert!(judge.stop(&history(&[1.0, 0.5])).is_some());
        assert_eq!(judge.monitored(&history(&[1.0, 0.5])), [-1.0, -0.5]);
    }
}
