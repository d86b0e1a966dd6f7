//! Every example runs, in a short form.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The examples with this ending, by name.
fn examples(extension: &str) -> Vec<String> {
    let entries = std::fs::read_dir(repository().join("examples")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let own = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    let mut names: Vec<String> =
        own.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn every_job_trains_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let names = examples("toml");
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let job = repository().join(format!("examples/{name}.toml"));
        let comments = std::fs::read_to_string(&job).unwrap();
        let n_comments = comments.lines().take_while(|line| line.starts_with('#')).count();
        assert_eq!(n_comments, 3, "{name} explains itself in three lines");
        let out = folder.path().join(&name);
        let binary = || Command::new(env!("CARGO_BIN_EXE_manyhands"));
        let steps = ["--set", "train.steps=6", "--quiet"];
        succeeds(binary().arg("train").arg(&job).arg("--out").arg(&out).args(steps));
        let measured = succeeds(binary().arg("evaluate").arg(&out));
        assert!(measured.contains("loss"), "{name}: {measured}");
    }
}

#[test]
fn every_example_of_ones_own_runs() {
    // Cargo builds examples before tests, two folders up from this binary.
    let own = std::env::current_exe().unwrap();
    let built = own.parent().unwrap().parent().unwrap().join("examples");
    let names = examples("rs");
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        let said = succeeds(Command::new(built.join(&name)).current_dir(repository()));
        assert!(said.contains("accuracy") || said.contains("test data") || said.contains("truth"));
    }
}
