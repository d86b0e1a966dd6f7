//! Where training steps are done: on a device of this process, or by workers elsewhere.

use manyhands_device::PlanId;

use super::epoch::StepBatch;
use super::event::SetUp;
use super::session::Session;
use crate::checkpoint::NamedTensor;
use crate::cluster::ServerTraffic;
use crate::error::Error;
use crate::mesh::ShownSpan;
use crate::report::WorkerReport;

/// A training step to be done.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Which it is, from 1.
    pub(crate) number: u64,
    pub(crate) batch: StepBatch,
    pub(crate) rate: f64,
    pub(crate) seed: u64,
}

/// Whoever does training steps, one after the other. Steps may be handed over before those before them are done, so that their
/// inputs travel meanwhile.
pub(crate) trait Steps<'a> {
    /// How the machines are used.
    fn set_up(&self) -> SetUp;

    /// Goes on with another set-up, where there is a choice.
    fn move_to(&mut self, set_up: &SetUp) -> Result<(), Error>;

    /// How many steps may be handed over and not done.
    fn depth(&self) -> usize;

    /// Whether somebody will want the samples of this process, so that they are read ahead.
    fn wants_samples(&self) -> bool {
        true
    }

    /// Hands over the next step.
    fn submit(&mut self, step: &Step) -> Result<(), Error>;

    /// Waits a moment for the oldest step that was handed over. Whether it is done: if not, there may be news to tell meanwhile.
    fn await_step(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    /// Whether somebody is there to do steps.
    fn has_workers(&self) -> bool {
        true
    }

    /// For how many seconds nobody was ready to do steps since this was last asked.
    fn without_workers(&mut self) -> f64 {
        0.0
    }

    /// Waits for the oldest step that was handed over, and gives its mean loss.
    fn finish(&mut self) -> Result<f32, Error>;

    /// All parameters after the last step; none is under way.
    fn tensors(&mut self) -> Result<Vec<NamedTensor>, Error>;

    /// What the parameters are now, while steps are under way; none where that is not known.
    fn glimpse(&mut self) -> Result<Option<Vec<NamedTensor>>, Error> {
        Ok(None)
    }

    /// What each of those who do the steps did, where they are several processes.
    fn work(&self) -> Vec<WorkerReport> {
        Vec::new()
    }

    /// Whether it is known what each worker did when.
    fn has_spans(&self) -> bool {
        false
    }

    /// What each worker of a mesh did when, by step; those that are known since this was last asked.
    fn spans(&mut self) -> Vec<(u64, Vec<Vec<ShownSpan>>)> {
        Vec::new()
    }

    /// What moved between those who do the steps and servers, where there are any.
    fn traffic(&self) -> Option<ServerTraffic> {
        None
    }

    /// Who holds parameters beside those who do the steps, in words.
    fn servers(&self) -> Vec<String> {
        Vec::new()
    }

    /// What people should hear of those who do the steps, oldest first.
    fn news(&mut self) -> Option<String> {
        None
    }

    /// A session of this process with the parameters after the last step, to measure with.
    fn answering(&mut self) -> Result<&mut Session<'a>, Error>;
}

/// Steps on a device of this process.
pub(crate) struct Here<'a> {
    session: Session<'a>,
    prepared: Option<PlanId>,
}

impl<'a> Here<'a> {
    pub(crate) fn new(session: Session<'a>) -> Here<'a> {
        Here { session, prepared: None }
    }
}

impl<'a> Steps<'a> for Here<'a> {
    fn set_up(&self) -> SetUp {
        self.session.set_up().clone()
    }

    fn move_to(&mut self, set_up: &SetUp) -> Result<(), Error> {
        self.session.move_to(set_up)
    }

    fn depth(&self) -> usize {
        1
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let Step { number, batch, rate, seed } = step;
        self.prepared = Some(self.session.prepare_step(batch.read()?, *rate, *seed, *number)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<f32, Error> {
        match self.prepared.take() {
            Some(plan) => self.session.step(plan),
            None => Err(Error::NoStep),
        }
    }

    fn tensors(&mut self) -> Result<Vec<NamedTensor>, Error> {
        self.session.tensors()
    }

    fn answering(&mut self) -> Result<&mut Session<'a>, Error> {
        Ok(&mut self.session)
    }
}
