//! Where the steps of a run are done: on a device of this process, by a mesh of its threads, or by the workers of a cluster.

use super::Purpose;
use super::event::{Event, SetUp};
use super::run::Run;
use super::session::Session;
use super::set_up::{Trial, candidates};
use super::steps::{Here, Steps};
use crate::checkpoint::NamedTensor;
use crate::cluster::{ClusterAddress, DataOffer, DriverPlan, PlanPrograms, Remote, plan_programs};
use crate::error::Error;
use crate::job::{MeshPlan, Strategy};
use crate::mesh::{MeshHere, spread};
use crate::report::Report;
use crate::timeline::TIMELINE_STEPS;

impl<'a> Run<'a> {
    /// Trains as the job says, or as the planner chooses.
    pub(super) fn train(mut self, tensors: Option<Vec<NamedTensor>>) -> Result<Report, Error> {
        let decided = self.decide()?;
        self.predicted_seconds = decided.predicted;
        if let Some(cluster) = self.cluster {
            if decided.set_up.as_ref().is_some_and(|chosen| chosen.workers == 1) {
                // Those who were started are there, and what was predicted is not of them.
                self.predicted_seconds = None;
                self.warn(
                    "`auto` found one worker to be enough, and the processes that were given share the grains all the same, by all_reduce: without them it trains in this process",
                );
            }
            return self.train_on(cluster, decided.mesh, tensors);
        }
        if let Some(plan) = decided.mesh {
            return self.train_in_mesh(&plan, decided.set_up, tensors);
        }
        let strategy = self.job.distribute.strategy;
        if matches!(strategy, Strategy::Local | Strategy::ParameterServer) {
            self.warn(&format!(
                "the strategy `{}` is for several processes: within one, gradients are summed at every step (`--processes` starts some here, `--cluster` finds others)",
                strategy.word()
            ));
        }
        let n_grains = self.recipe.n_grains(self.full_batch());
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut trial = Trial::new(match decided.set_up {
            Some(chosen) => vec![chosen],
            None => candidates(&self.job.distribute, n_cores, n_grains),
        });
        let mut set_up = trial.first().clone();
        self.warn_of_idle_workers(set_up.workers);
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        if self.timeline.is_some() {
            self.warn(&format!(
                "the timeline has the first {TIMELINE_STEPS} steps, and the workers of this process as one: they run side by side on one device, which does not tell them apart"
            ));
        }
        self.records.begin(self.recipe, self.planned.n_steps)?;
        let mut session = Session::new(self.recipe, &set_up)?;
        session.plan(Purpose::Train, self.full_batch())?;
        match tensors {
            Some(tensors) => session.load(&tensors)?,
            None => session.initialise(self.job.train.seed)?,
        }
        if trial.is_decided() {
            self.tell(&Event::SetUp(&set_up));
        }
        let mut steps = Here::new(session);
        let reason = self.epochs(&mut steps, &mut trial, &mut set_up)?;
        if set_up.reason.is_empty() {
            set_up.reason = "there were too few steps to measure which is faster".to_string();
            self.tell(&Event::SetUp(&set_up));
        }
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        self.finish(&mut steps, set_up, reason)
    }

    /// The same with a model that is spread over workers of this process.
    fn train_in_mesh(
        mut self,
        plan: &MeshPlan,
        chosen: Option<SetUp>,
        tensors: Option<Vec<NamedTensor>>,
    ) -> Result<Report, Error> {
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        let sizes = plan_programs(self.recipe, self.planned.n_samples)?;
        let spread = spread(plan, plan.mesh, sizes.iter().map(PlanPrograms::training))?;
        self.records.begin(self.recipe, self.planned.n_steps)?;
        let n_workers = plan.mesh.n_workers();
        if plan.mesh.data == n_workers {
            self.warn_of_idle_workers(n_workers);
        }
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.job.distribute.threads.unwrap_or((n_cores / n_workers).max(1));
        let reason = chosen.map_or_else(|| plan.to_string(), |chosen| chosen.reason);
        let mut set_up = SetUp { workers: n_workers, threads, reason };
        let (answering, tensors) = self.answering(tensors)?;
        let mut steps = MeshHere::start(self.recipe, &spread, set_up.clone(), answering)?;
        steps.load(&tensors)?;
        self.tell(&Event::SetUp(&set_up));
        if self.timeline.is_some() {
            steps.keep_spans(&spread);
            self.warn(&format!("the timeline has the first {TIMELINE_STEPS} steps"));
        }
        let mut trial = Trial::new(vec![set_up.clone()]);
        let reason = self.epochs(&mut steps, &mut trial, &mut set_up)?;
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        self.finish(&mut steps, set_up, reason)
    }

