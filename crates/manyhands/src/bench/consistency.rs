//! How long a job takes with stragglers, by consistency: workers that sleep stand for machines, so that few cores hold several.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::target::{NoMeasurement, Target};
use super::watching::{AVERAGED, Seen, Watching};
use crate::cluster::{LocalCluster, LocalWorkers, Route, Stragglers, Straggling};
use crate::error::Error;
use crate::job::{Consistency, Job, Strategy};
use crate::report::Report;
use crate::train::Trainer;

/// The most processes of a kind that are started on one machine.
const MOST_PROCESSES: usize = 64;
/// For how many steps one may be the straggler before it is another.
const BURSTS: [f64; 2] = [1.0, 1e6];

/// How long a burst is as long as nothing was measured, in seconds.
const UNKNOWN_BURST: f64 = 0.5;

/// A measurement of consistencies.
#[derive(Clone)]
pub struct ConsistencyBench {
    job: Job,
    setup: BenchSetup,
    target: Option<Target>,
    /// What workers that are not slow take, where that is known.
    usual: Option<Usual>,
}

/// What workers take that are not slow, padding included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usual {
    /// For a grain.
    pub seconds_per_grain: f64,
    /// For so many steps one worker is the straggler, before it is another.
    pub burst_seconds: f64,
}

/// With what a job is trained, and what is looked at.
#[derive(Clone, Debug)]
pub struct BenchSetup {
    /// The folder that the job's paths are relative to.
    pub folder: PathBuf,
    /// Where results are put and removed again.
    pub scratch: PathBuf,
    /// Worker processes.
    pub n_workers: usize,
    /// Servers of parameters.
    pub n_servers: usize,
    /// One worker is the straggler for as long as workers that are not slow take for so many steps, before it is another.
    pub burst_steps: f64,
    /// How often in an epoch the model is looked at for the time to the target.
    pub glimpses_per_epoch: usize,
}

/// How workers wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// At every step, with equal shares.
    Bsp,
    /// Up to so many steps.
    Ssp(u32),
    /// As measured.
    Adaptive,
    /// Not at all.
    Async,
}

impl Setting {
    /// Those of the table that is printed.
    pub const ALL: [Setting; 8] = [
        Setting::Bsp,
        Setting::Ssp(1),
        Setting::Ssp(2),
        Setting::Ssp(4),
        Setting::Ssp(8),
        Setting::Ssp(16),
        Setting::Adaptive,
        Setting::Async,
    ];

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Setting::Bsp => "bsp".to_string(),
            Setting::Ssp(bound) => format!("ssp {bound}"),
            Setting::Adaptive => "adaptive".to_string(),
            Setting::Async => "async".to_string(),
        }
    }
}

/// What one run came to.
#[derive(Clone, Debug, Serialize)]
pub struct ConsistencyRun {
    /// Which workers were slow.
    pub straggling: &'static str,
    /// How they waited for each other.
    pub setting: String,
    /// The job's seed.
    pub seed: u64,
    /// Steps of the run.
    pub n_steps: usize,
    /// From the first step to the last, without the measurements at the ends of epochs.
    pub seconds: f64,
    /// Of all workers together, in which they computed.
    pub computing: f64,
    /// Until the target was reached, if it was, by what the model was at several moments of an epoch. Measurements and checkpoints are left out.
    pub seconds_to_target: Option<f64>,
    /// Steps until then.
    pub steps_to_target: Option<f64>,
    /// The share of the workers' time in which they did not compute.
    pub waiting: f64,
    /// The share of it in which they moved parameters, waits for servers included.
    pub moving: f64,
    /// Turns' grains, of all workers.
    pub grains: Vec<u64>,
    /// What was measured last on the validation data.
    pub last: Option<f64>,
    /// What was decided about bounds, the last few.
    pub decisions: Vec<String>,
}

impl ConsistencyBench {
    /// A measurement with a job, and what is to be reached on its validation data, such as `accuracy=0.85`.
    pub fn new(
        job: Job,
        setup: BenchSetup,
        target: Option<&str>,
    ) -> Result<ConsistencyBench, NoMeasurement> {
        for (option, n) in [("--workers", setup.n_workers), ("--servers", setup.n_servers)] {
            if !(1..=MOST_PROCESSES).contains(&n) {
                return Err(NoMeasurement::Processes { option, n, most: MOST_PROCESSES });
            }
        }
        let [least, most] = BURSTS;
        let steps = setup.burst_steps;
        if !(least..=most).contains(&steps) {
            return Err(NoMeasurement::Burst { steps, least, most });
        }
        if job.data.validation.is_none() {
            return Err(NoMeasurement::NoValidation);
        }
        let target = target.map(|text| Target::of(&job, text)).transpose()?;
        let n_glimpses = setup.glimpses_per_epoch * job.train.epochs;
        if target.is_some() && n_glimpses < AVERAGED {
            return Err(NoMeasurement::Glimpses { n: n_glimpses, least: AVERAGED });
        }
        Ok(ConsistencyBench { job, setup, target, usual: None })
    }

