//! What a run came to: `report.json` for scripts, one screen of lines for people.

use std::collections::BTreeMap;
use std::path::PathBuf;

use manyhands_net::tables::traffic::Saved;
use serde::{Deserialize, Serialize};

use crate::cluster::{ServerTraffic, WorkSeconds};
use crate::machine::Machine;
use crate::number;

/// The version of the format of `report.json`.
pub const REPORT_FORMAT: u64 = 1;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this format.
    pub format: u64,
    /// The name of the job.
    pub job: String,
    /// The model in a few words, such as `dense 512 relu, dense 10`.
    pub model: String,
    /// Why it ended, as a sentence's end: `all epochs are done`, `stopped early: ...`, `interrupted`.
    pub ending: String,
    /// The step that a resumed run went on from.
    pub resumed_from_step: Option<u64>,
    /// Trained numbers of the model.
    pub n_parameters: u64,
    /// Epochs done, in all.
    pub epochs: u64,
    /// Steps done, in all.
    pub steps: u64,
    /// Samples used by this process, those seen again in later epochs included.
    pub samples: u64,
    /// Training samples per second of training time: evaluation, checkpoints and reading not counted.
    pub samples_per_second: f64,
    /// Losses and metrics of the final model.
    pub metrics: FinalMetrics,
    /// What some metrics of the test part have to say beyond a number, such as a confusion matrix.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, serde_json::Value>,
    /// Where the time of this process went.
    pub seconds: Seconds,
    /// How the work was spread.
    pub setup: Setup,
    /// What each worker process did; empty where workers are of this process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerReport>,
    /// Who holds parameters beside the workers, each with what it holds; empty without servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// What moved between workers and servers, and what was saved of it; none without servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<ServerTraffic>,
    /// With a timeline: the share of its steps in which each worker had nothing to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bubbles: Vec<f64>,
    /// How long a step takes.
    #[serde(default)]
    pub step: StepSeconds,
    /// Memory in use.
    pub memory: Memory,
    /// Energy of the processor packages.
    pub energy: Energy,
    /// What the machine has.
    pub machine: Machine,
    /// Where the model lies.
    pub model_path: PathBuf,
}

/// Losses and metrics by name, per part of the data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalMetrics {
    /// Of the training part, over the last epoch as it was trained.
    #[serde(with = "number::by_name")]
    pub train: BTreeMap<String, f64>,
    /// Of the validation part; empty without one.
    #[serde(with = "number::by_name")]
    pub validation: BTreeMap<String, f64>,
    /// Of the test part; empty without one.
    #[serde(with = "number::by_name")]
    pub test: BTreeMap<String, f64>,
}

/// Where the time went, in seconds on the clock of the training thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// From start to end.
    pub total: f64,
    /// Reading the data before the first step.
    pub reading: f64,
    /// Training steps.
    pub compute: f64,
    /// Waiting for the next batch.
    pub input: f64,
    /// Waiting until a worker process is there and ready; nothing where this process computes itself.
    #[serde(default)]
    pub workers: f64,
    /// Validation and test.
    pub evaluation: f64,
    /// Writing checkpoints and the model.
    pub checkpoints: f64,
    /// All else: compiling, choosing a set-up, progress, event files.
    pub other: f64,
}

impl Seconds {
    /// With all else as what the named parts leave of the total.
    pub fn with_other(self) -> Seconds {
        let named: f64 = Seconds { other: 0.0, ..self }.parts().iter().map(|(_, part)| part).sum();
        Seconds { other: (self.total - named).max(0.0), ..self }
    }

    /// The parts by name, in the order in which they are told.
    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("compute", self.compute),
            ("waiting for input", self.input),
            ("waiting for workers", self.workers),
            ("evaluation", self.evaluation),
            ("checkpoints", self.checkpoints),
            ("reading", self.reading),
            ("other", self.other),
        ]
    }
}

