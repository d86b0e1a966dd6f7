//! What a training came to, for people (the last lines of `train`) and for machines (its last event).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::figures::{bytes, counted, rate, seconds, value};
use crate::library::Report;
use crate::train::shell_word;

/// The report as the last event of `--json`.
pub(crate) fn finished(report: &Report, folder: &Path) -> Value {
    let mut event = json!({ "event": "finished", "folder": folder.display().to_string() });
    if let (Some(event), Ok(Value::Object(report))) =
        (event.as_object_mut(), serde_json::to_value(report))
    {
        event.extend(report);
    }
    event
}

/// The report as text.
pub(crate) fn describe(report: &Report, folder: &Path) -> String {
    let mut lines = vec![format!(
        "trained {}, {} in {}: {} samples/s",
        counted(report.epochs, "epoch"),
        counted(report.steps, "step"),
        seconds(report.seconds),
        rate(report.samples_per_second),
    )];
    let mut line = |term: &str, about: String| lines.push(format!("  {term:<12}{about}"));
    if let Some(reason) = &report.stopped {
        line("ended early", reason.clone());
    }
    for (part, values) in [("validation", &report.validation), ("test", &report.test)] {
        if !values.is_empty() {
            line(part, measured(values));
        }
    }
    line("time", shares(&report.time));
    let set_up = &report.set_up;
    line(
        "set-up",
        format!(
            "{} x {}: {}",
            counted(set_up.workers, "worker"),
            counted(set_up.threads, "thread"),
            set_up.reason
        ),
    );
    if let Some(peak) = report.peak_memory_bytes {
        line("memory", format!("{} at most", bytes(peak)));
    }
    if let Some(joules) = report.energy_joules {
        line("energy", format!("{joules:.1} J"));
    }
    line("model", folder.join("model.safetensors").display().to_string());
    let folder = shell_word(folder);
    lines.push(format!(
        "next:\n  manyhands evaluate {folder}\n  manyhands predict {folder} --data FILE"
    ));
    lines.join("\n")
}

/// Values by name on one line; the loss comes last, for it says least to a reader.
pub(crate) fn measured(values: &BTreeMap<String, f64>) -> String {
    let (loss, metrics): (Vec<_>, Vec<_>) = values.iter().partition(|(name, _)| *name == "loss");
    let one = |(name, x): (&String, &f64)| format!("{name} {}", value(*x));
    metrics.into_iter().chain(loss).map(one).collect::<Vec<_>>().join(", ")
}

/// How the time went: what took most first, what took nothing not at all.
fn shares(time: &BTreeMap<String, f64>) -> String {
    let total: f64 = time.values().sum();
    let mut parts: Vec<(&String, f64)> =
        time.iter().map(|(what, s)| (what, 100.0 * s / total)).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let said = parts.iter().filter(|(_, share)| *share >= 0.5);
    let said: Vec<String> = said.map(|(what, share)| format!("{what} {share:.0} %")).collect();
    if said.is_empty() { "not measured".to_string() } else { said.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use manyhands::train::SetUp;

    fn report() -> Report {
        let values = BTreeMap::from([("loss".into(), 0.3312), ("accuracy".into(), 0.8812)]);
        let time = [("computing", 8.1), ("reading", 1.9), ("checkpoints", 0.01)];
        Report {
            stopped: None,
            epochs: 5,
            steps: 2345,
            validation: BTreeMap::new(),
            test: values,
            seconds: 12.34,
            samples_per_second: 24_100.0,
            time: time.map(|(what, s)| (what.to_string(), s)).into(),
            set_up: SetUp { workers: 2, threads: 1, reason: "1.4 times as fast as 1 x 2".into() },
            peak_memory_bytes: Some(123 << 20),
            energy_joules: None,
        }
    }

    #[test]
    fn the_summary_has_metrics_time_set_up_and_what_to_do_next() {
        let expected = "\
trained 5 epochs, 2,345 steps in 12.3 s: 24,100 samples/s
  test        accuracy 0.8812, loss 0.3312
  time        computing 81 %, reading 19 %
  set-up      2 workers x 1 thread: 1.4 times as fast as 1 x 2
  memory      123 MiB at most
  model       runs/fashion/model.safetensors
next:
  manyhands evaluate runs/fashion
  manyhands predict runs/fashion --data FILE";
        assert_eq!(describe(&report(), Path::new("runs/fashion")), expected);
    }

    #[test]
    fn the_last_event_is_the_report() {
        let event = finished(&report(), Path::new("runs/fashion"));
        assert_eq!(event["event"], "finished");
        assert_eq!(event["test"]["accuracy"], 0.8812);
        assert_eq!(event["set_up"]["workers"], 2);
    }
}
