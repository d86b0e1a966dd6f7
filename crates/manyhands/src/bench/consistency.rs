//! How long a job takes with stragglers, by consistency: workers that sleep stand for machines, so that few cores hold several.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::target::{NoMeasurement, Target};
use crate::cluster::{LocalCluster, LocalWorkers, Route, Straggling};
use crate::error::Error;
use crate::job::{Consistency, Job, Strategy};
use crate::report::Report;
use crate::train::{Callback, Control, Evaluated, Event, Trainer};

/// The most processes of a kind that are started on one machine.
const MOST_PROCESSES: usize = 64;

/// A measurement of consistencies.
pub struct ConsistencyBench {
    job: Job,
    folder: PathBuf,
    scratch: PathBuf,
    n_workers: usize,
    n_servers: usize,
    target: Option<Target>,
    glimpses_per_epoch: usize,
}

/// With what a job is trained.
pub struct BenchPlaces {
    /// The folder that the job's paths are relative to.
    pub folder: PathBuf,
    /// Where results are put and removed again.
    pub scratch: PathBuf,
    /// Worker processes.
    pub n_workers: usize,
    /// Servers of parameters.
    pub n_servers: usize,
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
    /// From the first step to the last, evaluations included.
    pub seconds: f64,
    /// Until the target was reached, if it was, by what the model was at several moments of an epoch. Measurements and checkpoints are left out.
    pub seconds_to_target: Option<f64>,
    /// Steps until then.
    pub steps_to_target: Option<usize>,
    /// Until the end of the epoch in which it was reached, measurements included.
    pub seconds_to_target_by_epochs: Option<f64>,
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
    /// A measurement with a job, and what is to be reached on its validation data, which is looked at so often in an epoch.
    pub fn new(
        job: Job,
        places: BenchPlaces,
        target: Option<&str>,
        glimpses_per_epoch: usize,
    ) -> Result<ConsistencyBench, NoMeasurement> {
        let BenchPlaces { folder, scratch, n_workers, n_servers } = places;
        for (option, n) in [("--workers", n_workers), ("--servers", n_servers)] {
            if !(1..=MOST_PROCESSES).contains(&n) {
                return Err(NoMeasurement::Processes { option, n, most: MOST_PROCESSES });
            }
        }
        if job.data.validation.is_none() {
            return Err(NoMeasurement::NoValidation);
        }
        let target = target.map(|text| Target::of(&job, text)).transpose()?;
        Ok(ConsistencyBench {
            job,
            folder,
            scratch,
            n_workers,
            n_servers,
            target,
            glimpses_per_epoch,
        })
    }

    /// Trains once for each of so many seeds: the job's, and those after it.
    pub fn runs(
        &self,
        straggling: Straggling,
        setting: Setting,
        n_seeds: usize,
    ) -> Result<Vec<ConsistencyRun>, Error> {
        let first = self.job.train.seed;
        let seeds = (0..n_seeds as u64).map(|idx| first.saturating_add(idx));
        seeds.map(|seed| self.run(straggling, setting, seed)).collect()
    }

