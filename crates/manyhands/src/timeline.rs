//! What every worker did when, as a Chrome trace: a file that Perfetto and `chrome://tracing` open.
//!
//! Spans of all workers are on one clock, that of the process that trains: seconds since the timeline was made. A step is written as soon as
//! it is done, and the file is whole after each: training may end, or be killed, at any time. Only the first steps are kept, since
//! the file would grow without end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cluster::WorkSeconds;
use crate::error::Error;
use crate::report::WorkerReport;

/// Steps that are written unless said.
pub const TIMELINE_STEPS: usize = 50;

/// What the file ends with.
const END: &str = "\n]\n";

/// What a worker does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SpanKind {
    /// Runs a part of the program.
    Compute,
    /// Hands something to another worker.
    Send,
    /// Waits for something that another worker sends, and takes it.
    Receive,
    /// Waits for others.
    Wait,
    /// Exchanges sums or shards with others, waiting included.
    Exchange,
    /// Gives parameters their next values.
    Update,
    /// Waits for samples, and takes them in.
    Input,
}

impl SpanKind {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            SpanKind::Compute => "compute",
            SpanKind::Send => "send",
            SpanKind::Receive => "receive",
            SpanKind::Wait => "wait",
            SpanKind::Exchange => "exchange",
            SpanKind::Update => "update",
            SpanKind::Input => "input",
        }
    }

    /// Whether the worker gets nothing done meanwhile.
    fn is_idle(self) -> bool {
        matches!(self, SpanKind::Receive | SpanKind::Wait)
    }
}

/// What a worker did for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Who.
    pub worker: usize,
    /// What, for people: `forward 0`.
    pub name: String,
    /// What kind of thing it is.
    pub kind: SpanKind,
    /// For which grain.
    pub grain: Option<usize>,
    /// How many bytes moved.
    pub n_bytes: Option<u64>,
    /// When it began, in seconds on the clock of the timeline.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// A Chrome trace that is being written.
pub struct Timeline {
    path: PathBuf,
    file: File,
    began: Instant,
    /// The same on the system's clock.
    began_seconds: f64,
    n_steps_left: usize,
    /// Where the next event goes.
    end: u64,
    named: BTreeMap<usize, String>,
    bubbles: Bubbles,
}

impl Timeline {
    /// Begins a file, in which the first steps of a run of this name will be.
    pub fn create(path: &Path, run: &str, n_steps: usize) -> Result<Timeline, Error> {
        let refused = |source| Error::Timeline { path: path.to_path_buf(), source };
        let mut timeline = Timeline {
            path: path.to_path_buf(),
            file: File::create(path).map_err(refused)?,
            began: Instant::now(),
            began_seconds: seconds_of_system(),
            n_steps_left: n_steps,
            end: 0,
            named: BTreeMap::new(),
            bubbles: Bubbles::default(),
        };
        let name = json!({ "name": "process_name", "ph": "M", "pid": 1, "args": { "name": run } });
        timeline.append(&format!("[\n{name}"))?;
        Ok(timeline)
    }

    /// Seconds on the clock of the timeline.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// When something was, in seconds on the clock of the timeline.
    pub fn at(&self, instant: Instant) -> f64 {
        instant.saturating_duration_since(self.began).as_secs_f64()
    }

    /// When something was on the system's clock, in seconds on the clock of the timeline.
    pub(crate) fn at_system(&self, seconds: f64) -> f64 {
        (seconds - self.began_seconds).max(0.0)
    }

    /// Whether steps are still taken.
    pub fn is_open(&self) -> bool {
        self.n_steps_left > 0
    }