/// How the work was spread over the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Workers of this process.
    pub workers: usize,
    /// Threads of each.
    pub threads: usize,
    /// Samples per step.
    pub batch: usize,
    /// Samples per grain.
    pub grain: usize,
    /// Grains per step.
    pub grains: usize,
    /// Why it was chosen, as a clause.
    pub reason: String,
    /// What executed the programs, such as `cpu`.
    pub device: String,
    /// Runs with the same kernel set give the same bits.
    pub kernel_set: String,
}

/// Seconds of a full step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    /// What the planner said, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// The median of this run; none where there were too few steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
}

/// The shares of steps in which workers had nothing to do, in words.
fn bubbles_text(bubbles: &[f64]) -> String {
    let each = bubbles.iter().enumerate();
    let each = each.map(|(worker, share)| format!("worker {worker} {:.1} %", 100.0 * share));
    format!("without work: {}", each.collect::<Vec<_>>().join(", "))
}

/// What a worker process did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// What people call it.
    pub name: String,
    /// Grains that it did.
    pub grains: u64,
    /// Steps in which it read the sums of another worker of its machine where they lie.
    #[serde(default)]
    pub steps_with_seen_sums: u64,
    /// Where its time went.
    pub seconds: WorkSeconds,
}

/// Memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The most that the process had in use, where the system tells.
    pub peak_bytes: Option<u64>,
    /// What the devices planned for programs and parameters, all workers together.
    pub planned_device_bytes: u64,
}

/// Energy of the processor packages: joules, or why they are not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Energy {
    /// So many joules from start to end. Other processes of the machine are in it.
    Joules(f64),
    /// Not known, for this reason.
    Unknown(String),
}

impl From<Result<f64, String>> for Energy {
    fn from(measured: Result<f64, String>) -> Energy {
        measured.map_or_else(Energy::Unknown, Energy::Joules)
    }
}

