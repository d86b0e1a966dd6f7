//! Streams of events, and what is shown of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use manyhands::train::{Callback, Evaluated, Event, Planned, SetUp, StepDone};

use super::json::JsonLines;
use super::lines::Lines;
use super::{Progress, View};

/// Memory that a view writes into and a test reads.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(String::from).collect()
    }
}

fn planned(n_validation: usize) -> Planned {
    Planned {
        n_samples: 1000,
        n_validation,
        n_test: 50,
        n_weights: 669_706,
        batch: 10,
        grain: 5,
        steps_per_epoch: 100,
        n_epochs: 2,
        n_steps: 200,
        first_step: 0,
    }
}

/// Two epochs of 100 steps; a step takes as long as told.
fn train(progress: &mut Progress, n_validation: usize, seconds_per_step: f64) {
    let set_up = SetUp { workers: 2, threads: 1, reason: "as told".into() };
    progress.on_event(&Event::Planned(&planned(n_validation)));
    progress.on_event(&Event::SetUp(&set_up));
    for step in 1..=200 {
        let epoch = (step - 1) / 100;
        let (loss, seconds) = (1.0 / (epoch + 1) as f64, step as f64 * seconds_per_step);
        let done = StepDone { step, epoch, n_samples: 10, loss, rate: 0.1, seconds };
        progress.on_event(&Event::Step(&done));
        if step % 100 == 0 {
            if n_validation > 0 {
                let values = BTreeMap::from([("accuracy".to_string(), 0.5 + epoch as f64 / 4.0)]);
                let (epoch, part) = (epoch + 1, "validation");
                progress.on_event(&Event::Evaluated(&Evaluated { epoch, step, part, values }));
            }
            progress.on_event(&Event::Checkpointed { step, folder: Path::new("runs/x") });
        }
    }
    progress.end();
}

/// What a view makes of a training.
fn shown<V: View + 'static>(
    view: impl FnOnce(Page) -> V,
    n_validation: usize,
    step: f64,
) -> Vec<String> {
    let page = Page::default();
    let view: Box<dyn View> = Box::new(view(page.clone()));
    let stop = Arc::new(AtomicBool::new(false));
    train(&mut Progress::with_view(Some(view), stop), n_validation, step);
    page.lines()
}

#[test]
fn a_quick_training_is_a_line_per_epoch() {
    let expected = [
        "1,000 samples (and 80 to validate on, 50 to test on), 669,706 weights, 2 epochs of 100 steps",
        "2 workers x 1 thread: as told",
        "epoch 1/2  loss 1.0000  validation accuracy 0.5000  0.10 s  10,000 samples/s",
        "epoch 2/2  loss 0.5000  validation accuracy 0.7500  0.10 s  10,000 samples/s",
    ];
    assert_eq!(shown(Lines::new, 80, 0.001), expected);
}

#[test]
fn without_validation_epochs_are_told_all_the_same() {
    let lines = shown(Lines::new, 0, 0.001);
    assert_eq!(lines[2], "epoch 1/2  loss 1.0000  0.10 s  10,000 samples/s");
    assert_eq!(lines.len(), 4);
}

#[test]
fn a_slow_training_has_a_line_every_ten_seconds() {
    let lines = shown(Lines::new, 80, 0.25);
    let steps: Vec<&String> = lines.iter().filter(|line| line.contains("  step ")).collect();
    assert_eq!(steps.len(), 5, "{lines:#?}");
    assert_eq!(steps[1], "epoch 1/2  step 80/200  40.0 samples/s  ETA 0:30  loss 1.0000");
    assert!(steps[4].ends_with("ETA 0:00  loss 0.5000  validation accuracy 0.5000"), "{steps:#?}");
}

#[test]
fn json_has_every_kind_and_at_most_ten_steps_a_second() {
    let lines = shown(JsonLines::new, 80, 0.01);
    let events: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|e| e["event"] == kind).collect::<Vec<_>>();
    for kind in ["planned", "set_up"] {
        assert_eq!(of(kind).len(), 1, "{kind}");
    }
    for kind in ["epoch", "evaluated", "checkpointed"] {
        assert_eq!(of(kind).len(), 2, "{kind}");
    }
    let steps = of("step");
    assert!((18..=21).contains(&steps.len()), "{}", steps.len());
    assert_eq!(steps.last().unwrap()["step"], 200);
    assert_eq!(of("epoch")[1]["validation"]["accuracy"], 0.75);
    assert_eq!(of("epoch")[1]["epoch"], 2);
    assert_eq!(of("planned")[0]["weights"], 669_706);
}

#[test]
fn an_epoch_that_was_not_validated_is_still_told() {
    let page = Page::default();
    let view: Box<dyn View> = Box::new(Lines::new(page.clone()));
    let mut progress = Progress::with_view(Some(view), Arc::default());
    progress.on_event(&Event::Planned(&planned(80)));
    for step in [100, 101, 200] {
        let epoch = (step - 1) / 100;
        let seconds = step as f64 / 100.0;
        let done = StepDone { step, epoch, n_samples: 10, loss: 0.5, rate: 0.1, seconds };
        progress.on_event(&Event::Step(&done));
    }
    progress.end();
    let lines = page.lines();
    assert!(lines[1].starts_with("epoch 1/2"), "{lines:?}");
    assert!(lines[2].starts_with("epoch 2/2"), "{lines:?}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn a_signal_is_answered_once() {
    let page = Page::default();
    let view: Box<dyn View> = Box::new(Lines::new(page.clone()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut progress = Progress::with_view(Some(view), stop.clone());
    progress.on_event(&Event::Planned(&planned(0)));
    stop.store(true, Ordering::Relaxed);
    progress.on_event(&Event::Warned("the disk is nearly full"));
    progress.on_event(&Event::Stopped("interrupted"));
    let expected = [
        "warning: the disk is nearly full",
        "stopping after this step; once more to stop at once",
        "ended early: interrupted",
    ];
    assert_eq!(page.lines()[1..], expected);
}

#[test]
fn an_epoch_that_is_gone_on_with_from_a_checkpoint_is_told_by_the_new_steps() {
    let page = Page::default();
    let view: Box<dyn View> = Box::new(Lines::new(page.clone()));
    let mut progress = Progress::with_view(Some(view), Arc::new(AtomicBool::new(false)));
    // Its seconds begin anew, and steps are done again.
    for (steps, loss) in [(1..=80, 9.0), (51..=100, 1.0)] {
        progress.on_event(&Event::Planned(&planned(0)));
        for (idx, step) in steps.enumerate() {
            let (n_samples, seconds) = (10, idx as f64);
            let done = StepDone { step, epoch: 0, n_samples, loss, rate: 0.1, seconds };
            progress.on_event(&Event::Step(&done));
        }
    }
    let lines = page.lines();
    let told = lines.iter().find(|line| line.starts_with("epoch 1/2  loss")).unwrap();
    assert_eq!(told, "epoch 1/2  loss 1.0000  50.0 s  10.0 samples/s");
}