    /// Gives a worker a name.
    pub fn name_worker(&mut self, worker: usize, name: &str) -> Result<(), Error> {
        if self.named.get(&worker).is_some_and(|known| known == name) {
            return Ok(());
        }
        self.named.insert(worker, name.to_string());
        let event = json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": worker, "args": { "name": name }
        });
        self.append(&format!(",\n{event}"))
    }

    /// Writes a step with what all workers did in it. Steps beyond the first are passed over.
    pub fn step(&mut self, step: u64, spans: &[Span]) -> Result<(), Error> {
        if !self.is_open() {
            return Ok(());
        }
        self.n_steps_left -= 1;
        for span in spans {
            if !self.named.contains_key(&span.worker) {
                self.name_worker(span.worker, &format!("worker {}", span.worker))?;
            }
        }
        let mut text = String::new();
        for span in spans {
            let event = event(step, span);
            // Writing to a text does not fail.
            let _ = write!(text, ",\n{event}");
        }
        self.bubbles.take(spans);
        self.append(&text)
    }

    /// The share of the time in which each worker did nothing, over all steps that were taken.
    pub fn bubbles(&self) -> BTreeMap<usize, f64> {
        self.bubbles.shares()
    }

    /// Puts text where the end was, and the end behind it: the file is whole again.
    fn append(&mut self, text: &str) -> Result<(), Error> {
        let whole = format!("{text}{END}");
        let written = self
            .file
            .seek(SeekFrom::Start(self.end))
            .and_then(|_| self.file.write_all(whole.as_bytes()));
        written.map_err(|source| Error::Timeline { path: self.path.clone(), source })?;
        self.end += text.len() as u64;
        Ok(())
    }
}

/// Seconds of the system's clock.
fn seconds_of_system() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// One event of the file. Times are in microseconds there.
fn event(step: u64, span: &Span) -> serde_json::Value {
    let mut arguments = json!({ "step": step });
    if let Some(grain) = span.grain {
        arguments["grain"] = grain.into();
    }
    if let Some(n_bytes) = span.n_bytes {
        arguments["bytes"] = n_bytes.into();
    }
    let microseconds = |seconds: f64| (seconds * 1e9).round() / 1e3;
    json!({
        "name": span.name,
        "cat": span.kind.name(),
        "ph": "X",
        "pid": 1,
        "tid": span.worker,
        "ts": microseconds(span.start),
        "dur": microseconds((span.end - span.start).max(0.0)),
        "args": arguments,
    })
}

/// How much of their steps workers had nothing to do.
#[derive(Clone, Debug, Default)]
struct Bubbles {
    /// By worker: seconds of steps, and seconds in which it got something done.
    seconds: BTreeMap<usize, (f64, f64)>,
}

impl Bubbles {
    fn take(&mut self, spans: &[Span]) {
        let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
        let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
        let mut busy: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for span in spans {
            let of_worker = busy.entry(span.worker).or_default();
            if !span.kind.is_idle() {
                of_worker.push((span.start, span.end));
            }
        }
        for (worker, parts) in busy {
            let sums = self.seconds.entry(worker).or_default();
            *sums = (sums.0 + (end - start).max(0.0), sums.1 + covered(parts));
        }
    }

    fn shares(&self) -> BTreeMap<usize, f64> {
        let share = |&(whole, busy): &(f64, f64)| match whole > 0.0 {
            true => (1.0 - busy / whole).clamp(0.0, 1.0),
            false => 0.0,
        };
        self.seconds.iter().map(|(worker, sums)| (*worker, share(sums))).collect()
    }
}

/// The share of a step in which each worker had nothing to do: no span, or one in which it waits.
pub fn bubble_fractions(spans: &[Span]) -> BTreeMap<usize, f64> {
    let mut bubbles = Bubbles::default();
    bubbles.take(spans);
    bubbles.shares()
}