impl Report {
    /// The text of `report.json`.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("all fields can be written");
        text.push('\n');
        text
    }

    /// One screen for people.
    pub fn summary_lines(&self) -> Vec<String> {
        let mut lines = vec![self.headline()];
        let parts = [
            ("test", &self.metrics.test),
            ("validation", &self.metrics.validation),
            ("train", &self.metrics.train),
        ];
        for (part, metrics) in parts.into_iter().filter(|(_, metrics)| !metrics.is_empty()) {
            lines.push(entry(part, &metrics_text(metrics)));
        }
        lines.push(entry("time", &self.time_text()));
        lines.push(entry("set-up", &self.setup_text()));
        lines.extend(self.step_text().map(|text| entry("step", &text)));
        if !self.bubbles.is_empty() {
            lines.push(entry("bubbles", &bubbles_text(&self.bubbles)));
        }
        if !self.workers.is_empty() {
            lines.push(entry("workers", &self.workers_text()));
        }
        if !self.servers.is_empty() {
            lines.push(entry("servers", &self.servers.join("; ")));
        }
        lines.extend(self.traffic.map(|traffic| entry("traffic", &traffic_text(traffic))));
        lines.push(entry("memory", &self.memory_text()));
        if let Energy::Joules(joules) = self.energy {
            lines.push(entry("energy", &format!("{} J", rounded(joules))));
        }
        lines.push(entry("model", &self.model_path.display().to_string()));
        lines
    }

    fn headline(&self) -> String {
        format!(
            "{}: {}; {}, {}, {}",
            self.job,
            self.ending,
            counted(self.epochs, "epoch"),
            counted(self.steps, "step"),
            counted(self.n_parameters, "parameter"),
        )
    }

    fn time_text(&self) -> String {
        let Seconds { total, .. } = self.seconds;
        let share = |(name, seconds): (&str, f64)| {
            let percent = if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
            (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
        };
        let shares: Vec<String> = self.seconds.parts().into_iter().filter_map(share).collect();
        let rate = grouped(self.samples_per_second.max(0.0).round() as u64);
        format!("{} ({}); {rate} samples/s", duration(total), shares.join(", "))
    }

    /// What was predicted of a step, beside what was measured.
    fn step_text(&self) -> Option<String> {
        let predicted = self.step.predicted?;
        let measured = self.step.measured.map_or_else(
            || "there were too few steps to measure".to_string(),
            |measured| format!("measured {:.3} ms", measured * 1e3),
        );
        Some(format!("predicted {:.3} ms, {measured}", predicted * 1e3))
    }

    fn setup_text(&self) -> String {
        let Setup { workers, threads, grain, grains, reason, .. } = &self.setup;
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        // Workers elsewhere have the threads that they were given there.
        let threads = match threads {
            0 => String::new(),
            threads => format!(" of {}", counted(*threads as u64, "thread")),
        };
        format!(
            "{}{threads}, {} of {} a step{reason}",
            counted(*workers as u64, "worker"),
            counted(*grains as u64, "grain"),
            counted(*grain as u64, "sample"),
        )
    }

    /// Who did how many of the grains, and how the workers' time went.
    fn workers_text(&self) -> String {
        let all: u64 = self.workers.iter().map(|worker| worker.grains).sum();
        let share = |worker: &WorkerReport| {
            format!("{} {:.0} %", worker.name, 100.0 * worker.grains as f64 / all.max(1) as f64)
        };
        let shares: Vec<String> = self.workers.iter().map(share).collect();
        let mut spent = WorkSeconds::default();
        self.workers.iter().for_each(|worker| spent.add(worker.seconds));
        let total = spent.input + spent.compute + spent.exchange + spent.update;
        let percent = |seconds: f64| if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
        format!(
            "grains: {}; time: compute {:.0} %, update {:.0} %, exchange and waiting {:.0} %, input {:.0} %",
            shares.join(", "),
            percent(spent.compute),
            percent(spent.update),
            percent(spent.exchange),
            percent(spent.input),
        )
    }

    fn memory_text(&self) -> String {
        let planned = format!("{} planned for the model", bytes(self.memory.planned_device_bytes));
        match self.memory.peak_bytes {
            Some(peak) => format!("{} at most, {planned}", bytes(peak)),
            None => planned,
        }
    }
}

/// A line of the summary.
fn entry(name: &str, text: &str) -> String {
    format!("  {name:<11} {text}")
}

/// What moved, and what each setting saved of it, or cost.
fn traffic_text(traffic: ServerTraffic) -> String {
    let ServerTraffic { to_servers, from_servers, saved } = traffic;
    let one = |(name, saved): (&str, Saved)| match saved.n_bytes() {
        0 => None,
        n if n > 0 => Some(format!("{name} saved {}", bytes(n as u64))),
        n => Some(format!("{name} cost {}", bytes(n.unsigned_abs()))),
    };
    let moved = format!("{} to servers, {} from them", bytes(to_servers), bytes(from_servers));
    let saved = saved.each().into_iter().filter_map(one);
    std::iter::once(moved).chain(saved).collect::<Vec<_>>().join("; ")
}

/// The loss last: people look for their metric first.
fn metrics_text(metrics: &BTreeMap<String, f64>) -> String {
    let (loss, others): (Vec<_>, Vec<_>) = metrics.iter().partition(|(name, _)| *name == "loss");
    let text = |(name, value): (&String, &f64)| format!("{name} {}", rounded(*value));
    others.into_iter().chain(loss).map(text).collect::<Vec<_>>().join(", ")
}

/// Four digits that matter.
fn rounded(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => value.to_string(),
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{value:.3e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// `1 step`, `2 steps`.
fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Digits in groups of three: `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 if seconds < 9.95 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

fn bytes(n: u64) -> String {
    let n = n as f64;
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.1} kB", n / 1e3),
    }
}

#[cfg(test)]
mod tests;