    /// Whether there is something to be reached.
    pub fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// The seeds of so many runs: the job's, and those after it.
    pub fn seeds(&self, n: usize) -> impl Iterator<Item = u64> + use<> {
        let first = self.job.train.seed;
        (0..n as u64).map(move |idx| first.saturating_add(idx))
    }

    /// Finds out what grains take, and so how long bursts are, from an epoch in which nobody is slow: all runs go by that, so that their workers are equally fast.
    pub fn measure_usual(&mut self) -> Result<Usual, Error> {
        let mut job = self.job.clone();
        job.train.epochs = 1;
        let alone = ConsistencyBench { job, target: None, ..self.clone() };
        let run = alone.run(Straggling::No, Setting::Bsp, self.job.train.seed)?;
        let n_grains = run.grains.iter().sum::<u64>().max(1) as f64;
        let per_step = run.computing / (self.setup.n_workers * run.n_steps.max(1)) as f64;
        let usual = Usual {
            seconds_per_grain: run.computing / n_grains,
            burst_seconds: self.setup.burst_steps * per_step,
        };
        self.usual = Some(usual);
        Ok(usual)
    }

    /// Trains once.
    pub fn run(
        &self,
        case: Straggling,
        setting: Setting,
        seed: u64,
    ) -> Result<ConsistencyRun, Error> {
        let mut job = self.job.clone();
        job.train.seed = seed;
        let distribute = &mut job.distribute;
        distribute.strategy = Strategy::ParameterServer;
        (distribute.servers, distribute.tables) = (Some(self.setup.n_servers), None);
        // Equal shares of every step are a bound of 0; without it shares follow the speeds.
        (distribute.consistency, distribute.staleness) = match setting {
            Setting::Bsp => (Consistency::Ssp, Some(0)),
            Setting::Ssp(bound) => (Consistency::Ssp, Some(i64::from(bound))),
            Setting::Adaptive => (Consistency::Adaptive, None),
            Setting::Async => (Consistency::Async, None),
        };
        let BenchSetup { folder, scratch, n_workers, n_servers, .. } = &self.setup;
        let stragglers = Stragglers {
            case,
            seconds: self.usual.map_or(UNKNOWN_BURST, |usual| usual.burst_seconds),
            seed,
            seconds_per_grain: self.usual.map(|usual| usual.seconds_per_grain),
        };
        let workers = LocalWorkers {
            n_workers: *n_workers,
            n_servers: *n_servers,
            threads: 1,
            program: None,
            route: Route::Auto,
            stragglers: Some(stragglers),
        };
        let cluster = LocalCluster::start(&workers)?;
        let seen = Arc::<Mutex<Seen>>::default();
        let watching = Watching::new(self.target.clone(), Arc::clone(&seen));
        let trainer = Trainer::new(job, folder).out(scratch).discard_unfinished(true);
        let glimpses = self.target.as_ref().map_or(0, |_| self.setup.glimpses_per_epoch);
        let trainer = trainer.threads(1).callback(watching).cluster(cluster.address());
        let trainer = trainer.glimpses(glimpses);
        let outcome = trainer.run();
        drop(cluster);
        remove(scratch);
        let report = outcome?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(summed_up(&seen, (case, setting, seed), &report, *n_workers))
    }
}

fn remove(scratch: &Path) {
    // What is left there costs space and nothing else.
    let _ = std::fs::remove_dir_all(scratch);
}

fn summed_up(
    seen: &Seen,
    (case, setting, seed): (Straggling, Setting, u64),
    report: &Report,
    n_workers: usize,
) -> ConsistencyRun {
    let seconds = seen.seconds();
    let computed: f64 = report.workers.iter().map(|worker| worker.seconds.compute).sum();
    let moved: f64 = report.workers.iter().map(|worker| worker.seconds.exchange).sum();
    let all = (seconds * n_workers as f64).max(1e-9);
    ConsistencyRun {
        straggling: case.name(),
        setting: setting.name(),
        seed,
        n_steps: seen.n_steps,
        seconds,
        computing: computed,
        seconds_to_target: seen.to_target.map(|(seconds, _)| seconds),
        steps_to_target: seen.to_target.map(|(_, steps)| steps),
        waiting: (1.0 - computed / all).max(0.0),
        moving: moved / all,
        grains: report.workers.iter().map(|worker| worker.grains).collect(),
        last: seen.value,
        decisions: seen.decisions.iter().rev().take(8).rev().cloned().collect(),
    }
}
