//! The command as users run it.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::process::{Command, Output, Stdio};

fn manyhands(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_manyhands")).args(arguments).output().unwrap()
}

/// Runs a command that must fail with a sentence.
fn refused(arguments: &[&str]) -> String {
    let output = manyhands(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(!message.contains("panicked"), "{message}");
    message
}

#[test]
fn bench_train_reports_every_key() {
    let output = manyhands(&[
        "bench",
        "train",
        "--case",
        "tiny",
        "--workers",
        "2",
        "--steps",
        "3",
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["case"], &report["workers"]), (&"tiny".into(), &2.into()));
    for key in ["threads", "samples_per_second", "ms_per_step", "peak_bytes"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(report["core_to_core_ns"].as_array().unwrap().len(), 2);
    assert!(report["loss"].as_f64().unwrap().is_finite());
}

#[test]
fn bad_arguments_are_sentences() {
    let train = |rest: &[&'static str]| refused(&[&["bench", "train"], rest].concat());
    assert!(train(&["--case", "mlq"]).contains("there are mlp, tiny, cnn and lm"));
    assert!(train(&["--case", "mlp", "--grain", "7"]).contains("does not divide a batch of 128"));
    assert!(train(&["--case", "mlp", "--grain", "0"]).contains("does not divide"));
    assert!(train(&["--case", "tiny", "--threads", "0"]).contains("at least one thread"));
    assert!(train(&["--case", "tiny", "--workers", "0"]).contains("at least one thread"));
    assert!(train(&["--case", "tiny", "--threads", "5000"]).contains("at most 1024"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_manyhands"))
        .args(["bench", "train", "--case", "tiny", "--steps", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