    /// A session of this process for what others train, and the state that they begin with.
    fn answering(
        &self,
        tensors: Option<Vec<NamedTensor>>,
    ) -> Result<(Session<'a>, Vec<NamedTensor>), Error> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let here = SetUp { workers: 1, threads: n_cores, reason: String::new() };
        let mut session = Session::new(self.recipe, &here)?;
        session.plan(Purpose::Train, self.full_batch())?;
        let tensors = match tensors {
            Some(tensors) => {
                session.load(&tensors)?;
                tensors
            }
            None => {
                session.initialise(self.job.train.seed)?;
                session.tensors()?
            }
        };
        Ok((session, tensors))
    }

    fn warn_of_idle_workers(&mut self, workers: usize) {
        let n_grains = self.recipe.n_grains(self.full_batch());
        if workers > n_grains {
            let idle = workers - n_grains;
            self.warn(&format!(
                "a step has {n_grains} grain(s), so {idle} of the {workers} workers have nothing to do; a smaller \
                 `train.grain` gives more"
            ));
        }
    }

    /// The same with workers of a cluster.
    fn train_on(
        mut self,
        cluster: &ClusterAddress,
        mesh: Option<MeshPlan>,
        tensors: Option<Vec<NamedTensor>>,
    ) -> Result<Report, Error> {
        let planned = self.planned.clone();
        self.tell(&Event::Planned(&planned));
        if self.timeline.is_some() {
            let known = match mesh {
                Some(_) => "",
                None => {
                    "; of each worker it is known how long it did what in a step, not in which order with others"
                }
            };
            self.warn(&format!("the timeline has the first {TIMELINE_STEPS} steps{known}"));
        }
        self.records.begin(self.recipe, self.planned.n_steps)?;
        self.warn_of_idle_workers(self.job.distribute.workers.unwrap_or(0));
        let (answering, tensors) = self.answering(tensors)?;
        let state = (self.state.step, tensors);
        let name = super::finish::name_of(self.writer.folder().path());
        let (n_samples, n_steps) = (self.planned.n_samples, self.planned.n_steps);
        // Places of a mesh are sent their samples.
        let offer = match mesh {
            Some(_) => None,
            None => DataOffer::new(self.job, self.recipe, &self.opened.data),
        };
        let how = match &mesh {
            Some(mesh) => format!("processes: {mesh}"),
            None => "processes, as many as there are".to_string(),
        };
        let plan = DriverPlan::new(&self.job.distribute, n_samples, n_steps, offer, mesh);
        let mut steps = Remote::start(self.recipe, &name, cluster, state, &plan, answering)?;
        let outcome = self.train_with(&mut steps, how);
        if let Err(error) = &outcome {
            steps.fail(error);
        }
        outcome
    }

    fn train_with(mut self, steps: &mut Remote<'a>, how: String) -> Result<Report, Error> {
        let mut set_up = SetUp { reason: how, ..steps.set_up() };
        let mut trial = Trial::new(vec![set_up.clone()]);
        let reason = self.epochs(steps, &mut trial, &mut set_up)?;
        if let Some(reason) = &reason {
            self.tell(&Event::Stopped(reason));
        }
        let set_up = SetUp { reason: set_up.reason, ..steps.set_up() };
        self.finish(steps, set_up, reason)
    }
}
