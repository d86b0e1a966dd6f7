//! The command as users run it: help, manual, completions, doctor, bench, and the exit codes of misuse.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::process::{Command, Output, Stdio};

fn manyhands(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_manyhands")).args(arguments).output().unwrap()
}

/// Runs a command that must succeed and say nothing on standard error.
fn said(arguments: &[&str]) -> String {
    let output = manyhands(arguments);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{arguments:?}: {complaints}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with a sentence and a code, and print nothing else.
fn refused(code: i32, arguments: &[&str]) -> String {
    let output = manyhands(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    assert!(message.starts_with("manyhands: "), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed something");
    message
}

const COMMANDS: [&str; 11] = [
    "train",
    "resume",
    "evaluate",
    "predict",
    "check",
    "plan",
    "doctor",
    "bench",
    "help",
    "completions",
    "manual",
];

#[test]
fn every_command_has_a_page_with_examples() {
    for command in COMMANDS {
        let page = said(&[command, "--help"]);
        assert_eq!(page, said(&["help", command]), "{command}");
        for section in ["Usage: manyhands", "Options:", "Examples:\n  manyhands "] {
            assert!(page.contains(section), "{command} lacks {section}:\n{page}");
        }
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    }
    let page = said(&["help", "train"]);
    for section in ["Files:", "DIR/model.safetensors", "Exit codes:", "130"] {
        assert!(page.contains(section), "train lacks {section}");
    }
    let whole = said(&["help"]);
    assert_eq!(whole, said(&["--help"]));
    for command in COMMANDS {
        assert!(whole.contains(&format!("\n  {command} ")), "{command} is not listed");
    }
}

#[test]
fn topics_explain_what_a_job_can_say() {
    let job = said(&["help", "job"]);
    for key in ["[data]", "data.train (needed", "train.batch = 128", "output.keep = 2"] {
        assert!(job.contains(key), "{key}");
    }
    assert!(said(&["help", "job", "train.batch"]).starts_with("train.batch = 128\n"));
    assert!(said(&["help", "job", "batch"]).starts_with("train.batch = 128\n"));
    for topic in ["layers", "losses", "optimizers", "schedules", "metrics"] {
        assert!(said(&["help", topic]).contains("can name"), "{topic}");
    }
    let codes = said(&["help", "exit-codes"]);
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "130 "] {
        assert!(codes.contains(&format!("\n  {code}")), "{code}");
    }
    assert!(refused(2, &["help", "layer"]).contains("the topics job, layers"));
    assert!(refused(2, &["help", "job", "btach"]).contains("no key `btach`"));
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(said(&["completions", shell]).contains("predict"), "{shell}");
    }
    assert!(refused(2, &["completions", "tcsh"]).contains("bash"));
}

#[test]
fn the_manual_has_a_page_per_command() {
    let page = said(&["manual"]);
    for section in [".TH manyhands 1", ".SH NAME", ".SH EXAMPLES", ".SH \"EXIT CODES\""] {
        assert!(page.contains(section), "{section}:\n{page}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = manyhands(&["manual", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    for command in COMMANDS {
        let page = std::fs::read_to_string(pages.join(format!("manyhands-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH EXAMPLES"), "{command}");
    }
    assert!(pages.join("manyhands.1").exists() && pages.join("manyhands-bench-train.1").exists());
    // A file where the folder should be.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(refused(6, &["manual", file.to_str().unwrap()]).contains("cannot be written"));
}

#[test]
fn doctor_says_what_the_machine_has() {
    let text = said(&["doctor"]);
    for fact in ["cores", "memory", "instructions", "kernel set cpu-1", "disk", "energy", "set-up"]
    {
        assert!(text.contains(fact), "{fact}:\n{text}");
    }
    let facts: serde_json::Value = serde_json::from_str(&said(&["doctor", "--json"])).unwrap();
    assert!(facts["cores"].as_u64().unwrap() >= 1);
    assert_eq!(facts["kernel_set"], "cpu-1");
    assert!(facts["disk_free_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn misuse_is_told_apart_from_other_errors() {
    assert!(refused(2, &["train"]).contains("<JOB>"));
    assert!(refused(2, &["train", "a.toml", "--wrokers", "2"]).contains("--workers"));
    assert!(refused(2, &["train", "a.toml", "--workers", "0"]).contains("--workers"));
    assert!(refused(2, &["train", "a.toml", "--seed", "x"]).contains("--seed"));
    assert!(refused(2, &["tarin", "a.toml"]).contains("train"));
    assert!(refused(2, &["predict", "runs/x"]).contains("--data"));
    let unnamed = ["predict", "runs/x", "--data", "x.csv", "--output", "answers.xls"];
    assert!(refused(2, &unnamed).contains("it can end in .csv"));
    let nothing = manyhands(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("Commands:"));
    assert!(said(&["--version"]).starts_with("manyhands "));
}

#[test]
fn bench_train_reports_every_key() {
    let case = ["bench", "train", "--case", "tiny"];
    let how = ["--workers", "2", "--steps", "3", "--json"];
    let report: serde_json::Value =
        serde_json::from_str(&said(&[case.as_slice(), &how].concat())).unwrap();
    assert_eq!((&report["case"], &report["workers"]), (&"tiny".into(), &2.into()));
    for key in ["threads", "samples_per_second", "ms_per_step", "peak_bytes"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(report["core_to_core_ns"].as_array().unwrap().len(), 2);
    assert!(report["loss"].as_f64().unwrap().is_finite());
}

#[test]
fn bad_arguments_are_sentences() {
    let train = |code, rest: &[&'static str]| refused(code, &[&["bench", "train"], rest].concat());
    assert!(train(2, &["--case", "mlq"]).contains("there are mlp, tiny, cnn and lm"));
    assert!(
        train(2, &["--case", "mlp", "--grain", "7"]).contains("does not divide a batch of 128")
    );
    assert!(train(2, &["--case", "mlp", "--grain", "0"]).contains("does not divide"));
    assert!(train(1, &["--case", "tiny", "--threads", "0"]).contains("at least one thread"));
    assert!(train(1, &["--case", "tiny", "--workers", "0"]).contains("at least one thread"));
    assert!(train(1, &["--case", "tiny", "--threads", "5000"]).contains("at most 1024"));
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

#[test]
fn a_plan_says_what_every_strategy_takes_and_which_to_take() {
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.toml");
    let text = said(&["plan", job, "--workers", "2", "--memory", "1GiB"]);
    for name in ["one worker", "all_reduce x 2", "pipeline x 2", "sharded 3 x 2", "tensor x 2"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with('>')).count(), 1, "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&said(&["plan", job, "--workers", "2", "--json"])).unwrap();
    assert_eq!((&json["n_workers"], &json["n_grains"]), (&2.into(), &2.into()));
    let alone = &json["predictions"][0];
    // 64-64-10 with biases; Adam keeps two numbers for each.
    let n_bytes = 4 * (64 * 64 + 64 + 64 * 10 + 10);
    assert_eq!(alone["memory"]["parameters"], n_bytes);
    assert_eq!(alone["memory"]["state"], 2 * n_bytes);
    assert!(alone["seconds"].as_f64().unwrap() > 0.0);
    assert!(json["advice"].as_str().unwrap().contains("a step"));
    let refused = refused(2, &["plan", job, "--memory", "much"]);
    assert!(refused.contains("such as 2GiB"), "{refused}");
}
