//! A process that saves checkpoints all the time is killed again and again: the newest one always loads.
//!
//! The child is this test binary itself, told by an environment variable where to save.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use manyhands::checkpoint::{
    Checkpoint, CheckpointFolder, CheckpointWriter, Keep, NamedTensor, State,
};
use manyhands::program::{Role, Tensor};

const FOLDER: &str = "MANYHANDS_TEST_SAVES_TO";

/// Large enough that a child spends most of its time in a save, where the kill should find it.
const N_ELEMENTS: usize = 400_000;

fn checkpoint(step: u64) -> Checkpoint {
    let tensor = |name: &str, role| NamedTensor {
        name: name.to_string(),
        role,
        tensor: Tensor::new([N_ELEMENTS], &vec![step as f32; N_ELEMENTS]).unwrap(),
    };
    Checkpoint {
        tensors: vec![tensor("w", Role::Weight), tensor("w/momentum", Role::Slot)],
        job_text: format!("# {step}"),
        fingerprint: "job".to_string(),
        kernel_set: "cpu-1".to_string(),
        encoding_json: step.to_string(),
        state: State { step, ..State::default() },
    }
}

/// Not a test by itself: the child of the one below.
#[test]
#[ignore = "the child of the test below, which starts it and kills it: alone it would not end"]
fn saves_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let writer = CheckpointWriter::create(folder).unwrap();
    let resumed = match writer.folder().steps().unwrap().is_empty() {
        true => 0,
        false => writer.folder().latest(None).unwrap().0.state.step,
    };
    for step in resumed + 1.. {
        writer.save(&checkpoint(step), Keep { last: 2, best: false }).unwrap();
        println!("\nsaved {step}");
        if step % 4 == 1 {
            writer.publish(&checkpoint(step)).unwrap();
        }
    }
}

/// Starts the child, waits for its first save, kills it after `share` of twice the time that took; gives the last step it
/// said to have saved.
fn save_and_kill(folder: &Path, share: f64) -> u64 {
    let begin = Instant::now();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "saves_until_killed", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut saved = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("saved ")?.parse::<u64>().ok());
    let first = saved.next().expect("the child saves");
    std::thread::sleep(begin.elapsed().mul_f64(2.0 * share));
    child.kill().unwrap();
    let last = saved.last().unwrap_or(first);
    child.wait().unwrap();
    last
}

#[test]
fn kill_minus_9_at_any_moment_leaves_a_whole_latest_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let (mut n_cut_short, mut was_published) = (0, false);
    // Enough rounds that some kills fall into a save and one after a model is published; more of them on a machine where that is rare.
    for round in 0..200u64 {
        let acknowledged = save_and_kill(&out, (round * 7919 % 20_000) as f64 / 20_000.0);
        let partial = fs::read_dir(out.join("checkpoints"))
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".writing-"));
        n_cut_short += usize::from(partial);
        let reader = CheckpointFolder::open(&out).unwrap();
        let (latest, warnings) = reader.latest(Some("job")).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let step = latest.state.step;
        assert!(step >= acknowledged, "step {acknowledged} was saved, {step} is there");
        assert_eq!(latest, checkpoint(step));
        let published = reader.published().unwrap();
        assert!(published.is_some() || !was_published, "the published model went away");
        was_published |= published.is_some();
        if n_cut_short >= 5 && round >= 20 && was_published {
            break;
        }
    }
    assert!(was_published);
    assert!(n_cut_short >= 5, "only {n_cut_short} of 200 kills fell into a save");
}
