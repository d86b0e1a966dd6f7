//! Glimpses of the model while it is trained: what it is now and then is set aside, and measured when training is over.
//!
//! So the time to a target is known to a few steps, training waits for no measurement, and the steps under way stay so. Where workers need not wait for each other a measurement
//! between steps would have them wait.

use std::time::Instant;

use manyhands_program::Role;

use super::event::{Control, Evaluated, Event};
use super::measure::measure;
use super::recipe::Recipe;
use super::run::Run;
use super::steps::Steps;
use crate::checkpoint::NamedTensor;
use crate::error::Error;

/// What was set aside.
pub(super) struct Glimpse {
    step: u64,
    epoch: u64,
    /// Seconds of the run until then, without measurements and checkpoints.
    seconds: f64,
    tensors: Vec<NamedTensor>,
}

/// Which steps are followed by a glimpse.
pub(super) struct Glimpses {
    per_epoch: usize,
    taken: Vec<Glimpse>,
}

impl Glimpses {
    pub(super) fn new(per_epoch: usize) -> Glimpses {
        Glimpses { per_epoch, taken: Vec::new() }
    }

    fn is_due(&self, step: u64, steps_per_epoch: usize) -> bool {
        let every = steps_per_epoch.checked_div(self.per_epoch).map(|every| every.max(1) as u64);
        every.is_some_and(|every| step.is_multiple_of(every))
    }
}

impl<'a> Run<'a> {
    /// Sets aside what the model is now, where that is wanted after this step.
    pub(super) fn glimpse(&mut self, steps: &mut dyn Steps<'a>) -> Result<(), Error> {
        if !self.glimpses.is_due(self.state.step, self.planned.steps_per_epoch) {
            return Ok(());
        }
        let seconds = self.start.elapsed().as_secs_f64() - self.seconds_beside();
        let Some(mut tensors) = steps.glimpse()? else { return Ok(()) };
        // What an optimizer keeps is not measured.
        tensors.retain(|tensor| tensor.role != Role::Slot);
        let (step, epoch) = (self.state.step, self.state.epoch);
        self.glimpses.taken.push(Glimpse { step, epoch, seconds, tensors });
        Ok(())
    }

    /// Seconds of measurements and checkpoints.
    fn seconds_beside(&self) -> f64 {
        self.split.evaluation + self.split.checkpoints
    }

    /// Measures what was set aside, oldest first, until somebody has heard enough. The session has other parameters then.
    pub(super) fn measure_glimpses(
        &mut self,
        steps: &mut dyn Steps<'a>,
        last: &[NamedTensor],
    ) -> Result<(), Error> {
        let taken = std::mem::take(&mut self.glimpses.taken);
        let Some(part) = self.opened.data.validation.as_ref().filter(|_| !taken.is_empty()) else {
            return Ok(());
        };
        let start = Instant::now();
        let mut tensors = last.to_vec();
        for glimpse in taken {
            for then in glimpse.tensors {
                if let Some(known) = tensors.iter_mut().find(|tensor| tensor.name == then.name) {
                    known.tensor = then.tensor;
                }
            }
            let session = steps.answering()?;
            session.load(&tensors)?;
            let metrics = Recipe::metrics(self.job, self.registry)?;
            let measures = measure(session, self.recipe, part, metrics, self.should_stop)?;
            let (epoch, step) = (glimpse.epoch as usize, glimpse.step as usize);
            let found = Evaluated { epoch, step, part: "validation", values: measures.values };
            let event = Event::Glimpsed { seconds: glimpse.seconds, found: &found };
            let mut is_enough = false;
            for callback in &mut *self.callbacks {
                is_enough |= callback.on_event(&event) == Control::Stop;
            }
            if is_enough {
                break;
            }
        }
        steps.answering()?.load(last)?;
        self.split.evaluation += start.elapsed().as_secs_f64();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glimpses_come_as_often_as_they_are_wanted() {
        let due = |per_epoch, n_steps: usize| {
            let glimpses = Glimpses::new(per_epoch);
            (1..=n_steps as u64).filter(|step| glimpses.is_due(*step, n_steps)).count()
        };
        assert_eq!([due(0, 40), due(4, 40), due(20, 40), due(20, 39)], [0, 4, 20, 39]);
        assert_eq!(due(100, 7), 7, "no more than there are steps");
    }
}
