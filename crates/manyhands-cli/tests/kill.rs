//! Trainings that are killed or interrupted, and resumed: they end in the bytes of one that was left alone.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod scene;

use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use scene::{JOB, Outcome, Scene, table};

/// A job long enough to be hit: some seconds, with checkpoints all the time.
fn long_scene() -> Scene {
    let scene = Scene::empty();
    scene.write("train.csv", table(20_000));
    let layers = ("\"dense 16 relu\"", "\"dense 96 relu\", \"dense 96 relu\"");
    let job = JOB.replace(layers.0, layers.1).replace("epochs = 10", "epochs = 4");
    scene.write("job.toml", job + "\n[output]\ncheckpoint_seconds = 0.05\n");
    scene
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
    assert!(status.success());
}

/// The step of the newest checkpoint that has got its name: the folder in which the next one is written has all its files before that.
fn newest_checkpoint(scene: &Scene, out: &str) -> Option<u64> {
    let step = |file: &String| {
        let name = file.strip_prefix("checkpoints/step-")?;
        name.split('/').next()?.parse().ok()
    };
    scene.files(out).iter().filter_map(step).max()
}

/// Waits until the first checkpoint is there; says whether the run was still going.
fn wait_for_checkpoint(scene: &Scene, out: &str, child: &mut Child) -> bool {
    wait_for_step(scene, out, child, 0)
}

/// Waits until there is a checkpoint of this step or a later one; says whether the run was still going.
fn wait_for_step(scene: &Scene, out: &str, child: &mut Child, step: u64) -> bool {
    let patience = Instant::now();
    while newest_checkpoint(scene, out).is_none_or(|newest| newest < step) {
        assert!(patience.elapsed() < Duration::from_secs(120), "no checkpoint of step {step}");
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.try_wait().unwrap().is_none()
}

/// A number that differs from run to run, below a limit. It is told when a test fails.
fn chance(limit: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (u64::from(now.subsec_nanos()) / 1000).wrapping_mul(2_654_435_761) % limit
}

#[test]
fn killed_at_any_moment_and_resumed_with_other_workers_the_bytes_are_the_same() {
    let scene = long_scene();
    scene.succeed(&["train", "job.toml", "--out", "calm", "--workers", "1", "--quiet"]);
    let n_steps = newest_checkpoint(&scene, "calm").unwrap();
    let calm = scene.read("calm/model.safetensors");
    let mut n_kills = 0;
    for round in 0..4 {
        let out = format!("killed{round}");
        let train = ["train", "job.toml", "--out", &out, "--workers", "2", "--quiet"];
        let mut child = scene.start(&train);
        let mut workers = 1;
        // Several kills in a row: the resumed run is killed as well.
        for _ in 0..3 {
            // By steps, not by the clock: half of what was left of the run is still to come, however busy the machine is.
            let before = newest_checkpoint(&scene, &out).unwrap_or(0);
            let step = before + chance((n_steps - before) / 2 + 1);
            if !wait_for_step(&scene, &out, &mut child, step) {
                break;
            }
            std::thread::sleep(Duration::from_millis(chance(20)));
            if child.try_wait().unwrap().is_none() {
                n_kills += 1;
            }
            signal_if_running(&mut child);
            child.wait().unwrap();
            workers = workers % 3 + 1;
            let workers = workers.to_string();
            child = scene.start(&["resume", &out, "--workers", &workers, "--quiet"]);
        }
        let outcome: Outcome = child.wait_with_output().unwrap().into();
        // A run that ended before it was killed has nothing to resume, which is no failure of resuming.
        if outcome.code != Some(0) {
            assert!(scene.path(&format!("{out}/report.json")).exists(), "{}", outcome.stderr);
        }
        let killed = scene.read(&format!("{out}/model.safetensors"));
        assert!(calm == killed, "round {round} of {n_kills} kills ended in other bytes");
        assert_eq!(scene.half_written(), Vec::<String>::new());
    }
    assert!(n_kills > 0, "no run was hit");
}

fn signal_if_running(child: &mut Child) {
    if child.try_wait().unwrap().is_none() {
        child.kill().unwrap();
    }
}

#[test]
fn an_interrupted_training_says_how_to_go_on() {
    for name in ["INT", "TERM"] {
        let scene = long_scene();
        scene.succeed(&["train", "job.toml", "--out", "calm", "--quiet"]);
        let mut child = scene.start(&["train", "job.toml", "--out", "out", "--workers", "1"]);
        assert!(wait_for_checkpoint(&scene, "out", &mut child), "it was over too soon");
        signal(&child, name);
        let outcome: Outcome = child.wait_with_output().unwrap().into();
        assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
        assert!(outcome.sentence().contains("manyhands resume out"), "{}", outcome.stderr);
        assert!(!scene.path("out/report.json").exists(), "it is not finished");
        assert_eq!(scene.half_written(), Vec::<String>::new());
        scene.succeed(&["resume", "out", "--workers", "2", "--quiet"]);
        assert!(scene.read("calm/model.safetensors") == scene.read("out/model.safetensors"));
        let report = scene.json("out/report.json");
        assert_eq!(report["metrics"]["test"], scene.json("calm/report.json")["metrics"]["test"]);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let scene = long_scene();
    let mut child = scene.start(&["train", "job.toml", "--out", "out"]);
    assert!(wait_for_checkpoint(&scene, "out", &mut child), "it was over too soon");
    signal(&child, "INT");
    signal_if_alive(&mut child, "INT");
    let outcome: Outcome = child.wait_with_output().unwrap().into();
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    scene.succeed(&["resume", "out", "--quiet"]);
}

fn signal_if_alive(child: &mut Child, name: &str) {
    if child.try_wait().unwrap().is_none() {
        // It may end in between, and then there is nothing to signal.
        let _ = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    }
}
