//! A run that is stopped at any moment and resumed, with another number of workers each time, ends as the undisturbed one:
//! the same bytes of the model and the same history. In midst of an epoch, on its last step, while it is validated or tested.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use manyhands::checkpoint::{CheckpointFolder, Measured};
use manyhands::metrics::{Metric, Scored};
use manyhands::train::{Callback, Control, Event};
use manyhands::{Error, Job, Registry, Trainer};
use schemars::JsonSchema;
use serde::Deserialize;

thread_local! {
    /// How many more moments there are before the flag goes up.
    static MOMENTS: Cell<usize> = const { Cell::new(usize::MAX) };
    static STOP: Arc<AtomicBool> = Arc::default();
}

/// Counts a moment, and raises the flag at the last.
fn moment() {
    MOMENTS.set(MOMENTS.get().saturating_sub(1));
    if MOMENTS.get() == 0 {
        STOP.with(|stop| stop.store(true, Ordering::Relaxed));
    }
}

/// A metric that counts a moment for every grain it sees: the flag goes up while a part is measured.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Tripwire {
    #[serde(skip)]
    sum: f64,
}

impl Metric for Tripwire {
    fn add(&mut self, scored: &Scored) {
        moment();
        self.sum += scored.losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
    }

    fn value(&self) -> f64 {
        self.sum
    }

    fn higher_is_better(&self) -> bool {
        false
    }
}

struct Counter;

impl Callback for Counter {
    fn on_event(&mut self, event: &Event) -> Control {
        if matches!(event, Event::Step(_)) {
            moment();
        }
        Control::Continue
    }
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.metrics.add("tripwire", |own: Tripwire| Box::new(own));
    registry
}

fn table() -> String {
    let row = |idx: usize| {
        let (x, y) = ((idx * 37 % 101) as f64 / 50.0, (idx * 61 % 89) as f64 / 44.0);
        let noise = (idx * 29 % 17) as f64 / 8.0;
        format!("{x},{y},{}\n", if x + y + noise > 3.0 { "high" } else { "low" })
    };
    "x,y,class\n".to_string() + &(0..90).map(row).collect::<String>()
}

/// Dropout and batch norm, a plateau, the best model kept: all that a resumed run must find again.
fn job(settings: &[&str]) -> Job {
    let mut job = Job::builder()
        .train("train.csv")
        .validation(0.2)
        .test(0.2)
        .label("class")
        .layers(["dense 8 relu", "batch_norm", "dropout 0.2", "dense 2"])
        .optimizer("adam rate=0.05")
        .schedule("plateau patience=1 factor=0.5")
        .metrics(["accuracy", "tripwire"])
        .batch(16)
        .epochs(4)
        .set("train.grain=3")
        .set("train.batch=15")
        .set("train.keep_best=true")
        .set("output.tensorboard=false")
        .build()
        .unwrap();
    for setting in settings {
        job.set(setting).unwrap();
    }
    job
}

struct Ended {
    model: Vec<u8>,
    history: Vec<Measured>,
    metrics: String,
}

fn ended(out: &Path) -> Ended {
    let (last, _) = CheckpointFolder::open(out).unwrap().latest(None).unwrap();
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    Ended {
        model: fs::read(out.join("model.safetensors")).unwrap(),
        history: last.state.history,
        metrics: report["metrics"].to_string(),
    }
}

/// Runs until the end, stopped every `interval` moments; gives how often it was stopped.
fn run(job: &Job, folder: &Path, out: &Path, interval: usize) -> usize {
    let mut trainer = Trainer::new(job.clone(), folder).out(out);
    for n_stops in 0.. {
        MOMENTS.set(interval);
        let stop = STOP.with(Arc::clone);
        stop.store(false, Ordering::Relaxed);
        let trained = trainer
            .registry(registry())
            .workers(n_stops % 3 + 1)
            .threads(1)
            .callback(Counter)
            .stop_flag(stop)
            .run();
        match trained {
            Ok(_) => return n_stops,
            Err(Error::Interrupted { .. }) => trainer = Trainer::resume(out).unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn check(settings: &[&str], intervals: impl Iterator<Item = usize>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.csv"), table()).unwrap();
    let job = job(settings);
    let whole = folder.path().join("whole");
    assert_eq!(run(&job, folder.path(), &whole, usize::MAX), 0);
    let expected = ended(&whole);
    let mut n_stops = 0;
    for interval in intervals {
        let out = folder.path().join(format!("every-{interval}"));
        n_stops += run(&job, folder.path(), &out, interval);
        let found = ended(&out);
        assert!(found.model == expected.model, "stopped every {interval}: another model");
        assert_eq!(found.history, expected.history, "stopped every {interval}");
        assert_eq!(found.metrics, expected.metrics, "stopped every {interval}");
    }
    assert!(n_stops > 0);
}

#[test]
fn stopped_at_any_moment_it_ends_the_same() {
    // Fewer moments than it takes to validate and test would stop it there for ever.
    check(&[], 14..60);
}

#[test]
fn stopped_early_by_itself_it_ends_the_same() {
    check(&["train.early_stopping={ patience = 1 }", "train.epochs=30"], 14..40);
}

#[test]
fn a_limit_of_steps_ends_the_same() {
    check(&["train.steps=9"], 14..40);
}
