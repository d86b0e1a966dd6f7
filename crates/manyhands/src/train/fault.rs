//! Where a loss that is not a number came from. Training is deterministic, so the steps since the last checkpoint are done
//! again, up to the one that failed, and that one is looked into: which layer first gave something that is not finite.

use manyhands_data::Batch;
use manyhands_program::Tensor;

use super::Purpose;
use super::event::SetUp;
use super::run::Run;
use super::session::Session;
use crate::checkpoint::{CheckpointError, State};
use crate::error::Error;
use crate::model::{PROBED_GRADIENT, PROBED_LAYER};

impl Run<'_> {
    /// The loss of the step at hand is not finite: finds out where that began.
    pub(super) fn not_finite(&mut self, batch: &Batch, set_up: &SetUp) -> Result<Error, Error> {
        let step = self.state.step as usize + 1;
        self.warn(&format!(
            "the loss of step {step} is not a finite number; the steps since the last checkpoint are done again to find out \
             where that began"
        ));
        self.saver.flush();
        self.poll_saver()?;
        let seed = self.job.train.seed;
        let mut session = Session::new(self.recipe, set_up)?;
        session.plan(Purpose::Train, self.full_batch())?;
        let mut state = match self.writer.folder().latest(Some(&self.fingerprint)) {
            Ok((checkpoint, _)) => {
                session.load(&checkpoint.tensors)?;
                checkpoint.state
            }
            Err(CheckpointError::NoCheckpoint { .. }) => {
                session.initialise(seed)?;
                State::default()
            }
            Err(error) => return Err(error.into()),
        };
        // The same steps again, to the one before.
        while state.step < self.state.step {
            let first = state.batch as usize;
            let order = self.order(state.epoch);
            for batch in self.opened.data.train.batches(order, self.recipe.batch, first) {
                if state.step == self.state.step || (self.should_stop)() {
                    break;
                }
                let before = state.step;
                let history = self.state.history.iter().filter(|past| past.step <= before);
                let monitored = self.judge.monitored(&history.cloned().collect::<Vec<_>>());
                let rate = self.rate(before as usize, &monitored);
                let plan = session.prepare_step(&batch?, rate, seed, before + 1)?;
                session.step(plan)?;
                state.step += 1;
            }
            (state.epoch, state.batch) = (state.epoch + 1, 0);
            if (self.should_stop)() {
                let place = "where it began was not looked for to the end".to_string();
                return Ok(Error::NotFinite {
                    step,
                    place,
                    rate: self.rate(step - 1, &self.monitored),
                });
            }
        }
        let place = first_not_finite(&mut session, batch, (seed, step as u64))?;
        Ok(Error::NotFinite { step, place, rate: self.rate(step - 1, &self.monitored) })
    }
}

/// Names the first thing in a step that is not finite: a weight, the output of a layer, or a gradient.
fn first_not_finite(session: &mut Session, batch: &Batch, at: (u64, u64)) -> Result<String, Error> {
    for named in session.tensors()? {
        if !is_finite(&named.tensor) {
            return Ok(format!(
                "the weight `{}` was not finite any more before it, so the update of the step before overflowed",
                named.name
            ));
        }
    }
    // What comes first in the program comes first here: layers in their order, the loss, then gradients.
    for (name, tensor) in session.probe(batch, at)? {
        if is_finite(&tensor) {
            continue;
        }
        return Ok(if let Some(layer) = name.strip_prefix(PROBED_LAYER) {
            format!("it first appeared in the output of layer `{layer}`")
        } else if let Some(weight) = name.strip_prefix(PROBED_GRADIENT) {
            format!("it first appeared in the gradient of `{weight}`")
        } else {
            "it first appeared in the loss itself".to_string()
        });
    }
    Ok("every layer and gradient was finite, so the sum over the samples overflowed".to_string())
}

fn is_finite(tensor: &Tensor) -> bool {
    tensor.to_f64().iter().all(|value| value.is_finite())
}