    /// Trains once.
    fn run(
        &self,
        straggling: Straggling,
        setting: Setting,
        seed: u64,
    ) -> Result<ConsistencyRun, Error> {
        let mut job = self.job.clone();
        job.train.seed = seed;
        let distribute = &mut job.distribute;
        distribute.strategy = Strategy::ParameterServer;
        (distribute.servers, distribute.tables) = (Some(self.n_servers), None);
        // Equal shares of every step are a bound of 0; without it shares follow the speeds.
        (distribute.consistency, distribute.staleness) = match setting {
            Setting::Bsp => (Consistency::Ssp, Some(0)),
            Setting::Ssp(bound) => (Consistency::Ssp, Some(i64::from(bound))),
            Setting::Adaptive => (Consistency::Adaptive, None),
            Setting::Async => (Consistency::Async, None),
        };
        let workers = LocalWorkers {
            n_workers: self.n_workers,
            n_servers: self.n_servers,
            threads: 1,
            program: None,
            route: Route::Auto,
            straggling: Some(straggling),
        };
        let cluster = LocalCluster::start(&workers)?;
        let seen = Arc::<Mutex<Seen>>::default();
        let watching = Watching { target: self.target.clone(), seen: Arc::clone(&seen) };
        let trainer = Trainer::new(job, &self.folder).out(&self.scratch).discard_unfinished(true);
        let glimpses = self.target.as_ref().map_or(0, |_| self.glimpses_per_epoch);
        let trainer = trainer.threads(1).callback(watching).cluster(cluster.address());
        let trainer = trainer.glimpses(glimpses);
        let outcome = trainer.run();
        drop(cluster);
        remove(&self.scratch);
        let report = outcome?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.run((straggling, setting, seed), &report, self.n_workers))
    }
}

fn remove(scratch: &Path) {
    // What is left there costs space and nothing else.
    let _ = std::fs::remove_dir_all(scratch);
}

/// What was seen of a run.
#[derive(Default)]
struct Seen {
    first: Option<f64>,
    last: f64,
    to_target: Option<f64>,
    to_target_by_epochs: Option<f64>,
    steps_to_target: Option<usize>,
    value: Option<f64>,
    decisions: Vec<String>,
}

impl Seen {
    fn run(
        &self,
        (straggling, setting, seed): (Straggling, Setting, u64),
        report: &Report,
        n_workers: usize,
    ) -> ConsistencyRun {
        let seconds = self.last - self.first.unwrap_or(0.0);
        let computed: f64 = report.workers.iter().map(|worker| worker.seconds.compute).sum();
        let moved: f64 = report.workers.iter().map(|worker| worker.seconds.exchange).sum();
        let all = (seconds * n_workers as f64).max(1e-9);
        ConsistencyRun {
            straggling: straggling.name(),
            setting: setting.name(),
            seed,
            seconds,
            seconds_to_target: self.to_target,
            steps_to_target: self.steps_to_target,
            seconds_to_target_by_epochs: self.to_target_by_epochs,
            waiting: (1.0 - computed / all).max(0.0),
            moving: moved / all,
            grains: report.workers.iter().map(|worker| worker.grains).collect(),
            last: self.value,
            decisions: self.decisions.iter().rev().take(8).rev().cloned().collect(),
        }
    }
}

struct Watching {
    target: Option<Target>,
    seen: Arc<Mutex<Seen>>,
}

impl Watching {
    fn value(&self, found: &Evaluated) -> Option<f64> {
        let name = self.target.as_ref().map_or("loss", |target| target.measure.as_str());
        found.values.get(name).copied()
    }

    fn is_reached(&self, found: &Evaluated) -> bool {
        let (Some(target), Some(value)) = (&self.target, self.value(found)) else { return false };
        target.is_reached(value)
    }
}

impl Callback for Watching {
    fn on_event(&mut self, event: &Event) -> Control {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(done) => {
                seen.first.get_or_insert(done.seconds);
                seen.last = done.seconds;
            }
            Event::Evaluated(found) if found.part == "validation" => {
                seen.value = self.value(found);
                if self.is_reached(found) && seen.to_target_by_epochs.is_none() {
                    seen.to_target_by_epochs = Some(seen.last - seen.first.unwrap_or(0.0));
                }
            }
            Event::Glimpsed { seconds, found } if self.is_reached(found) => {
                seen.to_target = Some(seconds - seen.first.unwrap_or(0.0));
                seen.steps_to_target = Some(found.step);
                return Control::Stop;
            }
            Event::Cluster(sentence) if sentence.contains("ahead of the slowest") => {
                seen.decisions.push(sentence.to_string());
            }
            _ => {}
        }
        Control::Continue
    }
}
