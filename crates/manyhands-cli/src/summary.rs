//! What a training came to, for people (the last lines of `train`) and for machines (its last event).

use std::collections::BTreeMap;
use std::path::Path;

use manyhands::Report;
use serde_json::{Value, json};

use crate::figures::value;
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

/// The report as text, and what to do next.
pub(crate) fn describe(report: &Report, folder: &Path) -> String {
    let folder = shell_word(folder);
    format!(
        "{}\nnext:\n  manyhands evaluate {folder}\n  manyhands predict {folder} --data FILE",
        report.summary_lines().join("\n")
    )
}

/// Values by name on one line; the loss comes last, for it says least to a reader.
pub(crate) fn measured(values: &BTreeMap<String, f64>) -> String {
    let (loss, metrics): (Vec<_>, Vec<_>) = values.iter().partition(|(name, _)| *name == "loss");
    let one = |(name, x): (&String, &f64)| format!("{name} {}", value(*x));
    metrics.into_iter().chain(loss).map(one).collect::<Vec<_>>().join(", ")
}
