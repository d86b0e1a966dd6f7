//! What places of a mesh did when, for a timeline: each tells it for its first steps, and a step is shown when all have.
//!
//! Times are those of the system's clock, which processes of one machine share; between machines they are off by as much as their clocks are.

use std::collections::BTreeMap;

use crate::mesh::ShownSpan;
use crate::timeline::TIMELINE_STEPS;

/// The most spans of a step that a place tells.
pub(in crate::cluster) const MOST_SPANS: usize = 4096;

/// Spans of steps, until all places have told theirs.
#[derive(Debug, Default)]
pub(in crate::cluster) struct StepSpans {
    steps: BTreeMap<u64, BTreeMap<usize, Vec<ShownSpan>>>,
}

impl StepSpans {
    /// A place tells what it did in a step.
    pub(in crate::cluster) fn tell(&mut self, step: u64, place: usize, spans: Vec<ShownSpan>) {
        self.steps.entry(step).or_default().insert(place, spans);
        // Whoever forms anew leaves steps behind that some never tell of.
        while self.steps.len() > TIMELINE_STEPS {
            self.steps.pop_first();
        }
    }

    /// The steps of which all of so many places have told.
    pub(in crate::cluster) fn take_whole(
        &mut self,
        n_places: usize,
    ) -> Vec<(u64, Vec<Vec<ShownSpan>>)> {
        let is_whole = |(_, places): &(&u64, &BTreeMap<_, _>)| places.len() >= n_places;
        let whole: Vec<u64> = self.steps.iter().filter(is_whole).map(|(step, _)| *step).collect();
        let taken = whole.into_iter().filter_map(|step| Some((step, self.steps.remove(&step)?)));
        taken.map(|(step, places)| (step, places.into_values().collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shown_when_all_places_have_told() {
        let mut spans = StepSpans::default();
        spans.tell(1, 1, Vec::new());
        assert!(spans.take_whole(2).is_empty());
        spans.tell(2, 0, Vec::new());
        spans.tell(1, 0, Vec::new());
        let whole = spans.take_whole(2);
        assert_eq!(whole.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1]);
        assert!(spans.take_whole(2).is_empty());
    }
}
