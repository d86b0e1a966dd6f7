//! Training steps done by a team of this process.

use std::collections::VecDeque;
use std::sync::Arc;

use manyhands_program::mesh::WorkerProgram;

use super::labels::{Clock, Label, ShownSpan, labels, shown};
use super::spread::Spread;
use super::team::{GrainInputs, Team, TeamStep, linked};
use super::worker::SecondsByKind;
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::model::LABEL;
use crate::train::{Purpose, Recipe, Session, SetUp, Step, StepBatch, Steps};

/// Steps that the workers of a mesh do, all of them threads of this process.
pub(crate) struct MeshHere<'a> {
    recipe: &'a Recipe,
    team: Team,
    /// The sizes of steps that the workers have programs for, in order.
    sizes: Vec<usize>,
    /// The inputs of the programs, with their places in a batch.
    inputs: Arc<Vec<(String, usize)>>,
    set_up: SetUp,
    n_done: u64,
    answering: Session<'a>,
    /// The step whose parameters the session has.
    answers_for: Option<u64>,
    /// For a timeline: by size of a step and worker, the names of actions.
    names: Option<Vec<Vec<Vec<Label>>>>,
    clock: Clock,
    /// The numbers and sizes of steps that are under way.
    under_way: VecDeque<(u64, usize)>,
    spans: Vec<(u64, Vec<Vec<ShownSpan>>)>,
    /// Where the time of all workers went.
    seconds: SecondsByKind,
}

/// Steps that may be handed over before the first is done.
const DEPTH: usize = 2;

impl<'a> MeshHere<'a> {
    /// Starts a team for the programs of all sizes of steps. Parameters are zeros until [`MeshHere::init`] or [`MeshHere::load`].
    pub(crate) fn start(
        recipe: &'a Recipe,
        spread: &[Spread],
        set_up: SetUp,
        answering: Session<'a>,
    ) -> Result<MeshHere<'a>, Error> {
        let of_worker = |worker: usize| -> Vec<WorkerProgram> {
            spread.iter().map(|one| one.workers[worker].clone()).collect()
        };
        let programs = (0..set_up.workers).map(of_worker).collect();
        let team = Team::start(programs, set_up.threads, linked(set_up.workers)?)?;
        let sizes = spread.iter().map(|one| one.n_samples).collect();
        let places = recipe.encoding.inputs();
        let place = |name: &str| places.iter().position(|one| one.name == name);
        let inputs = recipe.model.inputs();
        let inputs = inputs.filter_map(|input| Some((input.name.clone(), place(&input.name)?)));
        let inputs = Arc::new(inputs.collect());
        Ok(MeshHere {
            recipe,
            team,
            sizes,
            inputs,
            set_up,
            n_done: 0,
            answering,
            answers_for: None,
            names: None,
            clock: Clock::look(),
            under_way: VecDeque::new(),
            spans: Vec::new(),
            seconds: SecondsByKind::default(),
        })
    }

    /// Gives parameters their first values.
    pub(crate) fn init(&mut self, seed: u64) -> Result<(), Error> {
        Ok(self.team.init(seed)?)
    }

    /// Gives parameters the values of whole tensors.
    pub(crate) fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), Error> {
        Ok(self.team.load(tensors)?)
    }

    /// The share of their time for which workers waited for each other, exchanges included.
    pub(crate) fn waiting(&self) -> f64 {
        let SecondsByKind { compute, send, receive, exchange, commit } = self.seconds;
        let waited = receive + exchange + commit;
        waited / (waited + compute + send).max(f64::MIN_POSITIVE)
    }

    /// Has what workers did be kept after each step, for a timeline.
    pub(crate) fn keep_spans(&mut self, programs: &[Spread]) {
        let of_size = |one: &Spread| one.workers.iter().map(labels).collect();
        self.names = Some(programs.iter().map(of_size).collect());
    }
}

/// The samples of a step, by grains.
struct BatchInputs {
    batch: StepBatch,
    grain: usize,
    inputs: Arc<Vec<(String, usize)>>,
}

impl GrainInputs for BatchInputs {
    fn bytes(&self, grain: usize, name: &str) -> Option<&[u8]> {
        // It was read before it was handed over.
        let batch = self.batch.read().ok()?;
        let samples = grain * self.grain..batch.n_samples().min((grain + 1) * self.grain);
        if name == LABEL {
            return batch.target(samples);
        }
        let (_, place) = self.inputs.iter().find(|(known, _)| known == name)?;
        Some(batch.input(*place, samples))
    }
}

impl<'a> Steps<'a> for MeshHere<'a> {
    fn set_up(&self) -> SetUp {
        self.set_up.clone()
    }

    fn move_to(&mut self, _: &SetUp) -> Result<(), Error> {
        Ok(())
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn submit(&mut self, step: &Step) -> Result<(), Error> {
        let n_samples = step.batch.n_samples();
        let plan = self.sizes.iter().position(|size| *size == n_samples);
        let plan = plan.ok_or(Error::NoStep)?;
        step.batch.read()?;
        let (batch, grain) = (step.batch.clone(), self.recipe.grain);
        let inputs = Arc::new(BatchInputs { batch, grain, inputs: Arc::clone(&self.inputs) });
        let (step, rate, seed) = (step.number, step.rate as f32, step.seed);
        self.under_way.push_back((step, plan));
        self.team.submit(&TeamStep { plan, step, rate, seed, inputs });
        Ok(())
    }

    fn finish(&mut self) -> Result<f32, Error> {
        let outcome = self.team.finish()?;
        self.n_done += 1;
        outcome.outcomes.iter().for_each(|one| self.seconds.add(&one.seconds));
        let (number, size) = self.under_way.pop_front().ok_or(Error::NoStep)?;
        if let Some(names) = self.names.as_ref().and_then(|names| names.get(size)) {
            let each = outcome.spans.iter().zip(names);
            let each = each.map(|(spans, names)| shown(spans, names, &self.clock));
            self.spans.push((number, each.collect()));
        }
        outcome.loss.ok_or(Error::NoStep)
    }

    fn has_spans(&self) -> bool {
        self.names.is_some()
    }

    fn spans(&mut self) -> Vec<(u64, Vec<Vec<ShownSpan>>)> {
        std::mem::take(&mut self.spans)
    }

    fn tensors(&mut self) -> Result<Vec<NamedTensor>, Error> {
        Ok(self.team.tensors()?)
    }

    fn answering(&mut self) -> Result<&mut Session<'a>, Error> {
        if self.answers_for != Some(self.n_done) {
            let tensors = self.team.tensors()?;
            self.answering.plan(Purpose::Train, self.recipe.batch)?;
            self.answering.load(&tensors)?;
            self.answers_for = Some(self.n_done);
        }
        Ok(&mut self.answering)
    }
}