/// The length of the union of intervals.
fn covered(mut parts: Vec<(f64, f64)>) -> f64 {
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut reached) = (0.0, f64::NEG_INFINITY);
    for (start, end) in parts {
        sum += (end - start.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    sum
}

/// What workers of other processes did in a step, of which is known only how long each thing took: put one behind the other, up to when
/// the step was done here.
pub(crate) fn spans_of_work(
    before: &[WorkerReport],
    after: &[WorkerReport],
    end: f64,
) -> Vec<Span> {
    let mut spans = Vec::new();
    for (worker, now) in after.iter().enumerate() {
        let then = before.iter().find(|one| one.name == now.name);
        let (WorkSeconds { input, compute, exchange, update }, n_grains) =
            then.map_or((WorkSeconds::default(), 0), |then| (then.seconds, then.grains));
        let parts = [
            ("input".to_string(), SpanKind::Input, now.seconds.input - input),
            (
                format!("{} grains", now.grains - n_grains.min(now.grains)),
                SpanKind::Compute,
                now.seconds.compute - compute,
            ),
            ("exchange".to_string(), SpanKind::Exchange, now.seconds.exchange - exchange),
            ("update".to_string(), SpanKind::Update, now.seconds.update - update),
        ];
        let mut start = end - parts.iter().map(|(_, _, seconds)| seconds).sum::<f64>();
        for (name, kind, seconds) in parts {
            if seconds > 0.0 {
                let (grain, n_bytes, end) = (None, None, start + seconds);
                spans.push(Span { worker, name, kind, grain, n_bytes, start: start.max(0.0), end });
            }
            start += seconds.max(0.0);
        }
    }
    spans
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on
mod tests {
    use serde_json::Value;

    use super::*;

    fn span(worker: usize, kind: SpanKind, start: f64, end: f64) -> Span {
        let (name, grain, n_bytes) = (kind.name().to_string(), Some(3), Some(8));
        Span { worker, name, kind, grain, n_bytes, start, end }
    }

    fn read(path: &Path) -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn the_file_is_whole_after_every_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut timeline = Timeline::create(&path, "a \"run\"", 2).unwrap();
        assert_eq!(read(&path).len(), 1);
        for step in 1..=3 {
            timeline.step(step, &[span(0, SpanKind::Compute, 0.5, 0.75)]).unwrap();
            // The name of the run, that of the worker, and at most two steps.
            assert_eq!(read(&path).len(), 2 + step.min(2) as usize);
        }
        assert!(!timeline.is_open());
        let events = read(&path);
        assert_eq!(events[0]["args"]["name"], "a \"run\"");
        assert_eq!(events[1]["name"], "thread_name");
        let expected = json!({
            "name": "compute", "cat": "compute", "ph": "X", "pid": 1, "tid": 0, "ts": 500_000.0,
            "dur": 250_000.0, "args": { "step": 2, "grain": 3, "bytes": 8 },
        });
        assert_eq!(events[3], expected);
    }

    #[test]
    fn a_bubble_is_the_time_without_work() {
        let spans = [
            span(0, SpanKind::Compute, 0.0, 2.0),
            span(0, SpanKind::Send, 1.0, 3.0),
            span(1, SpanKind::Receive, 0.0, 2.0),
            span(1, SpanKind::Compute, 3.0, 4.0),
        ];
        let found = bubble_fractions(&spans);
        assert_eq!(found, BTreeMap::from([(0, 0.25), (1, 0.75)]));
        assert!(bubble_fractions(&[]).is_empty());
    }

    #[test]
    fn the_work_of_other_processes_ends_when_the_step_does() {
        let report = |grains, compute, update| WorkerReport {
            name: "a".to_string(),
            grains,
            steps_with_seen_sums: 0,
            seconds: WorkSeconds { compute, update, ..WorkSeconds::default() },
        };
        let spans = spans_of_work(&[report(4, 1.0, 0.5)], &[report(8, 3.0, 1.0)], 10.0);
        let told: Vec<_> =
            spans.iter().map(|one| (one.name.as_str(), one.start, one.end)).collect();
        assert_eq!(told, [("4 grains", 7.5, 9.5), ("update", 9.5, 10.0)]);
    }
}
